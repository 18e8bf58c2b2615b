"""`masked-accumulation`: carries updated or left alone, by a selection or a `cond`."""

import itertools
from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.fuzz import eager_rewriting
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, fired, report_of

NAME = "masked-accumulation"
N = 60
V, X = random(N), random(N, 6, seed=1)
W = random(6, 6, seed=2)
fires, declines = Cases(), Cases()


@pytest.fixture(autouse=True)
def eager():
    """Whatever may be rewritten is, however small."""
    with ExitStack() as stack:
        stack.enter_context(eager_rewriting())
        yield stack


# ------------------------------------------------------------ all operations and dtypes

OPERATIONS = {
    "add": lambda c, t: c + t,
    "swapped": lambda c, t: t + c,
    "sub": lambda c, t: c - t,
    "mul": lambda c, t: c * t,
    "max": jnp.maximum,
    "min": lambda c, t: jnp.minimum(t, c),
    "or": lambda c, t: c | t,
    "and": lambda c, t: c & t,
    "xor": lambda c, t: c ^ t,
}
INTEGERS = ("int8", "uint8", "int32", "uint32")
FLOATS = ("float16", "bfloat16", "float32")
EXACT = list(itertools.product(OPERATIONS, INTEGERS))
EXACT += list(itertools.product(("or", "and", "xor"), ("bool",)))
EXACT += list(itertools.product(("max", "min"), FLOATS))
ROUNDED = list(itertools.product(("add", "swapped", "sub", "mul"), FLOATS))
ROUNDED += [("add", "complex64"), ("sub", "complex64")]


def _terms(dtype):
    if dtype == "bool":
        return random(N, 8) > 0, np.arange(8) % 2 == 0
    if "int" in dtype:
        ends, rng = np.iinfo(dtype), np.random.default_rng(0)
        t = rng.integers(ends.min, ends.max, (N, 8), dtype, endpoint=True)
        first = np.array([ends.min, ends.max, 0, 1] * 2, dtype)
        return t, first
    t = jnp.asarray(random(N, 8), dtype)
    first = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e-3, -2.0]
    return t, jnp.asarray(first, dtype)


@pytest.mark.parametrize("if_true", [True, False])
@pytest.mark.parametrize(("operation", "dtype"), EXACT + ROUNDED)
def test_every_operation(operation, dtype, if_true):
    """Bit by bit the loop's value at the level that reorders nothing."""
    t, first = _terms(dtype)
    mask = random(N, seed=3) > 0
    mask[:5], mask[-5:] = False, False

    def f(mask, t, first):
        def step(c, s):
            p, term = s
            new = OPERATIONS[operation](c, term)
            return (jnp.where(p, new, c) if if_true else jnp.where(p, c, new)), None

        return lax.scan(step, first, (mask, t))[0]

    args = mask, t, first
    assert fired(report_of(f, args), NAME)
    exact = (operation, dtype) in EXACT
    fast = optimize(f, numerics="reassociate" if exact else "strict")
    old, new = jax.jit(f)(*args), fast(*args)
    assert old.dtype == new.dtype
    if "int" in dtype:
        np.testing.assert_array_equal(np.asarray(old), np.asarray(new))
        return
    for part in (jnp.real, jnp.imag) if "complex" in dtype else (jnp.asarray,):
        a, b = (np.asarray(part(x).astype("f")) for x in (old, new))
        np.testing.assert_array_equal(a, b)
        number = ~np.isnan(a)
        np.testing.assert_array_equal(np.signbit(a[number]), np.signbit(b[number]))


# ------------------------------------------------------------ programs that fire


def masked(step, first=0.0, **options):
    """Return a scan over rows whose carry is updated where `r[0] > 0`."""

    def f(x):
        body = lambda c, r: (jnp.where(r[0] > 0, step(c, r), c), None)  # noqa: E731
        start = jnp.zeros_like(x[0]) if first is None else first
        return lax.scan(body, start, x, **options)[0]

    return f


