"""Reinforcement learning: RLax's returns, Gymnax rollouts, search with Mctx."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.helpers import random
from tests.libraries.support import check

REWARDS = random(9)
VALUES = random(10, seed=1)
DISCOUNTS = jnp.where(jnp.arange(9) == 4, 0.0, 0.9)


@pytest.fixture
def rlax():
    return pytest.importorskip("rlax")


def test_generalized_advantages(rlax):
    def model(values, rewards, discounts):
        return rlax.truncated_generalized_advantage_estimation(
            rewards, discounts, 0.95, values
        )

    check(model, VALUES, REWARDS, DISCOUNTS, jit=True, vmap=True)


def test_importance_weighted_returns(rlax):
    """V-trace, with its own stopped gradients."""

    def model(values, rewards, discounts):
        rho = jnp.exp(0.3 * rewards)
        return rlax.vtrace_td_error_and_advantage(
            values[:-1], values[1:], rewards, discounts, rho, lambda_=0.9
        )

    check(model, VALUES, REWARDS, DISCOUNTS, vmap=True)


def test_lambda_returns(rlax):
    def model(values, rewards, discounts):
        return rlax.lambda_returns(rewards, discounts, values[1:], lambda_=0.8)

    check(model, VALUES, REWARDS, DISCOUNTS)


def test_advantages_by_hand():
    """The reversed scan of PureJaxRL, over a batch of environments."""

    def model(values, rewards, done):
        def step(carry, row):
            advantage, following = carry
            done, value, reward = row
            delta = reward + 0.99 * following * (1 - done) - value
            advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
            return (advantage, value), advantage

        last = values[-1]
        rows = (done, values[:-1], rewards)
        advantages = lax.scan(
            step, (jnp.zeros_like(last), last), rows, reverse=True, unroll=4
        )[1]
        return advantages, advantages + values[:-1]

    done = (random(9, 4, seed=2) > 1).astype(jnp.float32)
    check(model, random(10, 4), random(9, 4, seed=1), done, jit=True, vmap=True)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Breakout-MinAtar"])
def test_rollout(name):
    """A policy in an environment that resets itself: states, keys and integers."""
    gymnax = pytest.importorskip("gymnax")
    env, settings = gymnax.make(name)
    size = len(env.reset(jax.random.key(0), settings)[0].reshape(-1))
    actions = 1 if name.startswith("Pendulum") else 2

    def rollout(w, key):
        def step(state, key):
            obs, inner = state
            k1, k2 = jax.random.split(key)
            logits = jnp.tanh(obs.reshape(-1)) @ w
            action = logits if actions == 1 else jax.random.categorical(k1, logits)
            obs, inner, reward, *done = env.step(k2, inner, action, settings)
            return (obs, inner), (reward, done[:-1], logits)

        start = env.reset(key, settings)
        return lax.scan(step, start, jax.random.split(key, 6))[1]

    w = random(size, actions, scale=0.1)
    check(rollout, w, jax.random.key(1), grad=name == "Pendulum-v1", ulps=2**12)


@pytest.mark.parametrize("policy", ["muzero_policy", "gumbel_muzero_policy"])
def test_tree_search(policy):
    """Mctx: a loop of simulations with while loops and scattered writes inside."""
    mctx = pytest.importorskip("mctx")

    def search(w, key):
        def model(params, key, action, embedding):
            embedding = jnp.tanh(embedding @ params + action[:, None])
            output = mctx.RecurrentFnOutput(
                reward=embedding[:, 0],
                discount=jnp.full(2, 0.9),
                prior_logits=embedding[:, :3],
                value=embedding.sum(-1),
            )
            return output, embedding

        root = mctx.RootFnOutput(
            prior_logits=jnp.zeros((2, 3)),
            value=jnp.zeros(2),
            embedding=random(2, 4),
        )
        found = getattr(mctx, policy)(w, key, root, model, num_simulations=5)
        return found.action, found.action_weights

    check(search, random(4, 4), jax.random.key(0), grad=False)
