"""A program in three forms: as users write it, optimised, and by an expert's hand.

Shared by the benchmarks that print such tables. Peers that need an environment of
their own (see :mod:`benchmarks.peers`) get a column each.
"""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from benchmarks import measure, optimiser, peers
from benchmarks.progress import Progress
from benchmarks.table import interval, number, small, table, times

Result = dict[str, Any]
Make = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Workload:
    """A program in two forms, and its inputs."""

    name: str
    size: str
    original: Callable[..., Any]
    by_hand: Callable[..., Any] | None
    make: Make
    note: str = ""
    wide: bool = False  # float64: 64-bit types are switched on

    @property
    def title(self) -> str:
        """Name and size, for tables."""
        hand = f" (hand: {self.note})" if self.note else ""
        return f"{self.name}, {self.size}{hand}"


def normal(
    *shapes: tuple[int, ...], scale: float = 1.0, dtype: str = "float32"
) -> Make:
    """Return a function that makes random arrays of these shapes on the device."""

    def make() -> tuple[Any, ...]:
        rng = np.random.default_rng(0)
        arrays = (rng.standard_normal(shape) * scale for shape in shapes)
        return tuple(jax.device_put(array.astype(dtype)) for array in arrays)

    return make


def difference(reference: Any, got: Any) -> float:
    """Return max|a - b| / max|a| over float outputs; for others the share that differs.

    NaN in one output but not in the other counts as infinite.
    """
    worst = 0.0
    for a, b in zip(jax.tree.leaves(reference), jax.tree.leaves(got), strict=True):
        some, other = np.asarray(a), np.asarray(b)
        if not np.issubdtype(some.dtype, np.floating):
            worst = max(worst, float(np.mean(some != other)))
            continue
        wide, other = some.astype(np.float64), other.astype(np.float64)
        if not np.array_equal(np.isnan(wide), np.isnan(other)):
            return float("inf")
        scale = float(np.nanmax(np.abs(wide), initial=0.0)) or 1.0
        gap = float(np.nanmax(np.abs(wide - other), initial=0.0))
        worst = max(worst, gap / scale)
    return worst


def contest(
    workload: Workload,
    optimise: optimiser.Optimiser,
    plan: measure.Plan,
    show: Callable[[str], None] = lambda detail: None,
) -> Result:
    """Measure the forms of one program, interleaved."""
    with jax.enable_x64(workload.wide):
        return _contest(workload, optimise, plan, show)


def _contest(
    workload: Workload,
    optimise: optimiser.Optimiser,
    plan: measure.Plan,
    show: Callable[[str], None],
) -> Result:
    args = workload.make()
    ours = optimise(workload.original)
    forms = {"original": jax.jit(workload.original), "ours": ours}
    if workload.by_hand is not None:
        forms["hand"] = jax.jit(workload.by_hand)
    show(f"first calls, {workload.name}")
    differences: dict[str, float] = {}
    reference = measure.ready(forms["original"](*args))
    for name in list(forms)[1:]:
        differences[name] = difference(reference, forms[name](*args))
    del reference
    gc.collect()
    calls = {name: functools.partial(form, *args) for name, form in forms.items()}
    samples = measure.interleaved(
        calls, plan, lambda text: show(f"{workload.name}: {text}")
    )
    speedup = measure.ratio(samples["original"], samples["ours"])
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    return {
        "workload": workload.title,
        "median_ms": medians,
        "samples_ms": samples,
        "speedup": speedup.value,
        "speedup_interval": speedup.interval,
        "hand_over_ours": medians["hand"] / medians["ours"]
        if "hand" in forms
        else None,
        "difference": differences["ours"],
        "hand_difference": differences.get("hand"),
        "outcomes": optimiser.outcomes(ours, *args),
    }


def cells(result: Result, asked: Sequence[peers.Peer]) -> list[str]:
    """Return one line of the table."""
    medians = result["median_ms"]
    return [
        result["workload"],
        *(number(medians.get(name)) for name in ("original", "ours", "hand")),
        times(result["speedup"]),
        interval(result["speedup_interval"]),
        times(result["hand_over_ours"]),
        small(result["difference"]),
        small(result["hand_difference"]),
        *(peers.cell(result["peers"][peer.name]) for peer in asked),
        ", ".join(result["outcomes"] or ["-"]),
    ]


def results_table(results: Sequence[Result], asked: Sequence[peers.Peer] = ()) -> str:
    """Print one line for each program."""
    heads = ["program", "original ms", "ours ms", "hand ms", "speedup", "95 %"]
    heads += ["hand / ours", "difference", "of hand"]
    heads += [*(peer.heading for peer in asked), "loops"]
    return table(heads, [cells(result, asked) for result in results])


def summary(results: Sequence[Result]) -> str:
    """Name the geometric means and what lies behind."""
    speedup = measure.geometric_mean([r["speedup"] for r in results])
    hands = [r["hand_over_ours"] for r in results if r["hand_over_ours"]]
    slow = [r["workload"] for r in results if r["speedup_interval"][1] < 0.93]
    lines = [
        f"geometric means: speedup {times(speedup)}, "
        f"hand / ours {times(measure.geometric_mean(hands))}",
        f"slower than 0.93x of the loop: {'; '.join(slow) or 'none'}",
    ]
    return "\n".join(lines)


def chosen(todo: Sequence[Workload], only: str | None) -> list[Workload]:
    """Keep the programs whose name contains one of the words of ``only``."""
    if not only:
        return list(todo)
    words = [word.strip() for word in only.split(",")]
    kept = [w for w in todo if any(word in w.name for word in words)]
    if not kept:
        names = ", ".join(sorted({w.name for w in todo}))
        raise SystemExit(f"no such program; there are {names}")
    return kept


def run_table(
    name: str,
    module: str,
    workloads: Callable[[bool], Sequence[Workload]],
    options: argparse.Namespace,
) -> int:
    """Measure all programs, print the table and write the JSON."""
    optimise = optimiser.resolve(options.optimiser, options.numerics)
    asked = peers.asked(options.peer)
    rounds = min(options.rounds, 5) if options.quick else options.rounds
    plan = measure.Plan(rounds, budget_s=1.0 if options.quick else 3.0)
    todo = chosen(workloads(options.quick), options.only)
    results: list[Result] = []
    with Progress(name, len(todo)) as progress:
        for workload in todo:
            try:
                result = contest(workload, optimise, plan, progress.show)
            except Exception as error:
                progress.note(f"{workload.title}: {type(error).__name__}: {error}")
                continue
            result["peers"] = {
                peer.name: peers.measured(peer, module, workload, options)
                for peer in asked
            }
            results.append(result)
            progress.step(workload.name)
    print(measure.machine_line())
    print("difference: against the original, max|a - b| / max|a|, of hand: the same;")
    print("for integers the share that differs; hand / ours above 1: ours is faster")
    print(results_table(results, asked))
    print(summary(results))
    print(peers.remark(asked, [result["peers"] for result in results]))
    print(f"wrote {measure.write_json(options.out, name, results)}")
    return 0 if len(results) == len(todo) else 1
