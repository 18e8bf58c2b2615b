"""A hierarchical Bi-LSTM, forward and training step, against PyTorch and peers.

Two bidirectional levels with a matrix for each gate; the training step is the loss
(mean of squares) and the gradient of all parameters. All contenders have the same
parameters and run in this one process, interleaved in random order; peers with an
environment of their own are measured in theirs.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import statistics
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import measure, optimiser, peers
from benchmarks.contest import Workload, chosen, difference
from benchmarks.programs import lstm
from benchmarks.progress import Progress
from benchmarks.table import number, small, table, times

OURS = "ours: optimize(f)"
ORIGINAL = "jax.jit(f)"
TORCH = "torch.nn.LSTM"
Call = Callable[[], Any]


def workloads(quick: bool) -> list[Workload]:
    """Return forward and training step with their sizes."""
    steps, width, batches = (32, 32, (1, 4)) if quick else (256, 128, (1, 16, 64))

    def make(batch: int) -> tuple[Any, ...]:
        rng = np.random.default_rng(0)
        levels = lstm.parameters(rng, width, width)
        inputs = rng.standard_normal((steps, batch, width)).astype(np.float32)
        return jax.device_put((levels, inputs))

    return [
        Workload(
            f"{part}, batch {batch}",
            f"T={steps} D=H={width}",
            original,
            by_hand,
            functools.partial(make, batch),
        )
        for part, original, by_hand in (
            ("forward", lstm.forward, lstm.forward_by_hand),
            ("training", lstm.training, lstm.training_by_hand),
        )
        for batch in batches
    ]


# ---- contenders


def _torch_model(levels: Any) -> Any:
    """Return PyTorch's LSTM with the same parameters; its second biases are zero."""
    import torch  # pyright: ignore[reportMissingImports]

    features, hidden = levels[0][0]["i"][0].shape
    network = torch.nn.LSTM(features, hidden, num_layers=2, bidirectional=True)
    with torch.no_grad():
        for k, level in enumerate(levels):
            for layer, suffix in zip(level, ("", "_reverse"), strict=True):
                gates = [[np.asarray(a) for a in layer[gate]] for gate in lstm.GATES]
                w, u, b = (np.concatenate([g[i].T for g in gates]) for i in range(3))
                for name, value in (
                    ("weight_ih", w),
                    ("weight_hh", u),
                    ("bias_ih", b),
                    ("bias_hh", np.zeros_like(b)),
                ):
                    target = getattr(network, f"{name}_l{k}{suffix}")
                    target.copy_(torch.from_numpy(value))
    return network