fires.add(X)(masked(lambda c, r: c + jnp.sum(jnp.sin(r))))
fires.add(X)(masked(lambda c, r: c + 1, 0))
fires.add(X)(masked(lambda c, r: c + 1.0, 0.0))
fires.add(X)(masked(lambda c, r: c + r, None))
fires.add(X)(masked(lambda c, r: c - jnp.tanh(W @ r), None, reverse=True))
fires.add(X)(masked(lambda c, r: c * (1 + 0.1 * jnp.sin(r[0])), 1.0))
fires.add(X[:1])(masked(lambda c, r: c + r, None))
fires.add(X[:2], vmap=(0,))(masked(lambda c, r: c + r, None))
fires.add(X, grad=True)(masked(lambda c, r: c + jnp.sin(r), None))
fires.add(X, numerics="strict")(masked(lambda c, r: c + r[0]))


@fires.add(X, loops=0)
def _mask_per_element(x):
    step = lambda n, r: (jnp.where(r > 0, n + 1, n), None)  # noqa: E731
    return lax.scan(step, jnp.zeros(6, int), x)[0]


@fires.add(X, loops=0)
def _nan_where_masked(x):
    """What is not added does no harm."""
    step = lambda c, r: (jnp.where(r > 0, c + jnp.log(r), c), None)  # noqa: E731
    return lax.scan(step, x[0], x)[0]


@fires.add(X, loops=0)
def _fori_loop(x):
    def step(i, c):
        return jnp.where(i % 3 == 0, c + jnp.sum(x[i]), c)

    return lax.fori_loop(0, N, step, 0.0)


@fires.add(X, loops=0)
def _while_loop(x):
    def step(c):
        i, total = c
        return i + 1, jnp.where(x[i, 0] > 0, total + x[i], total)

    return lax.while_loop(lambda c: c[0] < N, step, (0, x[0]))[1]


@fires.add(X)
def _mask_of_a_recurrence(x):
    def step(c, r):
        h, total = c
        h = jnp.sin(h + r)
        return (h, jnp.where(h[0] > 0, total + h, total)), None

    return lax.scan(step, (x[0], x[0]), x)[0]


@fires.add(X)
def _two_masks(x):
    def step(c, r):
        a, b = c
        return (
            jnp.where(r > 0, a + r, a),
            jnp.where(r < 0, b, jnp.maximum(b, r)),
        ), None

    return lax.scan(step, (x[0], x[0]), x)[0]


@fires.add(X.reshape(10, 6, 6), loops=0)
def _inside_a_map(x):
    return lax.map(masked(lambda c, r: c + jnp.sin(r), None), x)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "masked", oracle=True, **options)


# ------------------------------------------------------------ conds

unfolds = Cases()


@unfolds.add(X, loops=0)
def _count(x):
    step = lambda n, r: (lax.cond(r[0] > 0, lambda n: n + 1, lambda n: n, n), None)  # noqa: E731
    return lax.scan(step, 0, x)[0]


@unfolds.add(X, loops=0)
def _kept_where_true(x):
    def step(c, r):
        return lax.cond(r[0] > 0, lambda: c, lambda: c + jnp.sin(r)), None

    return lax.scan(step, x[0], x)[0]


@unfolds.add(X, loops=0)
def _several_results(x):
    def step(c, r):
        n, s = c
        return lax.cond(r[0] > 0, lambda: (n + 1, s + r), lambda: (n, s)), None

    return lax.scan(step, (0, x[0]), x)[0]


@unfolds.add(X)
def _switch(x):
    def step(c, r):
        k = jnp.int32(3 * r[0])  # out of range too
        cases = [lambda c: c, lambda c: c + r, lambda c: c - r]
        return lax.switch(k, cases, c), None

    return lax.scan(step, x[0], x)[0]


@unfolds.add(X)
def _nan_in_the_branch_not_taken(x):
    def step(c, r):
        return lax.cond(r[0] > 0, lambda: c + jnp.log(r[0]), lambda: c), None

    return lax.scan(step, x[0, 1], x)[0]


@unfolds.add(X, grad=True)
def _derivative_of_the_branch_taken(x):
    """The branch is chosen before the derivative: no NaN from the other one."""

    def step(c, r):
        return lax.cond(r[0] > 0, lambda: c + jnp.sqrt(r[0]), lambda: c), None

    return lax.scan(step, x[0, 1], x)[0]


@unfolds.add(X)
def _keys(x):
    def step(c, r):
        n, k = c
        return lax.cond(
            r[0] > 0, lambda: (n + 1, jax.random.fold_in(k, n)), lambda: (n, k)
        ), None

    n, key = lax.scan(step, (0, jax.random.key(0)), x)[0]
    return n, jax.random.key_data(key)


