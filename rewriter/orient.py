"""Dot orientation: evaluate equations so that the batch axis comes first in every dot.

`W @ x` batched over x puts the batch axis last and XLA's CPU backend copies or loses
its fast path (250 times slower in one common program); `x @ W.T` keeps it first. Which
values are batched is found by a data-flow analysis, nested bodies included.

On the way maxima and minima, which lose NaN when batched, are made to keep it, and the
best k of long rows are looked for in groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter import winners
from rewriter.graph import carry_fixpoint, reads, variant_values


def evaluate(eqns: Sequence[Any], env: dict[Any, Any], variant: set[Any]) -> None:
    """Bind equations in `env`, dots oriented for values in `variant` being batched."""
    for eqn in eqns:
        values = [v.val if isinstance(v, jc.Literal) else env[v] for v in eqn.invars]
        if any(v in variant for v in reads(eqn)):
            out = _oriented(eqn, values, variant)
        else:
            out = jc.rebind(eqn, values)
        env.update(zip(eqn.outvars, out, strict=True))


def _is(variant: set[Any], atom: Any) -> bool:
    return not isinstance(atom, jc.Literal) and atom in variant


def _oriented(eqn: Any, values: list[Any], variant: set[Any]) -> list[Any]:
    name = eqn.primitive.name
    if name == "dot_general":
        left, right = eqn.invars
        if _is(variant, right) and not _is(variant, left):
            with jc.at_inner_location(eqn):
                return [swapped_dot(values[0], values[1], eqn.params)]
    elif is_extreme(eqn):
        with jc.at_inner_location(eqn):
            return [extreme(eqn, values)]
    elif is_grouped(eqn):
        with jc.at_inner_location(eqn):
            return _top(eqn, values[0])
    elif name in ("scan", "while", "cond", "remat2", "checkpoint", *jc.JIT_NAMES):
        eqn = orient_equation(eqn, [_is(variant, v) for v in eqn.invars])
    return jc.rebind(eqn, values)


def is_grouped(eqn: Any) -> bool:
    """Whether an equation takes the best k of so many that groups of them pay."""
    if eqn.primitive.name != "top_k":
        return False
    aval, k = eqn.invars[0].aval, eqn.outvars[0].aval.shape[-1]
    last = eqn.params.get("axis", -1) in (-1, len(aval.shape) - 1)
    return last and winners.is_grouped(aval.shape[-1], k, aval.dtype)


def _top(eqn: Any, values: Any) -> list[Any]:
    k = eqn.outvars[0].aval.shape[-1]
    best = lambda row: winners.best(row, k)  # noqa: E731
    for _ in values.shape[:-1]:
        best = jax.vmap(best)
    out, index = best(values)
    return [out, index.astype(eqn.outvars[1].aval.dtype)]


def keeping_nan(extreme: Any, values: Any, axes: Sequence[int]) -> Any:
    """Return a maximum or minimum that is NaN where one of its values is.

    XLA's CPU backend loses NaN in reductions of many rows (jaxlib 0.10 to 0.12), though
    not in those of a single one.
    """
    if not jnp.issubdtype(values.dtype, jnp.floating) or values.size == 0:
        return extreme
    bad = jnp.any(values != values, axis=tuple(axes))
    return lax.select(bad, lax.full_like(extreme, jnp.nan), extreme)


def extreme(eqn: Any, values: Sequence[Any]) -> Any:
    """Bind an equation that takes maxima or minima so that it keeps NaN."""
    out, name, rows = jc.rebind(eqn, values)[0], eqn.primitive.name, values[0]
    if name not in _WINDOWS:
        axes = eqn.params["dimensions" if name == "reduce" else "axes"]
        return keeping_nan(out, rows, axes)
    sign = _WINDOWS[name]
    marks = jnp.where(rows != rows, jnp.asarray(sign, rows.dtype), 0)
    bad = jc.rebind(eqn, [marks.astype(rows.dtype)])[0] == sign
    return lax.select(bad, lax.full_like(out, jnp.nan), out)


_WINDOWS = {"reduce_window_max": 1, "reduce_window_min": -1}


def is_extreme(eqn: Any) -> bool:
    """Whether an equation takes maxima or minima of floats."""
    name = eqn.primitive.name
    if name == "reduce":  # by a function that JAX did not recognise
        body = jc.open_jaxpr(eqn.params["jaxpr"])
        names = [e.primitive.name for e in body.eqns]
        if len(eqn.invars) != 2 or names not in (["max"], ["min"]):
            return False
    elif name not in ("reduce_max", "reduce_min", *_WINDOWS):
        return False
    return bool(jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.floating))


def swapped_dot(left: Any, right: Any, params: Mapping[str, Any]) -> Any:
    """Return `dot_general(left, right)` computed as `dot_general(right, left)`."""
    (lc, rc), (lb, rb) = params["dimension_numbers"]
    precision = params["precision"]
    if isinstance(precision, tuple):
        precision = precision[::-1]
    out = lax.dot_general(
        right,
        left,
        ((rc, lc), (rb, lb)),
        precision=precision,
        preferred_element_type=params["preferred_element_type"],
    )
    batch = len(lb)
    right_free = right.ndim - batch - len(rc)
    left_free = left.ndim - batch - len(lc)
    if right_free == 0 or left_free == 0:
        return out
    order = (
        *range(batch),
        *range(batch + right_free, out.ndim),
        *range(batch, batch + right_free),
    )
    return lax.transpose(out, order)


def orient_equation(eqn: Any, batched: Sequence[bool]) -> Any:
    """Orient what is inside a control-flow equation, given its batched operands."""
    if not any(_has_work(j) for j in jc.sub_jaxprs(eqn)):
        return eqn
    name = eqn.primitive.name
    if name == "scan":
        p = jc.scan_params(eqn)
        flags = carry_fixpoint(
            jc.open_jaxpr(p.body), list(batched), p.num_consts, p.num_carry
        )
        return jc.replace_params(eqn, jaxpr=_orient_closed(p.body, flags))
    if name == "while":
        return _orient_while(eqn, list(batched))
    if name == "cond":
        branches = tuple(_orient_closed(b, batched[1:]) for b in eqn.params["branches"])
        return jc.replace_params(eqn, branches=branches)
    key = "jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"
    inner = eqn.params[key]
    if jc.is_closed(inner):
        return jc.replace_params(eqn, **{key: _orient_closed(inner, batched)})
    new = _orient_closed(jc.close_jaxpr(inner), batched)
    return eqn if new.consts else jc.replace_params(eqn, **{key: jc.open_jaxpr(new)})


def _orient_while(eqn: Any, batched: list[bool]) -> Any:
    p = eqn.params
    n_cond, n_body = p["cond_nconsts"], p["body_nconsts"]
    carry = len(batched) - n_cond - n_body
    body = jc.open_jaxpr(p["body_jaxpr"])
    flags = carry_fixpoint(body, batched[n_cond:], n_body, carry)
    return jc.replace_params(
        eqn,
        body_jaxpr=_orient_closed(p["body_jaxpr"], flags),
        cond_jaxpr=_orient_closed(
            p["cond_jaxpr"], [*batched[:n_cond], *flags[n_body:]]
        ),
    )


def _has_work(closed: Any) -> bool:
    return any(
        e.primitive.name == "dot_general"
        or is_extreme(e)
        or is_grouped(e)
        or any(_has_work(j) for j in jc.sub_jaxprs(e))
        for e in jc.open_jaxpr(closed).eqns
    )


def _orient_closed(closed: Any, batched: Sequence[bool]) -> Any:
    jaxpr = jc.open_jaxpr(closed)
    seeds = {v for v, f in zip(jaxpr.invars, batched, strict=True) if f}
    variant = variant_values(jaxpr.eqns, seeds)
    if not _has_swap(jaxpr, variant):
        return closed

    def run(*args: Any) -> list[Any]:
        env = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        evaluate(jaxpr.eqns, env, variant)
        return [v.val if isinstance(v, jc.Literal) else env[v] for v in jaxpr.outvars]

    return jc.with_outputs_of(
        jc.trace(run, [v.aval for v in jaxpr.invars], "oriented"), closed
    )


def _has_swap(jaxpr: Any, variant: set[Any]) -> bool:
    """Whether something in a body is to be changed."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            if _is(variant, eqn.invars[1]) and not _is(variant, eqn.invars[0]):
                return True
        elif is_extreme(eqn) or is_grouped(eqn):
            if _is(variant, eqn.invars[0]):
                return True
        elif any(_has_work(j) for j in jc.sub_jaxprs(eqn)):
            return True
    return False
