"""What one cached call costs: an optimised function against ``jax.jit``."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks import measure, optimiser
from benchmarks.progress import Progress
from benchmarks.table import interval, number, table, times


def one_array(x: jax.Array) -> jax.Array:
    """Do next to nothing with one array."""
    return x + 1


def many_arrays(tree: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Do next to nothing with a dictionary of arrays."""
    return {name: leaf + 1 for name, leaf in tree.items()}


def small_loop(x: jax.Array) -> jax.Array:
    """Run a short loop that is left alone or batched, whichever."""
    return lax.scan(lambda c, row: (jnp.tanh(c + row), None), x[0], x)[0]


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return functions with arguments so small that the call dominates."""
    vector = jnp.ones(4)
    return {
        "one array": (one_array, (vector,)),
        "dictionary of 20 arrays": (
            many_arrays,
            ({f"a{k}": vector for k in range(20)},),
        ),
        "scan of 4 steps": (small_loop, (jnp.ones((4, 4)),)),
    }


def _block(function: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    """Return the microseconds of one call, out of ``calls`` in a row."""
    last = None
    start = time.perf_counter()
    for _ in range(calls):
        last = function(*args)
    jax.block_until_ready(last)
    return (time.perf_counter() - start) / calls * 1e6


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an equal function that shares no cache with ``function``."""
    return lambda *args: function(*args)


def compare(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    optimise: optimiser.Optimiser,
    blocks: int,
    calls: int,
) -> dict[str, Any]:
    """Time blocks of calls in turn; the second jit shows what is noise."""
    forms = {
        "jit": jax.jit(_fresh(function)),
        "jit again": jax.jit(_fresh(function)),
        "ours": optimise(_fresh(function)),
    }
    for form in forms.values():
        _block(form, args, calls)
    order = list(forms)
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for k in range(blocks):
        for name in order[k % 3 :] + order[: k % 3]:
            taken[name].append(_block(forms[name], args, calls))
    ours, again = (
        measure.ratio(taken[name], taken["jit"]) for name in ("ours", "jit again")
    )
    return {
        "median_us": {name: statistics.median(t) for name, t in taken.items()},
        "ours_over_jit": ours.value,
        "interval": ours.interval,
        "jit_again_over_jit": again.value,
        "noise_interval": again.interval,
    }


def run(options: argparse.Namespace) -> int:
    """Print the table and write the JSON."""
    optimise = optimiser.resolve(options.optimiser, options.numerics)
    blocks, calls = (9, 300) if options.quick else (45, 2000)
    results: dict[str, Any] = {}
    todo = programs()
    with Progress("dispatch", len(todo)) as progress:
        for name, (function, args) in todo.items():
            progress.show(name)
            results[name] = compare(function, args, optimise, blocks, calls)
            progress.step(name)
    rows = [
        [
            name,
            number(result["median_us"]["jit"]),
            number(result["median_us"]["ours"]),
            times(result["ours_over_jit"]),
            interval(result["interval"]),
            times(result["jit_again_over_jit"]),
            interval(result["noise_interval"]),
        ]
        for name, result in results.items()
    ]
    heads = ["call with", "jit us", "ours us", "ours / jit", "95 %", "jit / jit"]
    print(measure.machine_line())
    print(table([*heads, "95 %"], rows))
    print(f"wrote {measure.write_json(options.out, 'dispatch', results)}")
    return 0
