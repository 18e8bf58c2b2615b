"""`table-recurrence`: tables made from their last rows, and reads of other rows."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, fired

NAME = "table-recurrence"
N = 20
W, T = random(8, 8, seed=1), random(N, 8)
fires, declines = Cases(), Cases()


def _table(value, at=lambda i: i, start=1, stop=N):
    """Return a loop that sets row `at(i)` to a function of the table and i."""

    def f(w, t):
        body = lambda i, t: t.at[at(i)].set(jnp.tanh(w @ value(t, i)))  # noqa: E731
        return lax.fori_loop(start, stop, body, t)

    return f


WINDOWS = {
    "one": (1, lambda t, i: t[i - 1]),
    "two": (2, lambda t, i: t[i - 1] + t[i - 2], lambda i: i, 2),
    "only_the_second": (2, lambda t, i: t[i - 2], lambda i: i, 2),
    "one_and_five": (5, lambda t, i: t[i - 1] - t[i - 5], lambda i: i, 5),
    "eight": (8, lambda t, i: t[i - 8], lambda i: i, 8),
    "same_row_twice": (1, lambda t, i: t[i - 1] * t[i - 1]),
    "downward": (
        1,
        lambda t, i: t[N - i],
        lambda i: N - 1 - i,
    ),
    "every_second": (1, lambda t, i: t[2 * i - 2], lambda i: 2 * i, 1, N // 2),
    "permuted": (1, lambda t, i: t[(3 * i - 3) % N], lambda i: (3 * i) % N),
    "wraps_at_first": (1, lambda t, i: t[i - 1], lambda i: i, 0),
    "a_part": (1, lambda t, i: t[i - 1], lambda i: i, 7, 12),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_window(case):
    window, *loop = WINDOWS[case]
    f = _table(*loop)
    report = assert_fires(NAME, f, (W, T), "window", loops=1)
    assert fired(report, NAME)[0].args["window"] == window
    carried = report.after.loops[0].eqn.outvars
    rows = [v for v in carried if v.aval.shape == (8,)]
    assert len(rows) <= window, report.after.outline()


@pytest.mark.parametrize("case", ["two", "downward"])
def test_gradients(case):
    assert_fires(NAME, _table(*WINDOWS[case][1:]), (W / 3, T), grad=True, oracle=True)


@fires.add(W, T, loops=1)
def _with_other_work(w, t):
    body = lambda i, t: t.at[i].set(jnp.tanh(w @ t[i - 1]) + jnp.cos(i))  # noqa: E731
    return lax.fori_loop(1, N, body, t)


@fires.add(W, T, loops=1)
def _reverse_scan(w, t):
    def body(t, i):
        return t.at[i].set(jnp.tanh(w @ t[i + 1])), None

    return lax.scan(body, t, jnp.arange(N - 1), reverse=True)[0]


@fires.add(np.arange(N), loops=1)
def _fibonacci(t):
    return lax.fori_loop(2, N, lambda i, t: t.at[i].set(t[i - 1] + t[i - 2]), t)


@fires.add(np.full(N, 100, np.int8))
def _wrapping_integers(t):
    return lax.fori_loop(1, N, lambda i, t: t.at[i].set(t[i - 1] * 3), t)


@fires.add(W, T.T.copy(), loops=1)
def _columns(w, t):
    body = lambda i, t: t.at[:, i].set(jnp.tanh(w @ t[:, i - 1]))  # noqa: E731
    return lax.fori_loop(1, N, body, t)


@fires.add(W, T, loops=1)
def _beside_a_counter_and_a_sum(w, t):
    def body(c, i):
        t, s = c
        row = jnp.tanh(w @ t[i - 1])
        return (t.at[i].set(row), s + row), None

    return lax.scan(body, (t, jnp.zeros(8)), jnp.arange(1, N))[0]


FAR = "not-a-window"


@declines.add(W, T, code=FAR, loops=1)
def _nine_rows_behind(w, t):
    body = lambda i, t: t.at[i].set(jnp.tanh(w @ t[i - 9]))  # noqa: E731
    return lax.fori_loop(9, N, body, t)


@declines.add(W, T, code=FAR, loops=1)
def _reads_the_row_ahead(w, t):
    body = lambda i, t: t.at[i].set(jnp.tanh(w @ t[i + 1]) + t[i - 1])  # noqa: E731
    return lax.fori_loop(1, N - 1, body, t)


@declines.add(W, T, code=FAR, loops=1)
def _reads_the_first_row(w, t):
    body = lambda i, t: t.at[i].set(jnp.tanh(w @ t[0]) + t[i - 1])  # noqa: E731
    return lax.fori_loop(1, N, body, t)


@declines.add(W, T, code=FAR, loops=1)
def _reads_half_way(w, t):
    body = lambda i, t: t.at[i].set(jnp.tanh(w @ t[i // 2]))  # noqa: E731
    return lax.fori_loop(1, N, body, t)


@declines.add(W, T, np.arange(N) // 2, code=FAR, loops=1)
def _reads_where_the_data_says(w, t, index):
    body = lambda i, t: t.at[i].set(jnp.tanh(w @ t[index[i]]))  # noqa: E731
    return lax.fori_loop(1, N, body, t)


@declines.add(W, T, code=FAR, loops=1)
def _reads_two_rows_at_once(w, t):
    def body(i, t):
        rows = lax.dynamic_slice_in_dim(t, i - 2, 2)
        return t.at[i].set(jnp.tanh(w @ rows.sum(0)))

    return lax.fori_loop(2, N, body, t)


@declines.add(W, T, code=FAR, loops=1)
def _reads_the_whole_table(w, t):
    body = lambda i, t: t.at[i].set(jnp.tanh(w @ t.sum(0)) + t[i - 1])  # noqa: E731
    return lax.fori_loop(1, N, body, t)


@declines.add(W, T, code=FAR, loops=1)
def _gives_the_table(w, t):
    body = lambda t, i: (t.at[i].set(jnp.tanh(w @ t[i - 1])), t)  # noqa: E731
    return lax.scan(body, t, jnp.arange(1, N))


@declines.add(W, T, code=FAR, loops=1)
def _reads_what_it_just_wrote(w, t):
    def body(t, i):
        t = t.at[i].set(jnp.tanh(w @ t[i - 1]))
        return t, t[i]

    return lax.scan(body, t, jnp.arange(1, N))


@declines.add(W, T, code=FAR, loops=1)
def _two_orders_of_first_rows(w, t):
    """A shift register can not hold rows 3 and 0 of the start in one place."""

    def body(i, t):
        return t.at[i].set(jnp.tanh(w @ t[jnp.where(i == 4, 0, i - 1)]) + t[i - 1])

    return lax.fori_loop(4, N, body, t)


@declines.add(W, T, code="none", loops=1)
def _adds_to_the_row(w, t):
    body = lambda i, t: t.at[i].add(jnp.tanh(w @ t[i - 1]))  # noqa: E731
    return lax.fori_loop(1, N, body, t)


@declines.add(W, T, code="none", loops=1)
def _some_writes_are_dropped(w, t):
    body = lambda i, t: t.at[i + 4].set(jnp.tanh(w @ t[i + 3]))  # noqa: E731
    return lax.fori_loop(0, N, body, t)


@declines.add(W, T, code="none", loops=1)
def _rows_come_around_again(w, t):
    body = lambda i, t: t.at[i % 5].set(jnp.tanh(w @ t[(i - 1) % 5]))  # noqa: E731
    return lax.fori_loop(5, N, body, t)


@declines.add(W, T, code="none", loops=1)
def _no_table(w, t):
    return lax.fori_loop(1, N, lambda i, h: jnp.tanh(w @ h + t[i]), t[0])


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "window", **options)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)
