"""Recurrences along a sequence, every step an output, and their best forms by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
_GAMMA, _LAMBDA, _KEEP = 0.99, 0.95, 0.9
BLOCK = 16
CHUNK = 32


# ---- linear in the carry, constant coefficient


def discounted_returns(rewards: Array) -> Array:
    """Return the discounted sums of what is still to come."""

    def step(total: Array, reward: Array) -> tuple[Array, Array]:
        total = reward + _GAMMA * total
        return total, total

    return lax.scan(step, jnp.zeros_like(rewards[0]), rewards, reverse=True)[1]


def moving_average(values: Array) -> Array:
    """Return the exponential moving averages."""

    def step(mean: Array, x: Array) -> tuple[Array, Array]:
        mean = _KEEP * mean + (1 - _KEEP) * x
        return mean, mean

    return lax.scan(step, jnp.zeros_like(values[0]), values)[1]


def cumulative_sum(values: Array) -> Array:
    """Return the sums so far."""

    def step(total: Array, x: Array) -> tuple[Array, Array]:
        total = total + x
        return total, total

    return lax.scan(step, jnp.zeros_like(values[0]), values)[1]


def _powers(factor: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what a block does to its inputs, and what the carry adds to a block."""
    apart = np.arange(size)[:, None] - np.arange(size)[None, :]
    inside = np.where(apart >= 0, factor ** np.maximum(apart, 0).astype(float), 0.0)
    return inside.astype("f"), (factor ** (np.arange(size) + 1.0)).astype("f")


def in_blocks(values: Array, factor: float) -> Array:
    """Return h[t] = factor h[t-1] + x[t]: a product a block, a scan over blocks."""
    inside, entering = _powers(factor, BLOCK)
    local = values.reshape(-1, BLOCK) @ inside.T

    def step(carry: Array, last: Array) -> tuple[Array, Array]:
        return last + float(factor**BLOCK) * carry, carry

    carries = lax.scan(step, jnp.zeros((), values.dtype), local[:, -1])[1]
    return (local + carries[:, None] * entering).reshape(-1)


def discounted_returns_by_hand(rewards: Array) -> Array:
    """Run the blocks backward."""
    return in_blocks(rewards[::-1], _GAMMA)[::-1]


def moving_average_by_hand(values: Array) -> Array:
    """Scale the blocks."""
    return (1 - _KEEP) * in_blocks(values, _KEEP)


def cumulative_sum_by_hand(values: Array) -> Array:
    """Use blocks without decay."""
    return in_blocks(values, 1.0)


def horner(coefficients: Array, x: Array) -> Array:
    """Evaluate a polynomial, a coefficient a step."""

    def step(total: Array, coefficient: Array) -> tuple[Array, None]:
        return total * x + coefficient, None

    return lax.scan(step, jnp.zeros_like(x), coefficients)[0]


def horner_by_hand(coefficients: Array, x: Array) -> Array:
    """Unroll, so that x is read once."""
    return jnp.polyval(coefficients, x, unroll=len(coefficients))


# ---- linear in the carry, changing coefficients


def _following(values: Array) -> Array:
    return jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])


