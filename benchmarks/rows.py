"""Row-by-row programs: original, ours, and the form that an expert writes."""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.contest import Workload, normal, run_table

_SECTION = 128

# ---- programs


def product(weights: jax.Array, inputs: jax.Array) -> jax.Array:
    """Multiply each row by a matrix."""
    return lax.map(lambda x: weights @ x, inputs)


def product_by_hand(weights: jax.Array, inputs: jax.Array) -> jax.Array:
    """Multiply all rows at once."""
    return inputs @ weights.T


def perceptron(first: jax.Array, second: jax.Array, inputs: jax.Array) -> jax.Array:
    """Run a two-layer perceptron on each row."""
    return lax.map(lambda x: jax.nn.softmax(second @ jnp.tanh(first @ x)), inputs)


def perceptron_by_hand(
    first: jax.Array, second: jax.Array, inputs: jax.Array
) -> jax.Array:
    """Run a two-layer perceptron on all rows, batch axis first."""
    return jax.nn.softmax(jnp.tanh(inputs @ first.T) @ second.T)


def rnn(w: jax.Array, u: jax.Array, v: jax.Array, xs: jax.Array) -> jax.Array:
    """Run an RNN; products before and after the recurrence are in the loop."""

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(x @ w + h @ u)
        return h, (h @ v).sum(-1)

    return lax.scan(step, jnp.zeros((xs.shape[1], u.shape[0]), xs.dtype), xs)[1]


def rnn_in_sections(
    w: jax.Array, u: jax.Array, v: jax.Array, xs: jax.Array
) -> jax.Array:
    """Run the same RNN with both products batched over sections of the time axis."""

    def step(h: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(z + h @ u)
        return h, h

    def section(h: jax.Array, part: jax.Array) -> tuple[jax.Array, jax.Array]:
        h, hs = lax.scan(step, h, part @ w)
        return h, (hs @ v).sum(-1)

    steps, batch, features = xs.shape
    parts = xs.reshape(-1, _SECTION, batch, features)
    start = jnp.zeros((batch, u.shape[0]), xs.dtype)
    return lax.scan(section, start, parts)[1].reshape(steps, batch)


def workloads(quick: bool) -> list[Workload]:
    """Return all programs with their sizes."""
    count, steps = (2000, 512) if quick else (50000, 4096)

    def recurrent(batch: int, hidden: int) -> Workload:
        square = (hidden, hidden)
        return Workload(
            f"RNN, batch {batch}",
            f"T={steps} H={hidden}",
            rnn,
            rnn_in_sections,
            normal(square, square, square, (steps, batch, hidden), scale=0.05),
            f"sections of {_SECTION}",
        )

    return [
        Workload(
            "W @ x per row",
            f"{count} x 64 -> 256",
            product,
            product_by_hand,
            normal((256, 64), (count, 64)),
        ),
        Workload(
            "perceptron and softmax per row",
            f"{count} x 64 -> 256 -> 10",
            perceptron,
            perceptron_by_hand,
            normal((256, 64), (10, 256), (count, 64), scale=0.3),
        ),
        recurrent(1, 256),
        recurrent(32, 128),
    ]


def run(options: argparse.Namespace) -> int:
    """Print the table and write the JSON."""
    return run_table("rows", __name__, workloads, options)
