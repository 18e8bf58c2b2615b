"""Emission of a loop as a scan, bound from existing equations. Nothing here decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rewriter import jax_compat as jc
from rewriter.graph import EMITTED, Loop, Outputs, counters_as_carries


def emit_loop(loop: Loop, args: Sequence[Any]) -> list[Any]:
    """Bind the canonical scan of a loop and return the original's outputs."""
    return results(loop, emit_outputs(loop, args))


def emit_outputs(loop: Loop, args: Sequence[Any]) -> Outputs:
    """Bind the canonical scan of a loop and return what it gives back."""
    loop = counters_as_carries(loop)
    const_vars = [v for v, _ in loop.consts]
    carry_vars = [c.var for c in loop.carries]
    x_vars = [v for v, _ in loop.xs]
    body = jc.build_jaxpr(
        [*const_vars, *carry_vars, *x_vars],
        [*(c.out for c in loop.carries), *(a for _, a in loop.ys)],
        loop.eqns,
        loop.like,
        loop.names,
    )
    if loop.is_marked:
        body = mark(body, "fallback")
    consts = [typed(s.get(args), v) for v, s in loop.consts]
    init = [typed(c.init.get(args), c.var) for c in loop.carries]
    xs = [typed(s.get(args), v) for v, s in loop.xs]
    out = jc.bind_scan(
        body,
        consts,
        init,
        xs,
        length=loop.length,
        reverse=loop.reverse,
        unroll=loop.unroll,
    )
    finals = dict(zip(carry_vars, out, strict=False))
    stacks = dict(zip((k for k, _ in loop.ys), out[len(carry_vars) :], strict=True))
    return Outputs(args, finals, stacks)


def results(loop: Loop, out: Outputs) -> list[Any]:
    """Make the original equation's outputs, at exactly their types."""
    values = []
    for result, var in zip(loop.results, loop.eqn.outvars, strict=True):
        values.append(None if result is None else jc.coerce(result.get(out), var.aval))
    return values


def value_of(atom: Any, known: Mapping[Any, Any]) -> Any:
    """Return the value of an atom: a literal's own, or what is known."""
    if isinstance(atom, jc.Literal):
        return jnp.asarray(atom.val, jc.dtype_of(atom))
    return known[atom]


def typed(value: Any, var: Any) -> Any:
    """Give a value the type of a variable."""
    return jc.coerce(value, var.aval) if jc.is_array_aval(var.aval) else value


def mark_loop(loop: Loop) -> Loop:
    """Return a loop whose scan no pass will take for a user's loop again."""
    return loop.replace(is_marked=True)


def emitted(fun: Callable[..., Any], kind: str = "block") -> Callable[..., Any]:
    """Name a loop body as emitted, so that no pass takes it for a user's loop."""

    def body(*args: Any) -> Any:
        return fun(*args)

    body.__name__ = f"{EMITTED}_{kind}"
    return jax.jit(body)


def mark(body: Any, kind: str) -> Any:
    """Wrap a scan body jaxpr in a named jit, see `emitted`."""
    jitted = emitted(jc.jaxpr_as_fun(body), kind)
    avals = [v.aval for v in jc.open_jaxpr(body).invars]
    return jc.trace(lambda *args: jitted(*args), avals, kind)
