"""Nested loops: maps inside loops, `while` loops that the outer counter bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from rewriter import jax_compat as jc
from rewriter.graph import is_emitted, is_kept
from rewriter.indices import Known, constant, rows
from rewriter.inline import inline


def counted(eqn: Any) -> tuple[int, int] | None:
    """Return the carry positions of `i` and `n` of a loop that runs while `i < n`."""
    p = eqn.params
    cond, body = jc.open_jaxpr(p["cond_jaxpr"]), jc.open_jaxpr(p["body_jaxpr"])
    eqns, subst, _ = inline(cond.eqns)
    if len(eqns) != 1 or eqns[0].primitive.name != "lt":
        return None
    carried = list(cond.invars[p["cond_nconsts"] :])
    test = eqns[0]
    out = cond.outvars[0]
    if subst.get(out, out) is not test.outvars[0]:
        return None
    if any(isinstance(v, jc.Literal) or v not in carried for v in test.invars):
        return None
    i, n = (carried.index(v) for v in test.invars)
    inside = body.invars[p["body_nconsts"] :]
    if body.outvars[n] is not inside[n]:
        return None
    eqns, subst, _ = inline(body.eqns)
    made = {v: e for e in eqns for v in e.outvars}
    step = made.get(subst.get(body.outvars[i], body.outvars[i]))
    if step is None or step.primitive.name != "add" or inside[i] not in step.invars:
        return None
    by = [v for v in step.invars if v is not inside[i]]
    if len(by) != 1 or not isinstance(by[0], jc.Literal) or int(by[0].val) != 1:
        return None
    return i, n


def values_of(atom: Any, known: Any, length: int) -> np.ndarray | None:
    """Return an integer's values at all outer steps."""
    value: Known | None = (
        constant(atom.val) if isinstance(atom, jc.Literal) else known.get(atom)
    )
    if value is None:
        return None
    return np.asarray(rows(value, length)).reshape(length).astype(np.int64)


def is_users_loop(eqn: Any) -> bool:
    """Whether an equation is a scan that passes may change."""
    return eqn.primitive.name == "scan" and not is_emitted(eqn) and not is_kept(eqn)


def holds_a_map(eqn: Any) -> bool:
    """Whether the body of a loop holds another loop without any state."""
    return is_users_loop(eqn) and any(
        is_users_loop(e) and jc.scan_params(e).num_carry == 0
        for j in jc.sub_jaxprs(eqn)
        for e in jc.open_jaxpr(j).eqns
    )


def has_loops(closed: Any) -> bool:
    """Whether there is a loop anywhere in a program."""
    return any(
        e.primitive.name in ("scan", "while") or any(map(has_loops, jc.sub_jaxprs(e)))
        for e in jc.open_jaxpr(closed).eqns
    )
