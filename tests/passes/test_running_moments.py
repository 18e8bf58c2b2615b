"""`running-moments`: Welford's mean and variance in two passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.fuzz import eager_rewriting
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "running-moments"
N = 300
X = random(N, 6)
fires, declines = Cases(), Cases()


@pytest.fixture(autouse=True)
def eager():
    """Whatever may be rewritten is, however small."""
    with eager_rewriting():
        yield


def same(value):
    """Return a value as it is."""
    return value


def welford(count=0.0, mean=0.0, m2=0.0, by=1, divisor=same, **options):
    """Return Welford's loop from some state; `divisor` makes it from the count."""

    def f(x):
        def step(c, row):
            n, m, s = c
            n, delta = n + by, row - m
            m = m + delta / divisor(n)
            return (n, m, s + delta * (row - m)), None

        start = (count, *(jnp.full_like(x[0], v) for v in (mean, m2)))
        return lax.scan(step, start, x, **options)[0]

    return f


# ------------------------------------------------------------ states

STARTS = {
    "none": {},
    "counted": {"count": 0},
    "half": {"count": 0.5, "mean": 3.0},
    "few": {"count": 5.0, "mean": -2.0, "m2": 7.0},
    "many": {"count": 10_000, "mean": 1.0, "m2": 1e4},
    "reverse": {"reverse": True},
    "nan_mean": {"mean": np.nan},
    "inf_mean": {"mean": np.inf},
    "inf_mean_of_few": {"count": 5.0, "mean": -np.inf},
    "inf_mean_of_many": {"count": 1e6, "mean": np.inf},
    "nan_m2": {"m2": np.nan},
    "inf_m2": {"count": 2.0, "m2": -np.inf},
}


def _with(**places):
    x = X.copy()
    for at, value in places.items():
        x[int(at[1:]) * (-1 if at[0] == "m" else 1), 2] = value
    return x


ROWS = {
    "normal": X,
    "offset": X + 1e4,
    "tiny": X * 1e-30,
    "large": X * 1e18,
    "one_value": X * 0 + 3.3,
    "nan": _with(p7=np.nan),
    "inf": _with(p7=np.inf),
    "inf_first": _with(p0=np.inf),
    "inf_last": _with(m1=-np.inf),
    "opposite_infs": _with(p3=np.inf, p9=-np.inf),
}


PAIRS = [(s, r) for s in STARTS for r in ROWS if s in ("few", "reverse") or r == "nan"]


@pytest.mark.parametrize(("start", "rows"), PAIRS)
def test_states_and_rows(start, rows):
    f = welford(**STARTS[start])
    assert_fires(NAME, f, (ROWS[rows],), "two-pass", loops=0, oracle=True)


def test_sums_that_overflow():
    """The running mean of huge values does not overflow, nor may the sum."""
    x = X * 1e37
    f = lambda x: welford()(x)[1]  # noqa: E731
    assert_fires(NAME, f, (x,), "two-pass", oracle=True)
    assert_fires(NAME, f, (np.sort(x, axis=0),), "two-pass", oracle=True)


# ------------------------------------------------------------ programs that fire

fires.add(X)(welford())
fires.add(X[:2])(welford())
fires.add(X[:2])(welford(reverse=True))
fires.add(X, vmap=(0,))(welford())
fires.add(X, grad=True)(welford())
fires.add(X)(welford(0, divisor=lambda n: n + 1))
fires.add(X)(welford(0, divisor=lambda n: n.astype(jnp.float32) + 2.0))
fires.add(X[:200])(welford(np.uint8(0)))
declines.add(X, code="none")(welford(np.uint8(0)))  # it wraps
fires.add(X[:, 0])(welford())


@fires.add(X)
def _only_the_mean(x):
    step = lambda c, r: ((c[0] + 1, c[1] + (r - c[1]) / (c[0] + 1)), None)  # noqa: E731
    return lax.scan(step, (0, x[0] * 0), x)[0][1]


