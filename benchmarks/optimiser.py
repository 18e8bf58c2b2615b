"""What is measured: the rewriter, the identity, or any other function wrapper."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
Optimiser = Callable[[Function], Any]


def resolve(name: str, numerics: str | None = None) -> Optimiser:
    """Find the optimiser called ``name``.

    ``rewriter`` is ours, ``jit`` is the identity (for testing the benchmarks), and
    ``module:function`` anything that maps a function to an optimised function.
    """
    if name == "jit":
        import jax

        return jax.jit
    module, _, attribute = name.partition(":")
    if name == "rewriter":
        attribute = "optimize"
    if not attribute:
        raise SystemExit(f"unknown optimiser {name!r}: rewriter, jit, MODULE:FUNCTION")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SystemExit(
            f"{module}.{attribute} can not be imported ({error}); run from the root "
            "of the repository, or measure the identity with --optimiser jit"
        ) from error
    if numerics is not None:
        found = functools.partial(found, numerics=numerics)
    return found


def report_text(optimised: Any, *args: Any) -> str:
    """Return the printed report of an optimised function, if it can give one."""
    if not hasattr(optimised, "explain"):
        return "(this optimiser gives no report)"
    return str(optimised.explain(*args))


def outcomes(optimised: Any, *args: Any) -> list[str] | None:
    """Return the outcome of every loop of the program, if there is a report."""
    if not hasattr(optimised, "explain"):
        return None
    return [str(verdict.outcome) for verdict in optimised.explain(*args).verdicts]
