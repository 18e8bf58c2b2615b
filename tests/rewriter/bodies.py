"""Loop bodies as the analyses see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from passes import DEFAULT_PIPELINE
from rewriter import optimize
from rewriter.dependence import Dependence, dependence_graph
from rewriter.graph import Loop, loop_of, prune
from rewriter.jax_compat import dce
from rewriter.pass_base import Context, LoopPass, Options, Phase, instrument
from rewriter.remarks import Remark
from rewriter.scope import Scope


def scan_of(fn: Callable, *args: Any) -> tuple[Any, Scope]:
    """Trace `fn` and return its last scan with what is known around it."""
    closed = dce(jax.make_jaxpr(fn)(*args))
    eqns = [e for e in closed.jaxpr.eqns if e.primitive.name == "scan"]
    return eqns[-1], Scope(closed)


def body_of(fn: Callable, *args: Any, roles: bool = True) -> Loop:
    """Return the view of the last scan of `fn`; `roles`: counters and such found."""
    loop = prune(loop_of(*scan_of(fn, *args), True))
    ctx = Context(Options(), Phase.LATE, "cpu")
    while roles:
        before = loop
        for p in DEFAULT_PIPELINE:
            if isinstance(p, LoopPass) and p.phase is Phase.BOTH:
                plan = p.match(loop, ctx)
                if not isinstance(plan, Remark):
                    loop = prune(p.rewrite(plan))
        roles = loop is not before
    return loop


def graph_of(fn: Callable, *args: Any, numerics: str = "reassociate") -> Dependence:
    """Return the dependence graph of the last scan of `fn`."""
    return dependence_graph(body_of(fn, *args), numerics, {})


def partitions(fn: Callable, *args: Any, **options: Any) -> list[Any]:
    """Return the partitions that loop distribution chose, in order."""
    events: list[Any] = []
    with instrument(events.append):
        optimize(fn, **options).explain(*args)
    return [e.plan.part for e in events if e.pass_name == "loop-distribution"]
