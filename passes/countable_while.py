"""Countable `while` loops become scans.

What it does: evaluates the loop's condition on its counters, finds the trip count at
compile time, and makes the loop a `scan` of that length.

Why it pays: all other passes work on scans, and a scan has a reverse derivative.

Legality: the condition depends only on carries that grow by a known integer from a
known start, and on values known at compile time. A zero trip leaves the initial
values. Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(x):
...     return jax.lax.while_loop(lambda c: c[0] < 100,
...                               lambda c: (c[0] + 3, jnp.sin(c[1])), (0, x))[1]
>>> report = explain(f)(jnp.ones(3))
>>> report.before.outline().splitlines()[0], report.after.outline().splitlines()[0]
('while:', 'scan 34, 1 carried:')

References: trip count analysis (LLVM's scalar evolution).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rewriter import jax_compat as jc
from rewriter.indices import Affine, Known, constant, counter, evaluate
from rewriter.inline import inline
from rewriter.pass_base import Context, Emission, EquationPass, Phase, Plan
from rewriter.remarks import Location, Remark, missed, passed
from rewriter.scope import Scope


@dataclass(frozen=True)
class Countable(Plan):
    """A while loop with its trip count."""

    eqn: Any = None
    trip: int = 0


@dataclass(frozen=True)
class CountableWhile(EquationPass):
    """The pass."""

    name: ClassVar = "countable-while"
    phase: ClassVar = Phase.BOTH
    numerics: ClassVar = "strict"
    primitives: ClassVar = frozenset({"while"})
    max_trip: int = 1 << 30

    COUNTED = passed("counted", "the condition holds {trip} times: a scan")
    DATA_DEPENDENT = missed(
        "data-dependent-trip",
        "when the loop ends depends on computed values, so its trip count is not known",
        "with a fixed or largest trip count use fori_loop or scan and mask the rest",
    )
    UNKNOWN_BOUND = missed(
        "unknown-bound",
        "counts up to a bound that is not known at compile time",
        "make the bound a Python integer (static_argnums, or an array's shape)",
    )

    def match(self, eqn: Any, scope: Scope, ctx: Context) -> Countable | Remark:
        """Find the trip count."""
        where = Location(*jc.location(eqn))
        counters = _counters(eqn, scope)
        holds = _condition(eqn, scope, counters)
        first = holds(1)
        if first is None:
            code = (
                self.UNKNOWN_BOUND
                if _reads_counter(eqn, counters)
                else (self.DATA_DEPENDENT)
            )
            return code.at(where)
        trip = _count(holds, self.max_trip) if first else 0
        if trip is None:
            return self.DATA_DEPENDENT.at(where)
        return Countable(self.COUNTED.at(where, trip=trip), "", eqn, trip)

    def rewrite(self, plan: Countable) -> Emission:
        """Emit the scan."""
        p = plan.eqn.params
        skip, consts = p["cond_nconsts"], p["body_nconsts"]

        def emit(args: Any) -> list[Any]:
            carry = args[skip + consts :]
            if plan.trip == 0:
                outs = plan.eqn.outvars
                return [jc.coerce(c, v.aval) for c, v in zip(carry, outs, strict=True)]
            return jc.bind_scan(
                p["body_jaxpr"],
                args[skip : skip + consts],
                carry,
                (),
                length=plan.trip,
                reverse=False,
            )

        return emit


def _counters(eqn: Any, scope: Scope) -> dict[int, tuple[int, int, Any]]:
    """Carries that grow by a known integer: position -> start, step, dtype."""
    p = eqn.params
    body = jc.open_jaxpr(p["body_jaxpr"])
    eqns, subst, _ = inline(body.eqns)
    made = {v: e for e in eqns for v in e.outvars}
    n_cond, n_body = p["cond_nconsts"], p["body_nconsts"]
    found = {}
    for k, var in enumerate(body.invars[n_body:]):
        start = scope.scalar(eqn.invars[n_cond + n_body + k])
        out = body.outvars[k]
        out = out if isinstance(out, jc.Literal) else subst.get(out, out)
        if start is None or var.aval.shape or not jc.is_integer(var.aval):
            continue
        if out is var:
            found[k] = (int(start.base), 0, var.aval.dtype)
            continue
        by = _increment(
            made.get(out) if not isinstance(out, jc.Literal) else None,
            var,
            body,
            eqn,
            scope,
        )
        if by is not None:
            found[k] = (int(start.base), by, var.aval.dtype)
    return found


def _increment(add: Any, var: Any, body: Any, eqn: Any, scope: Scope) -> int | None:
    if add is None or add.primitive.name not in ("add", "sub"):
        return None
    if add.primitive.name == "sub" and add.invars[0] is not var:
        return None
    others = [v for v in add.invars if v is not var]
    if len(others) != 1:
        return None
    other = others[0]
    if isinstance(other, jc.Literal):
        known = constant(other.val)
    else:
        position = next((i for i, v in enumerate(body.invars) if v is other), -1)
        if not 0 <= position < eqn.params["body_nconsts"]:
            return None
        known = scope.scalar(eqn.invars[eqn.params["cond_nconsts"] + position])
    if known is None or known.base.ndim:
        return None
    return int(known.base) * (1 if add.primitive.name == "add" else -1)


def _condition(
    eqn: Any, scope: Scope, counters: dict[int, tuple[int, int, Any]]
) -> Callable[..., bool | None]:
    """Return whether the condition holds at n steps from `first` on, if known."""
    p = eqn.params
    cond = jc.open_jaxpr(p["cond_jaxpr"])
    n_cond = p["cond_nconsts"]
    eqns, subst, extra = inline(cond.eqns)
    fixed: dict[Any, Known] = {}
    for var, value in (
        *zip(cond.constvars, p["cond_jaxpr"].consts, strict=True),
        *extra,
    ):
        known = constant(value) if getattr(value, "size", 99) <= 8 else None
        if known is not None:
            fixed[var] = known
    for var, atom in zip(cond.invars[:n_cond], eqn.invars[:n_cond], strict=True):
        known = scope.scalar(atom)
        if known is not None:
            fixed[var] = known
    out = cond.outvars[0]
    out = out if isinstance(out, jc.Literal) else subst.get(out, out)

    def holds(n: int, first: int = 0) -> bool | None:
        inputs = dict(fixed)
        for k, (start, step, dtype) in counters.items():
            known = counter(start + first * step, step, dtype)
            last = known.ends(n)[1]
            info = np.iinfo(dtype)
            if info.min <= int(last) <= info.max:
                inputs[cond.invars[n_cond + k]] = known
        if isinstance(out, jc.Literal):
            return None
        value = evaluate(eqns, inputs, n).get(out)
        if value is None:
            return None
        return bool((value.base if isinstance(value, Affine) else value.rows).all())

    return holds


def _count(holds: Callable[..., bool | None], most: int) -> int | None:
    """Return the largest n for which the condition holds at all of n steps."""
    low, high = 1, 2
    while holds(high):
        low, high = high, 2 * high
        if high > most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low if holds(1, low) is False else None


def _reads_counter(eqn: Any, counters: dict[int, Any]) -> bool:
    """Whether the condition reads nothing but counters and what never changes."""
    p = eqn.params
    cond, body = jc.open_jaxpr(p["cond_jaxpr"]), jc.open_jaxpr(p["body_jaxpr"])
    carried = cond.invars[p["cond_nconsts"] :]
    read = {v for e in cond.eqns for v in e.invars if not isinstance(v, jc.Literal)}
    fixed = {
        k
        for k, v in enumerate(body.invars[p["body_nconsts"] :])
        if body.outvars[k] is v
    }
    used = {k for k, v in enumerate(carried) if v in read}
    return bool(used & set(counters)) and used <= set(counters) | fixed
