"""`induction-variable`: integers that count, bit-exact, and carries that do not."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, fired

NAME = "induction-variable"
W, X = random(64, 64, seed=1), random(40, 64)
fires, declines = Cases(), Cases()


def _counting(step, start=0, dtype=jnp.int32, **scan):
    """Return a loop that batches once its counter is known."""

    def f(w, x):
        def body(t, r):
            return step(t), (jnp.tanh(w @ r) * t, t)

        return lax.scan(body, jnp.asarray(start, dtype), x, **scan)

    return f


COUNTS = {
    "by_one": (lambda t: t + 1, 0, jnp.int32),
    "by_seven_from_three": (lambda t: t + 7, 3, jnp.int32),
    "down": (lambda t: t + (-2), 5, jnp.int32),
    "step_first": (lambda t: 4 + t, 5, jnp.int32),
    "int8_wraps": (lambda t: t + jnp.int8(100), 3, jnp.int8),
    "uint8_wraps": (lambda t: t + jnp.uint8(9), 250, jnp.uint8),
    "int32_wraps": (lambda t: t + 2**30, 2**30, jnp.int32),
    "uint32": (lambda t: t + jnp.uint32(1), 2**32 - 3, jnp.uint32),
    "by_zero": (lambda t: t + 0, 3, jnp.int32),
}


@pytest.mark.parametrize("case", COUNTS)
def test_counts(case):
    """Values and the final carry are those of the loop, wrap-around included."""
    reverse = case in ("down", "int8_wraps", "by_seven_from_three")
    f = _counting(*COUNTS[case], reverse=reverse)
    report = assert_fires(NAME, f, (W, X), "counter", loops=0, outcome="batched")
    assert "t" in fired(report, NAME)[0].args["carries"]


@fires.add(W, X, 3, 5, loops=0)
def _start_and_step_are_arguments(w, x, a, b):
    return lax.scan(lambda t, r: (t + b, (jnp.tanh(w @ r), t)), a, x)


@fires.add(W, X, loops=0)
def _vector_of_counters(w, x):
    def body(t, r):
        return t + jnp.array([1, 2, 3]), (jnp.tanh(w @ r), t)

    return lax.scan(body, jnp.zeros(3, jnp.int32), x)


@fires.add(W, X, loops=0)
def _several(w, x):
    def body(c, r):
        i, j = c
        return (i + 1, j + 3), jnp.tanh(w @ r) * i - j

    return lax.scan(body, (0, 10), x)


@fires.add(W, X, loops=0)
def _step_is_an_invariant_carry(w, x):
    def body(c, r):
        i, by = c
        return (i + by, by), jnp.tanh(w @ r) * i

    return lax.scan(body, (0, 2), x)


@fires.add(W / 8, X, grad=True, oracle=True, loops=1)
def _beside_a_recurrence(w, x):
    def body(c, r):
        t, h = c
        return (t + 1, jnp.tanh(w @ r + h * t)), h

    return lax.scan(body, (0, x[0]), x)


@fires.add(W, X[:1])
def _one_step(w, x):
    return lax.scan(lambda t, r: (t + 1, (jnp.tanh(w @ r), t)), 5, x)


@declines.add(W, X, code="none")
def _float_counter(w, x):
    """0.1 added up rounds otherwise than 0.1 times t."""
    return lax.scan(lambda t, r: (t + 0.1, (jnp.tanh(w @ r), t)), 0.0, x)


@declines.add(W, X, np.arange(40), code="none")
def _grows_by_a_row(w, x, by):
    return lax.scan(lambda t, r: (t + r[1], (jnp.tanh(w @ r[0]), t)), 0, (x, by))


@declines.add(W, X, code="none")
def _doubles(w, x):
    return lax.scan(lambda t, r: (t + t, (jnp.tanh(w @ r), t)), 1, x)


@declines.add(W, X, code="none")
def _saturates(w, x):
    return lax.scan(lambda t, r: (jnp.minimum(t + 1, 5), (w @ r, t)), 0, x)


@declines.add(W, X, code="none")
def _wraps_by_hand(w, x):
    return lax.scan(lambda t, r: ((t + 1) % 7, (w @ r, t)), 0, x)


@declines.add(W, X, code="none")
def _counts_when_positive(w, x):
    def body(t, r):
        return t + (r[0] > 0).astype(jnp.int32), (w @ r, t)

    return lax.scan(body, 0, x)


@declines.add(W, X, code="none")
def _starts_over(w, x):
    return lax.scan(lambda t, r: (jnp.where(r[0] > 1, 0, t + 1), (w @ r, t)), 0, x)


@declines.add(W, X, code="none")
def _long_vector(w, x):
    return lax.scan(lambda t, r: (t + 1, (w @ r, t)), jnp.zeros(17, jnp.int32), x)


def test_only_the_first_counts():
    """A counter that grows by a counter does not grow by a constant."""

    def f(w, x):
        def body(c, r):
            i, j = c
            return (i + 1, j + i), (jnp.tanh(w @ r), j)

        return lax.scan(body, (0, 0), x)

    report = assert_fires(NAME, f, (W, X), "counter")
    assert {r.args["carries"] for r in fired(report, NAME)} == {"c[0]"}


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "counter", **options)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_long_loop_makes_no_table():
    """A billion steps are known as a form, not as a list."""

    def f(x):
        def body(c):
            return c[0] + 3, jnp.sin(c[1]) + x[c[0] % 4]

        return lax.while_loop(lambda c: c[0] < 2 * 10**9, body, (0, x[0]))

    report = optimize(f).explain(X[0])
    assert fired(report, NAME)
    assert fired(report, "countable-while")[0].args["trip"] == 666666667
