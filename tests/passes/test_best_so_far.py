"""`best-so-far`: a carried best value with what belongs to it becomes one search."""

import itertools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.fuzz import eager_rewriting
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, fired, report_of

NAME = "best-so-far"
N = 60
V, X = np.round(random(N) * 3), random(N, 6, seed=1)
TESTS = {f.__name__: f for f in (operator.gt, operator.ge, operator.lt, operator.le)}
nan, inf = np.nan, np.inf
fires, declines = Cases(), Cases()


@pytest.fixture(autouse=True)
def eager():
    """Whatever may be rewritten is, however small."""
    with eager_rewriting():
        yield


def search(test, keep=jnp.where, reverse=False):
    """Return a scan that keeps the best value, its row and its number."""

    def f(v, x, first):
        def step(c, s):
            (b, row, i, k), (value, here) = c, s
            p = test(value, b)
            best = jnp.where(p, value, b) if keep is jnp.where else keep(b, value)
            return (best, jnp.where(p, here, row), jnp.where(p, k, i), k + 1), None

        start = first, jnp.zeros_like(x[0]), jnp.full(first.shape, -1), 0
        return lax.scan(step, start, (v, x), reverse=reverse)[0][:3]

    return f


# ------------------------------------------------------------ every kind of value


def _with(**places):
    v = V.copy()
    for at, value in places.items():
        v[int(at[1:]) * (-1 if at[0] == "m" else 1)] = value
    return v


COLUMNS = [
    V,
    _with(p7=nan),
    _with(p0=nan),
    _with(m1=nan),
    _with(p3=inf, p7=-inf, p20=inf),
    _with(p2=nan, p3=inf),
    _with(p3=inf, p20=nan),
    np.where(np.arange(N) % 2, 0.0, -0.0),
    np.where(np.arange(N) % 2, -0.0, 0.0),
    np.full(N, nan),
    np.full(N, inf),
    np.full(N, -inf),
    np.full(N, 5.0),
    np.sort(V),
    np.sort(V)[::-1],
]
FIRST = [-1.0, nan, inf, -inf, 0.0, -0.0, 100.0, 5.0]
KINDS = [(n, jnp.where) for n in TESTS]
KINDS += [(n, jnp.maximum if n[0] == "g" else jnp.minimum) for n in TESTS]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("test", "keep"), KINDS)
def test_every_kind_of_value(test, keep, reverse):
    """NaN, infinities, ties and zeros at the start, in the middle, at the end."""
    pairs = list(itertools.product(COLUMNS, FIRST))
    v = np.stack([column for column, _ in pairs], 1).astype("f")
    first = np.array([start for _, start in pairs], "f")
    f = search(TESTS[test], keep, reverse)
    _assert_identical(f, (v, random(N, len(pairs)), first), keep is jnp.where)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int32", "uint32", "bool", "float16", "bfloat16"]
)
def test_every_dtype(test, dtype):
    if dtype == "bool":
        v, first = random(N, 4) > 0, np.array([0, 1, 0, 1], bool)
    elif "float" in dtype:
        v, first = jnp.asarray(random(N, 4), dtype), jnp.zeros(4, dtype)
    else:
        ends = np.iinfo(dtype)
        rng = np.random.default_rng(0)
        v = rng.integers(ends.min, ends.max, (N, 4), dtype, endpoint=True)
        v[3, 0], v[5, 1], v[:, 2], v[:, 3] = ends.min, ends.max, ends.min, ends.max
        first = np.array([ends.min, ends.max, ends.min, ends.max], dtype)
    _assert_identical(search(TESTS[test]), (v, random(N, 4), first))


def _assert_identical(f, args, signs=True):
    """Check that the pass fires and every bit is the same (`signs`: of zeros too)."""
    assert fired(report_of(f, args), NAME)
    old, new = jax.jit(f)(*args), optimize(f)(*args)
    for a, b in zip(old, new, strict=True):
        assert a.dtype == b.dtype
        a, b = np.asarray(a.astype("f")), np.asarray(b.astype("f"))
        np.testing.assert_array_equal(a, b)
        if signs:
            np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


# ------------------------------------------------------------ programs that fire


