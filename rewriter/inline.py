"""Inlining: plain jits, and custom derivative rules once they have done their work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rewriter import jax_compat as jc

TAG = "__rewriter"  # part of the name of a tagged jit


def is_plain_jit(eqn: Any) -> bool:
    """Whether an equation is a jit that only groups equations."""
    if eqn.primitive.name not in jc.JIT_NAMES:
        return False
    p = eqn.params
    if TAG in str(p.get("name", "")) or any(p.get("donated_invars") or ()):
        return False
    if p.get("compiler_options_kvs"):
        return False
    shardings = (*p.get("in_shardings", ()), *p.get("out_shardings", ()))
    return all(type(s).__name__ == "UnspecifiedValue" for s in shardings)


def inline(
    eqns: Iterable[Any], inline_custom: bool = False
) -> tuple[list[Any], dict[Any, Any], list[tuple[Any, Any]]]:
    """Inline plain jits, with fresh variables.

    `inline_custom` also opens `custom_jvp`/`custom_vjp` calls, which is right once
    differentiation is over. Returns the equations, a substitution of the outputs
    of inlined calls, and the constants met as (variable, value).
    """
    out: list[Any] = []
    subst: dict[Any, Any] = {}
    consts: list[tuple[Any, Any]] = []
    _inline_into(out, subst, consts, eqns, None, inline_custom)
    return out, subst, consts


_CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


def _inline_target(
    eqn: Any, ins: Sequence[Any], inline_custom: bool
) -> tuple[Any, Sequence[Any]] | None:
    """Return the program inside a call and its operands, where it may be inlined."""
    inner, p = None, eqn.params
    if is_plain_jit(eqn):
        inner = p.get("jaxpr") or p.get("call_jaxpr")
    elif inline_custom and getattr(p.get("policy"), "most", None) is not None:
        inner = p["jaxpr"]  # our own checkpoint has done its work too
        inner = inner if jc.is_closed(inner) else jc.close_jaxpr(inner)
    elif inline_custom and eqn.primitive.name in _CUSTOM:
        inner = p.get("call_jaxpr") or p.get("fun_jaxpr")
    elif inline_custom and eqn.primitive.name == "custom_linear_solve":
        lengths, inner = p["const_lengths"], p["jaxprs"].solve
        start = lengths.matvec + lengths.vecmat
        rest = start + lengths.solve + lengths.transpose_solve
        ins = [*ins[start : start + lengths.solve], *ins[rest:]]
    return (inner, ins) if inner is not None and jc.is_closed(inner) else None


def _inline_into(
    out: list[Any],
    subst: dict[Any, Any],
    consts: list[tuple[Any, Any]],
    eqns: Iterable[Any],
    call: Any,
    inline_custom: bool,
) -> None:
    def atom(v: Any) -> Any:
        return v if isinstance(v, jc.Literal) else subst.get(v, v)

    for eqn in eqns:
        ins = [atom(v) for v in eqn.invars]
        target = _inline_target(eqn, ins, inline_custom)
        if target is not None:
            inner, operands = target
            jaxpr = jc.open_jaxpr(inner)
            local: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))
            for var, value in zip(jaxpr.constvars, inner.consts, strict=True):
                local[var] = jc.fresh_var(var.aval)
                consts.append((local[var], value))
            where = (
                eqn if call is None else eqn.replace(source_info=jc.inlined(eqn, call))
            )
            _inline_into(out, local, consts, jaxpr.eqns, where, inline_custom)
            for var, inner_var in zip(eqn.outvars, jaxpr.outvars, strict=True):
                subst[var] = (
                    inner_var if isinstance(inner_var, jc.Literal) else local[inner_var]
                )
            continue
        changes: dict[str, Any] = {}
        if call is not None:
            fresh = [
                v if isinstance(v, jc.DropVar) else jc.fresh_var(v.aval)
                for v in eqn.outvars
            ]
            subst.update(zip(eqn.outvars, fresh, strict=True))
            changes = {"outvars": fresh, "source_info": jc.inlined(eqn, call)}
        if changes or any(a is not b for a, b in zip(ins, eqn.invars, strict=True)):
            eqn = eqn.replace(invars=ins, **changes)
        out.append(eqn)
