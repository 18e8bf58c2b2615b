"""`closed-sum`: sums of terms that are affine in the counter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import Cases, assert_equivalent, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "closed-sum"
N = 1000
A, B = np.float32(1.1), np.float32(-0.3)
C = random(8)
fires, declines = Cases(), Cases()


def sum_of(term, init=0.0, n=N):
    """Return the sum of `term(i, ...)` by a `fori_loop`, from `init` or as many."""

    def f(*a):
        start = jnp.full(8, init[0], a[-1].dtype) if isinstance(init, list) else init
        return lax.fori_loop(0, n, lambda i, s: s + term(i, *a), start)

    return f


FLOATS = {
    "times": (lambda i, a, b, c: a * i, 0.0),
    "odd": (lambda i, a, b, c: (2 * i + 1) * a, 3.0),
    "vector": (lambda i, a, b, c: (2 * i + 1) * c, [1.0]),
    "offsets": (lambda i, a, b, c: c * (i + jnp.arange(8)), [0.0]),
    "square": (lambda i, a, b, c: -a * (i * i), 0.0),
    "divided": (lambda i, a, b, c: b * i / (7 * a), 0.0),
    "constant": (lambda i, a, b, c: a, 0.0),
    "alternating": (lambda i, a, b, c: jnp.where(i % 2 == 0, 2, 4) * a, 0.0),
    "around zero": (lambda i, a, b, c: (2 * i - 999) * c, [0.0]),
}


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name):
    term, init = FLOATS[name]
    f = sum_of(term, init)
    assert_fires(NAME, f, (A, B, C), "closed", loops=0, oracle=True)
    strict = optimize(f, numerics="strict").explain(A, B, C)
    assert not any(r.code == "closed-sum/closed" for r in strict.remarks)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", FLOATS)
def test_not_finite(name, bad):
    """NaN and infinity where the loop has them: 0 * inf at one step is enough."""
    f = sum_of(*FLOATS[name])
    c = C.copy()
    c[3] = bad
    for args in ((np.float32(bad), B, C), (A, B, c)):
        got, want = np.asarray(optimize(f)(*args)), np.asarray(jax.jit(f)(*args))
        far = ~np.isfinite(want)
        np.testing.assert_array_equal(got[far], want[far])
        np.testing.assert_allclose(got[~far], want[~far], 1e-4, 0.02)


@pytest.mark.parametrize(
    ("f", "c"),
    [
        (sum_of(lambda i, c: (jnp.int32(i) - 500) * c), 1e37),
        (sum_of(lambda i, c: ((i - 500) * c) / c), 1e38),
    ],
)
def test_terms_that_overflow(f, c):
    """Infinite at some steps, though not at the mean."""
    got, want = optimize(f)(np.float32(c)), jax.jit(f)(np.float32(c))
    assert np.isfinite(got) == np.isfinite(want)


WIDE = {
    "weak": lambda c: lax.fori_loop(0, 100, lambda i, s: s + (2 * i + 1) * c, 0),
    "large": lambda c: lax.fori_loop(
        jnp.int64(2**62), jnp.int64(2**62 + 100), lambda i, s: s + (i + 1) * c, c
    ),
    "floats": lambda c: lax.fori_loop(
        jnp.int64(2**50), jnp.int64(2**50 + 99), lambda i, s: s + i * (c * 0.1), 0.0
    ),
}


@pytest.mark.parametrize("name", WIDE)
def test_wide(name):
    with jax.enable_x64(True):
        assert_fires(NAME, WIDE[name], (np.int64(7),), "closed")


def test_overflow():
    """A coefficient near the largest float: infinite where the loop is."""
    f = sum_of(lambda i, a, b, c: a * i, 0.0)
    assert_equivalent(f, np.float32(1e38), B, C)


INTEGERS = {
    "times": lambda i, a: a * i + 3,
    "wraps": lambda i, a: a * (i * 7) - i * i,
    "negated": lambda i, a: -(a * i),
    "own": lambda i, a: i + a,
    "constant": lambda i, a: a,
}


@pytest.mark.parametrize("numerics", ["strict", "reassociate"])
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_integers(name, numerics, dtype):
    """Wrapped as the loop's, at every level."""

    def f(a):
        term = lambda i: INTEGERS[name](i.astype(dtype), a)  # noqa: E731
        return lax.fori_loop(0, 3001, lambda i, s: s - term(i), a)

    a = np.asarray(3_000_000_019 % 2**31, dtype)
    assert_fires(NAME, f, (a,), "closed", numerics=numerics)


@fires.add(A)
def _stacked_beside(a):
    """The sum goes, the rows stay."""
    return lax.scan(lambda s, i: (s + a * (i % 3), i * a), 0.0, jnp.arange(N))


@fires.add(A, loops=0)
def _backward(a):
    return lax.scan(lambda s, i: (s - a * i, None), 0.0, jnp.arange(N), reverse=True)


@fires.add(A, B, loops=0)
def _two_sums(a, b):
    def body(i, c):
        return c[0] + a * i, c[1] - b * (i + 2)

    return lax.fori_loop(0, N, body, (0.0, 1.0))


@declines.add(random(N))
def _data(x):
    return lax.fori_loop(0, N, lambda i, s: s + i * x[i], 0.0)


@declines.add(A)
def _not_affine(a):
    return lax.fori_loop(0, N, lambda i, s: s + jnp.sin(a * i), 0.0)


@declines.add(A)
def _square_of_a_product(a):
    return lax.fori_loop(0, N, lambda i, s: s + (a * i) * (a * i), 0.0)


@declines.add(A)
def _divisor(a):
    return lax.fori_loop(0, N, lambda i, s: s + a / (i + 1), 0.0)


@declines.add(np.int32(7))
def _rounded_division(a):
    return lax.fori_loop(0, N, lambda i, s: s + (a * i) // 3, 0)


@declines.add(np.int32(2**30))
def _wraps_before_it_is_a_float(a):
    return lax.fori_loop(0, N, lambda i, s: s + (a * i).astype(jnp.float32), 0.0)


@declines.add(A)
def _difference_of_floats(a):
    """The rounding of one mean would count for every step."""
    return lax.fori_loop(0, N, lambda i, s: s + (i - 499.5) * a, 0.0)


@declines.add(A)
def _not_exact_as_a_float(a):
    start = 2**24
    return lax.fori_loop(start, start + 9, lambda i, s: s + i * a, 0.0)


@declines.add(A)
def _every_prefix_is_read(a):
    def step(s, i):
        s = s + a * i
        return s, s

    return lax.scan(step, 0.0, jnp.arange(N))


@declines.add(np.float16(0.1))
def _short_floats_stall(a):
    return lax.fori_loop(0, N, lambda i, s: s + a, jnp.float16(0))


@declines.add(random(64, 64, scale=0.1), A, code="small")
def _beside_dear_work(w, a):
    """One addition is not worth the code for infinite coefficients."""

    def body(i, c):
        h, s = c
        return jnp.tanh(w @ h), s + a * i

    return lax.fori_loop(0, N, body, (jnp.ones(64), 0.0))


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "closed", oracle=True, **options)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


@pytest.mark.parametrize("length", [2, 3])
def test_few_steps(length):
    f = sum_of(lambda i, a, c: i * c / a, [0.0], length)
    assert_fires(NAME, f, (A, C), "closed", oracle=True)


def test_gradients():
    f = sum_of(lambda i, a, c: (a * c) * i, [0.0])
    assert_equivalent(f, A, C, grad=True)