fires.add(V, X, np.zeros(6, "f"))(
    lambda v, x, first: search(operator.gt)(x, x * v[:, None], first)
)
fires.add(V, X, V[0] * 0, numerics="strict")(search(operator.gt))
fires.add(V[:2], X[:2], V[0] * 0)(search(operator.gt))
fires.add(V, X, V[0] * 0, vmap=(0, 0, None))(search(operator.gt))
fires.add(V, X, V[0] - 9, grad=True)(search(operator.ge))
fires.add(V, X, V[0] - 9, grad=True, loops=0)(search(operator.lt))
fires.add(np.float32([1, 3, 3, 2, 3]), X[:5], V[0] - 9, grad=True)(
    search(operator.gt, jnp.maximum)
)


def best(c, value, *rows):
    """Return the next best value and its companions."""
    p = value > c[0]
    olds = zip((value, *rows), c, strict=True)
    return tuple(jnp.where(p, new, old) for new, old in olds)


@fires.add(X, loops=0)
def _plain_numbers(x):
    """The start is a Python number: weak types."""
    step = lambda c, r: (best(c, r[0], r[1]), None)  # noqa: E731
    return lax.scan(step, (-jnp.inf, 0.0), x)[0]


@fires.add(X, loops=0)
def _value_written_three_times(x):
    def step(i, c):
        b, at = c
        at = jnp.where(jnp.sum(x[i] ** 2) > b, i, at)
        return jnp.where(jnp.sum(x[i] ** 2) > b, jnp.sum(x[i] ** 2), b), at

    return lax.fori_loop(0, N, step, (0.0, -1))


@fires.add(X, loops=0)
def _under_a_cond(x):
    def step(c, r):
        return lax.cond(r[0] > c[0], lambda: (r[0], r), lambda: c), None

    return lax.scan(step, (x[0, 0], x[0]), x)[0]


@fires.add(X, loops=0)
def _constant_companion(x):
    step = lambda c, r: (best(c, r[0], 7.0), None)  # noqa: E731
    return lax.scan(step, (0.5, 1.0), x)[0]


@fires.add(X, loops=0)
def _keys(x):
    keys = jax.random.split(jax.random.key(0), N)
    step = lambda c, s: (best(c, s[0][0], s[1]), None)  # noqa: E731
    b, key = lax.scan(step, (-jnp.inf, jax.random.key(1)), (x, keys))[0]
    return b, jax.random.key_data(key)


@fires.add(X, loops=0)
def _largest_and_smallest(x):
    """Two groups in one loop."""

    def step(c, s):
        (v, w), (k, r) = c, s
        p = r[0] < w[0]
        return (best(v, r[0], k), (jnp.where(p, r[0], w[0]), *w[1:])), None

    start = ((-jnp.inf, -1), (jnp.inf,))
    return lax.scan(step, start, (jnp.arange(N), x))[0]


@fires.add(X)
def _beside_a_recurrence(x):
    def step(c, r):
        h, *c = c
        return (jnp.sin(h + r), *best(c, r[0], r)), h[0]

    return lax.scan(step, (x[0], -jnp.inf, x[0]), x)


@fires.add(X.reshape(10, 6, 6), loops=0)
def _inside_a_map(x):
    def inner(rows):
        step = lambda c, r: (best(c, jnp.sum(jnp.sin(r)), r), None)  # noqa: E731
        return lax.scan(step, (-jnp.inf, rows[0]), rows)[0]

    return lax.map(inner, x)


@fires.add(X, loops=0)
def _value_of_constants_too(x):
    step = lambda c, r: (best(c, r @ x[3], jnp.tanh(x @ r)), None)  # noqa: E731
    return lax.scan(step, (x[0, 0], x[:, 0]), x)[0]


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "search", oracle=True, ulps=1, **options)


def test_wide():
    with jax.enable_x64(True):
        args = (V.astype("d"), X.astype("d"), np.float64(-1))
        assert_fires(NAME, search(operator.gt), args, "search", loops=0)


# ------------------------------------------------------------ programs that do not


@declines.add(X, code="none")
def _old_best_is_stacked(x):
    return lax.scan(lambda c, r: (best(c, r[0], r), c[0]), (x[0, 0], x[0]), x)


@declines.add(X, code="none")
def _new_best_is_stacked(x):
    def step(c, r):
        c = best(c, r[0], r)
        return c, c[0]

    return lax.scan(step, (x[0, 0], x[0]), x)


@declines.add(X, code="none")
def _companion_is_stacked(x):
    return lax.scan(lambda c, r: (best(c, r[0], r), c[1]), (x[0, 0], x[0]), x)


@declines.add(X, code="none")
def _best_is_delayed(x):
    step = lambda c, r: ((*best(c[:2], r[0], r), c[0]), None)  # noqa: E731
    return lax.scan(step, (x[0, 0], x[0], x[0, 0]), x)[0]


