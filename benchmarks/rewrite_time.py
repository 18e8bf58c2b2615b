"""What the rewriter itself costs: compile time of the cases, and its growth.

For the cases, trace + lower + compile of the original and of ours take turns, with
fresh functions and cleared caches each time. Growth is measured on synthetic programs
that are only traced and lowered: ours minus ``jax.jit``.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax

from benchmarks import measure, optimiser
from benchmarks.cases import loading
from benchmarks.progress import Progress
from benchmarks.synthetic import VARIANTS, count_equations
from benchmarks.table import number, table

_STAGES = ("trace", "lower", "compile")


@dataclass(frozen=True)
class Stages:
    """Seconds of one way from a function to a compiled program."""

    trace: float
    lower: float
    compile: float = 0.0

    @property
    def total(self) -> float:
        """All stages together."""
        return self.trace + self.lower + self.compile

    @property
    def front(self) -> float:
        """What runs before XLA, where the rewriter works."""
        return self.trace + self.lower


def stages(function: Any, args: tuple[Any, ...], with_compile: bool) -> Stages:
    """Time the stages of a jitted function that has never been called."""
    jax.clear_caches()
    gc.collect()
    marks = [time.perf_counter()]
    traced = function.trace(*args)
    marks.append(time.perf_counter())
    lowered = traced.lower()
    marks.append(time.perf_counter())
    if with_compile:
        lowered.compile()
        marks.append(time.perf_counter())
    return Stages(*(b - a for a, b in itertools.pairwise(marks)))


def both(
    fresh: Callable[[], Callable[..., Any]],
    args: tuple[Any, ...],
    optimise: optimiser.Optimiser,
    repeats: int,
    with_compile: bool,
) -> tuple[Stages, Stages]:
    """Return the medians of original and ours; ``fresh`` gives a new function."""
    forms: list[optimiser.Optimiser] = [jax.jit, optimise]
    taken: tuple[list[Stages], list[Stages]] = ([], [])
    rng = random.Random(0)
    for k in range(repeats + 1):
        for which in rng.sample([0, 1], 2):
            found = stages(forms[which](fresh()), args, with_compile)
            if k > 0:  # the first pays for imports and other first times
                taken[which].append(found)
    return _median(taken[0]), _median(taken[1])


def _median(taken: list[Stages]) -> Stages:
    """Return the median of each stage."""
    names = _STAGES
    return Stages(*(statistics.median(getattr(s, n) for s in taken) for n in names))


# ---- the cases


def case_result(
    name: str, optimise: optimiser.Optimiser, repeats: int
) -> dict[str, Any]:
    """Measure one case at size 'bench'."""
    args = jax.device_put(loading.load(name).make("bench", 0))
    original, ours = both(
        lambda: loading.load(name).original, args, optimise, repeats, True
    )
    return {
        "original_s": asdict(original) | {"total": original.total},
        "ours_s": asdict(ours) | {"total": ours.total},
        "rewriter_s": ours.front - original.front,
        "overhead_percent": 100 * (ours.total / original.total - 1),
    }


def _case_cells(name: str, result: dict[str, Any]) -> list[str]:
    original, ours = result["original_s"], result["ours_s"]
    return [
        name,
        *(number(1e3 * original[stage]) for stage in (*_STAGES, "total")),
        *(number(1e3 * ours[stage]) for stage in (*_STAGES, "total")),
        number(1e3 * result["rewriter_s"]),
        f"{result['overhead_percent']:+.0f} %",
    ]


def _overhead(results: dict[str, Any]) -> str:
    """Sum up the overheads of all cases."""
    overheads = [result["overhead_percent"] for result in results.values()]
    before, after = (
        sum(result[form]["total"] for result in results.values())
        for form in ("original_s", "ours_s")
    )
    return (
        f"overhead: median {statistics.median(overheads):+.0f} %, "
        f"largest {max(overheads):+.0f} %, all together {before:.1f} s became "
        f"{after:.1f} s ({100 * (after / before - 1):+.0f} %)"
    )


def cases_part(
    options: argparse.Namespace, optimise: optimiser.Optimiser
) -> dict[str, Any]:
    """Measure all cases and print their table."""
    names = loading.case_names(options.only)
    results: dict[str, Any] = {}
    with Progress("rewrite-time", len(names)) as progress:
        for name in names:
            progress.show(f"case {name}")
            try:
                results[name] = case_result(name, optimise, options.repeats)
            except Exception as error:  # one bad case must not cost the others
                progress.note(f"case {name}: {type(error).__name__}: {error}")
            progress.step(f"case {name}")
    heads = ["case", *_STAGES, "total", *(f"ours: {s}" for s in _STAGES), "total"]
    rows = [_case_cells(name, result) for name, result in results.items()]
    print("cases, ms; rewriter = trace and lower of ours less those of the original")
    print(table([*heads, "rewriter", "overhead"], rows))
    if results:
        print(_overhead(results) + "\n")
    return results


# ---- growth


def growth_result(
    variant: str, size: int, optimise: optimiser.Optimiser, repeats: int
) -> dict[str, Any]:
    """Measure one synthetic program, not compiled."""
    build = VARIANTS[variant]
    args = build(size)[1]
    equations = count_equations(jax.make_jaxpr(build(size)[0])(*args))
    original, ours = both(lambda: build(size)[0], args, optimise, repeats, False)
    own = ours.front - original.front
    return {
        "variant": variant,
        "equations": equations,
        "original_s": original.front,
        "ours_s": ours.front,
        "rewriter_s": own,
        "microseconds_per_equation": 1e6 * own / equations,
    }


def exponent(results: list[dict[str, Any]], field: str) -> float | None:
    """Fit ``seconds ~ equations ** exponent`` to all sizes but the smallest.

    The smallest one is left out because there fixed costs and noise count for more
    than the equations (with only two sizes, both are used).
    """
    points = [
        (math.log(result["equations"]), math.log(result[field]))
        for result in (results[1:] if len(results) > 2 else results)
        if result[field] > 0
    ]
    if len(points) < 2:
        return None
    fit = statistics.linear_regression(*zip(*points, strict=True))
    return fit.slope


def growth_part(
    options: argparse.Namespace, optimise: optimiser.Optimiser
) -> dict[str, Any]:
    """Measure the synthetic programs and print how the time grows."""
    sizes = [200, 1000] if options.quick else [200, 1000, 5000, 20000]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    with Progress("growth", len(sizes) * len(VARIANTS)) as progress:
        for name, found in results.items():
            for size in sizes:
                progress.show(f"{name}, {size} equations")
                repeats = options.repeats if size < 20000 else min(options.repeats, 3)
                found.append(growth_result(name, size, optimise, repeats))
                progress.step(f"{name}, {size} equations")
    rows = [
        [
            name,
            str(result["equations"]),
            number(1e3 * result["original_s"]),
            number(1e3 * result["ours_s"]),
            number(1e3 * result["rewriter_s"]),
            number(result["microseconds_per_equation"]),
        ]
        for name, found in results.items()
        for result in found
    ]
    heads = ["program", "equations", "jit ms", "ours ms", "rewriter ms"]
    print("growth, trace and lower only")
    print(table([*heads, "us per equation"], rows))
    exponents = {
        name: {field: exponent(found, field) for field in ("rewriter_s", "original_s")}
        for name, found in results.items()
    }
    for name, powers in exponents.items():
        print(
            f"{name}: time ~ equations ^ {number(powers['rewriter_s'])} in the "
            f"rewriter, ^ {number(powers['original_s'])} in JAX (1 is linear)"
        )
    return {"programs": results, "exponents": exponents}


def run(options: argparse.Namespace) -> int:
    """Print both tables and write the JSON."""
    optimise = optimiser.resolve(options.optimiser, options.numerics)
    jax.config.update("jax_enable_compilation_cache", False)
    options.repeats = min(options.repeats, 2) if options.quick else options.repeats
    print(measure.machine_line())
    results: dict[str, Any] = {}
    if options.part in ("all", "cases"):
        results["cases"] = cases_part(options, optimise)
    if options.part in ("all", "growth"):
        results["growth"] = growth_part(options, optimise)
    print(f"wrote {measure.write_json(options.out, 'rewrite-time', results)}")
    return 0
