"""`invariant-value`: what no step changes is computed before the loop."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, in_loops, report_of

NAME = "invariant-value"
N = 40
X, W = random(N, 6), random(6, 6, seed=1)
fires, declines = Cases(), Cases()


@fires.add(X, W, without=("tanh",))
def _of_a_recurrence(x, w):
    def step(c, r):
        return jnp.sin(jnp.tanh(w) @ c + r), jnp.max(jnp.tanh(w))

    return lax.scan(step, x[0], x)


@fires.add(X, W, without=("transpose", "exp"))
def _of_a_map(x, w):
    return lax.map(lambda r: jnp.exp(w).T @ r, x)


@fires.add(X, W, without=("mul", "dot_general"))
def _a_chain(x, w):
    step = lambda i, c: jnp.sin(c + (w * 2 @ w)[0])  # noqa: E731
    return lax.fori_loop(0, N, step, x[0])


@fires.add(X, W)
def _stacked(x, w):
    return lax.scan(lambda c, r: (jnp.sin(c + r), jnp.tanh(w[0])), x[0], x)


@fires.add(X, W)
def _what_a_carry_becomes(x, w):
    step = lambda c, r: ((jnp.sin(c[1] + r), jnp.tanh(w[0])), None)  # noqa: E731
    return lax.scan(step, (x[0], x[0]), x)[0]


@fires.add(X, W)
def _not_a_number(x, w):
    """What is never selected may be NaN."""
    step = lambda c, r: (jnp.where(r > 9, jnp.log(-abs(w[0])), c + r), None)  # noqa: E731
    return lax.scan(step, x[0], x)[0]


@fires.add(X[:2], W)
def _two_steps(x, w):
    return lax.scan(lambda c, r: (jnp.sin(jnp.tanh(w) @ c + r), None), x[0], x)[0]


@fires.add(X, W, vmap=(0, None))
def _batched(x, w):
    return lax.scan(lambda c, r: (jnp.sin(jnp.tanh(w) @ c + r), None), x[0], x)[0]


@fires.add(X, W, grad=True)
def _differentiated(x, w):
    return lax.scan(lambda c, r: (jnp.sin(jnp.tanh(w) @ c + r), None), x[0], x)[0]


@fires.add(X, W, numerics="strict", without=("tanh",))
def _strict(x, w):
    return lax.scan(lambda c, r: (jnp.sin(jnp.tanh(w) @ c + r), None), x[0], x)[0]


@fires.add(X.reshape(5, 8, 6), W, without=("tanh",))
def _in_an_inner_loop(x, w):
    def inner(rows):
        step = lambda c, r: (jnp.sin(jnp.tanh(w) @ c + r), None)  # noqa: E731
        return lax.scan(step, rows[0], rows)[0]

    return lax.scan(lambda c, rows: (jnp.sin(c + inner(rows)), None), x[0, 0], x)[0]


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    """Nothing is left in the loops where a pass emits them again."""
    without = set(options.pop("without", ()))
    report = assert_fires(NAME, fn, args, "hoisted", oracle=True, **options)
    if report.verdicts[0].outcome != "kept":
        assert not {e.primitive.name for e in in_loops(report)} & without


@declines.add(X, W, code="none")
def _nothing_constant(x, w):
    return lax.map(lambda r: jnp.tanh(w @ r), x)


@declines.add(X, W, code="none")
def _larger_than_what_it_is_made_from(x, w):
    first = w[0]
    step = lambda c, r: (jnp.sin(jnp.outer(first, first) @ c + r), None)  # noqa: E731
    return lax.scan(step, first, x)[0]


@declines.add(X, W, code="none")
def _broadcasts_and_conversions(x, w):
    number, flags = w[0, 0], w[0] > 0

    def step(c, r):
        return jnp.sin(c * jnp.broadcast_to(number, (6,)) + r + flags), None

    return lax.scan(step, x[0], x)[0]


@declines.add(X[:1], W, code="none")
def _one_step(x, w):
    return lax.scan(lambda c, r: (jnp.sin(jnp.tanh(w) @ c + r), None), x[0], x)[0]


@declines.add(X, W, code="none")
def _a_branch_that_may_never_be_taken(x, w):
    taken, first = w[0, 0] > 99, w[0]

    def step(c, r):
        return lax.cond(taken, jnp.tanh, jnp.sin, first) + jnp.sin(c + r), None

    return lax.scan(step, x[0], x)[0]


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, oracle=True, **options)


def test_callbacks_run_once_per_step():
    def f(x, w):
        def step(c, r):
            same = jax.pure_callback(
                lambda w: w, jax.ShapeDtypeStruct((6,), "f"), w[0], vmap_method=None
            )
            return jnp.sin(c + r) + same, None

        return lax.scan(step, x[0], x)[0]

    report = report_of(f, (X, W))
    assert "pure_callback" in {e.primitive.name for e in in_loops(report)}
