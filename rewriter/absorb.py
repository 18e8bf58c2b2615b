"""A loop with the consumers of its rows inside, as equations of its program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.consumers import Consumers, evaluate_row, operation
from rewriter.emit import value_of
from rewriter.graph import renamed_atom


def with_consumers(loop: Any, found: Consumers) -> tuple[list[Any], list[Any]]:
    """Return a loop with its consumers inside, and variables of exits and folds."""
    p = jc.scan_params(loop)
    body = jc.open_jaxpr(p.body)
    nc, nk = p.num_consts, p.num_carry
    stacks = dict(zip(loop.outvars[nk:], body.outvars[nk:], strict=True))
    made = {v for e in found.eqns for v in e.outvars}
    outer = dict.fromkeys(
        v
        for e in found.eqns
        for v in e.invars
        if not isinstance(v, jc.Literal) and v not in made and v not in stacks
    )
    lies = {v: _lies(v, found, p.length) for v in outer}
    same = [v for v in outer if lies[v] is None]
    rows = [v for v in outer if lies[v] is not None]
    inside = {v: jc.fresh_var(v.aval) for v in same}
    for v in rows:
        shape = [n for k, n in enumerate(v.aval.shape) if k != lies[v]]
        inside[v] = jc.fresh_var(v.aval.update(shape=tuple(shape)))
    totals = [jc.fresh_var(e.outvars[0].aval) for e in found.folds]
    atoms = [*stacks.values(), *inside.values(), *totals]
    atoms = list(dict.fromkeys(a for a in atoms if not isinstance(a, jc.Literal)))

    def step(*values: Any) -> list[Any]:
        known = dict(zip(atoms, values, strict=True))
        env: dict[Any, Any] = {}
        for v, atom in stacks.items():
            env[v] = lax.expand_dims(value_of(atom, known), (0,))
        for v in same:
            env[v] = known[inside[v]]
        for v in rows:
            env[v] = lax.expand_dims(known[inside[v]], (lies[v] or 0,))
        exits, parts = evaluate_row(found, env)
        pairs = zip(found.folds, totals, parts, strict=True)
        return [*exits, *(operation(f).combine(known[t], x) for f, t, x in pairs)]

    eqns, outs = jc.traced_equations(step, atoms, loop)
    count = len(found.exits)
    new_body = jc.build_jaxpr(
        [
            *body.invars[:nc],
            *(inside[v] for v in same),
            *body.invars[nc : nc + nk],
            *totals,
            *body.invars[nc + nk :],
            *(inside[v] for v in rows),
        ],
        [*body.outvars[:nk], *outs[count:], *body.outvars[nk:], *outs[:count]],
        [*body.eqns, *eqns],
        body,
    )
    operands = [*loop.invars, *same, *rows]
    given = list(dict.fromkeys(v for v in operands if not isinstance(v, jc.Literal)))

    def run(*values: Any) -> list[Any]:
        known = dict(zip(given, values, strict=True))

        def value(v: Any) -> Any:
            return value_of(v, known)

        def moved(v: Any) -> Any:
            return jnp.moveaxis(value(v), lies[v] or 0, 0)

        ins = [value(v) for v in loop.invars]
        out = jc.bind_scan(
            new_body,
            [*ins[:nc], *map(value, same)],
            [*ins[nc : nc + nk], *map(_identity, found.folds)],
            [*ins[nc + nk :], *map(moved, rows)],
            length=p.length,
            reverse=p.reverse,
            unroll=p.unroll,
        )
        folds = out[nk : nk + len(totals)]
        own = out[nk + len(totals) : len(out) - count]
        exits = [
            jnp.moveaxis(x, 0, found.axes[v])
            for v, x in zip(found.exits, out[len(out) - count :], strict=True)
        ]
        return [*out[:nk], *own, *exits, *folds]

    made_eqns, results = jc.traced_equations(run, given, loop)
    renamed = dict(zip(results, loop.outvars, strict=False))
    made_eqns = [
        e.replace(
            invars=[renamed_atom(v, renamed) for v in e.invars],
            outvars=[renamed.get(v, v) for v in e.outvars],
        )
        for e in made_eqns
    ]
    values = [renamed.get(v, v) for v in results[len(loop.outvars) :]]
    return made_eqns, values


def _lies(var: Any, found: Consumers, length: int) -> int | None:
    """Return the axis along which an outer operand has rows beside the loop's."""
    for eqn in found.eqns:
        if not any(v is var for v in eqn.invars):
            continue
        at = found.axes.get(eqn.outvars[0])
        shape, out = var.aval.shape, eqn.outvars[0].aval.shape
        if eqn.primitive.name == "dot_general" or at is None or len(shape) != len(out):
            continue
        if shape[at] == length:
            return at
    return None


def _identity(fold: Any) -> Any:
    """Return what a fold starts from."""
    aval, name = fold.outvars[0].aval, operation(fold).name
    kind = np.dtype(aval.dtype).kind
    if name in ("max", "min"):
        if kind == "b":
            value: Any = name == "min"
        elif kind in "iu":
            info = jnp.iinfo(aval.dtype)
            value = info.min if name == "max" else info.max
        else:
            value = -jnp.inf if name == "max" else jnp.inf
    elif name == "and":
        value = (
            True if kind == "b" else -1 if kind == "i" else jnp.iinfo(aval.dtype).max
        )
    else:
        value = 1 if name == "prod" else 0
    return jnp.full(aval.shape, value, aval.dtype)


def in_order(eqns: Sequence[Any]) -> list[Any]:
    """Return equations in an order in which all are made before they are read."""
    made = {v: i for i, e in enumerate(eqns) for v in e.outvars}
    done: set[int] = set()
    out: list[Any] = []
    for start in range(len(eqns)):
        stack = [start]
        while stack:
            i = stack[-1]
            needs = [
                made[v]
                for v in eqns[i].invars
                if not isinstance(v, jc.Literal) and v in made and made[v] not in done
            ]
            if needs:
                stack += needs
                continue
            stack.pop()
            if i not in done:
                done.add(i)
                out.append(eqns[i])
    return out