@fires.add(X)
def _fori_loop(x):
    def step(i, c):
        mean, m2 = c
        delta = x[i] - mean
        mean = mean + delta / (i + 1)
        return mean, m2 + delta * (x[i] - mean)

    return lax.fori_loop(0, N, step, (x[0] * 0, x[0] * 0))


@fires.add(X)
def _later_rows_into_a_mean_of_some(x):
    step = lambda i, m: m + (x[i] - m) / (i + 1)  # noqa: E731
    return lax.fori_loop(7, N, step, jnp.mean(x[:7], 0))


@fires.add(X)
def _counts_as_rows(x):
    step = lambda m, s: (m + (s[0] - m) / s[1], None)  # noqa: E731
    return lax.scan(step, x[0] * 0, (x, jnp.arange(1, N + 1)))[0]


@fires.add(X)
def _counts_down_in_reverse(x):
    step = lambda m, s: (m + (s[0] - m) / s[1], None)  # noqa: E731
    counts = jnp.arange(N, 0, -1)
    return lax.scan(step, x[0] * 0, (x, counts), reverse=True)[0]


@fires.add(X)
def _made_rows(x):
    step = lambda c, r: welford_step(c, jnp.tanh(r @ x[:6]))  # noqa: E731
    return lax.scan(step, (0.0, x[0] * 0, x[0] * 0), x)[0]


def welford_step(c, row):
    """Return the next state, written in another order."""
    n, mean, m2 = c
    n, delta = 1 + n, row - mean
    mean = delta / n + mean
    return (n, mean, (row - mean) * delta + m2), None


@fires.add(X)
def _two_means_by_an_integer(x):
    def step(c, r):
        n, a, b = c
        n = n + 1
        return (n, a + (r - a) / n, b + (r**2 - b) / n), None

    return lax.scan(step, (0, x[0] * 0, x[0] * 0), x)[0]


@fires.add(X.reshape(10, 30, 6))
def _inside_a_map(x):
    return lax.map(welford(), x)


@fires.add(X)
def _beside_a_recurrence(x):
    def step(c, r):
        h, *c = c
        return (jnp.sin(h + r), *welford_step(c, r)[0]), h[0]

    return lax.scan(step, (x[0], 0.0, x[0] * 0, x[0] * 0), x)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "two-pass", oracle=True, **options)


@pytest.mark.parametrize("count", [0, 0.0])
def test_wide(count):
    with jax.enable_x64(True):
        args = ((X + 1e9).astype("d"),)
        assert_fires(NAME, welford(count), args, "two-pass", loops=0)


# ------------------------------------------------------------ programs that do not

declines.add(X, numerics="strict")(welford())
declines.add(X[:1], code="none")(welford())
declines.add(X[:50], code="none")(welford(-0.5))
declines.add(X[:50], code="none")(welford(2.0**24 - 20))
declines.add(X, code="none")(welford(by=2))
declines.add(X[:50], code="none")(welford(0, by=-1))
declines.add(X, code="none")(welford(np.int8(100)))  # it wraps
declines.add(X, code="none")(welford(np.float16(0)))
declines.add(X, code="none")(welford(jnp.bfloat16(0)))
declines.add(X, code="none")(welford(divisor=lambda n: n.astype(jnp.bfloat16)))
declines.add(X, code="none")(welford(0, divisor=lambda n: jnp.float32(n.astype(bool))))
declines.add(X, code="none")(
    welford(0, divisor=lambda n: n.astype(jnp.float16).astype(jnp.float32))
)
declines.add(X, code="none")(welford(divisor=lambda n: n * 1.5))
declines.add(X, code="none")(welford(divisor=lambda n: 7.0))


@declines.add(X, np.float32(3), code="none")
def _unknown_start(x, n):
    return lax.scan(welford_step, (n, x[0] * 0, x[0] * 0), x)[0]


@declines.add(X, code="none")
def _means_are_stacked(x):
    def step(c, r):
        c, _ = welford_step(c, r)
        return c, c[1]

    return lax.scan(step, (0.0, x[0] * 0, x[0] * 0), x)


