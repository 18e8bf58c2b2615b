"""Enzyme-JAX beside ``jax.jit``: a child process in an environment that has both.

Run by the benchmarks that are given ``--peer enzyme=PYTHON``; the rewriter is not
imported here, and the JAX may be another than that of the parent.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.metadata
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import measure
from benchmarks.children import hand_back
from benchmarks.contest import Workload, difference


def compile_with_enzyme(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` optimised at the level of MLIR by Enzyme-JAX."""
    from enzyme_ad.jax import (  # pyright: ignore[reportMissingImports]
        JaXPipeline,
        enzyme_jax_ir,
        full_optimization_pass_pipeline,
    )

    options = JaXPipeline(full_optimization_pass_pipeline())
    return jax.jit(enzyme_jax_ir(pipeline_options=options)(function))


def compare(
    workload: Workload, leaves: Sequence[jax.Array], plan: measure.Plan
) -> dict[str, Any]:
    """Time Enzyme-JAX and ``jax.jit`` of one program, interleaved."""
    tree = jax.tree.structure(workload.make())

    # Enzyme-JAX takes and gives arrays
    def flat(*values: Any) -> Any:
        out = workload.original(*jax.tree.unflatten(tree, values))
        return tuple(jax.tree.leaves(out))

    forms = {"jit": jax.jit(flat), "enzyme": compile_with_enzyme(flat)}
    values = [measure.ready(form(*leaves)) for form in forms.values()]
    found = difference(*values)
    del values
    calls = {name: functools.partial(form, *leaves) for name, form in forms.items()}
    samples = measure.interleaved(calls, plan)
    speedup = measure.ratio(samples["jit"], samples["enzyme"])
    return {
        "version": f"{importlib.metadata.version('enzyme-ad')}, JAX {jax.__version__}",
        "median_ms": statistics.median(samples["enzyme"]),
        "jit_median_ms": statistics.median(samples["jit"]),
        "samples_ms": samples,
        "speedup": speedup.value,
        "speedup_interval": speedup.interval,
        "difference": found,
    }


def main() -> None:
    """Measure one program of one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    todo = importlib.import_module(options.module).workloads(options.quick)
    workload = next(w for w in todo if w.name == options.workload)
    rounds = min(options.rounds, 5) if options.quick else options.rounds
    plan = measure.Plan(rounds, budget_s=1.0 if options.quick else 6.0)
    with jax.enable_x64(workload.wide):
        with np.load(options.inputs) as file:
            leaves = [jax.device_put(file[key]) for key in file.files]
        hand_back(compare(workload, leaves, plan))


if __name__ == "__main__":
    main()
