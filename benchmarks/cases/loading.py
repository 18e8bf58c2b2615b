"""Finding the cases, loading them, and comparing what two programs return."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

_HERE = Path(__file__).parent
_RTOL = 1e-4


def case_names(only: str | None = None) -> list[str]:
    """Return the numbers of all cases, or of those in the list ``only``."""
    names = sorted(path.stem.removeprefix("case_") for path in _HERE.glob("case_*.py"))
    if only is None:
        return names
    wanted = [name.strip().zfill(2) for name in only.split(",")]
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        raise SystemExit(f"no such case: {', '.join(unknown)}; there are {names}")
    return wanted


def load(name: str) -> ModuleType:
    """Execute the file of case ``name``; its functions are new each time."""
    path = _HERE / f"case_{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"can not load case {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def tolerance(case: ModuleType) -> float:
    """Return the relative error allowed at size 'small'."""
    rtol = getattr(case, "RTOL", _RTOL)
    return max(rtol, 1e-6) if rtol else 0.0


def bench_tolerance(case: ModuleType) -> float:
    """Return the relative error allowed at size 'bench'."""
    return getattr(case, "BENCH_RTOL", max(10 * getattr(case, "RTOL", _RTOL), 1e-5))


def _leaf_error(reference: Any, got: Any) -> tuple[float, str]:
    """Compare one array: max|a - b| / max|a|, and why it can not be compared."""
    a, b = np.asarray(reference), np.asarray(got)
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf"), f"{a.dtype}{a.shape} became {b.dtype}{b.shape}"
    if not np.issubdtype(a.dtype, np.floating):
        return (0.0, "") if np.array_equal(a, b) else (float("inf"), "not equal")
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf"), "NaN masks differ"
    a, b = np.nan_to_num(a), np.nan_to_num(b)
    scale = np.max(np.abs(a), initial=0.0) or 1.0
    return float(np.max(np.abs(a - b), initial=0.0) / scale), ""


def error(case: ModuleType, reference: Any, got: Any) -> tuple[float, str]:
    """Return the worst error over all outputs of the case, and what is wrong."""
    if hasattr(case, "compare"):
        return case.compare(reference, got), ""
    ours, theirs = jax.tree.leaves(got), jax.tree.leaves(reference)
    if len(ours) != len(theirs):
        return float("inf"), "different number of outputs"
    pairs = zip(theirs, ours, strict=True)
    return max((_leaf_error(a, b) for a, b in pairs), key=lambda found: found[0])
