"""`partition`: what leaves the loop, on the bodies of ALGORITHMS.md, section 1."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from rewriter import optimize
from rewriter.partition import Prices, partition
from tests.helpers import assert_equivalent, random
from tests.rewriter.bodies import graph_of, partitions

H = 128
X = random(50, H)
W4, U4 = random(4, H, H, seed=1) / 8, random(4, H, H, seed=2) / 8
V = random(H, 10, seed=3)


def names(part, where):
    """Count the primitives in the residual scans or in the batched stages."""
    eqns = (part.dependence.nodes[v].eqn for v in where)
    return Counter(e.primitive.name for e in eqns if e is not None)


def dots(part):
    """Return the numbers of dots in the scans and of those that are only batched."""
    batched = [v for v in part.in_batch if v not in part.in_scan]
    return (
        names(part, part.in_scan)["dot_general"],
        names(part, batched)["dot_general"],
    )


def stored_shapes(part):
    return sorted(v.aval.shape for v in part.stored)


def lstm(w, u, v, x):
    def step(c, x):
        h, cell = c
        g = [jax.nn.sigmoid(x @ w[i] + h @ u[i]) for i in range(3)]
        cell = g[0] * cell + g[1] * jnp.tanh(x @ w[3] + h @ u[3])
        h = g[2] * jnp.tanh(cell)
        return (h, cell), jax.nn.softmax(h @ v)

    return lax.scan(step, (jnp.zeros(H), jnp.zeros(H)), x)[1]


def two_layers(w, x):
    def step(c, x):
        a = jnp.tanh(x @ w[0] + c[0] @ w[1])
        b = jnp.tanh(a @ w[2] + c[1] @ w[3])
        return (a, b), (b * 2 + 1).sum()

    return lax.scan(step, (0 * x[0], 0 * x[0]), x)[1]


def cheap(x):
    step = lambda h, x: (jnp.tanh(h * 0.9 + jnp.exp(x) * 2), h.sum())  # noqa: E731
    return lax.scan(step, jnp.zeros(H), x)[1]


def wide(w, x):
    def step(h, x):
        return jnp.tanh(h + (x @ w)[:, None] * jnp.ones((1, H))), None

    return lax.scan(step, jnp.zeros((8, H)), x)[0]


def draws(key, x):
    def step(c, x):
        key, h = c
        key, now = jax.random.split(key)
        return (key, 0.9 * h + jax.random.normal(now, (H,)) * x), None

    return lax.scan(step, (key, jnp.zeros(H)), x)[0][1]


def backward(u, z):
    def loss(u, z):
        def step(h, z):
            h = jnp.tanh(h @ u + z)
            return h, h

        return (lax.scan(step, jnp.zeros(H), z)[1] ** 2).sum()

    return jax.grad(loss, (0, 1))(u, z)


def test_lstm():
    """The four input products and the head are batched; of the rest, `h` is stored."""
    (part,) = partitions(lstm, W4, U4, V, X)
    assert part.scans == 1
    assert dots(part) == (4, 5)
    assert stored_shapes(part).count((H,)) == 5
    made = [part.dependence.nodes[v] for v in part.in_scan]
    from_scan = [x for n in made for x in n.defines if x in part.stored]
    assert [v.aval.shape for v in from_scan] == [(H,)], from_scan


@pytest.mark.parametrize("width", [128, 256])
def test_two_layers(width):
    """Two residual scans with a batch between them."""
    (part,) = partitions(two_layers, random(4, width, width), random(50, width))
    assert part.scans == 2
    assert dots(part) == (2, 2)
    assert names(part, part.batch_nodes(0))["dot_general"] == 1
    assert names(part, part.batch_nodes(1))["dot_general"] == 1
    assert names(part, part.scan_nodes(1))["dot_general"] == 1
    assert names(part, part.scan_nodes(2))["dot_general"] == 1


def test_cheap():
    """Nothing pays: the loop stays."""
    assert partitions(cheap, X) == []
    assert optimize(cheap).explain(X).verdicts[0].outcome == "kept"


def test_wide():
    """The 8 results of the dot are stored, the 8 x 128 are recomputed."""
    (part,) = partitions(wide, random(4096, 8), random(400, 4096))
    assert stored_shapes(part) == [(8,)]
    assert names(part, part.in_scan)["mul"] == 1
    assert dots(part) == (0, 1)


def test_draws():
    """The keys are made in the loop, the draws are batched."""
    (part,) = partitions(draws, jax.random.PRNGKey(0), X)
    inside, batched = names(part, part.in_scan), names(part, part.in_batch)
    assert inside["erf_inv"] == 0
    assert batched["erf_inv"] == 1
    assert inside["random_bits"] == 0
    assert batched["random_bits"] == 1
    assert inside["random_split"] == 1


def test_backward():
    """Of the backward loop only dz is stored; dW is contracted after it."""
    part = partitions(backward, random(H, H) / 16, X)[-1]
    assert part.scans == 1
    assert dots(part) == (1, 1)
    reductions = [n for n in part.dependence.nodes if n.reduction]
    assert len(reductions) == 1
    assert reductions[0].id in part.in_batch
    assert set(stored_shapes(part)) == {(H,)}
    assert len(part.stored) == 1
    report = optimize(backward).explain(random(H, H) / 16, X)
    residual = report.after.loops[-1]
    carried = [v.aval.shape for v in residual.eqn.outvars]
    assert (H, H) not in carried, report.after.outline()


PROGRAMS = {
    "lstm": (lstm, W4, U4, V, X[:20]),
    "two_layers": (two_layers, W4, X[:20]),
    "wide": (wide, random(H, 8), X[:20]),
    "draws": (draws, jax.random.PRNGKey(0), X[:20]),
    "backward": (backward, random(H, H) / 16, X[:20]),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_values(case):
    fn, *args = PROGRAMS[case]
    assert_equivalent(fn, *args, oracle=case != "draws", ulps=64)


# ------------------------------------------------------------ given prices


def _partition(fn, *args, loop, batch, store=0.0, scan=10.0):
    """Partition with prices by primitive name."""
    dep = graph_of(fn, *args)

    def price(table):
        return tuple(
            float(table.get(n.eqn.primitive.name, 0)) if n.eqn is not None else 0.0
            for n in dep.nodes
        )

    return partition(
        dep, Prices(price(loop), price(batch), lambda x: store, lambda x: 0.0, scan)
    )


def chain(x):
    """Two hoistable operations, a recurrence, two that may sink."""

    def step(c, r):
        c = jnp.tanh(c + jnp.cos(jnp.exp(r)))
        return c, jnp.log(jnp.sin(c))

    return lax.scan(step, x[0], x)


DEAR = {"cos": 50, "exp": 50, "sin": 50, "log": 50}


def test_moves_what_pays():
    part = _partition(chain, X, loop=DEAR, batch={}, store=1)
    assert names(part, part.in_scan) == {"add": 1, "tanh": 1}
    assert names(part, part.in_batch) == {"cos": 1, "exp": 1, "sin": 1, "log": 1}
    assert part.cost == pytest.approx(12)
    assert part.loop_cost == pytest.approx(210)


def test_keeps_what_costs_more_to_store():
    part = _partition(chain, X, loop=DEAR, batch=DEAR, store=1)
    assert names(part, part.in_scan)["cos"] == 1
    assert names(part, part.in_scan)["sin"] == 1


def test_recomputes_what_is_cheap():
    """`exp` is read on both sides: computing it twice beats storing it."""

    def f(x):
        def step(c, r):
            e = jnp.exp(r)
            return jnp.tanh(c + e * jnp.sum(jnp.cos(e))), None

        return lax.scan(step, x[0], x)

    loop = {"cos": 500, "exp": 1}
    part = _partition(f, X, loop=loop, batch={"exp": 1}, store=20)
    twice = [v for v in part.in_batch if v in part.in_scan]
    assert names(part, twice)["exp"] == 1
    assert names(part, part.in_scan)["cos"] == 0


def test_no_recurrence():
    """A map needs no scan."""
    part = _partition(lambda x: lax.map(jnp.sin, x), X, loop=DEAR, batch={})
    assert part.is_map
    assert part.in_scan == {}


def test_what_is_computed():
    """Every node that is read is computed before it is read."""
    for case in PROGRAMS:
        fn, *args = PROGRAMS[case]
        for part in partitions(fn, *args):
            dep = part.dependence
            made = {x for v in part.in_batch for x in dep.nodes[v].defines}
            made |= {x for v in part.in_scan for x in dep.nodes[v].defines}
            for v in (*part.in_batch, *part.in_scan):
                for x in dep.nodes[v].reads:
                    assert x in made or x not in dep.made
