"""Measures the constants of ``rewriter.machine`` on this machine, one by one.

Each is read off small programs of known size: a difference, a quotient, or a straight
line through several sizes. The least of several runs counts, so that a busy machine
does little harm. The names are the fields of ``Machine``; what can not be measured
apart is measured as a sum or product of fields. Rows without a field are there to
judge what no field says. Times are in ns.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import measure
from benchmarks.contest import normal
from benchmarks.progress import Progress
from benchmarks.table import number, table

Array = jax.Array
Found = Iterator[tuple[str, float, str]]  # constant, value, what it was read from
_BUDGET_S = 0.6


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    steps: int
    rows: int
    megabytes: int


def _array(*shape: int, scale: float = 0.1) -> Array:
    return normal(shape, scale=scale)()[0]


def least(function: Callable[..., Any], *args: Any, **options: Any) -> float:
    """Return the ns of the fastest of several calls."""
    form = jax.jit(function, **options)
    measure.ready(form(*args))
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < 3 or (
        len(taken) < 30 and time.perf_counter() - begin < _BUDGET_S
    ):
        start = time.perf_counter()
        value = measure.ready(form(*args))
        taken.append(time.perf_counter() - start)
        del value
    return 1e9 * min(taken)


def line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Fit ``times = start + slope * sizes``, relative errors least, none negative."""
    x, y = np.asarray(sizes, float), np.asarray(times, float)
    scaled = np.stack([1 / y, x / y], axis=1)
    start, slope = np.linalg.lstsq(scaled, np.ones(len(x)), rcond=None)[0]
    if start >= 0 and slope >= 0:
        return float(start), float(slope)
    ratios = x / y  # a line through the origin
    return 0.0, float(ratios.sum() / (ratios * ratios).sum())


def a_step(body: Callable[..., Any], *args: Any) -> float:
    """Return the ns of one step of a map over the last argument."""
    rows = args[-1]
    mapped = least(lambda *a: lax.map(lambda row: body(*a[:-1], row), a[-1]), *args)
    return mapped / len(rows)


def a_row(body: Callable[..., Any], *args: Any) -> float:
    """Return the ns of one row of a batched form."""
    return least(body, *args) / len(args[-1])


# ---- inside a loop


