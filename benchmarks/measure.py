"""Shared by all benchmarks: interleaved timing, intervals, the machine, JSON."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import platform
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "scikit-learn", "torch", "matplotlib")


@dataclass(frozen=True)
class Plan:
    """How long to measure.

    Each contender runs once in every round, in random order, so that a busy machine
    hurts all alike. One that has used up ``budget_s`` sits out the later rounds, but
    has at least ``min_rounds``.
    """

    rounds: int = 15
    min_rounds: int = 3
    budget_s: float = 6.0


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends."""
        return self.low, self.high


def ready(value: Any) -> Any:
    """Wait until every array in ``value`` is there."""
    import jax

    return jax.block_until_ready(value)


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    plan: Plan,
    show: Callable[[str], None] = lambda detail: None,
    wait: Callable[[Any], Any] = ready,
) -> dict[str, list[float]]:
    """Time the (warmed up) ``calls`` in random order; milliseconds by round.

    ``wait`` is what makes a call complete: JAX returns before it has the values.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    rng = random.Random(0)
    for k in range(plan.rounds):
        rng.shuffle(order)
        for name in order:
            taken = samples[name]
            spent = sum(taken) > plan.budget_s * 1e3
            if len(taken) < k or (spent and k >= plan.min_rounds):
                continue
            show(f"round {k + 1}, {name}")
            start = time.perf_counter()
            value = wait(calls[name]())
            taken.append((time.perf_counter() - start) * 1e3)
            del value  # giving the memory back is not part of the call
    return samples


def ratio(
    above: Sequence[float], below: Sequence[float], resamples: int = 400
) -> Ratio:
    """Divide the median of ``above`` by that of ``below``.

    The interval resamples rounds as pairs; where one side sat out some rounds, each
    side by itself.
    """
    rng = random.Random(0)
    paired = len(above) == len(below)
    drawn: list[float] = []
    for _ in range(resamples):
        picks = rng.choices(range(len(above)), k=len(above))
        others = picks if paired else rng.choices(range(len(below)), k=len(below))
        top = statistics.median(above[k] for k in picks)
        drawn.append(top / statistics.median(below[k] for k in others))
    drawn.sort()
    value = statistics.median(above) / statistics.median(below)
    return Ratio(value, drawn[int(0.025 * resamples)], drawn[int(0.975 * resamples)])


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean, or nothing for no values."""
    return statistics.geometric_mean(values) if values else None


# ---- where and with what it was measured


def _cpu_model() -> str:
    """Name the processor as the system does."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    """Return the size of the main memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Describe the machine: processor, cores, memory, JAX's device, load."""
    import jax

    device = jax.devices()[0]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": _usable_cores(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": f"{device.platform}: {device.device_kind}",
        "load_average": load,
    }


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages, without importing them."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def command() -> str:
    """Return the command line to type for the same run."""
    return shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])


def machine_line() -> str:
    """Describe machine and versions in one line, for titles."""
    where, what = machine(), versions()
    chip = where["cpu"]
    if not where["device"].startswith("cpu"):
        chip = f"{where['device']}, {chip}"
    count = where["usable_cores"]
    cores = "1 core" if count == 1 else f"{count} cores"
    return (
        f"{chip}, {cores}, Python {what['python']}, "
        f"JAX {what['jax']}, NumPy {what['numpy']}"
    )


def _plain(value: Any) -> Any:
    """Make ``value`` fit for JSON: no NaN or infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_json(directory: Path, name: str, results: Any) -> Path:
    """Write ``results`` with machine, versions and command line; return the path."""
    directory.mkdir(parents=True, exist_ok=True)
    record = {
        "benchmark": name,
        "command": command(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "results": results,
    }
    path = directory / f"{name}.json"
    path.write_text(json.dumps(_plain(record), indent=1) + "\n")
    return path