@declines.add(X, code="none")
def _old_mean_is_stacked(x):
    step = lambda c, r: (welford_step(c, r)[0], c[1])  # noqa: E731
    return lax.scan(step, (0.0, x[0] * 0, x[0] * 0), x)


@declines.add(X, code="none")
def _counts_are_stacked(x):
    step = lambda c, r: (welford_step(c, r)[0], c[0])  # noqa: E731
    return lax.scan(step, (0.0, x[0] * 0, x[0] * 0), x)


@declines.add(X, code="none")
def _clipped_by_the_deviation(x):
    """The row depends on the state."""

    def step(c, r):
        spread = jnp.sqrt(c[2] / jnp.maximum(c[0], 1)) + 1
        return welford_step(c, jnp.clip(r, c[1] - 3 * spread, c[1] + 3 * spread))

    return lax.scan(step, (0.0, x[0] * 0, x[0] * 0), x)[0]


@declines.add(X, code="none")
def _squares_about_the_old_mean(x):
    def step(c, r):
        (n, mean, _), _ = welford_step(c, r)
        return (n, mean, c[2] + (r - c[1]) * (r - c[1])), None

    return lax.scan(step, (0.0, x[0] * 0, x[0] * 0), x)[0]


@declines.add(X, code="none")
def _covariance(x):
    def step(c, r):
        n, a, b, s = c
        n, delta = n + 1, r[0] - a
        a, b = a + delta / n, b + (r[1] - b) / n
        return (n, a, b, s + delta * (r[1] - b)), None

    return lax.scan(step, (0.0, x[0, 0], x[0, 0], x[0, 0] * 0), x)[0]


@declines.add(X, code="none")
def _deviation_along_the_other_axis(x):
    def step(c, r):
        n, mean, m2 = c
        column, row = (jnp.broadcast_to(v, (6, 6)) for v in (r[:, None], r[None]))
        n, delta = n + 1, column - mean
        mean = mean + delta / n
        return (n, mean, m2 + delta * (row - mean)), None

    zero = jnp.outer(x[0], x[0]) * 0
    return lax.scan(step, (0.0, zero, zero), x)[0]


@declines.add(X, code="none")
def _exponential_average(x):
    return lax.scan(lambda m, r: (m + (r - m) * 0.1, None), x[0], x)[0]


@declines.add(X.astype("e"), code="none", oracle=False)
def _short_floats(x):
    return welford(np.float16(0))(x)


@declines.add(X, code="memory-budget", memory_budget=1_000)
def _rows_over_the_budget(x):
    step = lambda c, r: welford_step(c, jnp.tanh(r))  # noqa: E731
    return lax.scan(step, (0.0, x[0] * 0, x[0] * 0), x)[0]


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **{"oracle": True} | options)


FAR = {
    "tiny": np.random.default_rng(1).random(100) * 1e-36,
    "tiny and offset": 1e-30 * (3 + np.random.default_rng(1).random(100)),
    "from end to end": np.array([-1.8e38, 0, 0, 0, 0, 1.8e38]),
}


@pytest.mark.parametrize("name", FAR)
def test_sizes_near_the_ends(name):
    """Squares that vanish and differences that overflow do not reach the mean."""
    x = FAR[name].astype(np.float32)[:, None]

    def f(x):
        def step(c, row):
            n, mean, m2 = c
            n = n + 1
            delta = row - mean
            mean = mean + delta / n
            return (n, mean, m2 + delta * (row - mean)), None

        zero = jnp.zeros(1)
        return lax.scan(step, (0.0, zero, zero), x)[0][1:]

    true = x.astype(np.float64).mean()
    loop, ours = (np.asarray(g(x)[0], np.float64) for g in (jax.jit(f), optimize(f)))
    bound = max(2 * abs(loop - true), 16 * 2.0**-24 * np.abs(x).max())
    assert abs(ours - true) <= bound
