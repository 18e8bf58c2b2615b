"""`dependence` and `recurrence`: one body per class, and one near miss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import random
from tests.rewriter.bodies import body_of, graph_of

X = random(12, 4)


def kinds(fn, *args, **options):
    """Return what each carry of a body is, in order."""
    dep = graph_of(fn, *args, **options)
    loop = dep.loop
    reductions = {n.reduction.carry.var: n.reduction for n in dep.nodes if n.reduction}
    delays = {n.carry.var for n in dep.delays}
    found = []
    for carry in loop.carries:
        if carry.var in reductions:
            found.append(reductions[carry.var].op.name)
        else:
            found.append("delay" if carry.var in delays else "opaque")
    return [*found, *("counter" for _ in loop.counters)]


def _carried(step, start=None):
    """Return a loop over rows `r` with carries `step(carries, r)`."""

    def f(x):
        first = (x[0],) if start is None else start(x)
        return lax.scan(lambda c, r: step(c, r), first, x)

    return f


TWO = lambda x: (x[0], x[1])  # noqa: E731
CLASSES = {
    "sum": (lambda c, r: ((c[0] + r,), r), None, ["sum"]),
    "sum_twice": (lambda c, r: ((c[0] + r - 2 * r,), r), None, ["sum"]),
    "prod": (lambda c, r: ((r * c[0],), r), None, ["prod"]),
    "max": (lambda c, r: ((jnp.maximum(c[0], r),), r), None, ["max"]),
    "min": (lambda c, r: ((jnp.minimum(r, c[0]),), r), None, ["min"]),
    "delay": (lambda c, r: ((r * 2,), c[0]), None, ["delay"]),
    "delay_chain": (lambda c, r: ((r, c[0]), c[1]), TWO, ["delay", "delay"]),
    "sum_of_a_delay": (lambda c, r: ((r, c[1] + c[0]), r), TWO, ["delay", "sum"]),
    "opaque": (lambda c, r: ((jnp.sin(c[0] + r),), r), None, ["opaque"]),
    "swap": (lambda c, r: ((c[1], c[0]), c[0]), TWO, ["opaque", "opaque"]),
    "cycle": (lambda c, r: ((c[1] + r, c[0] * r), r), TWO, ["opaque", "opaque"]),
    "delay_of_opaque": (
        lambda c, r: ((jnp.sin(c[0] + r), c[0]), c[1]),
        TWO,
        ["opaque", "delay"],
    ),
    "reduction_of_opaque": (
        lambda c, r: ((jnp.sin(c[0] + r), c[1] + c[0] * r), r),
        TWO,
        ["opaque", "sum"],
    ),
    "counter": (
        lambda c, r: ((c[0] + 2, c[1] + r * c[0]), r),
        lambda x: (0, x[0]),
        ["sum", "counter"],
    ),
}


@pytest.mark.parametrize("case", CLASSES)
def test_classes(case):
    step, start, want = CLASSES[case]
    assert kinds(_carried(step, start), X) == want


NEAR_MISSES = {
    "sum_that_is_an_output": lambda c, r: ((c[0] + r,), c[0] + r),
    "old_value_is_an_output": lambda c, r: ((c[0] + r,), c[0]),
    "carry_on_the_right": lambda c, r: ((r - c[0],), r),
    "carry_twice": lambda c, r: ((c[0] + c[0] + r,), r),
    "max_of_the_carry_twice": lambda c, r: (
        (jnp.maximum(jnp.maximum(c[0], r), c[0] * 0.5),),
        r,
    ),
    "term_reads_the_carry": lambda c, r: ((c[0] + jnp.sin(c[0]) * r,), r),
    "two_operations": lambda c, r: (((c[0] + r) * 0.5,), r),
    "divided": lambda c, r: ((c[0] / (1 + r * r),), r),
    "rounded": lambda c, r: (
        ((c[0] + r).astype(jnp.bfloat16).astype(jnp.float32),),
        r,
    ),
    "replaced_sometimes": lambda c, r: ((jnp.where(r > 0, c[0] + r, c[0]),), r),
    "through_a_reverse": lambda c, r: ((c[0][::-1] + r,), r),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_misses(case):
    assert kinds(_carried(NEAR_MISSES[case]), X) == ["opaque"]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_short_floats_stay(dtype):
    """Order matters to the user where a sum may stall; never to a maximum."""
    x = jnp.asarray(X, dtype)
    assert kinds(_carried(lambda c, r: ((c[0] + r,), r)), x) == ["opaque"]
    assert kinds(_carried(lambda c, r: ((jnp.maximum(c[0], r),), r)), x) == ["max"]


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, bool])
def test_strict(dtype):
    """Under strict only exact operations may change their order."""
    x = jnp.asarray(X > 0, dtype)
    combine = jnp.logical_or if dtype is bool else jnp.add
    step = lambda c, r: ((combine(c[0], r),), r)  # noqa: E731
    assert kinds(_carried(step), x, numerics="strict") != ["opaque"]


def test_strict_floats():
    """A maximum is exact, a sum is not."""
    total = lambda c, r: ((c[0] + r,), r)  # noqa: E731
    largest = lambda c, r: ((jnp.maximum(c[0], r),), r)  # noqa: E731
    assert kinds(_carried(total), X, numerics="strict") == ["opaque"]
    assert kinds(_carried(largest), X, numerics="strict") == ["max"]


def test_negative_terms():
    """A subtraction is a sum of a negative term, in the order of the body."""
    dep = graph_of(_carried(lambda c, r: ((c[0] - r + r * r,), r)), X)
    (node,) = [n for n in dep.nodes if n.reduction]
    assert [t.negative for t in node.reduction.terms] == [True, False]


def test_order_and_components():
    """Every dependence goes forward, and a component stays together."""

    def f(x):
        def step(c, r):
            a, b, s = c
            v = jnp.sin(a + r)
            w = jnp.cos(b + v)
            return (v * 2, w, s + w), (w - r, v)

        return lax.scan(step, (x[0], x[1], x[2]), x)

    dep = graph_of(f, X)
    place = {v: k for k, v in enumerate(dep.order)}
    assert sorted(place) == list(range(len(dep.nodes)))
    for v, before in enumerate(dep.predecessors):
        for p in before:
            same = dep.component[p] == dep.component[v]
            assert same or place[p] < place[v], (p, v)
    assert len(dep.sequential) == 2
    assert [n.carry.var for n in dep.recurrences] == [
        c.var for c in dep.loop.carries[:2]
    ]


def test_effects_are_one_component():
    """Callbacks with effects keep their order across steps."""

    def f(x):
        def step(c, r):
            jax.debug.callback(lambda v: None, r)
            jax.debug.callback(lambda v: None, r * 2)
            return c, jnp.sin(r)

        return lax.scan(step, 0.0, x)

    dep = graph_of(f, X)
    effectful = [n.id for n in dep.nodes if n.eqn is not None and n.eqn.effects]
    assert len(effectful) == 2
    assert len({dep.component[v] for v in effectful}) == 1
    assert all(dep.is_core(v) for v in effectful)


def test_forced():
    """A forced equation is sequential though no carry runs through it."""
    from rewriter.dependence import dependence_graph

    loop = body_of(lambda x: lax.map(jnp.sin, x), X)
    dep = dependence_graph(loop, "reassociate", {0: "for a reason"})
    assert dep.forced == {0: "for a reason"}
    assert dep.is_core(0)
    assert not dependence_graph(loop, "reassociate", {}).sequential


def test_random_bodies_against_networkx():
    """Components that hold a back edge, found by another library."""
    import networkx as nx

    rng = np.random.default_rng(0)
    for _ in range(10):
        wiring = rng.integers(0, 100, (3, 3))

        def f(x, wiring=wiring):
            def step(c, r):
                values = [*c, r]
                for a, b, op in wiring:
                    u, v = values[a % len(values)], values[b % len(values)]
                    values.append(jnp.sin(u) * v if op % 2 else u / (1 + v * v))
                return tuple(values[k] for k in (5, 6, wiring[0, 0] % 7)), values[6]

            return lax.scan(step, (x[0], x[1], x[2]), x)

        dep = graph_of(f, X)
        g = nx.DiGraph()
        g.add_nodes_from(range(len(dep.nodes)))
        g.add_edges_from((p, v) for v, ps in enumerate(dep.predecessors) for p in ps)
        loops = {
            frozenset(c)
            for c in nx.strongly_connected_components(g)
            if len(c) > 1 or any(g.has_edge(v, v) for v in c)
        }
        mine = {
            frozenset(v for v in range(len(dep.nodes)) if dep.component[v] == c)
            for c in dep.sequential
        }
        assert mine == loops
