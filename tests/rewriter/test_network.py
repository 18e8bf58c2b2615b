"""`network`: random sums of products, contracted again, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import jax_compat as jc
from rewriter.inline import inline
from rewriter.network import network
from tests.helpers import random

CHUNK = 10


class Sums:
    """A random expression of products, sums, dots, and changes of axes.

    A value is a pair of functions of the arrays: one in JAX, one in NumPy.
    """

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.sizes = {k: int(self.rng.integers(1, 5)) for k in "abcdef"}
        self.args = []

    def shuffled(self, labels):
        return [labels[i] for i in self.rng.permutation(len(labels))]

    def array(self, labels):
        shape = [self.sizes[k] for k in labels]
        self.args.append(self.rng.standard_normal(shape).astype("f"))
        at = len(self.args) - 1
        return (lambda a: a[at],) * 2

    def value(self, labels, depth):
        kinds = [self.product, self.square, self.sum, self.dot]
        kinds += [self.spread, self.unit, self.transposed]
        if depth == 0 or self.rng.random() < 0.1:
            return self.array(labels)
        return kinds[self.rng.integers(len(kinds))](tuple(labels), depth - 1)

    def product(self, labels, depth):
        (f, g), (p, q) = self.value(labels, depth), self.value(labels, depth)
        return lambda a: f(a) * p(a), lambda a: g(a) * q(a)

    def square(self, labels, depth):
        f, g = self.value(labels, depth)
        if self.rng.random() < 0.5:
            return lambda a: jnp.square(f(a)), lambda a: g(a) ** 2
        return lambda a: f(a) ** 2, lambda a: g(a) ** 2

    def sum(self, labels, depth):
        rest = [k for k in self.sizes if k not in labels]
        if not rest:
            return self.array(labels)
        at, k = self.rng.integers(len(labels) + 1), self.rng.choice(rest)
        f, g = self.value((*labels[:at], k, *labels[at:]), depth)
        return lambda a: jnp.sum(f(a), axis=at), lambda a: np.sum(g(a), axis=at)

    def spread(self, labels, depth):
        kept = [k for k in labels if self.rng.random() < 0.6]
        f, g = self.value(kept, depth)
        shape = [self.sizes[k] for k in labels]
        dims = [labels.index(k) for k in kept]
        own = [self.sizes[k] if k in kept else 1 for k in labels]
        return (
            lambda a: lax.broadcast_in_dim(f(a), shape, dims),
            lambda a: np.broadcast_to(g(a).reshape(own), shape),
        )

    def unit(self, labels, depth):
        at = int(self.rng.integers(len(labels) + 1))
        f, g = self.value(labels, depth)
        shape = [self.sizes[k] for k in labels]
        shape.insert(at, 1)
        return lambda a: jnp.squeeze(f(a).reshape(shape), at), g

    def transposed(self, labels, depth):
        order = [int(k) for k in self.rng.permutation(len(labels))]
        f, g = self.value([labels[k] for k in np.argsort(order)], depth)
        return lambda a: lax.transpose(f(a), order), lambda a: g(a).transpose(order)

    def dot(self, labels, depth):
        cut = int(self.rng.integers(len(labels) + 1))
        shared = int(self.rng.integers(cut + 1))
        both = labels[:shared]
        summed = [k for k in self.sizes if k not in labels and self.rng.random() < 0.4]
        left = self.shuffled([*both, *labels[shared:cut], *summed])
        right = self.shuffled([*both, *labels[cut:], *summed])
        (f, g), (p, q) = self.value(left, depth), self.value(right, depth)
        numbers = tuple(
            tuple([side.index(k) for k in some] for side in (left, right))
            for some in (summed, both)
        )
        taken = {*both, *summed}
        have = [*both, *(k for s in (left, right) for k in s if k not in taken)]
        order = [have.index(k) for k in labels]
        text = f"{''.join(left)},{''.join(right)}->{''.join(labels)}"
        return (
            lambda a: lax.transpose(lax.dot_general(f(a), p(a), numbers), order),
            lambda a: np.einsum(text, g(a), q(a)),
        )


class Found(list):
    """Networks with values, and the equation that makes the output."""

    output = None


def networks(fn, *args):
    """Return the networks of a function, with the values of their factors."""
    closed = jax.make_jaxpr(fn)(*args)
    eqns, _, extra = inline(closed.jaxpr.eqns, True)
    made = {v: e for e in eqns for v in e.outvars}
    count = {v: 1 for v in closed.jaxpr.outvars if not isinstance(v, jc.Literal)}
    env = dict(zip(closed.jaxpr.invars, args, strict=True)) | dict(extra)

    def read(v):
        return v.val if isinstance(v, jc.Literal) else env[v]

    for eqn in eqns:
        for v in eqn.invars:
            if not isinstance(v, jc.Literal):
                count[v] = count.get(v, 0) + 1
        out = jc.rebind(eqn, [read(v) for v in eqn.invars])
        env.update(zip(eqn.outvars, out, strict=True))
    found = Found()
    found.output = eqns[-1] if eqns else None
    for eqn in eqns:
        if eqn.primitive.name in ("reduce_sum", "dot_general"):
            net = network(eqn, made.get, lambda v: count.get(v, 0))
            if net is not None:
                found.append((net, [read(f.atom) for f in net.factors]))
    return found


def the_network(fn, *args):
    """Return the network of the last sum or dot of a function."""
    return networks(fn, *args)[-1][0]


@pytest.mark.parametrize("first", range(0, 40, CHUNK))
def test_random_sums(first):
    """Whole expressions that are one network give what NumPy gives."""
    seen = 0
    for seed in range(first, first + CHUNK):
        sums = Sums(seed)
        rng = sums.rng
        labels = sums.shuffled(list("abcdef"))[: rng.integers(4)]
        f, g = sums.sum(tuple(labels), int(rng.integers(1, 5)))
        args = sums.args
        found = networks(lambda *a, f=f: f(a), *args)
        if not found or found[-1][0].root is not found.output:
            continue
        net, values = found[-1]
        path = net.path(lambda _: rng.random() < 0.5, 100)
        out = np.asarray(net.evaluate(values, path))
        sizes = [np.abs(v) for v in values]
        bound = np.max(np.asarray(net.evaluate(sizes, path)), initial=0)
        true = g([np.asarray(a, "d") for a in args])
        assert out.shape == true.shape, seed
        assert out.dtype == np.float32
        assert np.max(np.abs(out - true), initial=0) <= 3e-6 * bound, seed
        seen += 1
    assert seen > CHUNK // 3


W, X, Y = random(6, 5), random(5, seed=1), random(6, seed=2)
M = random(6, 6, seed=3)


@pytest.mark.parametrize(
    ("fn", "factors"),
    [
        (lambda w, x, y: jnp.sum(w * x), 2),
        (lambda w, x, y: jnp.sum(w * x * y[:, None]), 3),
        (lambda w, x, y: jnp.sum((w * x) ** 2), 4),
        (lambda w, x, y: y @ w @ x, 3),
        (lambda w, x, y: jnp.sum(w.T * y, axis=1), 2),
        (lambda w, x, y: jnp.sum(jnp.sum(w * x, axis=1) * y), 3),
        (lambda w, x, y: jnp.sum(jnp.sin(w) * x), 2),
        (lambda w, x, y: jnp.sum(2.0 * w * x), 3),
    ],
)
def test_factors(fn, factors):
    assert len(the_network(fn, W, X, Y).factors) == factors


def test_what_others_read_stays_whole():
    def f(w, x):
        inner = w @ x
        return inner, jnp.sum(inner * inner)

    net, _ = networks(f, W, X)[-1]
    assert len(net.factors) == 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda w, x: jnp.sum(jnp.broadcast_to(x, (6, 5))),  # counts
        lambda w, x: jnp.sum(jnp.broadcast_to(x, (6, 5)), axis=0),
        lambda w, x: jnp.sum(w * 0 + jnp.arange(5)),
    ],
)
def test_sums_over_what_is_only_spread(fn):
    """A sum that multiplies by the size of an axis is no network."""
    args = W, X
    for net, values in networks(fn, *args):
        out = net.evaluate(values, net.path(lambda _: True, 9))
        np.testing.assert_allclose(np.asarray(out), np.asarray(fn(*args)), rtol=1e-5)


@pytest.mark.parametrize(
    "args",
    [
        (W.astype("i"), X.astype("i")),
        (W.astype("e"), X.astype("e")),
        (jnp.asarray(W, jnp.bfloat16), jnp.asarray(X, jnp.bfloat16)),
        (W + 1j, X + 1j),
    ],
)
def test_only_long_floats(args):
    sums = lambda w, x: lax.reduce_sum_p.bind(w * x, axes=(1,), out_sharding=None)  # noqa: E731
    assert not networks(sums, *args)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_short_floats_are_rounded_to_one(dtype):
    """A dot in float32 of products in float16 keeps the products."""

    def f(w, x):
        return jnp.dot(w * x, x, preferred_element_type=jnp.float32)

    net = the_network(f, jnp.asarray(W, dtype), jnp.asarray(X, dtype))
    assert len(net.factors) == 2


def test_too_many_factors():
    product = lambda w, x: jnp.sum((((w * x) ** 2) ** 2) ** 2)  # noqa: E731
    assert not networks(product, W, X)


def test_precision():
    """A sum is at full precision, a dot at the user's."""
    assert the_network(lambda w, x: jnp.sum(w * x), W, X).precision is (
        lax.Precision.HIGHEST
    )
    dot = lambda w, x: jnp.dot(w, x, precision="high")  # noqa: E731
    assert the_network(dot, W, X).precision == (lax.Precision.HIGH,) * 2
    two = lambda m, y: jnp.dot(m @ m, y, precision="high")  # noqa: E731
    assert len(networks(two, M, Y)) == 1  # of the inner one alone


def test_the_path_counts_the_trip():
    """What no step changes is contracted first."""
    f = lambda m, w, x: m @ w @ x  # noqa: E731
    net = the_network(f, M, random(6, 5, seed=4), X)
    row = net.factors[2].atom
    assert net.path(lambda v: v is row, 10_000)[0] == (0, 1)
    first = net.path(lambda v: v is not row, 2)[0]
    assert sorted(first) == [1, 2]
