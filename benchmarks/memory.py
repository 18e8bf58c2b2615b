"""Memory of every case: XLA's temporary bytes, and the peak RSS of a child process.

XLA's figure misses the buffers of library calls, hence the second measure. A child
runs one form of one case. 'peak' is the largest RSS of its whole life, compilation
included; 'run' is what one call of the compiled program added to the RSS.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
from pathlib import Path
from typing import Any

import jax

from benchmarks import measure, optimiser
from benchmarks.cases import loading
from benchmarks.children import hand_back, run_child
from benchmarks.progress import Progress
from benchmarks.table import megabytes, table, times

_FORMS = ("original", "ours")


# ---- in the child


def _status(field: str) -> int | None:
    """Read a size in bytes from Linux's process status."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _peak_bytes() -> int:
    """Return the largest RSS of this process so far.

    On Linux ``ru_maxrss`` would not do: it is never less than what the parent had.
    """
    peak = _status("VmHWM")
    if peak is not None:
        return peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _forget_peak() -> bool:
    """Start counting the peak anew, where the system can do it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def child(options: argparse.Namespace) -> None:
    """Compile and run one form of one case, and hand back its memory."""
    case = loading.load(options.case)
    wrap = jax.jit
    if options.form == "ours":
        wrap = optimiser.resolve(options.optimiser, options.numerics)
    args = jax.device_put(case.make("bench", 0))
    compiled: Any = wrap(case.original).lower(*args).compile()
    gc.collect()
    peak = _peak_bytes()
    forgotten, before = _forget_peak(), _status("VmRSS")
    measure.ready(compiled(*args))
    after = _peak_bytes()
    run_bytes = after - before if forgotten and before is not None else None
    hand_back(
        {
            "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
            "peak_rss": max(peak, after),
            "run_bytes": run_bytes,
        }
    )


# ---- in the parent


def measured(name: str, form: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one form of one case in a child."""
    arguments = ["--case", name, "--form", form, "--optimiser", options.optimiser]
    if options.numerics:
        arguments += ["--numerics", options.numerics]
    handed, trouble = run_child("benchmarks.memory", arguments, options.timeout)
    return {**(handed or {}), "trouble": trouble}


def _cells(name: str, result: dict[str, Any]) -> list[str]:
    original, ours = (result[form] for form in _FORMS)
    both = "peak_rss" in original and "peak_rss" in ours
    quotient = ours["peak_rss"] / original["peak_rss"] if both else None
    pairs = (
        megabytes(form.get(field))
        for field in ("temp_bytes", "run_bytes", "peak_rss")
        for form in (original, ours)
    )
    return [name, *pairs, times(quotient), original["trouble"] or ours["trouble"]]


def run(options: argparse.Namespace) -> int:
    """Print the table and write the JSON."""
    optimiser.resolve(options.optimiser, options.numerics)
    names = loading.case_names(options.only)
    results: dict[str, Any] = {}
    with Progress("memory", len(names)) as progress:
        for name in names:
            progress.show(f"case {name}")
            results[name] = {form: measured(name, form, options) for form in _FORMS}
            progress.step(f"case {name}")
    heads = ["case", "temp MB", "ours", "run MB", "ours", "peak RSS MB", "ours"]
    rows = [_cells(name, result) for name, result in results.items()]
    print(measure.machine_line())
    print(table([*heads, "peak ours / original", "note"], rows))
    print(f"wrote {measure.write_json(options.out, 'memory', results)}")
    return 0


def main() -> None:
    """Measure one form of one case, as a child of :func:`run`."""
    parser = argparse.ArgumentParser(description=child.__doc__)
    parser.add_argument("--case", required=True)
    parser.add_argument("--form", required=True, choices=_FORMS)
    parser.add_argument("--optimiser", required=True)
    parser.add_argument("--numerics")
    child(parser.parse_args())


if __name__ == "__main__":
    main()
