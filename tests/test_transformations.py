"""`optimize(f)` under every transformation of JAX gives what `f` gives under it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from rewriter import optimize
from tests.helpers import assert_same, no_warnings, random

W = random(4, 4, scale=0.3)
XS = random(6, 4, seed=1)
ULPS = 256


def row_map(w, xs):
    """Sum over a map: every step is independent."""
    ys = lax.scan(lambda _, x: (None, jnp.tanh(x @ w)), None, xs)[1]
    return jnp.sum(ys**2)


def rnn(w, xs):
    """Sum over a recurrence."""

    def step(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h

    return jnp.sum(lax.scan(step, jnp.zeros_like(xs[0]), xs)[1] ** 2)


def _plain(f=None, **options):
    return functools.partial(_plain, **options) if f is None else f


@jax.custom_jvp
def _own_jvp(x):
    return jnp.sin(x)


_own_jvp.defjvp(lambda p, t: (_own_jvp(p[0]), 3.0 * t[0]))


@jax.custom_vjp
def _own_vjp(x):
    return jnp.sin(x)


_own_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda _, g: (7.0 * g,))


def _two(xs):
    return jnp.stack([xs, 2 * xs])


def _vmapped(f):
    return lambda w, xs: jax.vmap(f, (None, 0), axis_name="i")(w, _two(xs))


def _rows_of(g):
    return lambda w, xs: lax.map(lambda x: g(x @ w), xs).sum()


def _wrapped_in_vjp(o):
    def forward(w, xs):
        return o(row_map)(w, xs), (w, xs)

    def backward(saved, g):
        return jax.tree.map(lambda v: g * v, jax.grad(o(row_map), (0, 1))(*saved))

    f = jax.custom_vjp(lambda w, xs: o(row_map)(w, xs))
    f.defvjp(forward, backward)
    return jax.grad(f)


def _cond(inner, outer):
    def f(w, xs):
        return lax.cond(xs[0, 0] > -99, inner, lambda w, xs: w.sum(), w, xs)

    return jax.grad(outer(f))


# Each entry: given `optimize` (or nothing in its place), a function of (w, xs).
ROWS = {
    "call": lambda o: o(row_map),
    "grad": lambda o: jax.grad(o(row_map), (0, 1)),
    "value-and-grad-aux": lambda o: jax.value_and_grad(
        o(lambda w, xs: (row_map(w, xs), {"a": w.sum()})), has_aux=True
    ),
    "optimize-of-grad": lambda o: o(jax.grad(rnn)),
    "vjp": lambda o: lambda w, xs: jax.vjp(o(row_map), w, xs)[1](jnp.float32(2)),
    "jvp": lambda o: lambda w, xs: jax.jvp(o(rnn), (w, xs), (w, xs)),
    "linearize": lambda o: lambda w, xs: jax.linearize(o(row_map), w, xs)[1](w, xs),
    "hessian": lambda o: jax.hessian(o(row_map)),
    "hessian-rnn": lambda o: jax.jacfwd(jax.grad(o(rnn))),
    "grad-of-grad": lambda o: jax.grad(
        lambda w, xs: jnp.sum(jax.grad(o(row_map))(w, xs) ** 2)
    ),
    "jacrev": lambda o: jax.jacrev(
        o(lambda w, xs: lax.map(lambda x: jnp.tanh(x @ w), xs))
    ),
    "jacfwd": lambda o: jax.jacfwd(
        o(lambda w, xs: lax.map(lambda x: jnp.tanh(x @ w), xs))
    ),
    "vmap": lambda o: _vmapped(o(row_map)),
    "vmap-of-grad": lambda o: _vmapped(jax.grad(o(rnn))),
    "grad-of-vmap": lambda o: jax.grad(lambda w, xs: _vmapped(o(row_map))(w, xs).sum()),
    "psum": lambda o: _vmapped(o(lambda w, xs: lax.psum(row_map(w, xs), "i"))),
    "psum-in-loop-and-grad": lambda o: _vmapped(
        jax.grad(o(_rows_of(lambda y: lax.psum(jnp.tanh(y), "i"))))
    ),
    "checkpoint-outside": lambda o: jax.grad(jax.checkpoint(o(row_map))),
    "checkpoint-inside": lambda o: jax.grad(o(jax.checkpoint(rnn))),
    "checkpoint-policy": lambda o: jax.grad(
        jax.checkpoint(o(row_map), policy=jax.checkpoint_policies.dots_saveable)
    ),
    "rnn-grad": lambda o: jax.grad(o(rnn), (0, 1)),
    "nested": lambda o: jax.grad(
        o(lambda w, xs: o(row_map)(w, xs) + o(rnn)(2 * w, xs))
    ),
    "inside-scan": lambda o: jax.grad(
        lambda w, xs: lax.scan(
            lambda c, s: (c + o(row_map)(w, s * xs), None), 0.0, jnp.arange(3.0)
        )[0]
    ),
    "inside-cond": lambda o: _cond(o(row_map), _plain),
    "cond-inside": lambda o: _cond(row_map, o),
    "library-custom-jvp": lambda o: jax.grad(
        o(_rows_of(lambda y: jax.nn.relu(jax.nn.softplus(y))))
    ),
    "custom-jvp": lambda o: jax.grad(o(lambda w, xs: _own_jvp(row_map(w, xs)))),
    "custom-jvp-in-loop": lambda o: (
        lambda w, xs: jax.jvp(o(_rows_of(_own_jvp)), (w, xs), (w, xs))
    ),
    "custom-vjp": lambda o: jax.grad(o(lambda w, xs: _own_vjp(row_map(w, xs)))),
    "custom-vjp-in-loop": lambda o: jax.grad(o(_rows_of(_own_vjp))),
    "custom-vjp-around": _wrapped_in_vjp,
    "closure-over-tracer": lambda o: jax.grad(
        lambda w, xs: o(lambda xs: rnn(w, xs))(xs)
    ),
    "closure-jvp-vmap": lambda o: (
        lambda w, xs: jax.vmap(
            lambda s: jax.jvp(lambda w: o(lambda x: row_map(w * s, x))(xs), (w,), (w,))
        )(jnp.arange(3.0))
    ),
    "linear-transpose": lambda o: (
        lambda w, xs: jax.linear_transpose(
            o(lambda x: lax.map(lambda v: w @ v, x)), xs
        )(xs)
    ),
    "stop-gradient": lambda o: jax.grad(
        o(lambda w, xs: row_map(lax.stop_gradient(w), xs) + rnn(w, xs))
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_composition(name):
    """Eager and under `jit`, the result is that of the plain function."""
    build = ROWS[name]
    want = jax.jit(build(_plain))(W, XS)
    with no_warnings():
        rewritten = build(optimize)
        assert_same(rewritten(W, XS), want, ulps=ULPS)
        assert_same(jax.jit(rewritten)(W, XS), want, ulps=ULPS)


def test_static_arguments_keywords_and_trees():
    """Static arguments, keywords, `None`s and trees go through."""

    def f(p, n, *, mode, xs=None, scale=1.0):
        if mode == "a":
            out = row_map(p["w"] * n, xs) * scale
            return {"o": out, "n": None, "t": (p["b"],)}
        return 0.0

    g = optimize(f, static_argnums=(1,), static_argnames=("mode",))
    p = {"w": W, "b": 3.0}
    plain = jax.jit(f, static_argnums=(1,), static_argnames=("mode",))
    for n in (1, 2, 1):
        options = {"mode": "a", "xs": XS, "scale": 2.0}
        assert_same(g(p, n, **options), plain(p, n, **options), ulps=ULPS)
    assert g(p, 1, mode="b") == 0.0

    def slope(h):
        return jax.grad(lambda p: h(p, 2, mode="a", xs=XS)["o"])(p)

    assert_same(slope(g), slope(f), ulps=ULPS)


def test_typed_keys_in_and_out():
    """A key can be an argument, a result, and mapped over."""

    def f(key, xs):
        key, use = jax.random.split(key)
        draws = lax.map(lambda k: jax.random.normal(k, (4,)), jax.random.split(use, 6))
        return key, draws + xs

    key = jax.random.key(0)
    keys = jax.random.split(key, 3)
    assert_same(optimize(f)(key, XS), jax.jit(f)(key, XS))
    rows = [jax.vmap(g, (0, None))(keys, XS) for g in (optimize(f), f)]
    assert_same(*rows, ulps=ULPS)
    slopes = [jax.grad(lambda x, g=g: g(key, x)[1].sum())(XS) for g in (optimize(f), f)]
    assert_same(*slopes)


def test_integer_arguments():
    """Integer arguments have float0 tangents; booleans come out under `grad`."""

    def f(i, w, xs):
        return row_map(w, xs) * i, i > 2

    def all_of(g):
        return (
            jax.grad(g, argnums=1, has_aux=True)(3, W, XS),
            jax.vjp(lambda i, w: g(i, w, XS)[0], 3, W)[1](jnp.float32(1))[1],
            jax.jvp(lambda w: g(3, w, XS), (W,), (W,))[0],
            jax.grad(lambda i, w: g(i, w, XS)[0], 0, allow_int=True)(3, W).shape,
        )

    got, want = all_of(optimize(f)), all_of(jax.jit(f))
    assert got[-1] == want[-1]
    assert_same(got[:-1], want[:-1], ulps=ULPS)


@pytest.mark.parametrize("wrap", [_plain, jax.grad, jax.vmap, jax.value_and_grad])
def test_prints(capsys, wrap):
    """A print is seen once, or once for each mapped row."""

    def f(w):
        jax.debug.print("hello {}", w[0, 0])
        return row_map(w, XS)

    arg = _two(W) if wrap is jax.vmap else W
    for g in (wrap(optimize(f)), jax.jit(wrap(optimize(f)))):
        g(arg)
        jax.effects_barrier()
        seen = capsys.readouterr().out.count("hello")
        assert seen == (2 if wrap is jax.vmap else 1)


def test_ordered_callbacks():
    """Order holds between two calls, in a loop, and beside a gradient."""
    log = []

    def f(w, xs):
        io_callback(lambda _: log.append(1), None, xs[0], ordered=True)
        out = row_map(w, xs)
        io_callback(lambda _: log.append(2), None, out, ordered=True)
        return out

    def side(w, xs):
        stopped = lax.stop_gradient(xs[0])
        io_callback(lambda _: log.append(3), None, stopped, ordered=True)
        return row_map(w, xs)

    g = optimize(f)
    calls = [
        (g, [1, 2]),
        (jax.jit(lambda w, xs: g(w, xs) + g(2 * w, xs)), [1, 2, 1, 2]),
        (lambda w, xs: lax.fori_loop(0, 2, lambda _, c: c + g(w, xs), 0.0), [1, 2] * 2),
        (jax.grad(optimize(side)), [3]),
    ]
    for call, expect in calls:
        log.clear()
        call(W, XS)
        jax.effects_barrier()
        assert log == expect


def test_donation():
    """Donated buffers are used up, also when the call is inside a jit."""
    g = optimize(lambda x: lax.map(lambda r: r + 1.0, x), donate_argnums=0)
    x = jnp.ones((128, 4))
    g(x)
    assert x.is_deleted()
    x = jnp.ones((128, 4))
    assert_same(jax.jit(lambda x: g(x) + x)(x), x * 3)


@pytest.mark.parametrize("value", [2.0, 3, np.float32(2), True])
def test_weak_types(value):
    """A weakly typed result stays so, and takes the other operand's type."""

    def f(x):
        return lax.scan(lambda c, _: (c * 2, None), x * 2, length=3)[0]

    assert_same(optimize(f)(value), jax.jit(f)(value))
    half = jax.jit(lambda x: x * optimize(f)(2.0))(jnp.ones(3, jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
