"""Loops with a carry: accumulations, linear recurrences, RNNs and their gradients."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.contest import Make, Workload, normal, run_table
from benchmarks.programs import accumulations as a
from benchmarks.programs import sequences as s


def _with(make: Make, draw: Callable[[np.random.Generator], Any]) -> Make:
    """Add one more input."""
    return lambda: (*make(), jax.device_put(draw(np.random.default_rng(1))))


def _state_space(length: int, channels: int, states: int) -> Make:
    """Make the inputs of a selective scan: positive steps, negative rates."""
    shapes = [(length, channels)] * 2 + [(channels, states)] + [(length, states)] * 2

    def make() -> tuple[Any, ...]:
        x, delta, rates, b, c = normal(*shapes)()
        return x, jax.nn.softplus(delta - 2), -abs(rates), b, c

    return make


def _accumulations(quick: bool) -> list[Workload]:
    """Return carries that only accumulate."""
    count, rows, some = (20000, 10000, 1000) if quick else (1000000, 100000, 20000)
    return [
        Workload(
            "Welford mean and variance",
            f"{count // 5}",
            a.welford,
            a.welford_by_hand,
            normal((count // 5,)),
        ),
        Workload(
            "running argmax with payload",
            f"{rows} x 8",
            a.argmax_with_payload,
            a.argmax_with_payload_by_hand,
            normal((rows,), (rows, 8)),
        ),
        Workload(
            "running log-sum-exp",
            f"{count}",
            a.running_logsumexp,
            a.logsumexp_by_hand,
            normal((count,)),
        ),
        Workload(
            "masked sum",
            f"{rows} x 32",
            a.masked_sum,
            a.masked_sum_by_hand,
            _with(normal((rows, 32)), lambda rng: rng.random(rows) < 0.3),
        ),
        Workload(
            "histogram",
            f"{count}, 64 bins",
            a.histogram,
            a.histogram_by_hand,
            _with(tuple, lambda rng: rng.integers(0, 64, count).astype(np.int32)),
        ),
        Workload(
            "outer products",
            f"{some} x 64",
            a.outer_products,
            a.outer_products_by_hand,
            normal((some, 64)),
        ),
        Workload(
            "gradient accumulation",
            f"{some // 4} examples, 64 -> 128 -> 10",
            a.gradient_accumulation,
            a.gradient_by_hand,
            normal((64, 128), (128, 10), (some // 4, 64), (some // 4, 10), scale=0.3),
        ),
    ]


def _linear(quick: bool) -> list[Workload]:
    """Return recurrences that are linear in the carry."""
    count = 10240 if quick else 1024000
    steps, length = (512, 128) if quick else (2048, 1024)
    tokens = 512 if quick else 4096
    hand = f"blocks of {s.BLOCK}"

    def along(name: str, original: Any, by_hand: Any) -> Workload:
        return Workload(name, f"{count}", original, by_hand, normal((count,)), hand)

    def attention(name: str, original: Any, by_hand: Any, note: str) -> Workload:
        make = normal(*[(tokens, 64)] * 3, scale=0.1)
        return Workload(name, f"{tokens} x 64", original, by_hand, make, note)

    return [
        along("discounted returns", s.discounted_returns, s.discounted_returns_by_hand),
        along("moving average", s.moving_average, s.moving_average_by_hand),
        along("cumulative sum", s.cumulative_sum, s.cumulative_sum_by_hand),
        Workload(
            "Horner polynomial",
            f"degree 31, {count} points",
            s.horner,
            s.horner_by_hand,
            normal((32,), (count,), scale=0.3),
        ),
        Workload(
            "generalised advantages",
            f"T={steps} x 64",
            s.advantages,
            s.advantages_by_hand,
            _with(
                normal((steps, 64), (steps, 64)),
                lambda rng: (rng.random((steps, 64)) > 0.01).astype(np.float32),
            ),
        ),
        Workload(
            "selective scan (Mamba)",
            f"T={length}, 256 channels, 16 states",
            s.selective_scan,
            s.selective_scan_by_hand,
            _state_space(length, 256, 16),
        ),
        attention(
            "linear attention",
            s.linear_attention,
            s.linear_attention_in_chunks,
            f"chunks of {s.CHUNK}",
        ),
        attention(
            "linear attention in chunks",
            s.linear_attention_in_chunks,
            s.linear_attention_batched,
            "",
        ),
    ]


def workloads(quick: bool) -> list[Workload]:
    """Return all programs with their sizes."""
    steps, hidden = (128, 128) if quick else (512, 256)
    square = (hidden, hidden)
    gradient = Workload(
        "tanh RNN gradient",
        f"T={steps} H={hidden} batch 1",
        s.rnn_gradient,
        s.rnn_gradient_by_hand,
        normal(square, square, (steps, hidden), scale=0.05),
    )
    return [*_accumulations(quick), *_linear(quick), gradient]


def run(options: argparse.Namespace) -> int:
    """Print the table and write the JSON."""
    return run_table("recurrences", __name__, workloads, options)
