"""`buffers` and `rows`: accesses found in bodies, rows taken and put, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter.buffers import (
    Access,
    Indices,
    clamped,
    distinct,
    read_access,
    same_position,
    write_access,
)
from rewriter.indices import Affine, Table, counter, rows
from rewriter.rows import put_rows, take_rows
from tests.helpers import random
from tests.rewriter.bodies import body_of

N = 6
POSITIONS = {
    "forward": counter(0, 1, np.int32),
    "offset": counter(3, 1, np.int32),
    "backward": counter(8, -1, np.int32),
    "every_second": counter(1, 2, np.int32),
    "every_second_backward": counter(11, -2, np.int32),
    "by_three": counter(0, 3, np.int32),
    "table": Table(np.array([4, 0, 9, 2, 7, 1])),
}
WINDOWED = {
    "side_by_side": counter(0, 2, np.int32),
    "side_by_side_backward": counter(12, -2, np.int32),
    "table": Table(np.array([4, 0, 10, 2, 14, 8])),
}
SHAPES = [((18,), 0), ((18, 3), 0), ((3, 18), 1), ((2, 18, 3), 1)]


def _taken(operand, position, axis, window, squeezed):
    at = rows(position, N).reshape(N)
    cut = [np.take(operand, np.arange(p, p + window), axis) for p in at]
    return np.stack([c.squeeze(axis) if squeezed else c for c in cut])


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("squeezed", [False, True])
@pytest.mark.parametrize("case", POSITIONS)
def test_take_rows(case, shape, axis, squeezed):
    operand = np.arange(np.prod(shape)).reshape(shape)
    access = Access(axis, POSITIONS[case], 1, squeezed)
    got = take_rows(jnp.asarray(operand), access, N, ())
    want = _taken(operand, POSITIONS[case], axis, 1, squeezed)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("case", WINDOWED)
def test_take_windows(case, shape, axis):
    operand = np.arange(np.prod(shape)).reshape(shape)
    access = Access(axis, WINDOWED[case], 2, False)
    got = take_rows(jnp.asarray(operand), access, N, ())
    np.testing.assert_array_equal(got, _taken(operand, WINDOWED[case], axis, 2, False))


def test_take_one_row_at_every_step():
    access = Access(0, counter(4, 0, np.int32), 1, True)
    got = take_rows(jnp.arange(18), access, N, ())
    np.testing.assert_array_equal(got, np.full(N, 4))


HOW = {
    "set": lambda a, b: b,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _put(buffer, stacked, position, axis, window, squeezed, how):
    out = buffer.copy()
    for p, row in zip(rows(position, N).reshape(N), stacked, strict=True):
        row = np.expand_dims(row, axis) if squeezed else row
        cut = (slice(None),) * axis + (slice(p, p + window),)
        out[cut] = HOW[how](out[cut], row)
    return out


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("case", ["forward", "backward", "every_second", "table"])
def test_put_rows(case, shape, axis, how):
    rng = np.random.default_rng(0)
    buffer = rng.integers(-9, 9, shape)
    row = shape[:axis] + shape[axis + 1 :]
    stacked = rng.integers(-9, 9, (N, *row))
    access = Access(axis, POSITIONS[case], 1, True)
    got = put_rows(jnp.asarray(buffer), jnp.asarray(stacked), access, how, N, ())
    want = _put(buffer, stacked, POSITIONS[case], axis, 1, True, how)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("case", ["side_by_side", "side_by_side_backward"])
def test_put_windows(case, shape, axis):
    buffer = np.zeros(shape, int)
    row = (*shape[:axis], 2, *shape[axis + 1 :])
    stacked = 1 + np.arange(N * np.prod(row)).reshape(N, *row)
    access = Access(axis, WINDOWED[case], 2, False)
    got = put_rows(jnp.asarray(buffer), jnp.asarray(stacked), access, "set", N, ())
    want = _put(buffer, stacked, WINDOWED[case], axis, 2, False, "set")
    np.testing.assert_array_equal(got, want)


def test_dropped_rows():
    """Positions outside are left out, as a scatter that drops does."""
    position = Table(np.array([-1, 2, 17, 18, 40, 5]))
    access = Access(0, position, 1, True, drops=True)
    stacked = jnp.arange(N) + 1
    got = put_rows(jnp.zeros(18, int), stacked, access, "set", N, ())
    want = np.zeros(18, int)
    want[[2, 17, 5]] = [2, 3, 6]
    np.testing.assert_array_equal(got, want)


# ------------------------------------------------------------ recognition

X = random(18, 5)
STEPS = jnp.arange(N)


def _accesses(fn, find):
    loop = body_of(lambda x: lax.scan(lambda c, i: (c, fn(x, i)), None, STEPS)[1], X)
    indices = Indices(loop)
    found = [
        (find(e, indices), e)
        for e in loop.eqns
        if e.primitive.name in ("gather", "dynamic_slice", "dynamic_update_slice")
        or e.primitive.name.startswith("scatter")
    ]
    return found


READS = {
    "row": (lambda x, i: x[i], 0, [0, 1, 2, 3, 4, 5]),
    "negative": (lambda x, i: x[-1 - i], 0, [17, 16, 15, 14, 13, 12]),
    "column": (lambda x, i: x[:, i - 1], 1, [4, 0, 1, 2, 3, 4]),
    "clamped": (lambda x, i: x[i + 15], 0, [15, 16, 17, 17, 17, 17]),
    "clamped_low": (
        lambda x, i: lax.dynamic_slice_in_dim(x, i - 3, 1),
        0,
        [15, 16, 17, 0, 1, 2],
    ),
    "window": (
        lambda x, i: lax.dynamic_slice_in_dim(x, 3 * i, 4),
        0,
        [0, 3, 6, 9, 12, 14],
    ),
}


@pytest.mark.parametrize("case", READS)
def test_read_access(case):
    """The positions of a read, after the operation's own rule."""
    fn, axis, want = READS[case]
    # reads of a hoisted body would be xs already
    loop = body_of(
        lambda x: lax.scan(lambda c, i: (c, fn(x, i)), None, STEPS)[1], X, roles=False
    )
    indices = Indices(loop)
    eqn = next(e for e in loop.eqns if e.primitive.name in ("gather", "dynamic_slice"))
    access = read_access(eqn, indices)
    assert access is not None
    assert access.axis == axis
    np.testing.assert_array_equal(access.table(N), want)
    values = np.stack([np.asarray(fn(jnp.asarray(X), i)) for i in range(N)])
    got = np.asarray(take_rows(jnp.asarray(X), access, N, ()))
    np.testing.assert_array_equal(got.reshape(values.shape), values)


