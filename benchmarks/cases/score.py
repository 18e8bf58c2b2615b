"""Scores an optimiser on the loop cases, each case in a process of its own.

Columns: right (size 'small', three seeds, and size 'bench', against the jitted loop);
original / hand / ours median ms, interleaved in random order; speedup = original /
ours with its interval; of hand = best(original, hand) / ours, so 1 is as good as the
better of leaving the loop and rewriting it by hand; whiles left in the compiled
program; first call in seconds, original / ours; XLA's temporary MB of ours; what the
report says about each loop. A program whose optimised HLO is that of the original
counts as 1, and 'slower' means that the whole interval is below 0.93.
"""

from __future__ import annotations

import argparse
import functools
import re
import statistics
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax

from benchmarks import measure, optimiser
from benchmarks.cases import loading
from benchmarks.children import hand_back, run_child
from benchmarks.progress import Progress
from benchmarks.table import interval, megabytes, number, small, table, times

Result = dict[str, Any]
SLOWER_BELOW = 0.93
FAR_FROM_HAND = 0.7
_PLAN = measure.Plan(rounds=15, min_rounds=5, budget_s=10.0)


# ---- in the child: one case


def _other_form(case: ModuleType, name: str) -> Callable[..., Any]:
    """Return the form called ``name``, or the loop where there is none."""
    return getattr(case, name, None) or case.original


def case_optimiser(
    case: ModuleType, name: str, numerics: str | None
) -> optimiser.Optimiser:
    """Return the optimiser; 'hand' and 'tempting' stand for the case's own forms."""
    if name in ("hand", "tempting"):
        form = "by_hand" if name == "hand" else "tempting"
        return lambda _: jax.jit(_other_form(case, form))
    return optimiser.resolve(name, numerics)


def check(case: ModuleType, optimise: optimiser.Optimiser) -> Result:
    """Compare with the jitted loop at size 'small'."""
    result: Result = {"right": True, "error": 0.0, "note": ""}
    for seed in range(3):
        args = case.make("small", seed)
        reference = measure.ready(jax.jit(case.original)(*args))
        got = measure.ready(optimise(case.original)(*args))
        found, why = loading.error(case, reference, got)
        result["error"] = max(result["error"], found)
        if not found <= loading.tolerance(case):
            result["right"] = False
            result["note"] = why or f"seed {seed}: error {found:.1e}"
    return result


