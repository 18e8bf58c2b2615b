"""`countable-while`: trip counts found, and those that must not be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, fired

NAME = "countable-while"
X = random(3)


def _while(cond, step, start, dtype=jnp.int32):
    """Return a loop of one counter `i` and one value, and how it looks from outside."""

    def f(x):
        return lax.while_loop(
            lambda c: cond(c[0]),
            lambda c: (step(c[0]), jnp.sin(c[1]) + c[0].astype(jnp.float32)),
            (jnp.asarray(start, dtype), x),
        )

    return f


COUNTED = {
    "up": (lambda i: i < 10, lambda i: i + 1, 0, jnp.int32, 10),
    "step_3": (lambda i: i < 100, lambda i: i + 3, 0, jnp.int32, 34),
    "step_on_the_left": (lambda i: i < 9, lambda i: 2 + i, 0, jnp.int32, 5),
    "down": (lambda i: i > 0, lambda i: i - 1, 10, jnp.int32, 10),
    "down_by_adding": (lambda i: i >= 0, lambda i: i + (-4), 10, jnp.int32, 3),
    "at_most": (lambda i: i <= 10, lambda i: i + 5, 0, jnp.int32, 3),
    "bound_on_the_left": (lambda i: i < 7, lambda i: i + 1, 3, jnp.int32, 4),
    "unequal": (lambda i: i != 12, lambda i: i + 3, 0, jnp.int32, 4),
    "both_bounds": (lambda i: (i < 10) & (i < 7), lambda i: i + 1, 0, jnp.int32, 7),
    "negated": (lambda i: ~(i >= 6), lambda i: i + 1, 0, jnp.int32, 6),
    "scaled": (lambda i: 2 * i + 1 < 20, lambda i: i + 1, 0, jnp.int32, 10),
    "divided": (lambda i: lax.div(i, 3) < 2, lambda i: i + 1, 0, jnp.int32, 6),
    "never": (lambda i: i < 5, lambda i: i + 1, 5, jnp.int32, 0),
    "never_by_far": (lambda i: i > 100, lambda i: i + 1, 0, jnp.int32, 0),
    "uint8": (lambda i: i < 200, lambda i: i + jnp.uint8(7), 4, jnp.uint8, 28),
    "int8_to_the_top": (lambda i: i < 127, lambda i: i + jnp.int8(1), 120, jnp.int8, 7),
    "array_bound": (lambda i: i < np.int32(4), lambda i: i + 1, 0, jnp.int32, 4),
}


@pytest.mark.parametrize("case", COUNTED)
def test_counted(case):
    *loop, trip = COUNTED[case]
    report = assert_fires(NAME, _while(*loop), (X,), "counted")
    assert fired(report, NAME)[0].args["trip"] == trip
    assert report.after.count("while") == 0
    assert all(x.trip_count == trip for x in report.after.loops)


DATA, BOUND = "data-dependent-trip", "unknown-bound"
UNCOUNTED = {
    "doubling": (lambda i: i < 100, lambda i: i * 2, 1, jnp.int32),
    "subtracted_from": (lambda i: i > -5, lambda i: 3 - 2 * i, 2, jnp.int32),
    "uneven": (lambda i: i < 9, lambda i: i + jnp.where(i % 2 == 0, 1, 3), 0, int),
    "float_counter": (lambda i: i < 1.0, lambda i: i + 0.1, 0, jnp.float32),
    "wraps_first": (lambda i: i < 120, lambda i: i + jnp.int8(50), 0, jnp.int8),
    "wraps_to_the_value": (lambda i: i != 10, lambda i: i + jnp.uint8(3), 0, jnp.uint8),
}


@pytest.mark.parametrize("case", UNCOUNTED)
def test_uncounted(case):
    assert_declines(NAME, _while(*UNCOUNTED[case]), (X,), DATA, outcome="kept")


others = Cases()


@others.add(X, 7, code=BOUND)
def _bound_is_an_argument(x, n):
    return lax.fori_loop(0, n, lambda i, c: jnp.sin(c) + i, x)


@others.add(X, 7, code=BOUND)
def _bound_is_closed_over(x, n):
    body = lambda c: (c[0] + 1, jnp.sin(c[1]))  # noqa: E731
    return lax.while_loop(lambda c: c[0] < n, body, (0, x))


@others.add(X, 2)
def _start_is_an_argument(x, n):
    return lax.fori_loop(n, 8, lambda i, c: jnp.sin(c) + i, x)


@others.add(X, 2, code=DATA)
def _step_is_an_argument(x, n):
    body = lambda c: (c[0] + n, jnp.sin(c[1]))  # noqa: E731
    return lax.while_loop(lambda c: c[0] < 9, body, (0, x))


@others.add(X, code=DATA)
def _step_is_carried(x):
    body = lambda c: (c[0] + c[1], c[1] + 1, jnp.sin(c[2]))  # noqa: E731
    return lax.while_loop(lambda c: c[0] < 30, body, (0, 1, x))


@others.add(X, code=DATA)
def _until_it_is_small(x):
    return lax.while_loop(lambda c: jnp.sum(c * c) > 1e-3, lambda c: 0.5 * c, x)


@others.add(X, code=DATA)
def _counter_or_small(x):
    def cond(c):
        return (c[0] < 50) & (jnp.sum(c[1] ** 2) > 1e-3)

    return lax.while_loop(cond, lambda c: (c[0] + 1, 0.5 * c[1]), (0, x))


@others.add(X, code=DATA)
def _a_sum_of_a_vector_counter(x):
    body = lambda c: (c[0] + 1, jnp.sin(c[1]))  # noqa: E731
    return lax.while_loop(lambda c: c[0].sum() < 9, body, (jnp.arange(3), x))


@pytest.mark.parametrize(("fn", "args", "options"), others)
def test_not_known(fn, args, options):
    """The trip depends on arguments or on what the loop computes."""
    report = assert_declines(NAME, fn, args, **options)
    assert report.verdicts[0].primitive == "while"
    assert report.verdicts[0].trip_count is None


def test_nested():
    """A counted loop inside a counted loop: two scans."""

    def f(x):
        def body(c):
            i, v = c
            inner = lambda d: (d[0] + 2, jnp.cos(d[1]) + i)  # noqa: E731
            return i + 1, lax.while_loop(lambda d: d[0] < 6, inner, (0, v))[1]

        return lax.while_loop(lambda c: c[0] < 5, body, (0, x))

    report = assert_fires(NAME, f, (X,))
    trips = [r.args["trip"] for r in fired(report, NAME)]
    assert set(trips) == {3, 5}
    assert report.after.count("while") == 0


def test_condition_inside_a_jit():
    cond = jax.jit(lambda i: i < 6)
    assert_fires(NAME, _while(cond, lambda i: i + 1, 0), (X,), "counted")


def test_gets_a_derivative():
    """A `while` has no reverse mode, the scan does."""
    f = _while(lambda i: i < 5, lambda i: i + 1, 0)

    def by_scan(x):
        return lax.fori_loop(0, 5, lambda i, v: jnp.sin(v) + i, x).sum()

    got = jax.grad(lambda x: optimize(f)(x)[1].sum())(X)
    np.testing.assert_allclose(got, jax.grad(by_scan)(X), rtol=1e-5)
