"""Training loops with Optax, and its losses with loops of their own."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.helpers import random
from tests.libraries.support import check

optax = pytest.importorskip("optax")

X = random(12, 3)
Y = random(12, seed=1)
PARAMS = {"w": random(3, 4, seed=2), "v": random(4, seed=3)}


def loss(params, x, y):
    """A small perceptron's squared error."""
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


OPTIMISERS = {
    "sgd-momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.05),
    "clip-adamw-schedule": lambda: optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 8)),
    ),
    "adafactor": lambda: optax.adafactor(0.05),
    "accumulate": lambda: optax.MultiSteps(optax.rmsprop(0.05), 3),
    "lookahead-noise": lambda: optax.noisy_sgd(0.1, key=jax.random.key(0)),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_in_a_fori_loop(name):
    def train(params, x, y):
        optimiser = OPTIMISERS[name]()

        def step(_, state):
            params, inner = state
            updates, inner = optimiser.update(
                jax.grad(loss)(params, x, y), inner, params
            )
            return optax.apply_updates(params, updates), inner

        return lax.fori_loop(0, 6, step, (params, optimiser.init(params)))

    check(train, PARAMS, X, Y, grad=name == "adam", jit=name == "adam", ulps=2**12)


def test_epochs_over_shuffled_batches():
    """A scan over epochs around a scan over batches; losses come out."""

    def train(params, x, y, key):
        optimiser = optax.adam(0.02)

        def step(state, rows):
            params, inner = state
            value, slope = jax.value_and_grad(loss)(params, x[rows], y[rows])
            updates, inner = optimiser.update(slope, inner)
            return (optax.apply_updates(params, updates), inner), value

        def epoch(state, key):
            rows = jax.random.permutation(key, len(x)).reshape(3, -1)
            return lax.scan(step, state, rows)

        start = (params, optimiser.init(params))
        (params, _), losses = lax.scan(epoch, start, jax.random.split(key, 2))
        return params, losses

    check(train, PARAMS, X, Y, jax.random.key(0), vmap=True, ulps=2**12)


def test_training_until_converged():
    def train(params, x, y):
        optimiser = optax.lbfgs()
        value_and_grad = optax.value_and_grad_from_state(lambda p: loss(p, x, y))

        def step(state):
            params, inner = state
            value, slope = value_and_grad(params, state=inner)
            updates, inner = optimiser.update(
                slope,
                inner,
                params,
                value=value,
                grad=slope,
                value_fn=lambda p: loss(p, x, y),
            )
            return optax.apply_updates(params, updates), inner

        def unfinished(state):
            count = optax.tree.get(state[1], "count")
            return (count == 0) | ((count < 4) & (loss(state[0], x, y) > 1e-3))

        params, _ = lax.while_loop(unfinished, step, (params, optimiser.init(params)))
        return params

    check(train, PARAMS, X, Y, grad=False, ulps=2**14)


def test_ctc_loss():
    logits = random(2, 7, 4)
    labels = jnp.array([[1, 2, 1], [3, 1, 0]])
    padding = jnp.zeros((2, 7)).at[1, 5:].set(1)
    label_padding = (labels == 0).astype(jnp.float32)

    def model(logits):
        return optax.ctc_loss(logits, padding, labels, label_padding)

    check(model, logits, jit=True)


def test_meta_learning_through_an_inner_loop():
    """MAML: the gradient of the loss after a few steps of gradient descent."""

    def adapted(params, x, y):
        inner = optax.sgd(0.1)

        def step(state, _):
            params, s = state
            updates, s = inner.update(jax.grad(loss)(params, x[:6], y[:6]), s)
            return (optax.apply_updates(params, updates), s), None

        (params, _), _ = lax.scan(step, (params, inner.init(params)), None, length=3)
        return loss(params, x[6:], y[6:])

    check(adapted, PARAMS, X, Y, jit=True, vmap=True)


def test_assignment():
    def model(costs):
        return optax.assignment.hungarian_algorithm(costs)

    check(model, random(4, 5), grad=False)