def _write(fn):
    def f(x):
        return lax.scan(lambda b, i: (fn(b, i), None), x, STEPS)[0]

    loop = body_of(f, X, roles=False)
    eqn = loop.eqns[loop.made_by()[loop.carries[0].out]]
    return write_access(eqn, Indices(loop))


ROW = jnp.ones(5)
WRITES = {
    "set": (lambda b, i: b.at[i].set(ROW), "set", list(range(N))),
    "add": (lambda b, i: b.at[2 * i].add(ROW), "add", [0, 2, 4, 6, 8, 10]),
    "multiply": (
        lambda b, i: b.at[-1 - i].multiply(ROW),
        "mul",
        list(range(17, 11, -1)),
    ),
    "slice": (
        lambda b, i: lax.dynamic_update_slice_in_dim(b, ROW[None], i + 14, 0),
        "set",
        [14, 15, 16, 17, 17, 17],
    ),
    "dropped": (lambda b, i: b.at[i + 15].min(ROW), "min", [15, 16, 17, 18, 19, 20]),
    "clipped": (
        lambda b, i: b.at[i + 15].max(ROW, mode="clip"),
        "max",
        [15, 16, 17, 17, 17, 17],
    ),
    "column": (lambda b, i: b.at[:, i % 5].set(1.0), "set", [0, 1, 2, 3, 4, 0]),
}


@pytest.mark.parametrize("case", WRITES)
def test_write_access(case):
    fn, how, want = WRITES[case]
    access, found, _ = _write(fn)
    assert found == how
    assert access.axis == (case == "column")
    np.testing.assert_array_equal(access.table(N), want)
    assert access.drops == (case == "dropped")
    assert distinct(access, N) == (len(set(want)) == N)


NO_ROW = {
    "two_moving_axes": lambda b, i: b.at[i, i % 5].set(1.0),
    "several_rows": lambda b, i: b.at[jnp.array([0, 1]) + i].set(ROW),
    "by_a_mask": lambda b, i: jnp.where(jnp.arange(18)[:, None] == i, 1.0, b),
    "index_is_data": lambda b, i: b.at[b[0, 0].astype(int)].set(ROW),
    "divided": lambda b, i: b.at[i].divide(2 * ROW),
}


@pytest.mark.parametrize("case", NO_ROW)
def test_no_row(case):
    assert _write(NO_ROW[case]) is None


def test_positions():
    """Clamping keeps a form that is in range; equal rows are recognised as such."""
    inside = counter(2, 3, np.int32)
    assert clamped(inside, 17, N) is inside
    at_the_end = clamped(counter(14, 1, np.int32), 17, N)
    np.testing.assert_array_equal(at_the_end.rows, [14, 15, 16, 17, 17, 17])
    assert clamped(counter(0, 1, np.int64), 5, 10**9) is None
    a = Access(0, inside, 1, True)
    b = Access(0, Table(np.arange(2, 20, 3)), 1, False)
    assert same_position(a, b, N)
    assert not same_position(a, Access(0, counter(3, 3, np.int32), 1, True), N)
    assert not same_position(a, Access(1, inside, 1, True), N)
    assert isinstance(inside, Affine)


def test_distinct():
    assert distinct(Access(0, counter(0, 0, np.int32), 1, True), 1)
    assert not distinct(Access(0, counter(0, 0, np.int32), 1, True), 2)
    assert not distinct(Access(0, counter(0, 1, np.int32), 2, False), 4)
    assert distinct(Access(0, counter(8, -2, np.int32), 2, False), 4)
    assert not distinct(Access(0, Table(np.array([1, 2, 1])), 1, True), 3)
