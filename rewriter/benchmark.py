"""Original against rewritten: interleaved rounds, errors, compile time, memory."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rewriter import jax_compat as jc
from rewriter.report import format_bytes


@dataclass(frozen=True)
class Timing:
    """Result of `f.benchmark(*args)`. Times are medians; errors are relative.

    `interval` is a 95 % bootstrap interval of the speedup. Errors are the largest
    |a - b| / max|b| over the outputs, against a float64 run; None where there is none.
    """

    name: str
    original_ms: float
    rewritten_ms: float
    speedup: float
    interval: tuple[float, float]
    rounds: int
    max_difference: float
    error_original: float | None
    error_rewritten: float | None
    compile_original_s: float
    compile_rewritten_s: float
    temp_bytes_original: int
    temp_bytes_rewritten: int
    peak_rss_original: int
    peak_rss_rewritten: int

    def to_json(self) -> str:
        """Return all fields as JSON text."""
        return json.dumps(dict(vars(self)), indent=1)

    def __str__(self) -> str:
        low, high = self.interval
        error = lambda e: "-" if e is None else f"{e:.1e}"  # noqa: E731
        rows = [
            ("", "original", "rewritten"),
            (
                "time (median)",
                f"{self.original_ms:.3f} ms",
                f"{self.rewritten_ms:.3f} ms",
            ),
            (
                "error against float64",
                error(self.error_original),
                error(self.error_rewritten),
            ),
            (
                "compile",
                f"{self.compile_original_s:.2f} s",
                f"{self.compile_rewritten_s:.2f} s",
            ),
            (
                "XLA temporary memory",
                format_bytes(self.temp_bytes_original),
                format_bytes(self.temp_bytes_rewritten),
            ),
            (
                "peak resident above start",
                format_bytes(self.peak_rss_original),
                format_bytes(self.peak_rss_rewritten),
            ),
        ]
        lines = [
            f"{self.name}: {self.speedup:.2f} times faster "
            f"(95 %: {low:.2f} to {high:.2f}, {self.rounds} rounds), "
            f"largest difference {self.max_difference:.1e}"
        ]
        lines += [f"  {a:<26}{b:>14}{c:>14}" for a, b, c in rows]
        return "\n".join(lines)


def benchmark(
    f: Callable[..., Any],
    rewritten: Any,
    jit_options: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rounds: int,
) -> Timing:
    """Time `jax.jit(f)` against the rewritten function on these arguments.

    Raises:
        ValueError: if `rounds` is less than 1 or the arguments are tracers.
    """
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, got {rounds}")
    options = {k: v for k, v in jit_options.items() if not k.startswith("donate")}
    original = jax.jit(f, **options)
    if any(jc.is_tracer(a) for a in jax.tree.leaves((args, kwargs))):
        raise ValueError("benchmark: expected arrays, got tracers (inside jit or grad)")
    programs, outs, compile_s, peaks = [], [], [], []
    for g in (original, rewritten):
        started = time.perf_counter()
        compiled = g.lower(*args, **kwargs).compile()
        compile_s.append(time.perf_counter() - started)
        programs.append(compiled)
    for g in (original, rewritten):
        before = _reset_peak()
        outs.append(jax.block_until_ready(g(*args, **kwargs)))
        peaks.append(max(0, _peak() - before))
    times = _interleaved([original, rewritten], args, kwargs, rounds)
    oracle = _float64(f, options, args, kwargs)
    errors = [None if oracle is None else difference(o, oracle) for o in outs]
    a, b = (statistics.median(t) for t in times)
    return Timing(
        getattr(f, "__name__", "f"),
        a,
        b,
        a / b,
        _interval(*times),
        rounds,
        difference(outs[1], outs[0]),
        errors[0],
        errors[1],
        *compile_s,
        *(_temp(p) for p in programs),
        *peaks,
    )  # type: ignore[call-arg]


def _interleaved(
    programs: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any], rounds: int
) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in programs]
    rng = random.Random(0)
    for _ in range(rounds):
        order = list(range(len(programs)))
        rng.shuffle(order)
        for i in order:
            started = time.perf_counter()
            jax.block_until_ready(programs[i](*args, **kwargs))
            times[i].append((time.perf_counter() - started) * 1e3)
    return times


def _interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    rng = random.Random(0)
    n = len(a)
    ratios = []
    for _ in range(400):
        pick = [rng.randrange(n) for _ in range(n)]
        ratios.append(
            statistics.median(a[i] for i in pick)
            / statistics.median(b[i] for i in pick)
        )
    ratios.sort()
    return ratios[int(0.025 * len(ratios))], ratios[int(0.975 * len(ratios))]


def difference(a: Any, b: Any) -> float:
    """Return the largest |a - b| / max|b| over the leaves of two results."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jc.is_extended(x):
            continue
        p, q = (np.nan_to_num(np.asarray(v).astype(np.complex128)) for v in (x, y))
        scale = float(np.max(np.abs(q), initial=0.0)) or 1.0
        worst = max(worst, float(np.max(np.abs(p - q), initial=0.0)) / scale)
    return worst


def _float64(f: Any, options: Mapping[str, Any], args: Any, kwargs: Any) -> Any:
    """Run the original in float64; None where it can not run there."""

    def wide(x: Any) -> Any:
        dtype = getattr(x, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            return x
        return np.asarray(x).astype(np.float64)

    try:
        with jax.enable_x64(True):
            out = jax.jit(f, **options)(
                *jax.tree.map(wide, args), **jax.tree.map(wide, kwargs)
            )
            return jax.block_until_ready(out)
    except Exception:
        return None


def _temp(compiled: Any) -> int:
    analysis = compiled.memory_analysis()
    return int(getattr(analysis, "temp_size_in_bytes", 0) or 0)


def _reset_peak() -> int:
    """Reset the peak of resident memory where Linux allows; return what is resident."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return _peak()
    return _status("VmRSS")


def _peak() -> int:
    peak = _status("VmHWM")
    if peak:
        return peak
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(field: str) -> int:
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
