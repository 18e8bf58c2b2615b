"""`producer-fusion`: large arrays that a loop reads row by row are made row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "producer-fusion"
U, A = random(1000, 100), random(100, 16, seed=1, scale=0.1)
B = random(1000, 16, seed=2)
fires, declines = Cases(), Cases()


def recurrence(table):
    """Return a scan that needs the rows in order."""

    def step(h, row):
        h = jnp.abs(row * h - 0.5)
        return h, h.sum()

    return lax.scan(step, jnp.ones(table.shape[1:]), table)


@fires.add(U, A)
def _broadcast(u, a):
    return recurrence(jnp.exp(u[:, :, None] * a))


@fires.add(U, B)
def _outer_product(u, b):
    return recurrence(jnp.einsum("ld,ln->ldn", u, b))


@fires.add(U.T.copy(), B)
def _rows_along_another_axis(u, b):
    return recurrence(jnp.einsum("dl,ln->ldn", u, b))


@fires.add(U, A)
def _read_at_the_counter(u, a):
    table = jnp.exp(u[:, :, None] * a)
    return lax.fori_loop(0, 1000, lambda i, h: table[i] * h + 1, jnp.ones((100, 16)))


@fires.add(U, A)
def _reverse(u, a):
    table = u[:, :, None] * a
    return lax.scan(
        lambda h, r: (r * h + 1, None), jnp.ones((100, 16)), table, reverse=True
    )


@fires.add(U, A)
def _in_a_nest(u, a):
    def outer(s):
        return recurrence(u[:, :, None] * a * s)[1]

    return lax.map(outer, jnp.arange(3.0))


@declines.add(U, A)
def _read_twice(u, a):
    table = u[:, :, None] * a
    return recurrence(table), table[3]


@declines.add(U[:100], A)
def _small(u, a):
    return recurrence(u[:, :, None] * a)


@declines.add(U, A)
def _rows_of_another_order(u, a):
    return recurrence((u[:, :, None] * a)[::-1])


@declines.add(U, A)
def _merged_axes(u, a):
    return recurrence((u[:, :, None] * a).reshape(1000, 1600))


@declines.add(U, random(100, 1600, scale=0.1))
def _matrix_product(u, w):
    return recurrence(u @ w)


@declines.add(random(1000, 1600, scale=0.1))
def _leaves_as_large(x):
    return recurrence(x * 2)


@declines.add(U, A)
def _dear(u, a):
    return recurrence(jnp.tanh(u[:, :, None] * a) ** 1.5 + jnp.sin(u)[:, :, None])


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "in-step", **options)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, oracle=False, **options)


def test_nothing_is_stored():
    """The table is no temporary of the compiled program."""
    from rewriter import optimize

    def temporary(f):
        return f.lower(U, A).compile().memory_analysis().temp_size_in_bytes

    assert temporary(jax.jit(_broadcast)) > U.size * A.shape[1] * 3
    assert temporary(optimize(_broadcast)) < U.size * A.shape[1]
    np.testing.assert_allclose(
        optimize(_broadcast)(U, A)[1], jax.jit(_broadcast)(U, A)[1], rtol=1e-4
    )
