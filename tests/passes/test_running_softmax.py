"""`running-softmax`: log-sum-exp below the final maximum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.fuzz import eager_rewriting
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "running-softmax"
N = 300
X, V = random(N, 6, scale=4), random(N, 8, seed=1)
Q = random(5, 6, seed=2)
nan, inf = np.nan, np.inf
fires, declines = Cases(), Cases()


@pytest.fixture(autouse=True)
def eager():
    """Whatever may be rewritten is, however small."""
    with eager_rewriting():
        yield


def step(c, r):
    """Return the next maximum and sum."""
    m, s = c
    n = jnp.maximum(m, r)
    return (n, s * jnp.exp(m - n) + jnp.exp(r - n)), None


def running(top=-inf, total=0.0, **options):
    """Return the loop from some state."""

    def f(x):
        start = jnp.full_like(x[0], top), jnp.full_like(x[0], total)
        return lax.scan(step, start, x, **options)[0]

    return f


def logs(start=-inf, turned=False):
    """Return a loop that keeps the logarithm of the sum."""

    def f(x):
        def body(c, r):
            return jnp.logaddexp(r, c) if turned else jnp.logaddexp(c, r), None

        return lax.scan(body, jnp.full_like(x[0], start), x)[0]

    return f


def _bad():
    x = X.copy()
    x[0, 0], x[5, 1], x[7, 2], x[:, 3] = -inf, inf, nan, -inf
    x[9, 4], x[-1, 5] = -inf, -inf
    return x


ROWS = {"normal": X, "bad": _bad(), "huge": X * 1e30, "ramp": np.cumsum(abs(X), 0)}


STATES = [(m, s) for m in (-inf, 0.0, 50.0, inf, nan) for s in (0.0, 2.0, nan)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_states_and_rows(rows, reverse):
    """Every state with every column, all at once."""
    states = np.repeat(np.float32(STATES), 6, axis=0).T
    f = running(*states, reverse=reverse)
    args = (np.tile(ROWS[rows], (1, len(STATES))),)
    assert_fires(NAME, f, args, "at-once", loops=0, oracle=True)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("start", [-inf, 3.0, inf, nan])
def test_logarithms(start, rows, turned):
    f = logs(start, turned)
    assert_fires(NAME, f, (ROWS[rows],), "at-once", loops=0, oracle=True)


# ------------------------------------------------------------ weighted sums


def attention(
    shape=(5, 8),
    share=lambda p, v: p[:, None] * v[None],
    scale=lambda a: a[:, None],
):
    """Return attention of several queries, row by row."""

    def f(q, k, v):
        def body(c, kv):
            m, s, o = c
            r = q @ kv[0]
            n = jnp.maximum(m, r)
            a, p = jnp.exp(m - n), jnp.exp(r - n)
            return (n, s * a + p, o * scale(a) + share(p, kv[1])), None

        zero = jnp.zeros_like(q, shape=5)
        start = zero - jnp.inf, zero, jnp.zeros_like(q, shape=shape)
        return lax.scan(body, start, (k, v))[0]

    return f


SQUARE = V[:, :5].copy()
fires.add(Q, X, V)(attention())
fires.add(Q, X, V, vmap=(0, None, None))(attention())
fires.add(Q, X, V, grad=True)(attention())
fires.add(Q, X, SQUARE)(attention((5, 5)))
fires.add(Q, X, V)(attention(share=lambda p, v: v[None] * p[:, None]))
fires.add(Q, X, SQUARE)(
    attention(
        (5, 5),
        lambda p, v: p.reshape(5, 1) * v[None],
        lambda a: a.reshape(5, 1),
    )
)
fires.add(Q, X, V)(
    attention(share=lambda p, v: p[:, None] * jnp.broadcast_to(v[None], (5, 8)))
)

# shares or scales that lie along the other axis
OTHER = {
    "share": {"share": lambda p, v: p[None] * v[:, None]},
    "reshaped_share": {
        "share": lambda p, v: jnp.broadcast_to(p.reshape(1, 5), (5, 5)) * v[:, None]
    },
    "scale": {"scale": lambda a: a[None]},
    "reshaped_scale": {"scale": lambda a: a.reshape(1, 5)},
}


@pytest.mark.parametrize("what", OTHER)
def test_along_the_other_axis(what):
    f = attention((5, 5), **OTHER[what])
    assert_declines(NAME, f, (Q, X, SQUARE), "none", oracle=True)


@fires.add(X[0], X, V)
def _one_query(q, k, v):
    def body(c, kv):
        m, s, o = c
        r = q @ kv[0]
        n = jnp.maximum(m, r)
        a, p = jnp.exp(m - n), jnp.exp(r - n)
        return (n, s * a + p, o * a + p * kv[1]), None

    _, s, o = lax.scan(body, (-jnp.inf, 0.0, jnp.zeros_like(v[0])), (k, v))[0]
    return o / s


_with_bad_weights = V.copy()
_with_bad_weights[3:7, 2:6] = np.diag([nan, inf, -inf, inf])
fires.add(X[0], X, _with_bad_weights)(_one_query)


@fires.add(X, V)
def _two_weighted_sums(x, v):
    def body(c, s):
        m, a, b = c
        r = s[0][0]
        n = jnp.maximum(r, m)
        p = jnp.exp(r - n)
        return (n, jnp.exp(m - n) * a + p * s[1], b * jnp.exp(m - n) + s[0] * p), None

    return lax.scan(body, (x[0, 0], v[0], x[0]), (x, v))[0]


# ------------------------------------------------------------ programs that fire

fires.add(X)(running())
fires.add(X[:2])(running())
fires.add(X[:, 0])(running())
fires.add(X, grad=True)(running(0.0))
fires.add(X, vmap=(0,))(running(0.0))
fires.add(X)(logs())


@fires.add(X)
def _two_groups(x):
    def body(c, r):
        q = -r
        return (step(c[0], r)[0], step(c[1], q)[0]), None

    return lax.scan(body, ((x[0], x[1]), (x[1], x[2] ** 2)), x)[0]


@fires.add(X)
def _beside_a_recurrence(x):
    def body(c, r):
        h = jnp.sin(c[1] + r)
        return (step(c[0], jnp.cos(r))[0], h), h[0]

    return lax.scan(body, ((x[0], x[1]), x[0]), x)


@fires.add(X)
def _fori_loop(x):
    body = lambda i, c: step(c, jnp.tanh(x[i]) * 3)[0]  # noqa: E731
    return lax.fori_loop(0, N, body, (x[0], x[0] * 0))


@fires.add(X.reshape(10, 30, 6))
def _inside_a_map(x):
    return lax.map(running(), x)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "at-once", **{"oracle": True} | options)


def test_wide():
    with jax.enable_x64(True):
        x = X.astype("d")
        assert_fires(NAME, running(), (x,), "at-once", loops=0)
        assert_fires(NAME, logs(), (x,), "at-once", loops=0)


# ------------------------------------------------------------ programs that do not

declines.add(X, numerics="strict")(running())
declines.add(X, numerics="strict")(logs())
declines.add(X[:1], code="none")(running())
declines.add(X[:60].astype("e"), code="none", oracle=False)(running(0.0))


@declines.add(X, code="none")
def _maxima_are_stacked(x):
    return lax.scan(lambda c, r: (step(c, r)[0], c[0]), (x[0], x[0]), x)


@declines.add(X, code="none")
def _sums_are_stacked(x):
    body = lambda c, r: ((n := step(c, r)[0]), n[1])  # noqa: E731
    return lax.scan(body, (x[0], x[0]), x)


@declines.add(X, code="none")
def _maximum_is_read(x):
    def body(c, r):
        return (step(c[0], r)[0], c[1] + jnp.sin(c[0][0])), None

    return lax.scan(body, ((x[0], x[0]), x[0]), x)[0]


@declines.add(X, code="none")
def _row_of_a_recurrence(x):
    def body(c, r):
        h = jnp.sin(c[1] + r)
        return (step(c[0], h)[0], h), None

    return lax.scan(body, ((x[0], x[0]), x[0]), x)[0]


@declines.add(X, code="none")
def _weight_of_a_recurrence(x):
    def body(c, r):
        m, s, h = c
        h, n = jnp.sin(h + r), jnp.maximum(m, r)
        return (n, s * jnp.exp(m - n) + jnp.exp(r - n) * h, h), None

    return lax.scan(body, (x[0], x[0], x[0]), x)[0]


@declines.add(X[:20], code="none")
def _scaled_the_other_way(x):
    def body(c, r):
        m, s = c
        n = jnp.maximum(m, r)
        return (n, s * jnp.exp(n - m) + jnp.exp(r - n)), None

    return lax.scan(body, (x[0], x[0]), x)[0]


@declines.add(X, code="none")
def _minimum(x):
    def body(c, r):
        m, s = c
        n = jnp.minimum(m, r)
        return (n, s * jnp.exp(n - m) + jnp.exp(n - r)), None

    return lax.scan(body, (x[0], x[0]), x)[0]


@declines.add(X, code="none")
def _other_rows_are_summed(x):
    def body(c, r):
        m, s = c
        n = jnp.maximum(m, r)
        return (n, s * jnp.exp(m - n) + jnp.exp(jnp.sin(r) - n)), None

    return lax.scan(body, (x[0], x[0]), x)[0]


@declines.add(X[:20], code="none")
def _logarithm_of_itself(x):
    return lax.scan(lambda c, r: (jnp.logaddexp(c, c) + r, None), x[0], x)[0]


@declines.add(X, code="none")
def _logarithms_are_stacked(x):
    return lax.scan(lambda c, r: (jnp.logaddexp(c, r), c), x[0], x)


@declines.add(X, code="none")
def _a_plain_maximum(x):
    return lax.scan(lambda c, r: (jnp.maximum(c, r), None), x[0], x)[0]


@declines.add(X, code="memory-budget", memory_budget=1_000)
def _rows_over_the_budget(x):
    return lax.scan(lambda c, r: step(c, jnp.sin(r)), (x[0], x[0]), x)[0]


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **{"oracle": True} | options)
