"""`planes`: tiny arrays by component, against NumPy, SciPy and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax import lax

from rewriter import optimize, planes
from rewriter.inline import inline
from rewriter.printer import walk
from tests.helpers import assert_equivalent, random

ROWS = 50


def by_planes(fn, *args):
    """Evaluate `fn` for every row of its arguments by components."""
    avals = [jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in args]
    closed = jax.make_jaxpr(fn)(*avals)
    eqns, subst, consts = inline(closed.jaxpr.eqns, True)
    assert planes.operations(eqns) is not None
    pairs = [*zip(closed.jaxpr.constvars, closed.consts, strict=True), *consts]
    env = {v: planes.split(c, v.aval.shape, rows=False) for v, c in pairs}
    for v, a in zip(closed.jaxpr.invars, args, strict=True):
        env[v] = planes.split(jnp.asarray(a), v.aval.shape, rows=True)
    planes.evaluate(eqns, env)
    outs = [(subst.get(v, v), v.aval.dtype) for v in closed.jaxpr.outvars]
    return [np.asarray(planes.join(env[v], len(args[0]), d)) for v, d in outs]


M3, V3 = random(ROWS, 3, 3, seed=1), random(ROWS, 3, seed=2)
PROGRAMS = {
    "arithmetic": lambda m, v: m * v - v / (1 + m * m),
    "transcendental": lambda m, v: jnp.exp(jnp.sin(v)) + jnp.tanh(m).sum(),
    "choice": lambda m, v: jnp.where(m > 0, m, v[:, None] ** 2),
    "scalar_choice": lambda m, v: jnp.where(v[0] > 0, m, -m),
    "transpose": lambda m, v: m.T + v,
    "reshape": lambda m, v: m.reshape(9)[1:8:3] * v,
    "reverse": lambda m, v: m[::-1, ::-1] + v[::-1],
    "concatenate": lambda m, v: jnp.concatenate([m, v[None]])[1:],
    "stack": lambda m, v: jnp.stack([v, 2 * v, v + m[0]], axis=1),
    "broadcast": lambda m, v: jnp.broadcast_to(v[:, None], (3, 4)) * m.sum(),
    "iota": lambda m, v: v * jnp.arange(3) + lax.broadcasted_iota(int, (3, 3), 1),
    "constant": lambda m, v: (
        m @ np.array([[1, 2, 3], [0, 1, 4], [5, 6, 0]], np.float32)
    ),
    "sums": lambda m, v: m.sum(0) + m.max(1) - m.min() + v.prod(),
    "any_all": lambda m, v: (m > 0).any(0) & (m > -1).all(1) & (v > 0),
    "norm": lambda m, v: v / jnp.linalg.norm(v),
    "cross": lambda m, v: jnp.cross(v, m[0]),
    "matrix_vector": lambda m, v: m @ v + v @ m,
    "matrix_matrix": lambda m, v: m @ m.T,
    "einsum": lambda m, v: jnp.einsum("ij,kj,i->k", m, m, v),
    "outer": lambda m, v: jnp.outer(v, v) - v @ v,
    "integers": lambda m, v: (v * 9).astype(jnp.int32) // 2 % 5 ^ 3,
    "clamp": lambda m, v: jnp.clip(m, -0.5, v),
    "branches": lambda m, v: lax.cond(v[0] > 0, lambda m: m.T, lambda m: 2 * m + v, m),
    "three_branches": lambda m, v: lax.switch(
        (v[0] * 2).astype(int), [lambda v: v, lambda v: -v, lambda v: v * v], v
    ),
    "determinant": lambda m, v: jnp.linalg.det(m) + v,
    "solve": lambda m, v: jnp.linalg.solve(m + 4 * jnp.eye(3), v),
    "upper": lambda m, v: jax.scipy.linalg.solve_triangular(m + 4 * jnp.eye(3), v),
    "transposed": lambda m, v: jax.scipy.linalg.solve_triangular(
        m + 4 * jnp.eye(3), v, trans=1, lower=True, unit_diagonal=True
    ),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_programs(case):
    fn = PROGRAMS[case]
    (got,) = by_planes(fn, M3, V3)
    want = np.asarray(jax.jit(jax.vmap(fn))(M3, V3))
    assert got.dtype == want.dtype
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * abs(want).max())
    else:
        np.testing.assert_array_equal(got, want)


# ------------------------------------------------------------ factorisation

SPECIAL = {
    "zeros": np.zeros((3, 3)),
    "first_column_zero": [[0, 1, 2], [0, 3, 4], [0, 5, 6]],
    "second_column_eliminated": [[1, 2, 3], [2, 4, 6], [1, 2, 5]],
    "rank_one": [[1, 2, 3], [2, 4, 6], [3, 6, 9]],
    "zero_pivot": [[0, 1, 2], [1, 0, 3], [4, 5, 0]],
    "ties": [[1, 2, 3], [-1, 4, 1], [1, 5, 2]],
    "negative_tie": [[-2, 1, 0], [2, 1, 1], [2, 3, 5]],
    "tie_later": [[4, 1, 1], [0, 2, 1], [0, -2, 3]],
    "permutation": [[0, 0, 1], [1, 0, 0], [0, 1, 0]],
    "identity": np.eye(3),
}


@pytest.mark.parametrize("case", SPECIAL)
def test_lu_of_special_matrices(case):
    """Pivots, ties and columns of zeros as in LAPACK."""
    a = np.asarray(SPECIAL[case], np.float32)
    lu, pivots, permutation = by_planes(lax.linalg.lu, a[None])
    want, want_pivots, want_permutation = lax.linalg.lu(a)
    np.testing.assert_array_equal(pivots[0], want_pivots)
    np.testing.assert_array_equal(permutation[0], want_permutation)
    np.testing.assert_allclose(lu[0], want, rtol=1e-6, atol=1e-7)
    if case != "zeros":
        by_scipy, p = scipy.linalg.lapack.sgetrf(a)[:2]
        np.testing.assert_array_equal(p, pivots[0])
        np.testing.assert_allclose(by_scipy, lu[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (2, 3), (3, 2), (4, 3)])
def test_lu(shape):
    a = random(ROWS, *shape)
    lu, pivots, permutation = by_planes(lax.linalg.lu, a)
    want = lax.linalg.lu(a)
    np.testing.assert_allclose(lu, want[0], rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(pivots, want[1])
    np.testing.assert_array_equal(permutation, want[2])


@pytest.mark.parametrize("case", SPECIAL)
def test_solve_special(case):
    """A singular matrix gives inf and NaN where the library does."""
    a = np.asarray(SPECIAL[case], np.float32)
    b = np.array([1, 2, 3], np.float32)
    (got,) = by_planes(jnp.linalg.solve, a[None], b[None])
    want = np.asarray(jnp.linalg.solve(a, b))
    np.testing.assert_array_equal(np.isfinite(got[0]), np.isfinite(want))
    np.testing.assert_allclose(got[0], want, rtol=1e-5)


# ------------------------------------------------------------ what is not split

NOT_SPLIT = {
    "large": lambda v: jnp.outer(v, jnp.arange(50.0)),
    "sort": lambda v: jnp.sort(v),
    "cumsum": lambda v: jnp.cumsum(v),
    "empty": lambda v: v[:0],
    "cholesky": lambda v: jnp.linalg.cholesky(jnp.outer(v, v)),
    "fill": lambda v: v.at[jnp.array([0, 7])].get(mode="fill"),
    "loop": lambda v: lax.fori_loop(0, 3, lambda i, v: v * 2, v),
    "draw": lambda v: v + jax.random.normal(jax.random.PRNGKey(0), (3,)),
}


@pytest.mark.parametrize("case", NOT_SPLIT)
def test_not_split(case):
    closed = jax.make_jaxpr(NOT_SPLIT[case])(V3[0])
    assert planes.operations(inline(closed.jaxpr.eqns, True)[0]) is None


def test_through_optimize():
    """A map over 3x3 solves holds no library call, and agrees."""

    def f(m, v):
        return lax.map(lambda r: jnp.linalg.solve(r[0] + 4 * jnp.eye(3), r[1]), (m, v))

    assert_equivalent(f, M3, V3)
    names = {e.primitive.name for e in walk(optimize(f).explain(M3, V3).after.jaxpr)}
    assert not names & {"lu", "triangular_solve"}


def test_inverses():
    """Several right-hand sides, by components or not."""
    f = lambda m: lax.map(lambda m: jnp.linalg.inv(m + 4 * jnp.eye(3)), m)  # noqa: E731
    assert_equivalent(f, M3)


# ------------------------------------------------------------ random programs

_ONE = (jnp.sin, jnp.tanh, jnp.square, jnp.abs, jnp.negative, jnp.sign, jnp.floor)
_TWO = (jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.minimum, jnp.arctan2)


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed):
    """Elementwise programs with broadcasts and choices."""
    rng = np.random.default_rng(seed)
    program = rng.integers(0, 1000, (8, 4))

    def fn(m, v):
        values = [m, v, m[0, 0]]
        for op, *picks in program:
            a, b, c = (values[k % len(values)] for k in picks)
            if op % 3 == 0:
                values.append(_ONE[op % len(_ONE)](a))
            elif op % 3 == 1:
                values.append(_TWO[op % len(_TWO)](a, b))
            else:
                values.append(jnp.where(a < b, c, jnp.tanh(b)))
        return values[-3:]

    want = jax.jit(jax.vmap(fn))(M3, V3)
    for g, w in zip(by_planes(fn, M3, V3), want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)
