"""Row-by-row programs: original, ours, and the form that an expert writes."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import measure, optimiser
from benchmarks.progress import Progress
from benchmarks.table import interval, number, small, table, times

_SECTION = 128


@dataclass(frozen=True)
class Workload:
    """A program in two forms, and its inputs."""

    name: str
    original: Callable[..., Any]
    by_hand: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    scale: float

    def make(self) -> list[jax.Array]:
        """Return random inputs on the device."""
        rng = np.random.default_rng(0)
        arrays = (rng.standard_normal(shape) * self.scale for shape in self.shapes)
        return [jax.device_put(array.astype(np.float32)) for array in arrays]


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
            f"RNN T={steps} batch {batch} H={hidden} (hand: sections of {_SECTION})",
            rnn,
            rnn_in_sections,
            (square, square, square, (steps, batch, hidden)),
            0.05,
        )

    return [
        Workload(
            f"W @ x per row, {count} x 64 -> 256",
            product,
            product_by_hand,
            ((256, 64), (count, 64)),
            1.0,
        ),
        Workload(
            f"perceptron and softmax per row, {count} x 64 -> 256 -> 10",
            perceptron,
            perceptron_by_hand,
            ((256, 64), (10, 256), (count, 64)),
            0.3,
        ),
        recurrent(1, 256),
        recurrent(32, 128),
    ]


# ---- measuring


def difference(reference: Any, got: Any) -> float:
    """Return max|a - b| / max|a| over all outputs."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(reference), jax.tree.leaves(got), strict=True):
        wide, other = np.asarray(a, np.float64), np.asarray(b, np.float64)
        worst = max(worst, float(np.max(np.abs(wide - other)) / np.max(np.abs(wide))))
    return worst


def contest(
    workload: Workload,
    optimise: optimiser.Optimiser,
    plan: measure.Plan,
    show: Callable[[str], None],
) -> dict[str, Any]:
    """Measure the three forms of one program."""
    args = workload.make()
    forms = {
        "original": jax.jit(workload.original),
        "ours": optimise(workload.original),
        "hand": jax.jit(workload.by_hand),
    }
    show(f"first calls, {workload.name}")
    values = {name: measure.ready(form(*args)) for name, form in forms.items()}
    calls = {name: lambda form=form: form(*args) for name, form in forms.items()}
    samples = measure.interleaved(
        calls, plan, lambda text: show(f"{workload.name}: {text}")
    )
    speedup = measure.ratio(samples["original"], samples["ours"])
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    return {
        "workload": workload.name,
        "median_ms": medians,
        "samples_ms": samples,
        "speedup": speedup.value,
        "speedup_interval": speedup.interval,
        "hand_over_ours": medians["hand"] / medians["ours"],
        "difference": difference(values["original"], values["ours"]),
        "hand_difference": difference(values["original"], values["hand"]),
        "outcomes": optimiser.outcomes(forms["ours"], *args),
    }


def _cells(result: dict[str, Any]) -> list[str]:
    medians = result["median_ms"]
    return [
        result["workload"],
        *(number(medians[name]) for name in ("original", "ours", "hand")),
        times(result["speedup"]),
        interval(result["speedup_interval"]),
        times(result["hand_over_ours"]),
        small(result["difference"]),
        ", ".join(result["outcomes"] or ["-"]),
    ]


def run(options: argparse.Namespace) -> int:
    """Print the table and write the JSON."""
    optimise = optimiser.resolve(options.optimiser, options.numerics)
    plan = measure.Plan(min(options.rounds, 5 if options.quick else options.rounds))
    todo = workloads(options.quick)
    results: list[dict[str, Any]] = []
    with Progress("rows", len(todo)) as progress:
        for workload in todo:
            results.append(contest(workload, optimise, plan, progress.show))
            progress.step(workload.name)
    heads = ["program", "original ms", "ours ms", "hand ms", "speedup", "95 %"]
    heads += ["hand / ours", "difference", "loops"]
    print(measure.machine_line())
    print(table(heads, [_cells(result) for result in results]))
    print(f"wrote {measure.write_json(options.out, 'rows', results)}")
    return 0
