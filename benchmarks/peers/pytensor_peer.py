"""PyTensor's ``scan`` on some of the programs: a child process in its environment.

Run by the benchmarks that are given ``--peer pytensor=PYTHON``. The parent writes the
inputs to a file; the outputs go back in another, for comparison. JAX is not needed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytensor  # pyright: ignore[reportMissingImports]
import pytensor.tensor as pt  # pyright: ignore[reportMissingImports]

from benchmarks import measure
from benchmarks.children import hand_back

Inputs = Sequence[Any]
Outputs = list[Any]
_LARGEST_SENT = 1 << 28  # bytes of outputs that are compared
_GAMMA = 0.99
_GATES = "fgio"  # the order of a flattened dictionary


def _scan(step: Callable[..., Any], **options: Any) -> Any:
    """Scan without updates, and with plain outputs."""
    return pytensor.scan(step, return_updates=False, **options)


def distances(inputs: Inputs) -> Outputs:
    """Scan over the rows of a distance matrix."""
    (points,) = inputs

    def row(point: Any, points: Any) -> Any:
        return pt.sqrt(pt.sum((points - point) ** 2, axis=1))

    return [_scan(row, sequences=[points], non_sequences=[points])]


def product(inputs: Inputs) -> Outputs:
    """Multiply each row by a matrix."""
    weights, rows = inputs
    return [_scan(lambda x, w: pt.dot(w, x), sequences=[rows], non_sequences=[weights])]


def rnn(inputs: Inputs) -> Outputs:
    """Run an RNN whose products before and after the recurrence are in the loop."""
    w, u, v, xs = inputs

    def step(x: Any, h: Any, _: Any, w: Any, u: Any, v: Any) -> Any:
        h = pt.tanh(pt.dot(x, w) + pt.dot(h, u))
        return h, pt.sum(pt.dot(h, v), axis=-1)

    start = pt.zeros((xs.shape[1], u.shape[0]), dtype=xs.dtype)
    unread = pt.zeros((xs.shape[1],), dtype=xs.dtype)
    constants = [w, u, v]
    return [
        _scan(
            step,
            sequences=[xs],
            outputs_info=[start, unread],
            non_sequences=constants,
        )[1]
    ]


def discounted_returns(inputs: Inputs) -> Outputs:
    """Return the discounted sums of what is still to come."""
    (rewards,) = inputs
    totals = _scan(
        lambda reward, total: reward + np.float32(_GAMMA) * total,
        sequences=[rewards],
        outputs_info=[pt.zeros((), dtype=rewards.dtype)],
        go_backwards=True,
    )
    return [totals[::-1]]


def rnn_gradient(inputs: Inputs) -> Outputs:
    """Return the gradient of a tanh RNN."""
    w, u, xs = inputs
    hs = _scan(
        lambda x, h, w, u: pt.tanh(pt.dot(x, w) + pt.dot(h, u)),
        sequences=[xs],
        outputs_info=[pt.zeros((u.shape[0],), dtype=xs.dtype)],
        non_sequences=[w, u],
    )
    return list(pytensor.grad(pt.mean(hs**2), [w, u]))


def _lstm_layer(gates: Inputs, inputs: Any, reverse: bool) -> Any:
    """Run a layer of an LSTM; ``gates`` are (W, U, b) of each gate."""

    def step(x: Any, h: Any, cell: Any, *gates: Any) -> Any:
        z = {
            gate: pt.dot(x, w) + pt.dot(h, u) + b
            for gate, w, u, b in zip(
                _GATES, gates[::3], gates[1::3], gates[2::3], strict=True
            )
        }
        cell = pt.sigmoid(z["f"]) * cell + pt.sigmoid(z["i"]) * pt.tanh(z["g"])
        return pt.sigmoid(z["o"]) * pt.tanh(cell), cell

    zero = pt.zeros((inputs.shape[1], gates[1].shape[0]), dtype=inputs.dtype)
    hs = _scan(
        step,
        sequences=[inputs],
        outputs_info=[zero, zero],
        non_sequences=list(gates),
        go_backwards=reverse,
    )[0]
    return hs[::-1] if reverse else hs


def lstm(inputs: Inputs) -> Outputs:
    """Run two bidirectional levels."""
    *parameters, xs = inputs
    size = 3 * len(_GATES)
    layers = [parameters[k : k + size] for k in range(0, len(parameters), size)]
    for ahead, back in zip(layers[::2], layers[1::2], strict=True):
        both = _lstm_layer(ahead, xs, False), _lstm_layer(back, xs, True)
        xs = pt.concatenate(both, axis=-1)
    return [xs]


def lstm_training(inputs: Inputs) -> Outputs:
    """Return loss and gradients of all parameters."""
    loss = pt.mean(lstm(inputs)[0] ** 2)
    return [loss, *pytensor.grad(loss, list(inputs[:-1]))]


PROGRAMS: dict[str, Callable[[Inputs], Outputs]] = {
    "distances, scan": distances,
    "W @ x per row": product,
    "RNN, batch": rnn,
    "discounted returns": discounted_returns,
    "tanh RNN gradient": rnn_gradient,
    "forward, batch": lstm,
    "training, batch": lstm_training,
}


def run(build: Callable[[Inputs], Outputs], options: argparse.Namespace) -> None:
    """Compile a program, time it and send back what it computes."""
    with np.load(options.inputs) as file:
        arrays = [file[key] for key in file.files]
    variables = [pt.tensor(dtype=a.dtype, shape=a.shape) for a in arrays]
    pytensor.config.floatX = "float32"
    start = time.perf_counter()
    function = pytensor.function(variables, build(variables))
    outputs = function(*arrays)
    seconds = time.perf_counter() - start
    if sum(out.nbytes for out in outputs) <= _LARGEST_SENT:
        np.savez(options.outputs, *outputs)
    del outputs
    rounds = min(options.rounds, 5) if options.quick else options.rounds
    plan = measure.Plan(rounds, budget_s=1.0 if options.quick else 6.0)
    calls = {"pytensor": lambda: function(*arrays)}
    samples = measure.interleaved(calls, plan, wait=lambda value: value)["pytensor"]
    hand_back(
        {
            "version": pytensor.__version__,
            "median_ms": statistics.median(samples),
            "samples_ms": samples,
            "first_call_s": seconds,
        }
    )


def main() -> None:
    """Measure one program, if there is a form of it here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--outputs", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for name, build in PROGRAMS.items():
        if options.workload.startswith(name):
            run(build, options)
            return
    hand_back({"version": pytensor.__version__})


if __name__ == "__main__":
    main()
