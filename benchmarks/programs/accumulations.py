"""Carries that only accumulate: sums, moments, maxima, counts, gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Pair = tuple[Array, Array]


def welford(values: Array) -> Pair:
    """Return mean and variance in one pass."""

    def step(carry: tuple[Array, Array, Array], x: Array) -> tuple[tuple, None]:
        count, mean, spread = carry
        count = count + 1
        apart = x - mean
        mean = mean + apart / count
        return (count, mean, spread + apart * (x - mean)), None

    zero = jnp.zeros((), values.dtype)
    count, mean, spread = lax.scan(step, (zero, zero, zero), values)[0]
    return mean, spread / (count - 1)


def welford_by_hand(values: Array) -> Pair:
    """Return mean and variance in two passes."""
    return jnp.mean(values), jnp.var(values, ddof=1)


def argmax_with_payload(scores: Array, payloads: Array) -> Pair:
    """Keep the best score so far and what came with it."""

    def step(best: Pair, new: Pair) -> tuple[Pair, None]:
        better = new[0] > best[0]
        score = jnp.where(better, new[0], best[0])
        return (score, jnp.where(better, new[1], best[1])), None

    start = jnp.asarray(-jnp.inf, scores.dtype), jnp.zeros_like(payloads[0])
    return lax.scan(step, start, (scores, payloads))[0]


def argmax_with_payload_by_hand(scores: Array, payloads: Array) -> Pair:
    """Find the best, then take it."""
    best = jnp.argmax(scores)
    return scores[best], payloads[best]


def running_logsumexp(values: Array) -> Array:
    """Keep the largest value and the scaled sum, as in streaming attention."""

    def step(carry: Pair, x: Array) -> tuple[Pair, None]:
        largest, total = carry
        new = jnp.maximum(largest, x)
        return (new, total * jnp.exp(largest - new) + jnp.exp(x - new)), None

    start = jnp.asarray(-jnp.inf, values.dtype), jnp.zeros((), values.dtype)
    largest, total = lax.scan(step, start, values)[0]
    return largest + jnp.log(total)


def logsumexp_by_hand(values: Array) -> Array:
    """Call the library."""
    return jax.nn.logsumexp(values)


def masked_sum(rows: Array, mask: Array) -> Array:
    """Add the rows that the mask allows."""

    def step(total: Array, new: Pair) -> tuple[Array, None]:
        row, is_in = new
        return jnp.where(is_in, total + row, total), None

    return lax.scan(step, jnp.zeros_like(rows[0]), (rows, mask))[0]


def masked_sum_by_hand(rows: Array, mask: Array) -> Array:
    """Contract the rows with the mask, in two levels."""
    features = rows.shape[1]
    weights = mask.astype(rows.dtype).reshape(-1, 1000)
    return jnp.einsum("bi,bij->j", weights, rows.reshape(-1, 1000, features))


def histogram(bins: Array, count: int = 64) -> Array:
    """Count how often each bin occurs."""

    def step(counts: Array, k: Array) -> tuple[Array, None]:
        return counts.at[k].add(1), None

    return lax.scan(step, jnp.zeros(count, jnp.int32), bins)[0]


def histogram_by_hand(bins: Array, count: int = 64) -> Array:
    """Call the library."""
    return jnp.bincount(bins, length=count).astype(jnp.int32)


def outer_products(rows: Array) -> Array:
    """Add up the outer products of rows with themselves."""

    def step(total: Array, row: Array) -> tuple[Array, None]:
        return total + row[:, None] * row[None, :], None

    width = rows.shape[1]
    return lax.scan(step, jnp.zeros((width, width), rows.dtype), rows)[0]


def outer_products_by_hand(rows: Array) -> Array:
    """Multiply the transpose by the rows."""
    return rows.T @ rows


def _loss(parameters: Pair, x: Array, y: Array) -> Array:
    """Return the squared error of a small perceptron."""
    first, second = parameters
    return jnp.sum((jnp.tanh(x @ first) @ second - y) ** 2)


def gradient_accumulation(first: Array, second: Array, xs: Array, ys: Array) -> Pair:
    """Add the gradients of one example after the other."""
    parameters = first, second

    def step(total: Pair, example: Pair) -> tuple[Pair, None]:
        gradient = jax.grad(_loss)(parameters, *example)
        return jax.tree.map(jnp.add, total, gradient), None

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return lax.scan(step, zeros, (xs, ys))[0]


def gradient_by_hand(first: Array, second: Array, xs: Array, ys: Array) -> Pair:
    """Take the gradient of the loss of all examples."""
    return jax.grad(_loss)((first, second), xs, ys)
