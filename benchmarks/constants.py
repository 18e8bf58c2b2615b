"""What the cost model's constants stand for: one row in a loop step, and batched.

Prints, for small row functions, nanoseconds a row as a ``lax.map`` step and under
``jax.vmap``, beside what ``rewriter.machine`` predicts for this platform. Run it on a
quiet machine (a GPU too) to set the constants there; ``--measure`` measures the
constants one by one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import machine_constants, measure
from benchmarks.progress import Progress
from benchmarks.table import number, table, times

Row = Callable[..., Any]


def _array(*shape: int) -> jax.Array:
    values = np.random.default_rng(0).standard_normal(shape) * 0.1
    return jnp.asarray(values, jnp.float32)


def programs(quick: bool) -> dict[str, tuple[Row, tuple[Any, ...], Any]]:
    """Return row functions with their constants and stacked rows."""
    n = 2000 if quick else 10000
    found: dict[str, tuple[Row, tuple[Any, ...], Any]] = {}
    for d in (4, 16, 64, 256):
        found[f"x * 2 + 1, {d}"] = (lambda v: v * 2 + 1, (), _array(n, d))
        found[f"tanh, {d}"] = (jnp.tanh, (), _array(n, d))
        found[f"softmax, {d}"] = (jax.nn.softmax, (), _array(n, d))
        found[f"sum, {d}"] = (jnp.sum, (), _array(n, d))
    for d in (4, 16, 64, 128, 256):
        found[f"W @ x, {d} x {d}"] = (
            lambda w, v: v @ w.T,
            (_array(d, d),),
            _array(n, d),
        )
    for d in (8, 32, 64):
        rows = _array(n // 4, d, d)
        found[f"own matrix @ vector, {d}"] = (lambda m: m @ m[0], (), rows)
        found[f"own matrix @ matrix, {d}"] = (lambda m: m @ m.T, (), rows)
    for d in (4, 16, 32):
        found[f"solve, {d}"] = (
            lambda m: jnp.linalg.solve(m + jnp.eye(m.shape[0]), m[0]),
            (),
            _array(n // 5, d, d),
        )
    for d in (16, 64):
        found[f"sort, {d}"] = (jnp.sort, (), _array(n // 2, d))
    keys = jax.random.split(jax.random.key(0), n // 5)
    for d in (4, 64, 512):
        found[f"normal draws, {d}"] = (
            lambda key, d=d: jax.random.normal(key, (d,)),
            (),
            keys,
        )
    return found


def predicted(function: Row, fixed: tuple[Any, ...], rows: Any) -> tuple[float, float]:
    """Return what the model says of a step and of a batched row, in ns."""
    from rewriter import explain
    from rewriter.pass_base import instrument

    plans: list[Any] = []
    with instrument(lambda event: plans.append(event.plan)):
        report = explain(_loop(function))(*fixed, rows)
    for plan in plans:
        part = getattr(plan, "part", None)
        if part is not None:
            return part.loop_cost, part.cost
    args = [r.args for r in report.remarks if "before" in r.args]
    return (args[-1]["before"], args[-1]["after"]) if args else (0.0, 0.0)


def _loop(function: Row) -> Row:
    return lambda *a: lax.map(lambda v: function(*a[:-1], v), a[-1])


def _batched(function: Row) -> Row:
    return lambda *a: jax.vmap(lambda v: function(*a[:-1], v))(a[-1])


def run(options: argparse.Namespace) -> int:
    """Print the table and write the JSON."""
    if options.measure:
        return machine_constants.run(options)
    todo = programs(options.quick)
    results: dict[str, Any] = {}
    with Progress("constants", len(todo)) as progress:
        for name, (function, fixed, rows) in todo.items():
            args = (*fixed, rows)
            forms = {
                "loop": jax.jit(_loop(function)),
                "batched": jax.jit(_batched(function)),
            }
            for form in forms.values():
                measure.ready(form(*args))
            calls = {k: lambda f=f, a=args: f(*a) for k, f in forms.items()}
            taken = measure.interleaved(calls, measure.Plan(9, 5, 3.0))
            n = rows.shape[0]
            loop, batched = (min(taken[k]) / n * 1e6 for k in forms)
            before, after = predicted(function, fixed, rows)
            results[name] = {
                "loop_ns": loop,
                "batched_ns": batched,
                "model_loop_ns": before,
                "model_batched_ns": after,
            }
            progress.step(name)
    lines = [
        [
            name,
            number(r["loop_ns"]),
            number(r["batched_ns"]),
            times(r["loop_ns"] / r["batched_ns"]),
            number(r["model_loop_ns"]),
            number(r["model_batched_ns"]),
        ]
        for name, r in results.items()
    ]
    heads = ["row", "step ns", "batched ns", "ratio", "model: step", "model: batched"]
    print(measure.machine_line())
    print(table(heads, lines))
    print(f"wrote {measure.write_json(options.out, 'constants', results)}")
    return 0