@pytest.mark.parametrize(("fn", "args", "options"), unfolds)
def test_unfolds(fn, args, options):
    assert_fires(NAME, fn, args, "unfolded", oracle=True, **options)


# ------------------------------------------------------------ programs that do not


@declines.add(X, code="none")
def _not_an_accumulation(x):
    return masked(lambda c, r: jnp.sin(c + r), None)(x)


@declines.add(X, code="none")
def _no_identity(x):
    return masked(lambda c, r: c / (1 + r**2), None)(x)


@declines.add(X, code="none")
def _subtracted_from(x):
    return masked(lambda c, r: r - c, None)(x)


@declines.add(X, code="none")
def _added_to_itself(x):
    return masked(lambda c, r: c + c, 1.0)(x)


@declines.add(X, code="none")
def _mask_reads_the_carry(x):
    step = lambda c, r: (jnp.where(c < 3, c + jnp.abs(r[0]), c), None)  # noqa: E731
    return lax.scan(step, 0.0, x)[0]


@declines.add(X, code="none")
def _carry_is_stacked(x):
    step = lambda c, r: (jnp.where(r[0] > 0, c + r, c), c)  # noqa: E731
    return lax.scan(step, x[0], x)


@declines.add(X, code="none")
def _update_is_read(x):
    def step(c, r):
        new = c + r
        return (jnp.where(r[0] > 0, new, c), None), jnp.sin(new)

    return lax.scan(lambda c, r: ((s := step(c, r))[0][0], s[1]), x[0], x)


@declines.add(X, code="none")
def _reset(x):
    step = lambda c, r: (jnp.where(r[0] > 0, c + r, 0.0), None)  # noqa: E731
    return lax.scan(step, x[0], x)[0]


@declines.add(X, code="none")
def _another_carry_is_kept(x):
    step = lambda c, r: ((jnp.where(r[0] > 0, c[0] + r, c[1]), c[0]), None)  # noqa: E731
    return lax.scan(step, (x[0], x[1]), x)[0]


@declines.add(np.complex64(X[:, 0] + 1j), np.complex64(complex(np.inf, 1)), code="none")
def _complex_product(x, first):
    """Infinity times one is NaN."""
    step = lambda c, r: (jnp.where(r.real > 0, c * r, c), None)  # noqa: E731
    return lax.scan(step, first, x)[0]


@declines.add(X, code="none")
def _key(x):
    step = lambda k, r: (jnp.where(r[0] > 0, jax.random.fold_in(k, 1), k), None)  # noqa: E731
    return jax.random.key_data(lax.scan(step, jax.random.key(0), x)[0])


@declines.add(X, code="none")
def _cond_without_a_carry(x):
    def step(c, r):
        return c + lax.cond(r[0] > 0, lambda: jnp.sin(r), lambda: r), None

    return lax.scan(step, x[0], x)[0]


@declines.add(X, code="none")
def _effects_in_a_branch(x):
    def noisy(c):
        jax.debug.callback(lambda c: None, c)
        return c + 1

    step = lambda c, r: (lax.cond(r[0] > 9, noisy, lambda c: c, c), None)  # noqa: E731
    return lax.scan(step, 0.0, x)[0]


@declines.add(X, code="none")
def _while_in_a_branch(x):
    def until(c):
        return lax.while_loop(lambda c: c < 3, lambda c: c * 2 + 1, c)

    step = lambda c, r: (lax.cond(r[0] > 2, until, lambda c: c, c), None)  # noqa: E731
    return lax.scan(step, 0.0, x)[0]


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, oracle=True, **options)


def test_a_dear_branch_stays(eager):
    """A branch that costs more than the loop is not run for every step."""
    eager.close()

    def f(x):
        def dear(c):
            return c + jnp.sum(jnp.linalg.inv(jnp.outer(c, c) + jnp.eye(64)), 0)

        step = lambda c, r: (lax.cond(r[0] > 2, dear, lambda c: c, c), None)  # noqa: E731
        return lax.scan(step, x[0], x)[0]

    assert_declines(NAME, f, (random(N, 64),), "none", loops=1)
