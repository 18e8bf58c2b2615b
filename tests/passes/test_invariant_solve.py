"""`invariant-solve`: inverses of matrices that stay, and matrices that do not."""

import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import Cases, in_float64, random
from tests.passes.firing import assert_declines, assert_fires, fired

NAME = "invariant-solve"
N = 8
A = 0.3 * random(N, N, seed=1)
X, U = random(N), random(200, N, seed=2)
fires, declines = Cases(), Cases()


def implicit(solve, start=lambda a: jnp.eye(N) + a):
    """Return an integrator: `x = solve(matrix, tanh(x) + u)` at every step."""

    def f(a, x, u):
        matrix = start(a)

        def step(x, u):
            x = solve(matrix, jnp.tanh(x) + u)
            return x, x

        return lax.scan(step, x, u)[1]

    return f


def _triangular(lower, **options):
    return lambda m, b: jsl.solve_triangular(m, b, lower=lower, **options)


def _shifted(a):
    return 2 * jnp.eye(N) + a


SOLVES = {
    "solve": (jnp.linalg.solve,),
    "factors_made_before": (jsl.lu_solve, lambda a: jsl.lu_factor(jnp.eye(N) + a)),
    "transposed": (
        lambda f, b: jsl.lu_solve(f, b, trans=1),
        lambda a: jsl.lu_factor(a),
    ),
    "cholesky": (
        jsl.cho_solve,
        lambda a: jsl.cho_factor(jnp.eye(N) + a @ a.T),
    ),
    "lower": (_triangular(True), _shifted),
    "upper": (_triangular(False), _shifted),
    "unit_diagonal": (_triangular(True, unit_diagonal=True),),
    "triangular_transposed": (_triangular(True, trans=1), _shifted),
}


@pytest.mark.parametrize("case", SOLVES)
def test_solves(case):
    report = assert_fires(
        NAME, implicit(*SOLVES[case]), (A, X, U), "inverse", oracle=case == "solve"
    )
    assert "fallback" in report.after.outline()
    assert "dot_general" in report.after.outline().splitlines()[-1]


@fires.add(A, X, U, grad=True)
def _gradient(a, x, u):
    return implicit(jnp.linalg.solve)(a, x, u)[-1]


@fires.add(A, X, U)
def _two_chains(a, x, u):
    def step(x, u):
        x = jnp.linalg.solve(jnp.eye(N) + a, jnp.tanh(x) + u)
        return jnp.linalg.solve(jnp.eye(N) - a, jnp.tanh(x)), x

    return lax.scan(step, x, u)


@fires.add(A, U)
def _without_a_carry(a, u):
    return lax.map(lambda r: jnp.linalg.solve(jnp.eye(N) + a, jnp.tanh(r)), u)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "inverse", oracle=True, **options)


@declines.add(A, X, U, code="none")
def _matrix_of_the_step(a, x, u):
    def step(x, u):
        return jnp.linalg.solve(jnp.eye(N) + a * u[0], jnp.tanh(x)), x

    return lax.scan(step, x, u)


@declines.add(A, X, U, code="none")
def _matrix_of_the_state(a, x, u):
    def step(x, u):
        x = jnp.linalg.solve(2 * jnp.eye(N) + jnp.diag(jnp.tanh(x)) + a, u)
        return x, x

    return lax.scan(step, x, u)


@declines.add(A, X, U[:31], code="short-trip")
def _few_steps(a, x, u):
    return implicit(jnp.linalg.solve)(a, x, u)


@declines.add(A, np.stack([X] * 3, 1), U[:, :, None], code="none")
def _several_right_hand_sides(a, x, u):
    def step(x, u):
        x = jnp.linalg.solve(jnp.eye(N) + a, jnp.tanh(x) + u)
        return x, x

    return lax.scan(step, x, u)[1]


@declines.add(A, X, U, code="none")
def _matrix_only_multiplied(a, x, u):
    inverse = jnp.linalg.inv(jnp.eye(N) + a)
    return lax.scan(lambda x, u: (inverse @ jnp.tanh(x) + u,) * 2, x, u)


@declines.add(A, X, U, numerics="strict")
def _strict(a, x, u):
    return implicit(jnp.linalg.solve)(a, x, u)


@declines.add(A, X, U, disable="invariant-solve")
def _disabled(a, x, u):
    return implicit(jnp.linalg.solve)(a, x, u)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_large_matrix():
    """Above `max_size` an inverse does not pay."""
    a, x = 0.01 * random(260, 260), random(260)
    report = optimize(implicit(jnp.linalg.solve, lambda a: jnp.eye(260) + a)).explain(
        a, x, random(1100, 260)
    )
    assert not fired(report, NAME)


@pytest.mark.parametrize("condition", [1e2, 1e6])
def test_ill_conditioned(condition):
    """The loop as written runs where an inverse would lose digits."""
    q = np.linalg.qr(random(N, N, seed=3))[0]
    r = np.linalg.qr(random(N, N, seed=4))[0]
    matrix = (q * np.geomspace(1, 1 / condition, N) @ r).astype(np.float32)
    f = implicit(jnp.linalg.solve, lambda a: a)
    assert_fires(NAME, f, (matrix, X, U), "inverse", loops=2, oracle=True)


@pytest.mark.parametrize("kind", ["zeros", "nan", "singular"])
def test_no_solution(kind):
    """NaN and inf appear where the loop has them."""
    matrix = {
        "zeros": np.zeros((N, N), np.float32),
        "nan": np.full((N, N), np.nan, np.float32),
        "singular": np.diag(np.r_[np.ones(N - 1), 0]).astype(np.float32),
    }[kind]
    f = implicit(jnp.linalg.solve, lambda a: a)
    assert_fires(NAME, f, (matrix, X, U), "inverse")


def test_accuracy():
    """The product is about as close to float64 as the solves."""
    f = implicit(jnp.linalg.solve)
    true = in_float64(f, (A, X, U))
    error = np.abs(np.asarray(optimize(f)(A, X, U)) - true).max()
    assert error < 1e-5
