"""`loop-distribution`: what is batched, what stays, and why."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, codes, in_loops

NAME = "loop-distribution"
W, X, H = random(64, 64, seed=1), random(100, 64), random(64, seed=2)
U = W / 8
maps, recurrences, kept = Cases(), Cases(), Cases()


@maps.add(W, X, grad=True, oracle=True)
def _matrix_times_rows(w, x):
    return lax.map(lambda r: jnp.tanh(w @ r), x)


@maps.add(W, X)
def _reversed(w, x):
    return lax.scan(lambda c, r: (c, jnp.tanh(w @ r)), None, x, reverse=True)[1]


@maps.add(W, X)
def _constant_rows_too(w, x):
    return lax.map(lambda r: (jnp.tanh(w @ r), jnp.ones(2), 3), x)


@maps.add(jax.random.key(0), X, oracle=False)
def _draws(key, x):
    keys = jax.random.split(key, 100)
    return lax.map(lambda k: jax.random.normal(k, (64,)), keys)


@maps.add(W, X)
def _delayed_rows(w, x):
    return lax.scan(lambda c, r: (r, jnp.tanh(w @ (r - c))), x[3], x)


@maps.add(W, X)
def _delay_by_two_reversed(w, x):
    def step(c, r):
        return (r, c[0]), jnp.tanh(w @ (r - 2 * c[0] + c[1]))

    return lax.scan(step, (x[0], x[1]), x, reverse=True)


@maps.add(W, X)
def _cheap_choice(w, x):
    def row(r):
        return lax.cond(r[0] > 0, lambda v: v + 1, lambda v: v - 1, jnp.tanh(w @ r))

    return lax.map(row, x)


@maps.add(U, X)
def _inner_loop(u, x):
    return lax.map(lambda r: lax.fori_loop(0, 4, lambda i, h: jnp.tanh(u @ h), r), x)


def _accumulated(combine, start=0.0, rows=lambda v: v, dtype=None):
    def f(w, x):
        step = lambda c, r: (combine(c, rows(jnp.tanh(w @ r))), None)  # noqa: E731
        return lax.scan(step, jnp.full(64, start, dtype or x.dtype), x)[0]

    return f


def _bits(v):
    return (v > 0).astype(jnp.int32) * 5


REDUCTIONS = {
    "sum": (lambda c, v: c + v,),
    "sum_on_the_right": (lambda c, v: v + c,),
    "difference": (lambda c, v: c - v,),
    "several_terms": (lambda c, v: c + v - v * v + 1.0,),
    "product": (lambda c, v: c * (1 + 0.01 * v), 1.0),
    "max": (jnp.maximum, -9.0),
    "min": (jnp.minimum, 9.0),
    "integer_sum": (lambda c, v: c + v, 0, _bits, jnp.int32),
    "and": (lambda c, v: c & v, 7, _bits, jnp.int32),
    "or": (lambda c, v: c | v, 0, _bits, jnp.int32),
    "xor": (lambda c, v: c ^ v, 3, _bits, jnp.int32),
    "any": (lambda c, v: c | v, False, lambda v: v > 0.9, bool),
}
EXACT = {"max", "min", "integer_sum", "and", "or", "xor", "any"}


@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions(case):
    f = _accumulated(*REDUCTIONS[case])
    exact = case in EXACT
    assert_fires(NAME, f, (W, X), loops=0, outcome="batched", oracle=not exact)


@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions_strict(case):
    """Only sums and products of floats depend on their order."""
    report = optimize(_accumulated(*REDUCTIONS[case]), numerics="strict").explain(W, X)
    assert len(report.after.loops) == (case not in EXACT), report.after.outline()


@recurrences.add(U, X, grad=True)
def _input_product(u, x):
    return lax.scan(lambda h, r: (jnp.tanh(u @ h + u @ r),) * 2, x[0], x)


@recurrences.add(U, random(400, len(U), seed=3))
def _head(u, x):
    def step(h, r):
        h = jnp.tanh(u @ h + r)
        return h, jax.nn.softmax(u @ h)

    return lax.scan(step, x[0], x, reverse=True)


# A carry that is no reduction stays in a scan; the dot leaves it.


@recurrences.add(W, X)
def _sum_that_is_an_output(w, x):
    def step(c, r):
        c = c + jnp.tanh(w @ r)
        return c, c

    return lax.scan(step, jnp.zeros(64), x)


@recurrences.add(W, X)
def _sum_read_elsewhere(w, x):
    def step(c, r):
        v = jnp.tanh(w @ r)
        return c + v, v * c.sum()

    return lax.scan(step, jnp.zeros(64), x)


@recurrences.add(W, X)
def _carry_on_the_right_of_a_subtraction(w, x):
    return lax.scan(lambda c, r: (jnp.tanh(w @ r) - c, None), jnp.zeros(64), x)[0]


@recurrences.add(W, X)
def _max_of_the_carry_twice(w, x):
    def step(c, r):
        return jnp.maximum(jnp.maximum(c, jnp.tanh(w @ r)), c * 0.5), None

    return lax.scan(step, jnp.zeros(64), x)[0]


@recurrences.add(W, X)
def _sum_and_product(w, x):
    return lax.scan(lambda c, r: ((c + jnp.tanh(w @ r)) * 0.9, None), 0 * x[0], x)[0]


@recurrences.add(W, X, oracle=False, ulps=64)
def _float16_sum(w, x):
    def step(c, r):
        return c + jnp.tanh(w @ r).astype(jnp.float16), None

    return lax.scan(step, jnp.zeros(64, jnp.float16), x)[0]


@recurrences.add(W, X, numerics="strict")
def _strict_sum(w, x):
    return lax.scan(lambda c, r: (c + jnp.tanh(w @ r), None), jnp.zeros(64), x)[0]


@recurrences.add(W, X, oracle=False, ulps=64)
def _kahan(w, x):
    def step(c, r):
        total, lost = c
        y = jnp.tanh(w @ r) - lost
        t = total + y
        return (t, (t - total) - y), None

    return lax.scan(step, (jnp.zeros(64), jnp.zeros(64)), x)[0][0]


@kept.add(X, code="opaque-recurrence")
def _cheap_recurrence(x):
    return lax.scan(lambda c, r: (jnp.sin(c + r), None), x[0], x)[0]


@kept.add(U, X, code="opaque-recurrence")
def _only_its_own_product(u, x):
    return lax.scan(lambda c, r: (jnp.tanh(u @ c + r), c), x[0], x)


@kept.add(W, X[:1], code="trip-count")
def _one_step(w, x):
    return lax.map(lambda r: jnp.tanh(w @ r), x)


@kept.add(W, X[:0], code="trip-count")
def _no_step(w, x):
    return lax.map(lambda r: jnp.tanh(w @ r), x)


@kept.add(random(40, 64), code="in-order", oracle=False)
def _dear_branch(x):
    def row(r):
        a = r.reshape(8, 8)
        return lax.cond(r[0] > 3, lambda a: jnp.linalg.inv(a), lambda a: a, a)

    return lax.map(row, x)


@kept.add(X, code="in-order")
def _while_of_unknown_trip(x):
    def row(r):
        return lax.while_loop(lambda v: jnp.sum(v * v) > 1, lambda v: v * 0.7, r)

    return lax.map(row, x)


@kept.add(W, X, code="memory-budget", memory_budget=100)
def _step_over_the_budget(w, x):
    return lax.map(lambda r: jnp.tanh(w @ r), x)


@pytest.mark.parametrize(("fn", "args", "options"), maps)
def test_maps(fn, args, options):
    assert_fires(NAME, fn, args, outcome="batched", **options)


@pytest.mark.parametrize(("fn", "args", "options"), recurrences)
def test_recurrences(fn, args, options):
    """One residual scan is left, with one product less in it."""
    report = assert_fires(
        NAME,
        fn,
        args,
        outcome="distributed|sectioned",
        **{"oracle": True} | options,
    )
    assert sum(not info.emitted for info in report.before.loops) == 1
    inside = sum(e.primitive.name == "dot_general" for e in in_loops(report))
    assert inside < report.before.count("dot_general")


@pytest.mark.parametrize(("fn", "args", "options"), kept)
def test_kept(fn, args, options):
    report = assert_declines(NAME, fn, args, outcome="kept", **options)
    assert report.verdicts[0].code == f"{NAME}/{options['code']}"


def test_numbers_of_the_remark():
    """The verdict carries bytes; what is not faster says how slow it is."""
    report = optimize(_input_product).explain(U, X)
    assert report.verdicts[0].bytes_at_once == 100 * 64 * 4
    f = lambda x: lax.map(lambda r: r * 2.0, x)  # noqa: E731
    remark = next(r for r in optimize(f).explain(H).remarks if r.code[:4] == "loop")
    assert remark.code in (f"{NAME}/batched", f"{NAME}/unprofitable")
    assert {"before", "after"} <= set(remark.args)


@pytest.mark.parametrize("rows", [640, 641, 79])
def test_blocks(rows):
    """Rows that do not fit in the budget are batched in blocks, in any number."""
    x = random(rows, 64)
    f = lambda w, x: lax.map(lambda r: jnp.tanh(w @ r)[:2], x)  # noqa: E731
    options = {"oracle": True, "memory_budget": 20_000}
    report = assert_fires(NAME, f, (W, x), "blocked", loops=1, **options)
    assert report.after.loops[0].emitted
    assert 0 < report.verdicts[0].bytes_at_once <= 20_000


@pytest.mark.parametrize("rows", [640, 641])
def test_blocks_with_a_state(rows):
    """A sum and a delay go from block to block; the last one is shorter."""
    x = random(rows, 64)

    def f(w, x):
        def step(c, r):
            total, before = c
            v = jnp.tanh(w @ r)
            return (total + v, r), (v - before)[:2]

        return lax.scan(step, (x[0], x[1]), x, reverse=rows % 2)

    options = {"oracle": True, "memory_budget": 30_000}
    assert_fires(NAME, f, (W, x), "blocked", loops=1, **options)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [4096, 4100])
def test_sections(steps, reverse):
    """A residual scan in sections: state goes from one to the next."""
    x = random(steps, 64)

    def f(u, x):
        def step(h, r):
            h = jnp.tanh(u @ h + jnp.concatenate([u @ r, u.T @ r, r]).reshape(3, 64)[0])
            return h, h[:3]

        return lax.scan(step, x[0], x, reverse=reverse)

    options = {"oracle": True, "memory_budget": 100_000}
    report = assert_fires(NAME, f, (U, x), "sectioned", **options)
    assert {i.emitted for i in report.after.loops} == {True}
    assert report.verdicts[0].bytes_at_once <= 100_000


def test_symbolic_trip_count():
    """A length that is a symbol has no cost."""
    from jax import export

    shape = export.symbolic_shape("n, 64")
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    report = optimize(_matrix_times_rows).explain(
        jax.ShapeDtypeStruct((64, 64), jnp.float32), x
    )
    assert f"{NAME}/symbolic-trip-count" in codes(report)


UNBATCHABLE = {
    "debug": lambda r: jax.debug.callback(lambda v: None, r[0]),
    "callback": lambda r: jax.pure_callback(
        lambda v: np.asarray(v) * 2, r, r, vmap_method="sequential"
    ),
    "rbg": lambda r: jax.random.normal(
        jax.random.wrap_key_data(
            jnp.arange(4, dtype=jnp.uint32) + (r[0] > 0).astype(jnp.uint32), impl="rbg"
        )
    ),
}


@pytest.mark.parametrize("case", UNBATCHABLE)
def test_in_order(case):
    """Effects, callbacks and rbg draws stay in the loop; the product leaves it."""

    def f(w, x):
        def row(r):
            v = jnp.tanh(w @ r)
            out = UNBATCHABLE[case](v)
            return v if out is None else v + out

        return lax.map(row, x)

    assert_fires(NAME, f, (W, X), outcome="distributed|sectioned", loops=1)


def test_a_map_inside_a_loop_that_stays():
    """The inner loop is batched for good, whatever becomes of the outer one."""

    def f(w, x):
        def step(h, _):
            rows = lax.map(lambda r: jnp.tanh(w @ (r + h)), x)
            return rows.mean(axis=0), None

        return lax.scan(step, jnp.zeros(x.shape[1]), None, length=20)[0]

    w, x = random(64, 64, scale=0.1), random(100, 64, seed=1)
    report = optimize(f).explain(w, x)
    assert [v.outcome for v in report.verdicts] == ["kept", "batched"]
    assert report.after.count("scan") == 1
    np.testing.assert_allclose(optimize(f)(w, x), jax.jit(f)(w, x), rtol=1e-4)
