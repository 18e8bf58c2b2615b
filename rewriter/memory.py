"""Memory: what a batched step holds, and the budget the user gives."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewriter import jax_compat as jc
from rewriter.cost import nbytes
from rewriter.operations import DRAWS, LIBRARY
from rewriter.rowwise import form_of


def is_materialised(eqn: Any) -> bool:
    """Whether XLA writes an equation's result to memory rather than fusing it."""
    name = eqn.primitive.name
    return (
        name
        in (
            "dot_general",
            "gather",
            "dynamic_slice",
            "concatenate",
            "cumsum",
            "scatter-add",
            "scatter",
            "dynamic_update_slice",
            "scan",
            "while",
        )
        or name in LIBRARY
        or name in DRAWS
        or form_of(eqn) is not None
        or any(
            is_materialised(e)
            for j in jc.sub_jaxprs(eqn)
            for e in jc.open_jaxpr(j).eqns
        )
    )


@dataclass(frozen=True)
class Footprint:
    """Bytes per row: `held` in memory at once, `hot` touched again and again."""

    held: int = 0
    hot: int = 0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(self.held + other.held, self.hot + other.hot)


def footprint(eqn: Any, outside: Collection[Any] = ()) -> Footprint:
    """Return what one row of a batched equation needs beyond the values `outside`.

    The stacked results of an inner loop are held, but each of its steps only touches
    its own rows.
    """
    if not is_materialised(eqn):
        return Footprint()
    own = sum(nbytes(v) for v in eqn.outvars if v not in outside)
    form = form_of(eqn)
    if form is not None:
        return Footprint(own + form.row_bytes, own + form.row_bytes)
    inside = Footprint()
    for closed in jc.sub_jaxprs(eqn):
        parts = sum((footprint(e) for e in jc.open_jaxpr(closed).eqns), Footprint())
        inside = max(inside, parts, key=lambda f: f.held)
    if eqn.primitive.name in ("scan", "while"):
        return Footprint(own + inside.held, inside.hot)
    if inside.held:  # what lies between the parts that are written counts as well
        inside = inside + inside
    return Footprint(own + inside.held, own + inside.hot)


def parse_bytes(value: Any) -> int:
    """Read a size such as `"512MB"`, `"1GiB"` or a number of bytes.

    Raises:
        ValueError: if the text is not a number with an optional unit.
        TypeError: if the value is neither text nor a number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str, np.integer)):
        raise TypeError(
            "memory_budget: expected bytes as a number or text such as '512MB', "
            f"got {type(value).__name__}"
        )
    if not isinstance(value, str):
        number = float(value)
    else:
        text = value.strip().lower().removesuffix("ib").removesuffix("b")
        unit = text[-1:] if text[-1:] in "kmgt" else ""
        scale = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[unit]
        try:
            number = float(text.removesuffix(unit)) * scale
        except ValueError:
            raise ValueError(
                "memory_budget: expected bytes as a number or text such as '512MB' "
                f"or '2GB', got {value!r}"
            ) from None
    if not number > 0 or math.isinf(number):
        raise ValueError(f"memory_budget: expected more than 0 bytes, got {value!r}")
    return int(number)
