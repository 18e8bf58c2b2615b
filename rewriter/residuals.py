"""Stacked outputs of one loop that another reads: made again where they are read.

Differentiation stores what the forward loop computes for the backward loop. A *slice*
is the part of a forward step that makes such rows from the step's inputs, if no carry
but a counter feeds it. Before differentiation a *policy* says what to store at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.graph import renamed_atom
from rewriter.inline import inline
from rewriter.patterns import literal
from rewriter.planes import ELEMENTWISE

_MOVES = frozenset(
    {
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "expand_dims",
        "transpose",
        "slice",
        "dynamic_slice",
        "select_n",
        "iota",
    }
)


@dataclass(frozen=True)
class SmallRows:
    """A policy of `jax.checkpoint`: larger elementwise results are made again."""

    most: int

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> bool:
        """Return whether the results of an equation may be stored."""
        if not is_light(primitive.name):
            return True
        shapes = [getattr(a, "shape", ()) for a in avals]
        shapes.append(params.get("shape") or ())
        return max(math.prod(s) for s in shapes) <= self.most


def is_light(name: str) -> bool:
    """Whether a primitive is elementwise or only moves values."""
    return name in ELEMENTWISE or name in _MOVES


@dataclass(frozen=True)
class Slice:
    """What makes the rows `out` of a scan: equations of its body, and their leaves.

    Leaves are variables of the body with what they are outside: an operand that is
    the same in every step, rows of one, or a counter as (first value, step).
    """

    out: Any
    eqns: tuple[Any, ...]
    same: Mapping[Any, Any]
    rows: Mapping[Any, Any]
    counters: Mapping[Any, tuple[int, int]]


def slice_of(eqn: Any, output: int) -> Slice | None:
    """Return the slice that makes an output of a scan equation, if it is cheap."""
    p = jc.scan_params(eqn)
    body = jc.open_jaxpr(p.body)
    if p.body.consts if jc.is_closed(p.body) else ():
        return None
    eqns, subst, extra = inline(body.eqns, inline_custom=True)
    if extra:
        return None
    made = {v: e for e in eqns for v in e.outvars}
    atom = body.outvars[output]
    out = atom if isinstance(atom, jc.Literal) else subst.get(atom, atom)
    if isinstance(out, jc.Literal) or out not in made:
        return None
    nc, nk = p.num_consts, p.num_carry
    place = {v: k for k, v in enumerate(body.invars)}
    needed: list[Any] = []
    same, rows, counters = {}, {}, {}
    live = [out]
    while live:
        v = live.pop()
        if v in made:
            if made[v] in needed:
                continue
            name = made[v].primitive.name
            if made[v].effects or not is_light(name):
                return None
            needed.append(made[v])
            live += [x for x in made[v].invars if not isinstance(x, jc.Literal)]
        elif v not in place:
            return None
        elif place[v] < nc:
            same[v] = eqn.invars[place[v]]
        elif place[v] >= nc + nk:
            rows[v] = eqn.invars[place[v]]
        else:
            end = body.outvars[place[v] - nc]
            end = end if isinstance(end, jc.Literal) else subst.get(end, end)
            counter = _counter(eqn.invars[place[v]], v, end, made)
            if counter is None:
                return None
            counters[v] = counter
    order = [e for e in eqns if any(e is n for n in needed)]
    return Slice(out, tuple(order), same, rows, counters)


def _counter(
    start: Any, var: Any, end: Any, made: Mapping[Any, Any]
) -> tuple[int, int] | None:
    """Return first value and step of a carry that counts."""
    first, eqn = literal(start), made.get(end)
    if first is None or eqn is None or eqn.primitive.name != "add":
        return None
    if not jc.is_integer(var.aval) or var.aval.shape:
        return None
    steps = [literal(v) for v in eqn.invars if v is not var]
    if len(steps) != 1 or steps[0] is None or var not in eqn.invars:
        return None
    return int(first), int(steps[0])


def reading(eqn: Any, found: Mapping[int, tuple[Any, Slice]]) -> list[Any]:
    """Return equations in place of a scan that makes some of its rows itself.

    `found`: by position among the operands, the scan that made the rows, and how.
    """
    p = jc.scan_params(eqn)
    body = jc.open_jaxpr(p.body)
    nc, nk = p.num_consts, p.num_carry
    const_in, const_vars = list(eqn.invars[:nc]), list(body.invars[:nc])
    kept = [k for k in range(nc + nk, len(eqn.invars)) if k not in found]
    row_in, row_vars = [eqn.invars[k] for k in kept], [body.invars[k] for k in kept]
    before: list[Any] = []
    eqns: list[Any] = []
    mapping: dict[Any, Any] = {}
    for k, (source, part) in found.items():
        own: dict[Any, Any] = {}
        for v, outside in part.same.items():
            own[v] = jc.fresh_var(v.aval)
            const_vars.append(own[v])
            const_in.append(outside)
        for v, outside in part.rows.items():
            own[v] = jc.fresh_var(v.aval)
            row_vars.append(own[v])
            row_in.append(outside)
        for v, (first, step) in part.counters.items():
            own[v] = jc.fresh_var(v.aval)
            made, (values,) = jc.traced_equations(
                lambda v=v, first=first, step=step, source=source: _counted(
                    jc.scan_params(source), v.aval.dtype, first, step
                ),
                [],
                eqn,
            )
            before += made
            row_vars.append(own[v])
            row_in.append(values)
        for e in part.eqns:
            outs = [jc.fresh_var(v.aval) for v in e.outvars]
            ins = [v if isinstance(v, jc.Literal) else own[v] for v in e.invars]
            eqns.append(e.replace(invars=ins, outvars=outs))
            own.update(zip(e.outvars, outs, strict=True))
        mapping[body.invars[k]] = own[part.out]
    rest = [
        e.replace(invars=[renamed_atom(v, mapping) for v in e.invars])
        for e in body.eqns
    ]
    new = jc.build_jaxpr(
        [*const_vars, *body.invars[nc : nc + nk], *row_vars],
        [renamed_atom(v, mapping) for v in body.outvars],
        [*eqns, *rest],
        body,
    )
    init = list(eqn.invars[nc : nc + nk])
    atoms = [v for v in (*const_in, *init, *row_in) if not isinstance(v, jc.Literal)]

    def run(*values: Any) -> list[Any]:
        known = iter(values)
        given = [
            jnp.asarray(v.val, jc.dtype_of(v))
            if isinstance(v, jc.Literal)
            else next(known)
            for v in (*const_in, *init, *row_in)
        ]
        ends = len(const_in), len(const_in) + nk
        return jc.bind_scan(
            new,
            given[: ends[0]],
            given[ends[0] : ends[1]],
            given[ends[1] :],
            length=p.length,
            reverse=p.reverse,
            unroll=p.unroll,
        )

    made, outs = jc.traced_equations(run, atoms, eqn)
    if [id(v) for v in made[-1].outvars] != [id(v) for v in outs]:
        raise ValueError("a scan was traced as something else")
    return [*before, *made[:-1], made[-1].replace(outvars=list(eqn.outvars))]


def _counted(p: Any, dtype: Any, first: int, step: int) -> Any:
    """Return the values of a counter by storage index."""
    at = lax.iota(dtype, p.length)
    at = jnp.asarray(p.length - 1, dtype) - at if p.reverse else at
    return jnp.asarray(first, dtype) + jnp.asarray(step, dtype) * at
