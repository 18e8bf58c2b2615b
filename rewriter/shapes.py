"""Chains of reshapes and conversions that change nothing, as general rules make."""

from __future__ import annotations

from typing import Any

from rewriter import jax_compat as jc
from rewriter.graph import Loop, substitute

_SHAPES = frozenset(
    {
        "reshape",
        "squeeze",
        "expand_dims",
        "broadcast_in_dim",
        "transpose",
        "convert_element_type",
    }
)


def collapsed(loop: Loop) -> Loop:
    """Return the loop without chains that only add and drop axes of size one."""
    root: dict[Any, Any] = {}
    mapping: dict[Any, Any] = {}
    for eqn in loop.eqns:
        if eqn.primitive.name not in _SHAPES or isinstance(eqn.invars[0], jc.Literal):
            continue
        source, out = eqn.invars[0], eqn.outvars[0]
        if not _keeps_order(eqn) or source.aval.dtype != out.aval.dtype:
            continue
        start = root.get(source, source)
        root[out] = start
        if jc.same_type(start.aval, out.aval):
            mapping[out] = start
    return substitute(loop, mapping) if mapping else loop


def _keeps_order(eqn: Any) -> bool:
    """Whether an equation keeps all elements in their order."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if any(not isinstance(n, int) for n in (*before, *after)):
        return False
    if eqn.primitive.name == "transpose":
        moved = [k for k in eqn.params["permutation"] if before[k] != 1]
        return moved == sorted(moved)
    if eqn.invars[0].aval.size != eqn.outvars[0].aval.size:
        return False
    return eqn.primitive.name != "reshape" or eqn.params.get("dimensions") is None
