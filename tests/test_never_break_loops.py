"""Indices, trips, carries: each program here breaks under a rewrite that looks right.

Every test names the tempting rewrite; the values (and their gradients) must stay.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import Cases, assert_equivalent, random

X = random(8, 3)
LONG = random(24, 3, seed=1)

# Step other than 1, or the index used as a value. Tempting: counters count by ones,
# so the trip is the bound and step i reads row i.
steps = Cases()


@steps.add(LONG, grad=True)
def _every_third_row(x):
    def step(c, i):
        return c + x[i] * i, x[i] + i

    return lax.scan(step, jnp.zeros(3), jnp.arange(1, 24, 3))


@steps.add(LONG)
def _while_by_three_returns_the_index(x):
    def body(c):
        i, total = c
        return i + 3, total + x[i] * (i + 1)

    return lax.while_loop(lambda c: c[0] < 20, body, (2, jnp.zeros(3)))


@steps.add(LONG)
def _while_counts_down_by_two(x):
    def body(c):
        i, out = c
        return i - 2, out.at[i].set(x[i] * i)

    return lax.while_loop(lambda c: c[0] > 0, body, (15, jnp.zeros_like(x)))


@steps.add(LONG, np.int32(4))
def _while_with_a_traced_step(x, step):
    def body(c):
        i, total = c
        return i + step, total + x[i]

    return lax.while_loop(lambda c: c[0] < 17, body, (1, jnp.zeros(3)))


@steps.add(LONG)
def _while_not_equal_steps_over_the_bound(x):
    def body(c):
        i, total = c
        return i * 2 + 1, total + x[i]

    return lax.while_loop(lambda c: c[0] <= 15, body, (1, jnp.zeros(3)))


@steps.add(LONG, grad=True)
def _start_other_than_zero(x):
    return lax.fori_loop(3, 9, lambda i, c: c * 0.5 + x[i] * (i - 3), jnp.zeros(3))


@steps.add(LONG)
def _negative_start(x):
    return lax.fori_loop(-4, 3, lambda i, b: b.at[i].add(x[i] * i), jnp.zeros((6, 3)))


@steps.add(LONG)
def _even_rows_written_odd_rows_read(x):
    def body(i, b):
        return b.at[2 * i].set(jnp.tanh(x[2 * i + 1]) + i)

    return lax.fori_loop(0, 12, body, jnp.full((24, 3), 7.0))


@steps.add(LONG, grad=True)
def _index_as_a_float(x):
    return lax.map(lambda i: x[i] * i.astype(jnp.float32) ** 2, jnp.arange(24)[::-1])


@steps.add(LONG)
def _counter_that_skips_on_data(x):
    def step(k, row):
        return jnp.where(row[0] > 0, k + 1, k), x[k]

    return lax.scan(step, 0, x)


@pytest.mark.parametrize(("fn", "args", "options"), steps)
def test_steps_and_index_values(fn, args, options):
    """The index is whatever the program says, and not the number of the step."""
    assert_equivalent(fn, *args, **options)


# Out of range: reads clamp (or fill), scatters drop, slices move as a whole.
# Tempting: turn the read or the write into a slice, or into plain stacking.
ranges = Cases()


@ranges.add(X, grad=True)
def _read_past_the_end(x):
    return lax.map(lambda i: x[i + 3] * 2, jnp.arange(8))


@ranges.add(X)
def _read_before_the_start(x):
    return lax.map(lambda i: x[i - 11] * 2, jnp.arange(8))


@ranges.add(X)
def _window_moves_as_a_whole(x):
    def window(i):
        return lax.dynamic_slice(x, (i - 2, i), (3, 2)).sum(0)

    return lax.map(window, jnp.arange(10))


@ranges.add(X)
def _window_written_past_both_ends(x):
    def body(i, b):
        return lax.dynamic_update_slice(b, x[:3] + i, (2 * i - 3, 0))

    return lax.fori_loop(0, 8, body, jnp.zeros((8, 3)))


@ranges.add(X)
def _row_update_clamped_to_the_last(x):
    def body(i, b):
        return lax.dynamic_update_index_in_dim(b, x[i] + i, i + 4, 0)

    return lax.fori_loop(0, 8, body, jnp.zeros((8, 3)))


def _scatter(mode):
    def scatter(x):
        def body(i, b):
            return b.at[i + 3].set(x[i] + i, mode=mode)

        return lax.fori_loop(0, 8, body, jnp.full((8, 3), -1.0))

    scatter.__name__ = f"_scatter_{mode}"
    return scatter


def _fill(mode):
    def gather(x):
        def read(i):
            return x.at[i - 2].get(mode=mode, fill_value=5, wrap_negative_indices=False)

        return lax.map(read, jnp.arange(12))

    gather.__name__ = f"_gather_{mode}"
    return gather


for _mode in ("drop", "clip", None):
    ranges.add(X, grad=True)(_scatter(_mode))
for _mode in ("fill", "clip"):
    ranges.add(X)(_fill(_mode))


@ranges.add(X)
def _negative_rows_wrap_then_drop(x):
    return lax.fori_loop(0, 8, lambda i, b: b.at[i - 11].set(x[i]), jnp.ones((8, 3)))


@ranges.add(X, grad=True)
def _more_steps_than_rows(x):
    return lax.fori_loop(0, 13, lambda i, c: jnp.tanh(c + x[i]), jnp.zeros(3))


@ranges.add(X, grad=True)
def _fewer_steps_than_rows(x):
    def body(i, b):
        return b.at[i].set(x[i] * 2)

    return lax.fori_loop(0, 5, body, x)


@ranges.add(X, oracle=False)
def _index_that_overflows(x):
    def read(i):
        return x[(i * jnp.int32(1 << 30)) % 8], i * jnp.int32(1 << 30)

    return lax.map(read, jnp.arange(8, dtype=jnp.int32))


@pytest.mark.parametrize(("fn", "args", "options"), ranges)
def test_out_of_range(fn, args, options):
    """Reads clamp or fill, scatters drop; the trip need not be the length."""
    assert_equivalent(fn, *args, **options)


# A row read after it was written. Tempting: the buffer is "filled row by row", so it
# becomes the stacked outputs.
tables = Cases()


@tables.add(X)
def _same_row_read_back(x):
    def body(b, i):
        b = b.at[i].set(b[i] * 2 + x[i])
        return b, b[i].sum()

    return lax.scan(body, jnp.ones((8, 3)), jnp.arange(8))


@tables.add(X, grad=True)
def _previous_row_wraps_at_zero(x):
    def body(i, b):
        return b.at[i].set(0.5 * b[i - 1] + x[i])

    return lax.fori_loop(0, 8, body, jnp.full((8, 3), 3.0))


@tables.add(X, grad=True)
def _next_row_not_yet_written(x):
    return lax.fori_loop(0, 8, lambda i, b: b.at[i].set(b[i + 1] + b[i]), x)


@tables.add(X)
def _one_fixed_row(x):
    return lax.fori_loop(0, 8, lambda i, b: b.at[i].set(b[2] + x[i]), x)


@tables.add(X)
def _whole_buffer(x):
    return lax.fori_loop(0, 8, lambda i, b: b.at[i].set(b.sum(0) * 0.3 + x[i]), x)


@tables.add(X)
def _mirror_row(x):
    return lax.fori_loop(0, 8, lambda i, b: b.at[i].set(b[7 - i] * 2 + i), x)


@tables.add(LONG)
def _doubling_index(x):
    return lax.fori_loop(1, 12, lambda i, b: b.at[2 * i].set(b[i] + 1), x)


@tables.add(X)
def _two_writes_that_overlap(x):
    def body(i, b):
        return b.at[i].set(x[i]).at[i + 1].set(-x[i] * 2)

    return lax.fori_loop(0, 8, body, jnp.zeros((8, 3)))


@tables.add(X)
def _each_state_of_the_buffer(x):
    def body(b, i):
        return b.at[i].set(x[i] * 2), b

    return lax.scan(body, x, jnp.arange(8))


@tables.add(X)
def _written_then_cleared(x):
    def body(i, b):
        return b.at[(3 * i) % 8].set(x[i]).at[(3 * i + 3) % 8].set(0.0)

    return lax.fori_loop(0, 8, body, x)


@tables.add(np.int32(12), oracle=False)
def _sieve(n):
    def body(i, prime):
        hits = (jnp.arange(40) % i == 0) & (jnp.arange(40) > i) & (i < n)
        return jnp.where(prime[i] & hits, False, prime)

    return lax.fori_loop(2, 12, body, jnp.ones(40, bool))


@pytest.mark.parametrize(("fn", "args", "options"), tables)
def test_rows_read_after_they_were_written(fn, args, options):
    """A read sees the writes before it, and none of those after it."""
    assert_equivalent(fn, *args, **options)


def _loops_of(trip):
    """One loop of each kind over the rows of `x`, all with the same trip."""

    def programs(x, carry):
        x = x[:trip]
        rows = jnp.arange(trip)
        return {
            "map": lax.map(lambda r: jnp.tanh(r @ r) * r, x),
            "sum": lax.scan(lambda c, r: (c + r, None), carry, x)[0],
            "max": lax.scan(lambda c, r: (jnp.maximum(c, r), c), carry, x),
            "rnn": lax.scan(lambda c, r: (jnp.tanh(c + r), c), carry, x),
            "delay": lax.scan(lambda c, r: (r, c), carry, x),
            "linear": lax.scan(lambda c, r: (0.5 * c + r, c), carry, x),
            "write": lax.fori_loop(0, trip, lambda i, b: b.at[i].set(i), X),
            "nest": lax.map(lambda i: lax.map(lambda r: r * i, x), rows),
            "reverse": lax.scan(lambda c, r: (c * r, c), carry, x, reverse=True),
            "nothing": lax.scan(lambda c, _: (c * 2, None), carry, length=trip)[0],
        }

    return programs


@pytest.mark.parametrize("trip", [0, 1])
def test_trip_zero_and_one(trip):
    """Nothing happens in no step. Tempting: a first step peeled, a block of one."""
    assert_equivalent(_loops_of(trip), X, X[0] + 1, grad=True, jit=True)


@pytest.mark.parametrize("trip", [0, 1, 6])
def test_traced_trip(trip):
    """A traced trip may be zero, also where the body has no value."""

    def f(n, x):
        def body(i, c):
            total, least, k = c
            return total + x[i], jnp.minimum(least, x[i]), k + 7 // n + i % n

        return lax.fori_loop(0, n, body, (jnp.zeros(3), jnp.full(3, jnp.inf), 0))

    assert_equivalent(f, np.int32(trip), X)


# Reverse loops. Tempting: forget which end is first.
reverse = Cases()


@reverse.add(X, grad=True, vmap=(0,))
def _reverse_all(x):
    w = jnp.cos(jnp.arange(9.0)).reshape(3, 3)

    def step(c, row):
        h, last, total = c
        return (jnp.tanh(h @ w + row), row, total + row), (h, last, row @ w)

    return lax.scan(step, (x[0], x[1], x[2]), x, reverse=True)


@reverse.add(X)
def _reverse_buffer(x):
    def step(c, row):
        i, b = c
        return (i + 1, b.at[i].set(row)), i

    return lax.scan(step, (0, jnp.zeros((8, 3))), x, reverse=True)


@reverse.add(X)
def _reverse_prefixes(x):
    def step(c, row):
        return jnp.maximum(c, row), (c, jnp.maximum(c, row))

    return lax.scan(step, jnp.full(3, -jnp.inf), x, reverse=True)


@reverse.add(X)
def _reverse_index(x):
    return lax.fori_loop(
        0, 8, lambda i, b: b.at[7 - i].set(x[i] - i), jnp.zeros((8, 3))
    )


@pytest.mark.parametrize(("fn", "args", "options"), reverse)
def test_reverse(fn, args, options):
    """Row t of the output belongs to row t of the input, the last step is row 0."""
    assert_equivalent(fn, *args, **options)
