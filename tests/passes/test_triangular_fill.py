"""`triangular-fill`: tables written entry by entry up to the outer counter."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.fuzz import eager_rewriting
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "triangular-fill"
N, D = 24, 5
X = random(N, D)
T = random(N, N, seed=1)
fires, declines = Cases(), Cases()


@pytest.fixture(autouse=True)
def eager():
    """Whatever may be rewritten is, however small."""
    with eager_rewriting():
        yield


def pair(x, i, j):
    """Return a value that knows its order."""
    return jnp.sum((x[i] - 2 * x[j]) ** 2) + jnp.sin(x[i, 0] * j)


def both(t, i, j, v):
    """Write both halves."""
    return t.at[i, j].set(v).at[j, i].set(-v)


def fill(
    low=lambda i: 0,
    high=lambda i: i,
    write=both,
    outer=(0, N),
    value=pair,
    shape=(N, N),
):
    """Return the nest of two loops."""

    def f(x, t):
        def row(i, t):
            entry = lambda j, t: write(t, i, j, value(x, i, j))  # noqa: E731
            return lax.fori_loop(low(i), high(i), entry, t)

        return lax.fori_loop(*outer, row, t[: shape[0], : shape[1]])

    return f


WRITES = {
    "both": both,
    "both, mirrored first": lambda t, i, j, v: t.at[j, i].set(v).at[i, j].set(-v),
    "lower": lambda t, i, j, v: t.at[i, j].set(v),
    "mirrored": lambda t, i, j, v: t.at[j, i].set(v),
    "twice": lambda t, i, j, v: t.at[i, j].set(v).at[i, j].set(v + 1),
    "a number": lambda t, i, j, v: t.at[i, j].set(v).at[j, i].set(3.0),
}
BOUNDS = {
    "below": (lambda i: 0, lambda i: i),
    "up to": (lambda i: 0, lambda i: i + 1),
    "above": (lambda i: i + 1, lambda i: N),
    "from": (lambda i: i, lambda i: N),
}
for write in WRITES:
    for bound in BOUNDS:
        low, high = BOUNDS[bound]
        if write != "both" and bound != "below" and (write, bound) != ("lower", "from"):
            continue
        fires.append(
            pytest.param(
                fill(low, high, WRITES[write]), (X, T), {}, id=f"{write}, {bound}"
            )
        )


@fires.add(X, T)
def _part_of_the_rows(x, t):
    return fill(outer=(3, N - 2))(x, t)


@fires.add(X, T)
def _a_wide_table(x, t):
    lower = WRITES["lower"]
    return fill(high=lambda i: i + 3, write=lower, shape=(N - 4, N), outer=(0, N - 4))(
        x, t
    )


@fires.add(X, T)
def _counting_down(x, t):
    def row(k, t):
        i = N - 1 - k
        entry = lambda j, t: both(t, i, j, pair(x, i, j))  # noqa: E731
        return lax.fori_loop(0, i, entry, t)

    return lax.fori_loop(0, N, row, t)


@fires.add(X, T)
def _rows_read_in_other_ways(x, t):
    def value(x, i, j):
        return x[N - 1 - j, 0] * x[j // 2, 1] + x[i] @ x[j] + lax.cos(1.0 * i)

    return fill(value=value)(x, t)


@fires.add((X * 50).astype(np.int32), (T * 50).astype(np.int32))
def _integers(x, t):
    return fill(value=lambda x, i, j: x[i, 0] * j + x[j, 1])(x, t)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    report = assert_fires(NAME, fn, args, "rows", oracle=True, **options)
    assert "while" not in report.after.outline()


@declines.add(X, T)
def _the_table_is_read(x, t):
    def value(x, i, j):
        return x[i, 0] + x[j, 1]

    def row(i, t):
        entry = lambda j, t: t.at[i, j].set(t[j, i] + value(x, i, j))  # noqa: E731
        return lax.fori_loop(0, i, entry, t)

    return lax.fori_loop(0, N, row, t)


@declines.add(X, T)
def _both_halves_twice(x, t):
    """Which of two values stays depends on the order."""
    return fill(high=lambda i: N)(x, t)


@declines.add(X, T)
def _out_of_bounds(x, t):
    return fill(high=lambda i: i + 2, write=WRITES["lower"])(x, t)


@declines.add(X, T)
def _added(x, t):
    return fill(write=lambda t, i, j, v: t.at[i, j].add(v))(x, t)


@declines.add(X, T)
def _a_step_of_two(x, t):
    def row(k, t):
        i = 2 * k
        entry = lambda j, t: both(t, i, j, pair(x, i, j))  # noqa: E731
        return lax.fori_loop(0, i, entry, t)

    return lax.fori_loop(0, N // 2, row, t)


@declines.add(X, T)
def _sparse(x, t):
    return fill(high=lambda i: jnp.where(i > N - 3, i, 0))(x, t)


@declines.add(X, T)
def _another_carry(x, t):
    def row(i, c):
        def entry(j, c):
            t, s = c
            v = pair(x, i, j)
            return both(t, i, j, v), s + v

        return lax.fori_loop(0, i, entry, c)

    return lax.fori_loop(0, N, row, (t, 0.0))


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, oracle=True, **options)