def torch_call(workload: Workload, args: tuple[Any, ...]) -> Call | None:
    """Return PyTorch's way to do the same work; gives outputs, or loss and model."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch  # pyright: ignore[reportMissingImports]

    network = _torch_model(args[0])
    inputs = torch.from_numpy(np.array(args[1]))

    def forward() -> Any:
        with torch.inference_mode():
            return network(inputs)[0]

    def training() -> Any:
        network.zero_grad(set_to_none=True)
        loss = (network(inputs)[0] ** 2).mean()
        loss.backward()
        return loss, network.weight_hh_l0.grad

    return forward if workload.name.startswith("forward") else training


def _jax_forms(workload: Workload, optimise: optimiser.Optimiser) -> dict[str, Any]:
    """Return every form in JAX."""
    forms = {OURS: optimise(workload.original), ORIGINAL: jax.jit(workload.original)}
    if workload.name.startswith("training"):
        optimised_loss = optimise(lstm.loss(lstm.layer))
        inside = jax.value_and_grad(optimised_loss)
        forms["value_and_grad(optimize(loss))"] = inside
        forms["jax.jit of value_and_grad(optimize(loss))"] = jax.jit(inside)
    assert workload.by_hand is not None
    forms["JAX by hand"] = jax.jit(workload.by_hand)
    return forms


def _comparable(name: str, value: Any) -> tuple[np.ndarray, ...]:
    """Return what all contenders give: outputs, or loss and one gradient."""
    if not isinstance(value, tuple):
        return (np.asarray(value),)
    loss, gradient = value
    if name != TORCH:  # the recurrent matrices of the first layer, joined
        ahead = gradient[0][0]
        gradient = np.concatenate([np.asarray(ahead[g][1]).T for g in lstm.GATES])
        return np.asarray(loss), gradient
    return loss.detach().numpy(), gradient.numpy()


def contest(
    workload: Workload,
    optimise: optimiser.Optimiser,
    plan: measure.Plan,
    show: Callable[[str], None],
) -> dict[str, Any]:
    """Measure all contenders of one workload."""
    args = workload.make()
    forms = _jax_forms(workload, optimise)
    calls: dict[str, Call] = {
        name: functools.partial(form, *args) for name, form in forms.items()
    }
    torch = torch_call(workload, args)
    if torch is not None:
        calls[TORCH] = torch
    values = {}
    for name, call in calls.items():
        show(f"{workload.name}: first call, {name}")
        values[name] = _comparable(name, measure.ready(call()))
    samples = measure.interleaved(calls, plan, show)
    reference = values[ORIGINAL]
    return {
        "workload": workload.title,
        "samples_ms": samples,
        "median_ms": {n: statistics.median(taken) for n, taken in samples.items()},
        "over_ours": {
            n: measure.ratio(t, samples[OURS]).value for n, t in samples.items()
        },
        "intervals": {
            n: measure.ratio(t, samples[OURS]).interval for n, t in samples.items()
        },
        "difference": {n: difference(reference, v) for n, v in values.items()},
        "outcomes": optimiser.outcomes(forms[OURS], *args),
        "torch": torch is not None,
    }


# ---- the subcommand


def part_table(results: dict[str, dict[str, Any]], asked: list[peers.Peer]) -> str:
    """Print one line for each contender, two columns for each batch."""
    names = list(next(iter(results.values()))["median_ms"])
    rows = []
    for name in names:
        line = [name]
        for result in results.values():
            line += [
                number(result["median_ms"][name]),
                times(result["over_ours"][name]),
            ]
        worst = max(result["difference"][name] for result in results.values())
        rows.append([*line, small(worst)])
    blank = len(results) * 2
    if TORCH not in names:
        rows.append([f"{TORCH}: not installed", *["-"] * blank, "-"])
    for peer in asked:
        line = [peer.heading.replace(" ms", "") + ", own process"]
        for result in results.values():
            found = result["peers"][peer.name]
            ours = result["median_ms"][OURS]
            known = found.get("median_ms")
            line += [peers.cell(found), times(known / ours if known else None)]
        rows.append([*line, "-"])
    heads = ["contender"]
    for name in results:
        heads += [f"{name.split(', ')[1]} ms", "/ ours"]
    return table([*heads, "difference"], rows)


def run(options: argparse.Namespace) -> int:
    """Print a table for forward and one for training; write the JSON."""
    optimise = optimiser.resolve(options.optimiser, options.numerics)
    asked = peers.asked(options.peer)
    rounds = min(options.rounds, 5) if options.quick else options.rounds
    plan = measure.Plan(rounds, budget_s=1.0 if options.quick else 10.0)
    todo = chosen(workloads(options.quick), options.only)
    results: dict[str, dict[str, Any]] = {}
    with Progress("lstm", len(todo)) as progress:
        for workload in todo:
            result = contest(workload, optimise, plan, progress.show)
            result["peers"] = {
                peer.name: peers.measured(peer, __name__, workload, options)
                for peer in asked
            }
            results[workload.name] = result
            progress.step(workload.name)
    print(measure.machine_line())
    print(
        "difference: against jax.jit, outputs or loss and a gradient, the worst batch"
    )
    for part in ("forward", "training"):
        some = {n: r for n, r in results.items() if n.startswith(part)}
        if some:
            title = next(iter(some.values()))["workload"].split(", ", 2)[2]
            print(f"\n{part}, two bidirectional levels, {title}")
            print(part_table(some, asked))
            loops = "; ".join(", ".join(r["outcomes"] or ["-"]) for r in some.values())
            print(f"loops: {loops}")
    print("\n" + peers.remark(asked, [r["peers"] for r in results.values()]))
    print(f"wrote {measure.write_json(options.out, 'lstm', results)}")
    return 0
