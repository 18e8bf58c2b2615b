"""`indexed-read`: rows read at indices known at compile time, and near misses."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, fired

NAME = "indexed-read"
N = 24
U, X = random(4, 4, seed=1, scale=0.5), random(N, 4)
GONE = ("dynamic_slice", "gather")
fires, declines = Cases(), Cases()


def _reads(index, steps=N, start=0):
    """Return a recurrence that reads `x[index(i)]`."""

    def f(u, x):
        body = lambda i, h: jnp.tanh(u @ h + x[index(i)])  # noqa: E731
        return lax.fori_loop(start, start + steps, body, x[0])

    return f


INDEX = {
    "forward": (lambda i: i,),
    "reversed": (lambda i: N - 1 - i,),
    "from_the_end": (lambda i: -1 - i,),
    "every_second": (lambda i: 2 * i + 1, N // 2),
    "every_third_backward": (lambda i: 23 - 3 * i, 8),
    "permuted": (lambda i: (7 * i) % N,),
    "offset": (lambda i: i - 5, 8, 5),
    "past_the_end": (lambda i: i + 5,),
    "before_the_start": (lambda i: i - N - 3, 9),
    "bounced": (lambda i: jnp.minimum(i, N - 1 - i),),
    "halved": (lambda i: i // 2,),
    "wrapped": (lambda i: i % 3,),
    "chosen": (lambda i: jnp.where(i < 4, 9, i),),
}


GRADIENTS = {"past_the_end", "every_third_backward", "wrapped"}


@pytest.mark.parametrize("case", INDEX)
def test_index(case):
    """Clamped, repeated and permuted indices included."""
    f, grad = _reads(*INDEX[case]), case in GRADIENTS
    assert_fires(NAME, f, (U, X), "rows", without=GONE, grad=grad, oracle=grad)


@fires.add(U, X, loops=1, without=("dynamic_slice",))
def _reverse_scan(u, x):
    body = lambda h, i: (jnp.tanh(u @ h + x[i]), h)  # noqa: E731
    return lax.scan(body, x[0], jnp.arange(N), reverse=True)


@fires.add(U, X, loops=1, grad=True, without=("dynamic_slice",))
def _windows_side_by_side(u, x):
    def body(i, h):
        return jnp.tanh(u @ h + lax.dynamic_slice_in_dim(x, 2 * i, 2).sum(0))

    return lax.fori_loop(0, N // 2, body, x[0])


@fires.add(U, X, loops=1, without=("dynamic_slice",))
def _windows_backward(u, x):
    def body(i, h):
        at = N - 3 - 3 * i
        return jnp.tanh(u @ h + lax.dynamic_slice_in_dim(x, at, 3).sum(0))

    return lax.fori_loop(0, N // 3, body, x[0])


@fires.add(U, X.T.copy(), loops=1, without=GONE)
def _columns(u, x):
    body = lambda i, h: jnp.tanh(u @ h + x[:, i])  # noqa: E731
    return lax.fori_loop(0, N, body, x[:, 0])


@fires.add(U, X, X, loops=1, without=GONE)
def _two_arrays_three_reads(u, x, y):
    body = lambda i, h: jnp.tanh(u @ h + x[i] + y[i] * x[i])  # noqa: E731
    return lax.fori_loop(0, N, body, x[0])


@fires.add(U, X, loops=1, without=GONE)
def _row_and_the_next(u, x):
    body = lambda i, h: jnp.tanh(u @ h + x[i] - x[i + 1])  # noqa: E731
    return lax.fori_loop(0, N, body, x[0])


@fires.add(np.arange(N * 3).reshape(N, 3), loops=1)
def _integers(x):
    return lax.fori_loop(0, N, lambda i, h: h * 3 + x[N - 1 - i], x[0])


@fires.add(U, X, loops=1)
def _fill_in_range(u, x):
    def body(i, h):
        return jnp.tanh(u @ h + x.at[i].get(mode="fill", fill_value=7.0))

    return lax.fori_loop(0, N, body, x[0])


@fires.add(U, X, loops=1)
def _while_with_a_step(u, x):
    body = lambda c: (c[0] + 4, jnp.tanh(u @ c[1] + x[c[0]]))  # noqa: E731
    return lax.while_loop(lambda c: c[0] < N, body, (1, x[0]))[1]


@declines.add(U, X, np.arange(N) % 5, code="none", loops=1)
def _index_is_data(u, x, index):
    body = lambda h, i: (jnp.tanh(u @ h + x[i]), None)  # noqa: E731
    return lax.scan(body, x[0], index)[0]


@declines.add(U, X, code="none", loops=1)
def _index_from_the_carry(u, x):
    def body(i, h):
        return jnp.tanh(u @ h + x[jnp.int32(h[0] > 0) + i])

    return lax.fori_loop(0, N, body, x[0])


@declines.add(U, X, 3, code="none", loops=1)
def _offset_is_an_argument(u, x, k):
    body = lambda i, h: jnp.tanh(u @ h + x[i + k])  # noqa: E731
    return lax.fori_loop(0, N, body, x[0])


@declines.add(U, X, code="none", loops=1)
def _always_the_same_row(u, x):
    body = lambda i, h: jnp.tanh(u @ h + x[3])  # noqa: E731
    return lax.fori_loop(0, N, body, x[0])


@declines.add(U, X, code="none", loops=1)
def _overlapping_windows(u, x):
    def body(i, h):
        return jnp.tanh(u @ h + lax.dynamic_slice_in_dim(x, i, 3).sum(0))

    return lax.fori_loop(0, N - 2, body, x[0])


@declines.add(U, X, code="none", loops=1)
def _windows_with_gaps(u, x):
    def body(i, h):
        return jnp.tanh(u @ h + lax.dynamic_slice_in_dim(x, 3 * i, 2).sum(0))

    return lax.fori_loop(0, N // 3, body, x[0])


@declines.add(U, X, code="none", loops=1)
def _the_array_changes(u, x):
    def body(i, c):
        h, x = c
        return jnp.tanh(u @ h + x[i]), x * 0.5

    return lax.fori_loop(0, N, body, (x[0], x))


@declines.add(U, X, code="none", loops=1)
def _float_counter(u, x):
    body = lambda c, _: (  # noqa: E731
        (c[0] + 1.0, jnp.tanh(u @ c[1] + x[c[0].astype(jnp.int32)])),
        None,
    )
    return lax.scan(body, (0.0, x[0]), None, N)[0]


@declines.add(U, X, code="none", loops=1)
def _fill_out_of_range(u, x):
    def body(i, h):
        return jnp.tanh(u @ h + x.at[i + 3].get(mode="fill", fill_value=7.0))

    return lax.fori_loop(0, N, body, x[0])


@declines.add(random(4, 64), code="larger-than-operand", loops=1)
def _few_rows_read_again_and_again(x):
    body = lambda i, h: jnp.tanh(h + x[i % 4])  # noqa: E731
    return lax.fori_loop(0, 1000, body, x[0])


@declines.add(U, X, code="none")
def _rows_of_the_scan_itself(u, x):
    return lax.scan(lambda h, r: (jnp.tanh(u @ h + r), None), x[0], x)[0]


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "rows", **options)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_equal_reads_share_a_row():
    """`x[i]` twice is one stacked input."""

    def f(u, x):
        body = lambda i, h: jnp.tanh(u @ (h + x[i]) + x[i])  # noqa: E731
        return lax.fori_loop(0, N, body, x[0])

    report = assert_fires(NAME, f, (U, X), "rows")
    assert fired(report, NAME)[0].args["count"] == 2
    operands = [v.aval.shape for v in report.after.loops[0].eqn.invars]
    assert operands.count((N, 4)) == 1, operands
