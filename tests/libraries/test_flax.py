"""Recurrent networks and scanned layers written with Flax (linen and nnx)."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.helpers import random
from tests.libraries.support import check

nn = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")

XS = random(2, 7, 3)  # batch, time, features


@pytest.mark.parametrize(
    "cell", ["LSTMCell", "OptimizedLSTMCell", "GRUCell", "MGUCell"]
)
def test_linen_rnn(cell):
    model = nn.RNN(getattr(nn, cell)(features=5))
    params = model.init(jax.random.key(0), XS)
    check(model.apply, params, XS, jit=cell == "GRUCell", vmap=cell == "LSTMCell")


def test_linen_bidirectional_with_lengths():
    class Tagger(nn.Module):
        @nn.compact
        def __call__(self, xs, lengths):
            both = nn.Bidirectional(nn.RNN(nn.GRUCell(4)), nn.RNN(nn.GRUCell(4)))
            return nn.log_softmax(nn.Dense(3)(both(xs, seq_lengths=lengths)))

    lengths = jnp.array([7, 4])
    params = Tagger().init(jax.random.key(0), XS, lengths)
    check(Tagger().apply, params, XS, lengths)


class Block(nn.Module):
    """A residual layer with attention over time, as a scan over layers wants it."""

    @nn.compact
    def __call__(self, xs, _):
        ys = nn.LayerNorm()(xs)
        xs = xs + nn.MultiHeadDotProductAttention(1, use_bias=False)(ys, ys)
        xs = xs + nn.Dense(3)(nn.gelu(nn.Dense(6)(nn.LayerNorm()(xs))))
        return xs, jnp.mean(xs)


@pytest.mark.parametrize("remat", [False, True], ids=["plain", "remat"])
def test_linen_scan_over_layers(remat):
    stack = nn.scan(
        nn.remat(Block) if remat else Block,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=3,
    )()
    params = stack.init(jax.random.key(0), XS, None)
    check(lambda p, xs: stack.apply(p, xs, None), params, XS)


def test_linen_scan_over_time_with_dropout():
    class Step(nn.Module):
        @nn.compact
        def __call__(self, h, x):
            h = nn.tanh(nn.Dense(4)(h) + nn.Dense(4)(x))
            y = nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(h))
            return h, y

    scanned = nn.scan(
        Step,
        variable_broadcast="params",
        split_rngs={"params": False, "dropout": True},
        in_axes=1,
        out_axes=1,
    )()
    h = jnp.zeros((2, 4))
    key = jax.random.key(1)
    params = scanned.init({"params": key, "dropout": key}, h, XS)

    def model(params, xs, key):
        return scanned.apply(params, h, xs, rngs={"dropout": key})

    check(model, params, XS, key)


@pytest.mark.parametrize("cell", ["LSTMCell", "GRUCell", "SimpleCell"])
def test_nnx_rnn(cell):
    rngs = nnx.Rngs(0)
    model = nnx.RNN(getattr(nnx, cell)(3, 5, rngs=rngs))
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def apply(params, rest, xs):
        return nnx.merge(graph, params, rest)(xs, rngs=nnx.Rngs(1))

    check(apply, params, rest, XS)


def test_nnx_scan_over_layers():
    @nnx.vmap(in_axes=0)
    def make(rngs):
        return nnx.Linear(3, 3, rngs=rngs)

    layers = make(nnx.Rngs(0).split(4))
    graph, params = nnx.split(layers)

    def apply(params, xs):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(xs, layer):
            return nnx.relu(layer(xs)) + xs

        return forward(xs, nnx.merge(graph, params))

    check(apply, params, XS, jit=True)


def test_training_epoch_of_a_character_model():
    """Plain gradient descent over batches, the gradient taken inside the scan."""

    class Language(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            return nn.Dense(5)(nn.RNN(nn.LSTMCell(6))(nn.Embed(5, 4)(tokens)))

    model = Language()
    tokens = jnp.asarray(random(4, 2, 8) * 10, jnp.int32) % 5
    params = model.init(jax.random.key(0), tokens[0])

    def loss(params, tokens):
        logits = nn.log_softmax(model.apply(params, tokens[:, :-1]))
        return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], -1))

    def epoch(params, tokens):
        def step(params, batch):
            value, slope = jax.value_and_grad(loss)(params, batch)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, slope), value

        return lax.scan(step, params, tokens)

    check(epoch, params, tokens, grad=False)
