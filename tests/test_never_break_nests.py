"""Triangular nests, last writers, dear branches, and loops that would not end."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import (
    Cases,
    assert_equivalent,
    assert_kept,
    lowered,
    random,
    run_python,
)

X = random(8, 3)

# A nest whose inner trip or mask depends on the outer index. Tempting: a rectangle,
# which reads what the program never reads (NaN here).
triangles = Cases()
LOWER = np.where(np.tri(8, dtype=bool), random(8, 8, seed=2) + 4 * np.eye(8), np.nan)
LOWER = LOWER.astype(np.float32)


@triangles.add(LOWER, X, each=True)
def _forward_substitution(lower, b):
    def row(i, out):
        def term(j, total):
            return total + lower[i, j] * out[j]

        rest = lax.fori_loop(0, i, term, jnp.zeros(3))
        return out.at[i].set((b[i] - rest) / lower[i, i])

    return lax.fori_loop(0, 8, row, jnp.full((8, 3), jnp.nan))


@triangles.add(LOWER)
def _sum_below_the_diagonal(lower):
    def row(i):
        return lax.fori_loop(0, i + 1, lambda j, c: c + lower[i, j], 0.0)

    return lax.map(row, jnp.arange(8))


@triangles.add(LOWER, X, grad=True)
def _mask_hides_nan(lower, x):
    def row(_, i):
        terms = jnp.where(jnp.arange(8) <= i, lower[i], 0.0)
        return None, terms @ x

    return lax.scan(row, None, jnp.arange(8))[1]


@triangles.add(X)
def _pairs_in_a_flat_list(x):
    def row(i, b):
        def pair(j, b):
            k = (i * (i - 1)) // 2 + j
            return b.at[k].set(jnp.sum((x[i] - x[j]) ** 2))

        return lax.fori_loop(0, i, pair, b)

    return lax.fori_loop(0, 8, row, jnp.full(28, -1.0))


@triangles.add(random(24, seed=3))
def _insertion_sort(x):
    def insert(i, b):
        def cond(c):
            j, b = c
            return (j > 0) & (b[j - 1] > b[j])

        def swap(c):
            j, b = c
            return j - 1, b.at[j].set(b[j - 1]).at[j - 1].set(b[j])

        return lax.while_loop(cond, swap, (i, b))[1]

    return lax.fori_loop(1, 24, insert, x)


@pytest.mark.parametrize(("fn", "args", "options"), triangles)
def test_triangular_nests(fn, args, options):
    """The other half of the rectangle is never read."""
    assert_equivalent(fn, *args, **options)


# The last writer wins, at rows that only the data knows. Tempting: one scatter, whose
# order of duplicates is undefined.
writers = Cases()
ROWS = np.array([3, 0, 3, -1, 7, 3, 12, -9, 0, 7, 7, 3], np.int32)
VALUES = random(12, 3, seed=4)
VALUES[4] = np.nan  # overwritten later, must not show


@writers.add(ROWS, VALUES)
def _last_set_wins(rows, values):
    def step(b, iv):
        return b.at[iv[0]].set(iv[1]), None

    return lax.scan(step, jnp.zeros((8, 3)), (rows, values))[0]


@writers.add(ROWS, VALUES, oracle=False)
def _last_slice_wins(rows, values):
    def step(b, iv):
        return lax.dynamic_update_slice(b, iv[1][None], (iv[0], 0)), b[iv[0]]

    return lax.scan(step, jnp.zeros((8, 3)), (rows, values))


@writers.add(ROWS, VALUES)
def _last_column_wins(rows, values):
    def body(i, b):
        return b.at[:, rows[i]].set(values[i])

    return lax.fori_loop(0, 12, body, jnp.zeros((3, 8)))


@writers.add(ROWS, oracle=False)
def _histogram(rows):
    def step(b, i):
        return b.at[i].set(b[i] * 3 + 1), b[i]

    return lax.scan(step, jnp.zeros(8, jnp.int32), rows)


@writers.add(ROWS, VALUES)
def _set_then_add(rows, values):
    def step(b, iv):
        return b.at[iv[0]].add(iv[1]).at[iv[0] - 1].set(iv[1]), None

    return lax.scan(step, jnp.zeros((8, 3)), (rows, values))[0]


@pytest.mark.parametrize(("fn", "args", "options"), writers)
def test_last_writer_wins(fn, args, options):
    """Rows written twice keep the later value."""
    assert_equivalent(fn, *args, **options)


def _dear(x, w):
    for _ in range(12):
        x = jnp.tanh(w @ x)
    return x.sum()


def test_dear_rare_branch_stays_a_branch():
    """Batching a `cond` runs both branches for each row."""
    w, x = random(96, 96, seed=5, scale=0.1), random(64, 96, seed=6)
    x[:, 0] = -1
    x[40, 0] = 1

    def alone(x, w):
        def row(r):
            return lax.cond(r[0] > 0, lambda: _dear(r, w), lambda: r[1])

        return lax.map(row, x)

    def between_products(x, w):
        def row(r):
            y = jnp.tanh(w @ jnp.tanh(w @ r))
            z = lax.cond(r[0] > 0, lambda: _dear(y, w), lambda: y[1])
            return jnp.tanh(w @ (y + z))

        return lax.map(row, x)

    for f in (alone, between_products):
        assert_equivalent(f, x, w)
        assert "stablehlo.case" in lowered(f, x, w)
    assert_kept(alone, x, w)


HANGS = """
import jax.numpy as jnp
from jax import lax
from rewriter import optimize


def root(x):
    return lax.while_loop(lambda c: c < 100, lambda c: c * 2, x)


@optimize
def guarded(x):
    return lax.map(lambda r: lax.cond(r > 0, root, lambda r: r, r), x)


@optimize
def blocked(x):
    return lax.map(root, x, batch_size=4)


@optimize
def partly(n, x):
    return lax.fori_loop(0, n, lambda i, c: c + root(x[i]), 0.0)


@optimize
def triangle(x):
    def row(i):
        return lax.fori_loop(0, i, lambda j, c: c + root(x[j]), 0.0)

    return lax.map(row, jnp.arange(3))


@optimize
def invariant(flag, x, rows):
    def row(r):
        return lax.cond(flag, lambda: r * root(x), lambda: r)

    return lax.map(row, rows)


print(guarded(jnp.array([1.0, 0.0, -1.0, 3.0] * 5)).tolist()[:4])
print(blocked(jnp.arange(1.0, 8.0)).tolist())
print(float(partly(2, jnp.array([1.0, 3.0, -1.0]))))
print(triangle(jnp.array([1.0, 3.0, -1.0])).tolist())
print(invariant(False, -1.0, jnp.arange(3.0)).tolist())
"""


def test_loops_that_would_not_end():
    """A `while` in the branch not taken, on padding, or in steps never run, hangs."""
    assert run_python(HANGS, timeout=60).splitlines() == [
        "[128.0, 0.0, -1.0, 192.0]",
        "[128.0, 128.0, 192.0, 128.0, 160.0, 192.0, 112.0]",
        "320.0",
        "[0.0, 128.0, 320.0]",
        "[0.0, 1.0, 2.0]",
    ]
