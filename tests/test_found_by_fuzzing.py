"""Kinds of programs that random ones have shown to break something."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.fuzz import eager_rewriting, program_of
from tests.helpers import Cases, assert_equivalent, random

X, W = random(30, 4), random(4, 4, seed=1)
cases = Cases()


@pytest.fixture(autouse=True)
def eager():
    """Whatever may be rewritten is, however small."""
    with eager_rewriting():
        yield


@cases.add(X)
def _a_summed_product_that_is_also_read(x):
    """Its factors are needed though only the product reads them."""

    def step(total, r):
        product = jnp.outer(jnp.sin(r), r * 2)
        return total + product, (product.max(), jnp.tanh(product[0]))

    return lax.scan(step, jnp.zeros((4, 4)), x)


@cases.add(X)
def _a_scaled_sum_that_is_also_read(x):
    def step(total, r):
        product = jnp.sum(r) * jnp.broadcast_to(r[0], (4,))
        return total - product, jnp.sum(product)

    return lax.scan(step, jnp.zeros(4), x)


@cases.add(X, W)
def _an_inner_loop_that_nothing_changes(x, w):
    def step(c, r):
        inner, _ = lax.scan(lambda v, _: (jnp.tanh(v @ w), None), w, None, length=2)
        return jnp.tanh(c @ (inner @ w) + r), (inner @ inner) @ r

    return lax.scan(step, jnp.zeros(4), x)


@cases.add(X)
def _no_steps_with_reads_ahead(x):
    body = lambda i, c: c + jnp.sum(x[i + 3] * x[28 - i])  # noqa: E731
    return lax.fori_loop(0, 0, body, 1.0), lax.fori_loop(29, 29, body, 1.0)


@cases.add(X)
def _keys_stacked_and_used(x):
    keys = lax.map(lambda r: jax.random.fold_in(jax.random.key(3), 7), x)
    return jax.vmap(jax.random.normal)(keys)


@cases.add(X)
def _a_distance_over_a_number(x):
    step = lambda r: jnp.argmin(jnp.exp(-jnp.sum((x - r) ** 2, axis=1) / 40))  # noqa: E731
    return lax.map(step, x)


@pytest.mark.parametrize(("fn", "args", "options"), cases)
def test_kinds(fn, args, options):
    assert_equivalent(fn, *args, **options)


@pytest.mark.parametrize("seed", [50044, 50306, 50379, 50409, 50488, 50609, 60032])
def test_seeds(seed):
    """The programs themselves, while the generator stays as it is."""
    from functools import partial

    from rewriter import optimize
    from tests.generate_compare import check

    program = program_of(seed)
    small = partial(optimize, memory_budget=200_000)
    check(program, small)
    if program.differentiable:
        check(program, small, grad=True)
