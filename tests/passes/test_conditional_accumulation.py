"""`conditional-accumulation`: sums inside of dear conds go around them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import Cases, assert_equivalent, random
from tests.passes.firing import (
    assert_declines,
    assert_fires,
    distributed_for_any_gain,
)

NAME = "conditional-accumulation"
N, D = 2000, 64
W, X = random(D, D, scale=0.2), random(N, D, seed=1)
FLAG = random(N, seed=2)
fires, declines = Cases(), Cases()


@pytest.fixture(autouse=True)
def any_gain():
    """Whether the distribution pays is not the matter here."""
    with distributed_for_any_gain():
        yield


def _dear(x, w):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def _steps(update, init=None, otherwise=lambda c: c):
    """Return a loop that updates its carry where a flag is set."""

    def f(x, w, flag):
        def step(c, s):
            x, f = s
            return lax.cond(f > 0, lambda c: update(c, x, w), otherwise, c), None

        start = jnp.zeros_like(x[0]) if init is None else init
        if isinstance(start, float) and start != 0:
            start = jnp.full_like(x[0], start)
        return lax.scan(step, start, (x, flag))[0]

    return f


ARGS = (X, W, FLAG)
FIRES = {
    "add": _steps(lambda c, x, w: c + _dear(x, w)),
    "swapped": _steps(lambda c, x, w: _dear(x, w) + c),
    "sub": _steps(lambda c, x, w: c - _dear(x, w)),
    "product": _steps(lambda c, x, w: c * (1 + 0.01 * _dear(x, w)), 1.0),
    "max": _steps(lambda c, x, w: jnp.maximum(c, _dear(x, w))),
    "min": _steps(lambda c, x, w: jnp.minimum(c, _dear(x, w))),
    "two terms": _steps(lambda c, x, w: c + _dear(x, w) - x),
    "scalar": _steps(lambda c, x, w: c + _dear(x, w).sum(), 0.0),
    "count": _steps(lambda c, x, w: (c[0] + _dear(x, w), c[1] + 1), (jnp.zeros(D), 0)),
    "integers": _steps(
        lambda c, x, w: c + (9 * _dear(x, w)).astype(jnp.int32), jnp.zeros(D, int)
    ),
    "both branches": _steps(lambda c, x, w: c + _dear(x, w), otherwise=lambda c: c - 1),
    "negative zero": lambda x, w, f: _steps(
        lambda c, x, w: c + 0 * _dear(x, w), -jnp.zeros_like(x[0])
    )(x, w, f),
    "infinite": _steps(lambda c, x, w: c + _dear(x, w), jnp.inf),
}


CASES = [(name, "reassociate") for name in FIRES]
CASES += [(name, "strict") for name in ("integers", "count", "max", "add")]


@pytest.mark.parametrize(("name", "numerics"), CASES)
def test_fires(name, numerics):
    oracle = name not in ("integers", "count")
    report = assert_fires(
        NAME, FIRES[name], ARGS, "moved", numerics=numerics, oracle=oracle
    )
    if numerics != "strict":
        assert [v.outcome for v in report.verdicts] == ["batched"]


def test_signs_of_zero():
    """What is added to a row that is left alone does not turn -0.0 into 0.0."""
    never = np.full(N, -1, np.float32)
    f = FIRES["negative zero"]
    assert_fires(NAME, f, (X, W, never), "moved")
    with_sign = jax.jit(lambda *a: jnp.signbit(f(*a)))
    assert with_sign(X, W, never).all()


@fires.add(X, W, np.arange(N, dtype=np.int32) % 4)
def _switch(x, w, k):
    """Three branches of one operation, and one that leaves the carry alone."""

    def step(c, s):
        x, k = s
        ways = [
            lambda c: c + _dear(x, w),
            lambda c: c,
            lambda c: c - _dear(2 * x, w),
            lambda c: x + c + 1,
        ]
        return lax.switch(k, ways, c), None

    return lax.scan(step, jnp.zeros(D), (x, k))[0]


@fires.add(*ARGS)
def _beside_other_results(x, w, flag):
    def step(c, s):
        x, f = s
        yes = lambda c: (c + _dear(x, w), x[1] + f)  # noqa: E731
        c, y = lax.cond(f > 0, yes, lambda c: (c, x[2]), c)
        return c, y

    return lax.scan(step, jnp.zeros(D), (x, flag))


@fires.add(*ARGS)
def _one_cond_hands_on_what_another_made(x, w, flag):
    """Both branches return an operand: `switch` gives the operand itself."""

    def step(s, xf):
        (a, b), (x, f) = s, xf
        yes = lambda a: (a + _dear(x, w), 2 * x)  # noqa: E731
        a, y = lax.cond(f > 0, yes, lambda a: (a, x), a)
        more = lambda b, y: (b + _dear(y, w), y)  # noqa: E731
        b, z = lax.cond(f > 1, more, lambda b, y: (b, y), b, y)
        return (a, b), z[0]

    return lax.scan(step, (jnp.zeros_like(x[0]),) * 2, (x, flag))


@declines.add(*ARGS)
def _read_in_a_branch(x, w, flag):
    return _steps(lambda c, x, w: c + _dear(x + 0.01 * c, w))(x, w, flag)


@declines.add(*ARGS)
def _two_operations(x, w, flag):
    """The sum of some rows and the maximum of others need their order."""
    f = _steps(lambda c, x, w: c + _dear(x, w), otherwise=lambda c: jnp.maximum(c, 0.3))
    return f(x, w, flag)


@declines.add(*ARGS)
def _set(x, w, flag):
    return _steps(lambda c, x, w: _dear(x, w))(x, w, flag)


@declines.add(*ARGS)
def _read_elsewhere(x, w, flag):
    def step(c, s):
        x, f = s
        new = lax.cond(f > c[0], lambda c: c + _dear(x, w), lambda c: c, c)
        return new, None

    return lax.scan(step, jnp.zeros(D), (x, flag))[0]


@declines.add(*ARGS)
def _subtracted_from(x, w, flag):
    return _steps(lambda c, x, w: _dear(x, w) - c)(x, w, flag)


@declines.add(*ARGS)
def _cheap(x, w, flag):
    return _steps(lambda c, x, w: c + x)(x, w, flag)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_more_fires(fn, args, options):
    report = assert_fires(NAME, fn, args, "moved", oracle=True, **options)
    assert [v.outcome for v in report.verdicts] == ["batched"]


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_gradients():
    assert_equivalent(FIRES["add"], *ARGS, grad=True)