@declines.add(X, code="none")
def _companion_is_delayed(x):
    step = lambda c, r: ((*best(c[:2], r[0], r), c[1]), None)  # noqa: E731
    return lax.scan(step, (x[0, 0], x[0], x[0]), x)[0]


@declines.add(X, code="none")
def _wins_are_counted(x):
    def step(c, r):
        p = r[0] > c[0]
        return (jnp.where(p, r[0], c[0]), c[1] + p), None

    return lax.scan(step, (x[0, 0], 0), x)[0]


@declines.add(X, code="none")
def _the_second_best_too(x):
    def step(c, r):
        p = r[0] > c[0]
        second = jnp.where(p, c[0], jnp.maximum(c[1], r[0]))
        return (jnp.where(p, r[0], c[0]), second), None

    return lax.scan(step, (x[0, 0], x[0, 0]), x)[0]


@declines.add(X, code="depends")
def _best_state_of_a_recurrence(x):
    def step(c, r):
        s = jnp.sin(c[2] + r)
        return (*best(c[:2], s[0], s), s), None

    return lax.scan(step, (x[0, 0], x[0], x[0]), x)[0]


@declines.add(X, code="none")
def _other_value_is_kept(x):
    def step(c, r):
        p = r[0] > c[0]
        return (jnp.where(p, r[1], c[0]), jnp.where(p, r, c[1])), None

    return lax.scan(step, (x[0, 0], x[0]), x)[0]


@declines.add(X, code="none")
def _compared_along_the_other_axis(x):
    def step(c, r):
        p = jnp.broadcast_to(r[:, None], (6, 6)) > c[0]
        row = jnp.broadcast_to(r[None], (6, 6))
        return (jnp.where(p, row, c[0]), jnp.where(p, row, c[1])), None

    return lax.scan(step, (jnp.outer(x[0], x[1]), jnp.outer(x[0], x[1])), x)[0]


@declines.add(X, code="none")
def _maximum_along_the_other_axis(x):
    def step(c, r):
        p = jnp.broadcast_to(r[:, None], (6, 6)) > c[0]
        row = jnp.broadcast_to(r[None], (6, 6))
        return (jnp.maximum(row, c[0]), jnp.where(p, row, c[1])), None

    return lax.scan(step, (jnp.outer(x[0], x[1]), jnp.outer(x[0], x[1])), x)[0]


@declines.add(X, code="none")
def _the_worse_is_kept(x):
    def step(c, r):
        p = r[0] > c[0]
        return (jnp.where(p, c[0], r[0]), jnp.where(p, r, c[1])), None

    return lax.scan(step, (x[0, 0], x[0]), x)[0]


@declines.add(X, code="none")
def _minimum_with_the_greater(x):
    def step(c, r):
        p = r[0] > c[0]
        return (jnp.minimum(r[0], c[0]), jnp.where(p, r, c[1])), None

    return lax.scan(step, (x[0, 0], x[0]), x)[0]


@declines.add(X, code="none")
def _threshold(x):
    """A latch: the value is compared with a constant."""

    def step(c, r):
        p = r[0] > 0.5
        return (jnp.where(p, r[0], c[0]), jnp.where(p, r, c[1])), None

    return lax.scan(step, (x[0, 0], x[0]), x)[0]


@declines.add(X, code="none")
def _one_carry_only(x):
    return lax.scan(lambda c, r: (best((c,), r[0])[0], None), x[0, 0], x)[0]


@declines.add(X[:1], code="none")
def _one_step(x):
    step = lambda c, r: (best(c, r[0], r), None)  # noqa: E731
    return lax.scan(step, (x[0, 0], x[0]), x)[0]


@declines.add(X, code="memory-budget", memory_budget=1_000)
def _rows_over_the_budget(x):
    step = lambda c, r: (best(c, r[0], jnp.tanh(r)), None)  # noqa: E731
    return lax.scan(step, (x[0, 0], x[0]), x)[0]


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, oracle=True, **options)


def test_derivative_of_a_maximum():
    """Of equal values each takes its part, so the search waits for the derivative."""
    v, x = np.float32([1, 3, 3, 2, 3]), X[:5]
    f = lambda v: search(operator.gt, jnp.maximum)(v, x, v[0] * 0)[0]  # noqa: E731
    old, new = jax.grad(f)(v), jax.grad(optimize(f))(v)
    np.testing.assert_array_equal(old, [0, 0.25, 0.25, 0, 0.5])
    np.testing.assert_array_equal(new, old)
