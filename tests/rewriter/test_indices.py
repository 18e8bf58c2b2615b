"""`indices`: integers over the trip, against a loop in NumPy or JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter.indices import (
    Affine,
    Table,
    constant,
    counter,
    evaluate,
    reversed_in_time,
    rows,
)
from rewriter.inline import inline
from rewriter.scope import Scope

N = 37


def known_of(fn, *inputs, length=N):
    """Evaluate `fn` of known inputs; return (known or None, all values by JAX)."""
    avals = [jax.ShapeDtypeStruct((), k.dtype) for k in inputs]
    closed = jax.make_jaxpr(fn)(*avals)
    eqns, subst, consts = inline(closed.jaxpr.eqns)
    env = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    pairs = [*zip(closed.jaxpr.constvars, closed.consts, strict=True), *consts]
    env.update((v, constant(np.asarray(c))) for v, c in pairs)
    out = closed.jaxpr.outvars[0]
    known = evaluate(eqns, env, length).get(subst.get(out, out))
    columns = [rows(k, length).astype(k.dtype) for k in inputs]
    return known, np.asarray(jax.jit(jax.vmap(fn))(*columns))


def assert_known(fn, *inputs, kind=None, length=N):
    known, want = known_of(fn, *inputs, length=length)
    assert known is not None
    assert kind is None or isinstance(known, kind), known
    np.testing.assert_array_equal(
        np.broadcast_to(rows(known, length), want.shape), want.astype(np.int64)
    )
    return known


I = counter(0, 1, np.int32)  # noqa: E741
AFFINE = {
    "itself": lambda i: i + 0,
    "reversed": lambda i: N - 1 - i,
    "strided": lambda i: 2 * i + 1,
    "negated": lambda i: -i,
    "both_sides": lambda i: 3 * i - (5 - i),
    "scaled_by_constants": lambda i: (i + 2) * (2 * 3),
    "difference_of_itself": lambda i: i - i,
    "in_range_select": lambda i: jnp.where(i < 0, i + N, i),
    "in_range_clip": lambda i: jnp.clip(i, -5, N),
    "in_range_rem": lambda i: lax.rem(i, N + 3),
    "vector": lambda i: jnp.array([1, -2]) * i + 4,
    "concatenated": lambda i: jnp.concatenate([i[None], (7 - i)[None]]),
    "picked": lambda i: (jnp.array([1, 2, 3]) + i)[1],
    "widened": lambda i: i.astype(jnp.int16) * 3,
    "maximum_decided": lambda i: jnp.maximum(i, -1),
    "absolute": lambda i: jnp.abs(-1 - i),
    "sign": lambda i: jnp.sign(i + 1),
}
TABLES = {
    "permuted": lambda i: (7 * i) % N,
    "floor_div": lambda i: i // 3,
    "floor_div_negative": lambda i: (i - 20) // -3,
    "floor_mod_negative": lambda i: (i - 20) % -7,
    "truncated_div": lambda i: lax.div(i - 20, -3),
    "truncated_rem": lambda i: lax.rem(i - 20, jnp.int32(-7)),
    "rem_of_negative": lambda i: lax.rem(3 - i, jnp.int32(4)),
    "div_by_zero": lambda i: lax.div(i - 9, i - 9 + 0 * i),
    "square": lambda i: i * i,
    "clamped_low": lambda i: jnp.clip(i, 5, 100),
    "clamped_high": lambda i: jnp.clip(2 * i, 0, 40),
    "bounced": lambda i: jnp.minimum(i, N - 1 - i),
    "chosen": lambda i: jnp.where((i > 3) & (i < 9), 0, i),
    "either": lambda i: ((i > 30) | (i < 2)).astype(jnp.int32),
    "not": lambda i: (~(i == 4)).astype(jnp.int32) * i,
    "compared": lambda i: (i >= 11) * 2 - (i != 3),
    "sign_changes": lambda i: jnp.sign(i - 10),
    "absolute_changes": lambda i: jnp.abs(i - 10),
    "three_cases": lambda i: lax.select_n(i % 3, i, -i, 2 * i),
}


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("case", AFFINE)
def test_affine(case, start):
    """These keep an affine form (in range), whatever the length."""
    assert_known(AFFINE[case], counter(start, 1, np.int32), kind=Affine, length=30)


@pytest.mark.parametrize("case", TABLES)
def test_tables(case):
    assert_known(TABLES[case], I)


@pytest.mark.parametrize("case", AFFINE)
def test_table_and_affine_agree(case):
    """The same expression on a table of the same values."""
    closed = jax.make_jaxpr(AFFINE[case])(jax.ShapeDtypeStruct((), jnp.int32))
    eqns, subst, consts = inline(closed.jaxpr.eqns)
    pairs = [*zip(closed.jaxpr.constvars, closed.consts, strict=True), *consts]
    fixed = {v: constant(np.asarray(c)) for v, c in pairs}
    out = subst.get(closed.jaxpr.outvars[0], closed.jaxpr.outvars[0])
    (x,) = closed.jaxpr.invars
    found = [
        evaluate(eqns, {**fixed, x: form}, N).get(out)
        for form in (I, Table(np.arange(N)))
    ]
    assert isinstance(found[0], Affine)
    table = rows(found[1], N)
    np.testing.assert_array_equal(
        np.broadcast_to(rows(found[0], N), table.shape), table
    )


WRAPS = {
    "int8_sum": (lambda i: i + jnp.int8(100), np.int8),
    "int8_product": (lambda i: i * jnp.int8(11), np.int8),
    "uint8_negative": (lambda i: i - jnp.uint8(5), np.uint8),
    "uint8_negated": (lambda i: -i, np.uint8),
    "int32_product": (lambda i: (i + 2**20) * (i + 2**15), np.int32),
    "narrowed": (lambda i: (i * 9).astype(jnp.int8), np.int32),
    "narrowed_and_back": (lambda i: (i * 9).astype(jnp.uint8) + 1, np.int32),
    "int8_minimum_negated": (lambda i: -(i - jnp.int8(100) - jnp.int8(28)), np.int8),
}


@pytest.mark.parametrize("case", WRAPS)
def test_wrap_around(case):
    """Out of range: the values of the dtype, or not known; never others."""
    fn, dtype = WRAPS[case]
    known, want = known_of(fn, counter(0, 1, dtype))
    if known is not None:
        np.testing.assert_array_equal(rows(known, N), want.astype(np.int64))


NOT_KNOWN = {
    "through_a_float": lambda i: (i.astype(jnp.float32) * 0.5).astype(jnp.int32),
    "shift": lambda i: i << 1,
    "power": lambda i: i**3,
    "too_many_elements": lambda i: (jnp.arange(65) + i).sum(),
}


@pytest.mark.parametrize("case", NOT_KNOWN)
def test_not_on_the_whitelist(case):
    """Given up, or right."""
    known, want = known_of(NOT_KNOWN[case], I)
    if known is not None:
        np.testing.assert_array_equal(rows(known, N), want)


def test_no_table_for_a_long_trip():
    """A billion steps: affine forms only."""
    known = evaluate_one(lambda i: 2 * i - 1, 10**9)
    assert isinstance(known, Affine)
    assert evaluate_one(lambda i: (7 * i) % 11, 10**9) is None
    assert evaluate_one(lambda i: 3 * i, 10**9) is None  # leaves the range


def evaluate_one(fn, length):
    closed = jax.make_jaxpr(fn)(jax.ShapeDtypeStruct((), jnp.int32))
    eqns, subst, _ = inline(closed.jaxpr.eqns)
    out = closed.jaxpr.outvars[0]
    return evaluate(eqns, {closed.jaxpr.invars[0]: I}, length).get(subst.get(out, out))


# ------------------------------------------------------------ random expressions

_BINARY = (
    jnp.add,
    jnp.subtract,
    jnp.multiply,
    jnp.maximum,
    jnp.minimum,
    lax.div,
    lax.rem,
    jnp.floor_divide,
    jnp.mod,
)


def _random_expression(rng, dtype):
    """Return a random function of two counters, and inputs with random steps."""
    program = [
        (rng.integers(12), rng.integers(100, size=3), int(rng.integers(-9, 10)))
        for _ in range(rng.integers(2, 7))
    ]

    def fn(i, j):
        values = [i, j]
        for op, picks, literal in program:
            a, b, c = (values[k % len(values)] for k in picks)
            if literal % 3 == 0:
                b = jnp.asarray(literal or 2, dtype)
            if op < 9:
                values.append(_BINARY[op](a, b))
            elif op == 9:
                values.append(jnp.where(a < b, c, a))
            elif op == 10:
                low, high = jnp.minimum(b, c), jnp.maximum(b, c)
                values.append(lax.clamp(low, a, high))
            else:
                values.append(-a)
        return values[-1]

    start, step = rng.integers(-9, 10, 2), rng.integers(-3, 4, 2)
    return fn, [counter(s, d, dtype) for s, d in zip(start, step, strict=True)]


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.int16])
@pytest.mark.parametrize("seed", range(8))
def test_random_expressions(seed, dtype):
    """What is known is what XLA computes, wrap-around and division by zero included."""
    rng = np.random.default_rng(seed)
    found = 0
    for _ in range(4):
        fn, inputs = _random_expression(rng, dtype)
        known, want = known_of(fn, *inputs)
        if known is not None:
            found += 1
            np.testing.assert_array_equal(rows(known, N), want.astype(np.int64))
    assert found


# ------------------------------------------------------------ around the loop

XS = {
    "arange": lambda: jnp.arange(9),
    "from_to_step": lambda: jnp.arange(3, 30, 3),
    "reversed": lambda: jnp.arange(9)[::-1],
    "scaled": lambda: 5 - 2 * jnp.arange(9),
    "modulo": lambda: (jnp.arange(9) * 4) % 9,
    "constant_array": lambda: jnp.asarray(np.array([3, 1, 4, 1, 5, 9])),
    "affine_array": lambda: jnp.asarray(np.array([3, 1, -1, -3])),
    "column": lambda: jnp.arange(6)[:, None],
    "small_type": lambda: jnp.arange(6, dtype=jnp.int8) * jnp.int8(50),
    "full": lambda: jnp.full(5, 7),
}


@pytest.mark.parametrize("case", XS)
def test_stacked(case):
    """Arrays known along the trip: the forms of `jnp.arange` and arrays given."""
    closed = jax.make_jaxpr(XS[case])()
    known = Scope(closed).stacked(closed.jaxpr.outvars[0])
    want = np.asarray(XS[case]()).astype(np.int64)
    if known is None:
        assert case not in ("arange", "constant_array", "affine_array")
        pytest.skip("not known")
    got = np.broadcast_to(rows(known, len(want)), want.shape)
    np.testing.assert_array_equal(got, want)


def test_reversed_in_time():
    for known in (counter(3, -2, np.int32), Table(np.arange(5) ** 2)):
        got = rows(reversed_in_time(known, 5), 5)
        np.testing.assert_array_equal(got, rows(known, 5)[::-1])


@pytest.mark.parametrize("value", [1.5, np.zeros(3), np.zeros(65, int), "text"])
def test_not_a_constant(value):
    """Floats and large arrays are not followed."""
    assert constant(value) is None