def advantages(rewards: Array, values: Array, alive: Array) -> Array:
    """Return the generalised advantage estimates."""

    def step(carry: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, value, after, is_alive = now
        surprise = reward + _GAMMA * after * is_alive - value
        carry = surprise + _GAMMA * _LAMBDA * is_alive * carry
        return carry, carry

    inputs = rewards, values, _following(values), alive
    return lax.scan(step, jnp.zeros_like(rewards[0]), inputs, reverse=True)[1]


def advantages_by_hand(rewards: Array, values: Array, alive: Array) -> Array:
    """Compute all that does not read the carry before the scan."""
    surprises = rewards + _GAMMA * _following(values) * alive - values
    decays = _GAMMA * _LAMBDA * alive

    def step(carry: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        carry = now[0] + now[1] * carry
        return carry, carry

    start = jnp.zeros_like(rewards[0])
    return lax.scan(step, start, (surprises, decays), reverse=True)[1]


def selective_scan(x: Array, delta: Array, a: Array, b: Array, c: Array) -> Array:
    """Run a selective state space layer, as in Mamba; state (channels, states)."""

    def step(h: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        x, delta, b, c = now
        h = h * jnp.exp(delta[:, None] * a) + (delta * x)[:, None] * b[None, :]
        return h, h @ c

    return lax.scan(step, jnp.zeros_like(a), (x, delta, b, c))[1]


def selective_scan_by_hand(
    x: Array, delta: Array, a: Array, b: Array, c: Array
) -> Array:
    """Keep the state as (states, channels): one fused pass along long rows a step."""
    rates = a.T

    def step(h: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        scaled, delta, b, c = now
        h = h * jnp.exp(delta[None, :] * rates) + b[:, None] * scaled[None, :]
        return h, jnp.sum(c[:, None] * h, axis=0)

    return lax.scan(step, jnp.zeros_like(rates), (delta * x, delta, b, c))[1]


def linear_attention(q: Array, k: Array, v: Array) -> Array:
    """Run causal linear attention, a position a step."""

    def step(state: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v = now
        state = state + k[:, None] * v[None, :]
        return state, q @ state

    state = jnp.zeros((k.shape[1], v.shape[1]), v.dtype)
    return lax.scan(step, state, (q, k, v))[1]


def _chunks(*sequences: Array) -> tuple[Array, ...]:
    return tuple(s.reshape(-1, CHUNK, s.shape[-1]) for s in sequences)


def linear_attention_in_chunks(q: Array, k: Array, v: Array) -> Array:
    """Run the same attention, a chunk a step."""

    def step(state: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v = now
        return state + k.T @ v, jnp.tril(q @ k.T) @ v + q @ state

    state = jnp.zeros((k.shape[1], v.shape[1]), v.dtype)
    return lax.scan(step, state, _chunks(q, k, v))[1].reshape(v.shape)


def linear_attention_batched(q: Array, k: Array, v: Array) -> Array:
    """Compute all chunks at once; only the states stay in the loop."""
    q, k, v = _chunks(q, k, v)
    updates = jnp.einsum("csk,csv->ckv", k, v)
    states = lax.scan(lambda s, u: (s + u, s), jnp.zeros_like(updates[0]), updates)[1]
    inside = jnp.tril(jnp.einsum("csk,ctk->cst", q, k))
    out = jnp.einsum("cst,ctv->csv", inside, v) + jnp.einsum("csk,ckv->csv", q, states)
    return out.reshape(-1, v.shape[-1])


# ---- the gradient of a nonlinear recurrence


def _rnn(w: Array, u: Array, xs: Array) -> Array:
    def step(h: Array, x: Array) -> tuple[Array, Array]:
        h = jnp.tanh(x @ w + h @ u)
        return h, h

    return lax.scan(step, jnp.zeros_like(u[0]), xs)[1]


def rnn_gradient(w: Array, u: Array, xs: Array) -> tuple[Array, Array]:
    """Return the gradient of a tanh RNN, batch 1."""
    return jax.grad(lambda w, u: jnp.mean(_rnn(w, u, xs) ** 2), argnums=(0, 1))(w, u)


def rnn_gradient_by_hand(w: Array, u: Array, xs: Array) -> tuple[Array, Array]:
    """Keep only h @ u and its transpose in the loops; all else is batched."""

    def forward(h: Array, z: Array) -> tuple[Array, Array]:
        h = jnp.tanh(z + h @ u)
        return h, h

    hs = lax.scan(forward, jnp.zeros_like(u[0]), xs @ w)[1]

    def backward(carried: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        outer, slope = now
        dz = (outer + carried) * slope
        return dz @ u.T, dz

    outer = hs * (2.0 / hs.size)
    slopes = 1 - hs * hs
    dzs = lax.scan(backward, jnp.zeros_like(u[0]), (outer, slopes), reverse=True)[1]
    before = jnp.concatenate([jnp.zeros_like(hs[:1]), hs[:-1]])
    return xs.T @ dzs, before.T @ dzs
