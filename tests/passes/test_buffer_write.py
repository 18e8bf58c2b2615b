"""`buffer-write`: arrays filled row by row, and arrays that are read or rewritten."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, fired

NAME = "buffer-write"
N = 24
W, X, B = random(64, 64, seed=1), random(N, 64), random(N, 64, seed=2)
LOST = random(N + 6, 64, seed=3)
fires, declines = Cases(), Cases()


def _fills(write, steps=N, start=0):
    """Return a loop that writes `tanh(W @ x[i])` into a buffer and nothing else."""

    def f(w, x, buffer):
        body = lambda i, b: write(b, i, jnp.tanh(w @ x[i]))  # noqa: E731
        return lax.fori_loop(start, start + steps, body, buffer)

    return f


def _window(b, i, row):
    return lax.dynamic_update_slice_in_dim(b, jnp.stack([row, row + 1]), 2 * i, 0)


WRITES = {
    "set": (lambda b, i, r: b.at[i].set(r),),
    "add": (lambda b, i, r: b.at[i].add(r),),
    "multiply": (lambda b, i, r: b.at[i].multiply(r),),
    "min": (lambda b, i, r: b.at[i].min(r),),
    "max": (lambda b, i, r: b.at[i].max(r),),
    "reversed": (lambda b, i, r: b.at[N - 1 - i].set(r),),
    "from_the_end": (lambda b, i, r: b.at[-1 - i].set(r),),
    "every_second": (lambda b, i, r: b.at[2 * i].set(r), N // 2),
    "every_second_backward": (lambda b, i, r: b.at[N - 1 - 2 * i].add(r), N // 2),
    "permuted": (lambda b, i, r: b.at[(5 * i) % N].set(r),),
    "some_dropped": (lambda b, i, r: b.at[i + 7].set(r),),
    "clamped_once": (
        lambda b, i, r: lax.dynamic_update_slice_in_dim(b, r[None], i + 1, 0),
        N - 1,
    ),
    "a_part": (lambda b, i, r: b.at[i].set(r), 9, 4),
    "slice": (lambda b, i, r: lax.dynamic_update_slice_in_dim(b, r[None], i, 0),),
    "slice_backward": (
        lambda b, i, r: lax.dynamic_update_slice_in_dim(b, r[None], N - 1 - i, 0),
    ),
    "window_of_two": (_window, N // 2),
    "clip_mode": (lambda b, i, r: b.at[i].set(r, mode="clip"),),
    "promised": (lambda b, i, r: b.at[i].set(r, mode="promise_in_bounds"),),
}


@pytest.mark.parametrize("case", WRITES)
def test_writes(case):
    report = assert_fires(
        NAME, _fills(*WRITES[case]), (W, X, B), "rows", loops=0, outcome="batched"
    )
    assert fired(report, NAME)


@pytest.mark.parametrize("case", ["add", "some_dropped"])
def test_gradients(case):
    def f(w, x, buffer):
        return _fills(*WRITES[case])(w / 8, x, buffer)

    assert_fires(NAME, f, (W, X, B), "rows", grad=True, oracle=True)


@fires.add(W, X, B, loops=0)
def _row_read_before_it_is_written(w, x, b):
    return lax.fori_loop(0, N, lambda i, b: b.at[i].set(b[i] + jnp.tanh(w @ x[i])), b)


@fires.add(W, X, B, loops=0)
def _two_buffers(w, x, b):
    def body(i, c):
        first, second = c
        row = jnp.tanh(w @ x[i])
        return first.at[i].set(row), second.at[N - 1 - i].set(row * 2)

    return lax.fori_loop(0, N, body, (b, b))


@fires.add(W, X, B.T.copy(), loops=0)
def _columns(w, x, b):
    return lax.fori_loop(0, N, lambda i, b: b.at[:, i].set(jnp.tanh(w @ x[i])), b)


@fires.add(W, X, np.zeros((N, 64), np.int8), loops=0)
def _integers(w, x, b):
    def body(i, b):
        return b.at[i].add(jnp.int8(100) + (w @ x[i] > 0).astype(jnp.int8))

    return lax.fori_loop(0, N, body, b)


@fires.add(W, X, B, loops=1)
def _beside_a_recurrence(w, x, b):
    def body(i, c):
        h, b = c
        h = jnp.tanh(w @ x[i] + 0.5 * h)
        return h, b.at[i].set(h)

    return lax.fori_loop(0, N, body, (x[0], b))


@fires.add(W, X, B, loops=0)
def _reverse_scan(w, x, b):
    body = lambda b, i: (b.at[i].set(jnp.tanh(w @ x[i])), None)  # noqa: E731
    return lax.scan(body, b, jnp.arange(N), reverse=True)[0]


@fires.add(W, X, B, 3, loops=0)
def _cell_of_a_chosen_column(w, x, b, k):
    return lax.fori_loop(0, N, lambda i, b: b.at[i, k].set((w @ x[i]).sum()), b)


REPEATED, UNKNOWN, READ = "repeated-row", "unknown-index", "read-elsewhere"


@declines.add(W, X, B, code=REPEATED)
def _each_row_twice(w, x, b):
    return lax.fori_loop(0, N, lambda i, b: b.at[i // 2].set(jnp.tanh(w @ x[i])), b)


@declines.add(W, X, B, code=REPEATED)
def _wraps_around(w, x, b):
    return lax.fori_loop(0, N, lambda i, b: b.at[i % 5].add(jnp.tanh(w @ x[i])), b)


@declines.add(W, X, B, code=REPEATED)
def _clamped_to_the_last(w, x, b):
    def body(i, b):
        return lax.dynamic_update_slice_in_dim(b, jnp.tanh(w @ x[i])[None], i + 2, 0)

    return lax.fori_loop(0, N, body, b)


@declines.add(W, X, B, code=REPEATED)
def _overlapping_windows(w, x, b):
    def body(i, b):
        rows = jnp.tanh(w @ x[i]) * jnp.ones((2, 1))
        return lax.dynamic_update_slice_in_dim(b, rows, i, 0)

    return lax.fori_loop(0, N - 1, body, b)


@declines.add(W, X, B, code=REPEATED)
def _always_the_same_row(w, x, b):
    return lax.fori_loop(0, N, lambda i, b: b.at[3].set(jnp.tanh(w @ x[i])), b)


@declines.add(W, X, B, np.arange(N)[::-1].copy(), code=UNKNOWN)
def _index_is_an_argument(w, x, b, index):
    body = lambda b, r: (b.at[r[0]].set(jnp.tanh(w @ r[1])), None)  # noqa: E731
    return lax.scan(body, b, (index, x))[0]


@declines.add(W, X, B, code=UNKNOWN)
def _index_from_the_data(w, x, b):
    def body(i, b):
        row = jnp.tanh(w @ x[i])
        return b.at[i + (row[0] > 0)].set(row)

    return lax.fori_loop(0, N, body, b)


@declines.add(W, X, B, code=READ)
def _reads_the_row_before(w, x, b):
    def body(i, b):
        return b.at[i].set(jnp.tanh(w @ x[i]) + 0.5 * b[i - 1])

    return lax.fori_loop(1, N, body, b)


@declines.add(W, X, B, code=READ)
def _reads_the_row_after(w, x, b):
    def body(i, b):
        return b.at[i].set(jnp.tanh(w @ x[i]) + 0.5 * b[i + 1])

    return lax.fori_loop(0, N - 1, body, b)


@declines.add(W, X, B, code=READ)
def _reads_what_it_just_wrote(w, x, b):
    def body(b, i):
        b = b.at[i].set(jnp.tanh(w @ x[i]))
        return b, b[i]

    return lax.scan(body, b, jnp.arange(N))


@declines.add(W, X, B, code=READ)
def _reads_all_of_it(w, x, b):
    def body(i, b):
        return b.at[i].set(jnp.tanh(w @ x[i]) + b.sum())

    return lax.fori_loop(0, N, body, b * 0.01)


@declines.add(W, X, B, code=READ)
def _gives_all_of_it(w, x, b):
    body = lambda b, i: (b.at[i].set(jnp.tanh(w @ x[i])), b)  # noqa: E731
    return lax.scan(body, b, jnp.arange(N))


@declines.add(W, X, LOST, code=READ)
def _row_read_of_a_dropped_write(w, x, b):
    def body(i, b):
        return b.at[i + N].set(b[i + N] + jnp.tanh(w @ x[i]))

    return lax.fori_loop(0, N, body, b)


@declines.add(W, X, B, code="none")
def _writes_twice(w, x, b):
    def body(i, b):
        return b.at[i].set(jnp.tanh(w @ x[i])).at[i - 1].add(1.0)

    return lax.fori_loop(0, N, body, b)


@declines.add(W, X, B, code="none")
def _writes_into_a_new_array(w, x, b):
    body = lambda i, b: (b * 0.5).at[i].set(jnp.tanh(w @ x[i]))  # noqa: E731
    return lax.fori_loop(0, N, body, b)


@declines.add(W, X, B, code="none")
def _no_buffer(w, x, b):
    return lax.fori_loop(0, N, lambda i, b: jnp.tanh(w @ x[i] + b), b[0])


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "rows", **options)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)
