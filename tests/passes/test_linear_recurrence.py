"""`linear-recurrence`: states of `h = a * h + b` in blocks or by a prefix scan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.fuzz import eager_rewriting
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "linear-recurrence"
N = 200
X, Y = random(N), random(N, seed=1)
ROWS = random(N, 5, seed=2)
nan, inf = np.nan, np.inf
fires, declines = Cases(), Cases()


def case(cases, name, fn, *args, **options):
    """Register a program by name."""
    cases.append(pytest.param(fn, args, options, id=name))


@pytest.fixture(autouse=True)
def eager():
    """Whatever may be rewritten is, however small."""
    with eager_rewriting():
        yield


def states(update, start=0.0, reverse=False):
    """Return the loop that stacks the states of an update."""

    def f(*xs):
        def step(h, row):
            h = update(h, *row)
            return h, h

        shape = jnp.shape(xs[0])[1:]
        return lax.scan(step, jnp.full(shape, start), xs, reverse=reverse)

    return f


UPDATES = {
    "decay": lambda h, x: 0.9 * h + x,
    "sum": lambda h, x: h + x,
    "decay after the sum": lambda h, x: 0.9 * (h + x),
    "negative": lambda h, x: x - 0.7 * h,
    "minus": lambda h, x: -h - x,
    "division": lambda h, x: (h - x) / 1.25,
    "two terms": lambda h, x: 0.5 * h + 2.0 * x - 0.25 * jnp.sin(x),
}
for name, update in UPDATES.items():
    for reverse, rows in ((False, X), (True, ROWS)):
        case(
            fires,
            f"{name}, {'back' if reverse else 'ahead'}",
            states(update, 0.5, reverse),
            rows,
            code="blocked",
            loops=2,
        )
for count in (161, 96):
    for reverse in (False, True):
        case(
            fires,
            f"{count} rows, {'back' if reverse else 'ahead'}",
            states(UPDATES["decay"], 0.5, reverse),
            X[:count],
            code="blocked",
            loops=2,
        )

CHANGING = {
    "gate": lambda h, x, y: jax.nn.sigmoid(y) * h + x,
    "product": lambda h, x, y: h * jnp.cos(y),
    "reset": lambda h, x, y: h * jnp.where(y > 0.8, 0.0, 1.0) + x,
}
for name, update in CHANGING.items():
    for reverse in (False, True):
        case(
            fires,
            f"{name}, {'back' if reverse else 'ahead'}",
            states(update, 0.5, reverse),
            X,
            Y,
            code="prefix",
            loops=1,
        )


@fires.add(X, Y, loops=2)
def _read_before_and_after(x, y):
    def step(c, row):
        h, total = c
        new = 0.8 * h + row[0]
        return (new, total + jnp.tanh(new) * row[1]), (h - new, jnp.sin(h), row[1])

    return lax.scan(step, (0.5, 1.0), (x, y))


@fires.add(ROWS, loops=4)
def _two_in_a_row(x):
    def step(c, row):
        m, v = c
        m = 0.9 * m + 0.1 * row
        v = 0.99 * v + 0.01 * m * m
        return (m, v), m / jnp.sqrt(v + 1e-3)

    return lax.scan(step, (jnp.zeros(5), jnp.zeros(5)), x)


@fires.add(X, loops=3)
def _beside_what_stays(x):
    def step(c, row):
        h, k = c
        h = 0.9 * h + row
        return (h, jnp.tanh(k + h)), h

    return lax.scan(step, (0.0, 0.0), x)


@fires.add(X, ROWS, loops=2)
def _only_the_last_state(x, rows):
    return lax.fori_loop(0, N, lambda i, h: 0.97 * h + x[i] * rows[i], jnp.zeros(5))


def bad(at, value):
    """Return rows with a value that is not finite."""
    x = X.copy()
    x[at] = value
    return x


for value in (inf, -inf, nan, 3e38):
    for at in (0, 40, N - 1):
        case(fires, f"{value} at {at}", states(UPDATES["decay"]), bad(at, value))
        case(
            fires,
            f"{value} at {at}, gates",
            states(CHANGING["gate"], reverse=True),
            bad(at, value),
            Y,
        )
case(fires, "an infinite start", states(UPDATES["decay"], inf), X)
case(
    fires,
    "coefficients that overflow",
    states(lambda h, x, y: h * (3.0 + y * 0) + x),
    X * 0,
    Y,
    code="prefix",
)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, **options)


case(declines, "the coefficient grows", states(lambda h, x: 1.5 * h + x), X)
case(declines, "the coefficient vanishes", states(lambda h, x: 1e-3 * h + x), X)
case(declines, "not linear", states(lambda h, x: jnp.tanh(0.9 * h + x)), X)
case(declines, "two factors hold the state", states(lambda h, x: h * h * 0.1 + x), X)
case(declines, "the term holds the state", states(lambda h, x: 0.9 * h + x * h), X)
case(
    declines,
    "integers",
    lambda x: lax.scan(lambda h, r: (2 * h + r,) * 2, 0, x),
    X.astype(int),
)
case(declines, "under strict", states(UPDATES["decay"]), X, numerics="strict")
case(declines, "over the budget", states(UPDATES["decay"]), ROWS, memory_budget=5000)
case(
    declines,
    "a sum that nobody reads",
    lambda x: lax.scan(lambda h, r: (h + r, 0), 0.0, x)[0],
    X,
)


@declines.add(X)
def _compensated(x):
    def step(c, row):
        total, lost = c
        y = row - lost
        new = total + y
        return (new, (new - total) - y), None

    return lax.scan(step, (0.0, 0.0), x)[0]


@declines.add(X)
def _coefficients_from_another_state(x):
    def step(c, row):
        h, k = c
        return (0.9 * h + k, jnp.sin(h) + row), h

    return lax.scan(step, (0.0, 0.0), x)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_long_sums_are_at_least_as_accurate():
    """Against float64, a running sum of many rows."""
    from rewriter import optimize

    x = np.random.default_rng(0).normal(size=50_000).astype(np.float32)
    f = states(UPDATES["sum"])
    exact = np.cumsum(x.astype(np.float64))
    ours, loop = (np.asarray(g(x)[1], np.float64) for g in (optimize(f), jax.jit(f)))
    assert np.abs(ours - exact).max() <= np.abs(loop - exact).max()