def steps(sizes: Sizes) -> Found:
    """Measure the step of a loop, a kernel in it, an element, products, calls."""
    n = sizes.steps

    def decay(carry: Array, x: Array) -> tuple[Array, None]:
        return carry * 0.5 + x, None

    def scan(x: Array) -> Array:
        return lax.scan(decay, jnp.zeros_like(x[0]), x)[0]

    yield "small_step", least(scan, _array(10 * n)) / (10 * n), "scan of scalars"
    widths = (128, 512, 2048)
    times = [least(scan, _array(n, d)) / n for d in widths]
    step, element = line(widths, times)
    yield "step", step, "scan of h * 0.5 + x, 128 to 2048 elements"
    yield "element", element / 2, "the same, per element and operation"

    def chain(count: int, row: Array) -> Array:
        for _ in range(count):
            row = row * jnp.sum(row)
        return row

    counts = (1, 2, 4, 8)
    times = [a_step(functools.partial(chain, k), _array(n, 128)) for k in counts]
    yield (
        "kernel",
        line(counts, times)[1],
        "each further sum over 128 elements in a step",
    )
    widths = (16, 32, 64, 128, 256)
    times = [a_step(lambda w, x: w @ x, _array(d, d), _array(n, d)) for d in widths]
    start, flop = line([2 * d * d for d in widths], times)
    yield "step + kernel + vector_call", start, "W @ x, 16 to 256"
    yield "flop_vector", flop, "the same, per flop"
    big = 2048
    taken = a_step(lambda w, x: w @ x, _array(big, big), _array(max(8, n // 100), big))
    yield "byte_loop", taken / (4 * big * big), "W @ x with a W of 17 MB"
    widths = (8, 16, 32, 64, 128)
    times = []
    for d in widths:
        count = max(16, n * 32 // (d * d))
        times.append(a_step(lambda w, m: m @ w, _array(d, d), _array(count, d, d)))
    start, flop = line([2 * d**3 for d in widths], times)
    yield "step + kernel + matrix_call", start, "M @ W, 8 to 128"
    yield "flop_matrix", flop, "the same, per flop"
    yield from _calls(n)


def _calls(n: int) -> Found:
    def factor(m: Array) -> Array:
        return jnp.linalg.cholesky(m @ m.T + jnp.eye(len(m)))

    small = a_step(factor, _array(n, 4, 4))
    yield "step + kernel + library_call", small, "a Cholesky factorisation of 4 x 4"
    keys, widths = jax.random.split(jax.random.key(0), n), (8, 64, 512)
    times = [a_step(lambda key, d=d: jax.random.bits(key, (d,)), keys) for d in widths]
    start, slope = line(widths, times)
    yield "step + draw_call", start, "random bits, 8 to 512"
    yield "draw * element", slope, "the same, per element"


# ---- batched


def batches(sizes: Sizes) -> Found:
    """Measure rows of batched products."""
    n = sizes.rows
    widths = (16, 32, 64, 128, 256)
    times = [a_row(lambda w, x: x @ w, _array(d, d), _array(n, d)) for d in widths]
    start, flop = line([2 * d * d for d in widths], times)
    yield "row_call", start, "X @ W, 16 to 256, per row"
    yield "flop_batch", flop, "the same, per flop"
    w, x = _array(64, 64), _array(n, 64)
    flops = 2 * 64 * 64
    yield "", a_row(lambda w, x: x @ w.T, w, x) / flops, "X @ W^T, 64, per flop"
    yield "", least(lambda x: x.T @ x, x) / (n * flops), "X^T X, 64, per flop"
    x, w = _array(n, 3), _array(3, 64)
    yield (
        "",
        a_row(lambda w, x: x @ w, w, x) / (2 * 3 * 64),
        "tiny: X @ W, 3 x 64, a flop",
    )
    for d in (4, 32):
        m = _array(max(64, n * 16 // (d * d)), d, d)
        taken = a_row(lambda m: m @ m, m) / (2 * d**3)
        yield "flop_own" if d == 32 else "", taken, f"own matrices, {d} x {d}, per flop"
    m = _array(n // 10, 64, 64)
    taken = a_row(lambda m: (m @ m[:, 0, :, None])[..., 0], m) / (4 * 64 * 64)
    yield "byte_own", taken, "own matrix @ vector, 64, per byte"


def elements(sizes: Sizes) -> Found:
    """Measure elementwise work and reductions, batched."""
    n = sizes.rows
    x = _array(n, 64)
    call = least(lambda v: v + 1, _array(1))
    taken = least(lambda v: jnp.exp(v) * 0.5 + v, x) - call
    yield "element_batched", taken / x.size / 5, "exp(x) / 2 + x, as 5 cheap operations"
    taken = least(lambda v: jnp.sum(v, axis=0), x) - call
    yield "reduced", taken / x.size, "sum over rows, per element"
    long = least(lambda v: jnp.sum(v, axis=1), x) - call
    short = least(lambda v: jnp.sum(v, axis=1), x.reshape(-1, 4)) - call
    yield "tiny_axis", short / long, "sum over a last axis of 4 over one of 64"
    points = _array(n // 10, 40)
    taken = a_step(lambda y, p: jnp.sum((y - p) ** 2, axis=1), points, points)
    yield "", taken / points.size, "fused: sum((Y - p)^2, 1), 40, per element"
    counts = [1 << k for k in (14, 16, 18, 20)]
    times = [least(lambda v: v * 2 + 1, _array(k)) - call for k in counts]
    yield (
        "fork",
        max(0.0, line(counts, times)[0]),
        "x * 2 + 1: what the first element costs",
    )

    def products(count: int, v: Array, w: Array) -> Array:
        for _ in range(count):
            v = v @ w
        return v

    few = _array(16, 16), _array(16, 16)
    times = [least(functools.partial(products, k), *few) for k in (2, 8, 32)]
    yield "stage", line((2, 8, 32), times)[1], "each further product of 16 x 16"


def memory(sizes: Sizes) -> Found:
    """Measure what is stored: in place, fresh, and small enough for the cache."""
    large = sizes.megabytes * 250_000
    x = _array(large, scale=1.0)
    read_write = least(lambda v: v + 1, x)
    count = 8

    def in_place(v: Array) -> Array:
        return lax.fori_loop(0, count, lambda _, a: a * 0.5 + 1, v)

    def fresh(v: Array) -> Array:
        return v * 0.5 + 1

    again = (least(in_place, x) - least(fresh, x)) / (count - 1)
    size = f"{sizes.megabytes} MB"
    yield "byte_stored", again / (4 * large), f"read and write {size} in place, a byte"
    yield "", read_write / (4 * large), f"x + 1 into a fresh {size}, per byte"
    pages = (read_write - again) / (4 * large)
    yield "", max(0.0, pages), "of which for fresh pages, per byte"
    small = _array(50_000)
    call = least(lambda v: v + 1, _array(1))
    taken = least(lambda v: v * 0.5 + 1, small) - call
    yield (
        "",
        max(0.0, taken) / (4 * small.size),
        "x * 0.5 + 1, 200 kB (cache), per byte",
    )


def run(options: argparse.Namespace) -> int:
    """Print measured beside used constants and write the JSON."""
    sizes = Sizes(500, 2000, 16) if options.quick else Sizes(5000, 20000, 256)
    platform = jax.devices()[0].platform
    used = _in_use(platform)
    parts = (steps, batches, elements, memory)
    results: list[dict[str, Any]] = []
    with Progress("constants", len(parts)) as progress:
        for part in parts:
            for name, value, source in part(sizes):
                results.append({"constant": name, "measured": value, "from": source})
                progress.show(source)
            progress.step(part.__name__)
    results.sort(key=lambda r: not r["constant"])
    rows = [
        [
            r["constant"] or "(no constant)",
            number(r["measured"]),
            number(combined(r["constant"], used)),
            r["from"],
        ]
        for r in results
    ]
    print(measure.machine_line())
    print(f"constants of the cost model for {platform}, in ns (per unit as said)\n")
    print(table(["constant", "measured", "in use", "measured on"], rows))
    seen = {word for r in results for word in r["constant"].split()}
    print(f"\nnot measured here: {', '.join(n for n in used if n not in seen)}")
    record = {"platform": platform, "measured": results, "in_use": used}
    print(f"wrote {measure.write_json(options.out, 'machine-constants', record)}")
    return 0


def combined(name: str, used: dict[str, float]) -> float | None:
    """Return a constant in use, or a sum or product of some; None for no name."""
    if not name:
        return None
    if " * " in name:
        return math.prod(used[field] for field in name.split(" * "))
    return sum(used[field] for field in name.split(" + "))


def _in_use(platform: str) -> dict[str, float]:
    """Return the constants of the cost model for a platform."""
    from rewriter.machine import machine

    fields = dataclasses.asdict(machine(platform))
    return {name: value for name, value in fields.items() if name != "name"}
