"""Carries: what they hold, their types, their sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import Cases, assert_equivalent, random

X = random(8, 3)

# Carries that echo an input, swap, rotate, or alias. Tempting: take the carry for a
# delay, an invariant, or two buffers for one.
carries = Cases()


@carries.add(X, grad=True)
def _swap(x):
    return lax.scan(lambda c, r: ((c[1], c[0]), c[0] + r), (x[0], x[1]), x)


@carries.add(X[:7])
def _swap_odd_trip(x):
    return lax.scan(lambda c, r: ((c[1], c[0]), c), (x[0], x[1]), x)


@carries.add(X)
def _rotate_three(x):
    a, b, c = x[0], x[1], x[2]
    return lax.scan(lambda c, r: ((c[1], c[2], c[0] + r), c[0]), (a, b, c), x)


@carries.add(X, grad=True)
def _fibonacci(x):
    return lax.scan(lambda c, r: ((c[1], c[0] * 0.5 + r), c), (x[0], x[1]), x)


@carries.add(X, grad=True)
def _delay_by_two(x):
    def step(c, r):
        return (r, c[0]), r - 2 * c[0] + c[1]

    return lax.scan(step, (x[3], jnp.full(3, jnp.nan)), x)


@carries.add(X)
def _flip_sign(x):
    return lax.scan(lambda c, r: (-c, c * r), jnp.ones(3), x)


@carries.add(X, grad=True)
def _last_valid(x):
    return lax.scan(lambda c, r: (jnp.where(r[0] > 0, r, c),) * 2, jnp.ones(3), x)


@carries.add(X)
def _becomes_a_constant(x):
    return lax.scan(lambda c, r: (jnp.ones(3), c + r), x[0], x)


@carries.add(X)
def _one_start_for_two_buffers(x):
    def body(i, c):
        a, b = c
        return a.at[i].set(b[i - 1] + 1), b.at[i].set(a[i - 1] * 2)

    return lax.fori_loop(0, 8, body, (x, x))


@carries.add(X)
def _buffer_and_its_copy(x):
    def body(c, i):
        now, before = c
        return (now.at[i].set(before[i - 1] * 0.5), now), before[i]

    return lax.scan(body, (x, x), jnp.arange(8))


@carries.add(X, grad=True)
def _one_value_to_two_carries(x):
    def step(c, r):
        h = jnp.tanh(c[0] + r)
        return (h, h, c[1]), (h, c[2], h)

    return lax.scan(step, (x[0], x[1], x[2]), x)


@carries.add(X)
def _swapped_buffers(x):
    def step(c, i):
        a, b = c
        return (b, a.at[i].set(x[i] + b[i])), None

    return lax.scan(step, (x, jnp.zeros_like(x)), jnp.arange(8))[0]


@pytest.mark.parametrize(("fn", "args", "options"), carries)
def test_carries(fn, args, options):
    """What a carry holds is decided by its start and the body, and nothing else."""
    assert_equivalent(fn, *args, **options)


# Carry dtype and weak type.
types = Cases()


@types.add(X)
def _weak_start(x):
    return lax.scan(lambda c, r: (c * 2, c), 1.0, x)


@types.add(X)
def _weak_integer_start(x):
    return lax.fori_loop(0, 4, lambda i, c: c + i, 3), lax.map(lambda r: 2.0, x)


@types.add(X)
def _bfloat16_carry(x):
    def step(c, r):
        return (c + r.sum()).astype(jnp.bfloat16), c

    return lax.scan(step, jnp.bfloat16(0), x)


@types.add(X, oracle=False)
def _mixed_carries(x):
    def step(c, r):
        flag, count, z, none = c
        carry = flag ^ (r[0] > 0), count + jnp.uint8(100), z * 1j + r[0], none
        return carry, (flag, count)

    return lax.scan(step, (False, jnp.uint8(0), jnp.complex64(1), None), x)


@types.add(X.astype(np.float16))
def _float16_rows(x):
    c0 = x[0, 0] * 0
    return lax.scan(lambda c, r: (c + r @ r, r * c), c0, x)


@pytest.mark.parametrize(("fn", "args", "options"), types)
def test_carry_types(fn, args, options):
    """Dtypes and weak types are those of the loop, eager and under jit."""
    assert_equivalent(fn, *args, jit=True, **options)


def test_double_precision_carry():
    """A float64 carry of float32 rows stays in double precision."""
    with jax.enable_x64(True):
        rows = jnp.asarray(random(500, seed=7)) * 1e6

        def f(x):
            def step(c, r):
                return c + r.astype(jnp.float64), (c * 2).astype(jnp.float32)

            return lax.scan(step, jnp.float64(0), x)

        assert_equivalent(f, rows)