def first_calls(
    forms: dict[str, Callable[..., Any]], args: tuple[Any, ...]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Call every form once; return the values and the seconds."""
    values, seconds = {}, {}
    for name, form in forms.items():
        start = time.perf_counter()
        values[name] = measure.ready(form(*args))
        seconds[name] = time.perf_counter() - start
    return values, seconds


def bench(case: ModuleType, optimise: optimiser.Optimiser) -> Result:
    """Time loop, hand form and ours at size 'bench'."""
    args = jax.device_put(case.make("bench", 0))
    forms = {
        "original": jax.jit(case.original),
        "hand": jax.jit(_other_form(case, "by_hand")),
        "ours": optimise(case.original),
    }
    values, seconds = first_calls(forms, args)
    calls = {name: functools.partial(form, *args) for name, form in forms.items()}
    samples = measure.interleaved(calls, _PLAN)
    speedup = measure.ratio(samples["original"], samples["ours"])
    medians: dict[str, float | None] = {
        name: statistics.median(taken) for name, taken in samples.items()
    }
    if case.by_hand is None:
        medians["hand"] = None
    found, why = loading.error(case, values["original"], values["ours"])
    wrong = {"right": False, "note": f"at size 'bench': {why or f'error {found:.1e}'}"}
    return {
        "median_ms": medians,
        "samples_ms": samples,
        "speedup": speedup.value,
        "speedup_interval": speedup.interval,
        "first_call_s": seconds,
        "bench_error": found,
        **compiled_facts(forms, args),
        **({} if found <= loading.bench_tolerance(case) else wrong),
    }


def _anonymous(text: str) -> str:
    """Strip names and source locations from optimised HLO."""
    kept = "\n".join(line for line in text.splitlines() if "=" in line and "%" in line)
    kept = re.sub(r"(?<=%)[\w.-]+", "", kept)
    return re.sub(r", metadata=\{[^}]*\}|, origin=\{.*?\}\}?", "", kept)


def compiled_facts(forms: dict[str, Any], args: tuple[Any, ...]) -> Result:
    """Read loops, memory and sameness off the compiled programs."""
    ours = forms["ours"]
    if not hasattr(ours, "lower"):
        return {}
    compiled = ours.lower(*args).compile()
    text = compiled.as_text()
    original = forms["original"].lower(*args).compile().as_text()
    return {
        "whiles": len(re.findall(r" while\(", text)),
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "same_program": _anonymous(text) == _anonymous(original),
    }


def child(options: argparse.Namespace) -> None:
    """Check and time one case, handing back what is known so far."""
    case = loading.load(options.case)
    optimise = case_optimiser(case, options.optimiser, options.numerics)
    result = {"case": options.case, "expect": case.EXPECT, **check(case, optimise)}
    hand_back(result)
    size = "bench" if options.bench else "small"
    loops = optimiser.outcomes(optimise(case.original), *case.make(size, 0))
    result["outcomes"] = loops
    if options.bench:
        result.update(bench(case, optimise))
    hand_back(result)


# ---- in the parent: the table


def measured(name: str, options: argparse.Namespace) -> Result:
    """Run one case in a child and settle what its row says."""
    arguments = ["--case", name, "--optimiser", options.optimiser]
    if options.numerics:
        arguments += ["--numerics", options.numerics]
    if options.bench:
        arguments.append("--bench")
    handed, trouble = run_child("benchmarks.cases.score", arguments, options.timeout)
    result = handed or {"case": name, "expect": "?", "right": None, "note": ""}
    if trouble:
        result.update(right=None, note=trouble)
    if "median_ms" in result:
        _settle(result)
    return result


def _settle(result: Result) -> None:
    """Work out 'of hand'; an unchanged program is neither faster nor slower."""
    medians = result["median_ms"]
    if result.get("same_program"):
        result.update(speedup=1.0, speedup_interval=(1.0, 1.0))
        result["note"] = (result["note"] + " same program").strip()
    ours = medians["original" if result.get("same_program") else "ours"]
    best = min(medians["original"], medians["hand"] or medians["original"])
    result["of_hand"] = best / ours


def _check_cells(result: Result) -> list[str]:
    verdict = {True: "yes", False: "WRONG", None: "CRASH"}[result["right"]]
    return [result["case"], result["expect"], verdict, small(result.get("error"))]


def _bench_cells(result: Result) -> list[str]:
    medians, first = result.get("median_ms", {}), result.get("first_call_s", {})
    return [
        *(number(medians.get(form)) for form in ("original", "hand", "ours")),
        times(result.get("speedup")),
        interval(result.get("speedup_interval")),
        times(result.get("of_hand")),
        str(result.get("whiles", "-")),
        f"{number(first.get('original'))} / {number(first.get('ours'))}",
        megabytes(result.get("temp_bytes")),
    ]


def results_table(results: list[Result], with_bench: bool) -> str:
    """Print a row for every case."""
    heads = ["case", "EXPECT", "right", "error"]
    if with_bench:
        heads += ["original ms", "hand ms", "ours ms", "speedup", "95 %", "of hand"]
        heads += ["whiles", "first call s", "temp MB"]
    rows = [
        [
            *_check_cells(result),
            *(_bench_cells(result) if with_bench else []),
            ", ".join(result.get("outcomes") or ["-"]),
            result["note"],
        ]
        for result in results
    ]
    return table([*heads, "loops", "note"], rows)


def summary(results: list[Result]) -> str:
    """Count the outcomes and name the cases to look at."""

    def count(verdict: bool | None) -> int:
        return sum(result["right"] is verdict for result in results)

    lines = [
        f"{len(results)} cases: {count(True)} right, {count(False)} wrong, "
        f"{count(None)} crashed"
    ]
    timed = [r for r in results if r["right"] and "speedup" in r]
    if timed:
        speedup = measure.geometric_mean([r["speedup"] for r in timed])
        of_hand = measure.geometric_mean([r["of_hand"] for r in timed])
        slow = [r["case"] for r in timed if r["speedup_interval"][1] < SLOWER_BELOW]
        far = [r["case"] for r in timed if r["of_hand"] < FAR_FROM_HAND]
        lines += [
            f"geometric means: speedup {times(speedup)}, of hand {times(of_hand)}",
            f"slower than {SLOWER_BELOW}x of the loop: {', '.join(slow) or 'none'}",
            f"below {FAR_FROM_HAND}x of hand: {', '.join(far) or 'none'}",
        ]
    return "\n".join(lines)


def run(options: argparse.Namespace) -> int:
    """Print the table and write the JSON; fail where a case is not right."""
    if options.optimiser not in ("hand", "tempting"):
        optimiser.resolve(options.optimiser, options.numerics)
    names = loading.case_names(options.only)
    results: list[Result] = []
    with Progress("cases", len(names)) as progress:
        for name in names:
            progress.show(f"case {name}")
            results.append(measured(name, options))
            progress.step(f"case {name}")
    print(measure.machine_line())
    print(results_table(results, options.bench))
    print(summary(results))
    print(f"wrote {measure.write_json(options.out, 'cases', results)}")
    return 0 if all(result["right"] for result in results) else 1


def main() -> None:
    """Measure one case, as a child of :func:`run`."""
    parser = argparse.ArgumentParser(description=child.__doc__)
    parser.add_argument("--case", required=True)
    parser.add_argument("--optimiser", required=True)
    parser.add_argument("--numerics")
    parser.add_argument("--bench", action="store_true")
    child(parser.parse_args())


if __name__ == "__main__":
    main()
