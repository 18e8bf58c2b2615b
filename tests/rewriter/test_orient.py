"""`orient`: the batch axis comes first in every dot, nested bodies included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from rewriter.orient import evaluate, swapped_dot
from rewriter.printer import walk
from tests.helpers import assert_equivalent, random

N = 40
W, X = random(16, 16, seed=1), random(N, 16)


def dots_of(fn, *args):
    report = optimize(fn).explain(*args)
    return [e for e in walk(report.after.jaxpr) if e.primitive.name == "dot_general"]


def is_batch_first(eqn):
    """Whether rows, if a dot has them, are the first axis of its left operand."""
    (lc, _), (lb, _) = eqn.params["dimension_numbers"]
    left, right = (v.aval.shape for v in eqn.invars)
    rows = [s for s in (left, right) if N in s]
    return not rows or (left[:1] == (N,) and 0 not in lc) or 0 in lb


def _matrix_times_rows(w, x):
    return lax.map(lambda r: jnp.tanh(w @ r), x)


def _rows_times_matrix(w, x):
    return lax.map(lambda r: jnp.tanh(r @ w), x)


def _chain(w, x):
    return lax.map(lambda r: w @ jnp.tanh(w @ r), x)


def _matrix_times_matrices(w, x):
    return lax.map(lambda r: w @ jnp.outer(r, r), x)


def _inside_a_scan(w, x):
    def row(r):
        return lax.scan(lambda h, _: (jnp.tanh(w @ h + r), h[0]), r, None, 5)

    return lax.map(row, x)


def _inside_a_scan_from_a_constant(w, x):
    """The carry starts unbatched and becomes batched in the first step."""

    def row(r):
        step = lambda h, _: (jnp.tanh(w @ h + r), None)  # noqa: E731
        return lax.scan(step, jnp.ones(16), None, 5)[0]

    return lax.map(row, x)


def _inside_a_jit(w, x):
    inner = jax.jit(lambda w, r: jnp.tanh(w @ r))
    return lax.map(lambda r: inner(w, r), x)


def _two_deep(w, x):
    def row(r):
        def inner(h, _):
            return lax.fori_loop(0, 3, lambda i, h: jnp.tanh(w @ h), h), None

        return lax.scan(inner, r, None, 4)[0]

    return lax.map(row, x)


def _head_of_a_recurrence(w, x):
    def step(h, r):
        h = jnp.tanh(0.5 * h + r)
        return h, w @ h

    return lax.scan(step, x[0], x)


PROGRAMS = [
    _matrix_times_rows,
    _rows_times_matrix,
    _chain,
    _matrix_times_matrices,
    _inside_a_scan,
    _inside_a_scan_from_a_constant,
    _inside_a_jit,
    _two_deep,
    _head_of_a_recurrence,
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_batch_axis_first(fn):
    dots = dots_of(fn, W, X)
    assert dots
    for eqn in dots:
        assert is_batch_first(eqn), (fn.__name__, eqn)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_values(fn):
    assert_equivalent(fn, W / 4, X)


CASES = {
    "matrix_vector": ((3, 4), (4,), (((1,), (0,)), ((), ()))),
    "vector_vector": ((4,), (4,), (((0,), (0,)), ((), ()))),
    "matrix_matrix": ((3, 4), (4, 5), (((1,), (0,)), ((), ()))),
    "first_axes": ((4, 3), (4, 5), (((0,), (0,)), ((), ()))),
    "batch": ((2, 3, 4), (2, 4, 5), (((2,), (1,)), ((0,), (0,)))),
    "batch_last": ((3, 4, 2), (5, 2, 4), (((1,), (2,)), ((2,), (1,)))),
    "two_free": ((3, 2, 4), (4, 5, 6), (((2,), (0,)), ((), ()))),
    "two_contracted": ((3, 4, 5), (5, 4, 2), (((1, 2), (1, 0)), ((), ()))),
    "outer": ((3,), (5,), (((), ()), ((), ()))),
}


@pytest.mark.parametrize("case", CASES)
def test_swapped_dot(case):
    """The same numbers, the same order of axes."""
    left, right, numbers = CASES[case]
    a, b = random(*left, seed=1), random(*right, seed=2)
    params = {
        "dimension_numbers": numbers,
        "precision": None,
        "preferred_element_type": np.dtype("float32"),
    }
    want = lax.dot_general(a, b, numbers)
    got = swapped_dot(jnp.asarray(a), jnp.asarray(b), params)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_precision_goes_with_its_operand():
    """`precision` and the element type are kept, swapped where there are two."""
    low, high = lax.Precision.DEFAULT, lax.Precision.HIGHEST

    def f(w, r):
        return lax.dot(w, r, precision=(low, high), preferred_element_type=jnp.float32)

    closed = jax.make_jaxpr(f)(W.astype(np.float16), X[0].astype(np.float16))

    def run(w, r):
        env = dict(zip(closed.jaxpr.invars, (w, r), strict=True))
        evaluate(closed.jaxpr.eqns, env, {closed.jaxpr.invars[1]})
        return env[closed.jaxpr.outvars[0]]

    again = jax.make_jaxpr(run)(W.astype(np.float16), X[0].astype(np.float16))
    (eqn,) = [e for e in walk(again) if e.primitive.name == "dot_general"]
    assert eqn.invars[0].aval.shape == (16,)
    assert tuple(eqn.params["precision"]) == (high, low)
    assert eqn.params["preferred_element_type"] == jnp.float32


def test_unbatched_dots_are_untouched():
    """Without a batched operand every equation is bound as it is."""
    closed = jax.make_jaxpr(lambda w, r: w @ r)(W, X[0])

    def run(w, r):
        env = dict(zip(closed.jaxpr.invars, (w, r), strict=True))
        evaluate(closed.jaxpr.eqns, env, set())
        return env[closed.jaxpr.outvars[0]]

    (eqn,) = jax.make_jaxpr(run)(W, X[0]).jaxpr.eqns
    assert eqn.invars[0].aval.shape == (16, 16)
