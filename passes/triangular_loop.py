"""Triangular nests: an inner loop up to the outer counter becomes a masked rectangle.

What it does: `fori_loop(0, i, ...)` inside a loop over `i`, whose carries only
accumulate, runs to the largest bound of all outer steps, with what lies beyond its own
bound masked.

Why it pays: the inner loop has a fixed trip count, so it is batched like any other; its
loop ran one pair at a time.

Legality: the bounds are known for every outer step, the body has no side effects, and
beyond the bound the carry keeps its value (a selection, so no NaN from there gets in).
At most four times the work of the triangle.

Numerics: strict; the order of a float sum is another pass's matter.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def energy(x):
...     def pair(i, j):
...         return 1 / (1 + jnp.sum((x[i] - x[j]) ** 2))
...     def row(i, e):
...         return jax.lax.fori_loop(0, i, lambda j, e: e + pair(i, j), e)
...     return jax.lax.fori_loop(0, x.shape[0], row, 0.0)
>>> report = explain(energy)(jnp.ones((500, 3)))
>>> "while" in report.before.outline(), "while" in report.after.outline()
(True, False)

References: Wolfe, *High Performance Compilers for Parallel Computing*, on triangular
loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.graph import Loop, edited
from rewriter.indices import TABLE_LIMIT
from rewriter.inline import inline
from rewriter.legality import contains, unbatchable
from rewriter.nests import counted, values_of
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.patterns import Body
from rewriter.remarks import Remark, missed, passed

_ACCUMULATING = frozenset({"add", "add_any", "sub", "mul", "max", "min"})


@dataclass(frozen=True)
class Inner:
    """A counted inner loop: carry positions of counter and bound, largest trip."""

    eqn: Any
    counter: int
    bound: int
    trip: int


@dataclass(frozen=True)
class Triangular(Plan):
    """The inner loops of one loop."""

    loop: Loop | None = None
    inner: tuple[Inner, ...] = ()


@dataclass(frozen=True)
class TriangularLoop(LoopPass):
    """The pass."""

    name: ClassVar = "triangular-loop"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "strict"
    worth_emitting: ClassVar = True
    least_full: float = 0.25  # of the rectangle

    FOUND = passed(
        "masked", "the inner loop runs {trip} times, masked beyond its bound"
    )
    NONE = missed("none", "no inner loop counts up to a bound of the outer one")
    SPARSE = missed("sparse", "masking would run {times:.1f} times the inner steps")

    def match(self, loop: Loop, ctx: Context) -> Triangular | Remark:
        """Find counted inner loops whose bounds are known."""
        whiles = [e for e in loop.eqns if e.primitive.name == "while"]
        if not whiles or not isinstance(loop.length, int) or loop.length > TABLE_LIMIT:
            return self.NONE.at(loop.location)
        if not ctx.options.allows("reassociate"):  # the sums would stay loops
            return self.NONE.at(loop.location)
        known = loop.known()
        found = []
        for eqn in whiles:
            places = counted(eqn)
            if places is None or not _only_accumulates(eqn, *places):
                continue
            carry = eqn.invars[
                eqn.params["cond_nconsts"] + eqn.params["body_nconsts"] :
            ]
            start, stop = (values_of(carry[k], known, loop.length) for k in places)
            if start is None or stop is None:
                continue
            trips = np.maximum(stop - start, 0)
            most = int(trips.max())
            if most < 2:
                continue
            if trips.sum() < self.least_full * most * loop.length:
                times = most * loop.length / max(1, int(trips.sum()))
                return self.SPARSE.at(loop.location, times=times)
            found.append(Inner(eqn, *places, most))
        if not found:
            return self.NONE.at(loop.location)
        remark = self.FOUND.at(loop.location, trip=max(i.trip for i in found))
        return Triangular(remark, "", loop, tuple(found))

    def rewrite(self, plan: Triangular) -> Loop:
        """Put masked scans in place of the inner loops."""
        loop = plan.loop
        assert loop is not None
        edits: dict[int, list[Any]] = {}
        mapping: dict[Any, Any] = {}
        for inner in plan.inner:
            atoms = [v for v in inner.eqn.invars if not isinstance(v, jc.Literal)]
            edits[id(inner.eqn)], outs = jc.traced_equations(
                lambda *values, inner=inner: _masked(inner, values), atoms, inner.eqn
            )
            mapping.update(zip(inner.eqn.outvars, outs, strict=True))
        return edited(loop, edits, mapping)


def _only_accumulates(eqn: Any, counter: int, bound: int) -> bool:
    """Whether all other carries only accumulate, and the body may be batched."""
    p = eqn.params
    body = jc.open_jaxpr(p["body_jaxpr"])
    if unbatchable(eqn) is not None:
        return False
    eqns, subst, _ = inline(body.eqns)
    if any(contains(e, "while") or contains(e, "cond") for e in eqns):
        return False
    inside = Body(eqns)
    for k, var in enumerate(body.invars[p["body_nconsts"] :]):
        if k in (counter, bound):
            continue
        out = body.outvars[k]
        out = out if isinstance(out, jc.Literal) else subst.get(out, out)
        step = (
            None if isinstance(out, jc.Literal) else inside.made.get(inside.plain(out))
        )
        if step is None or step.primitive.name not in _ACCUMULATING:
            return False
        if len(inside.readers(var)) != 1 or inside.readers(var)[0] is not step:
            return False
        if sum(inside.plain(v) is var for v in step.invars) != 1:
            return False
        if step.primitive.name == "sub" and inside.plain(step.invars[0]) is not var:
            return False
    return True


def _masked(inner: Inner, values: Sequence[Any]) -> list[Any]:
    """Run an inner loop to its largest trip, keeping the carry beyond its bound."""
    eqn = inner.eqn
    given = iter(values)
    args = [
        jnp.asarray(v.val, jc.dtype_of(v)) if isinstance(v, jc.Literal) else next(given)
        for v in eqn.invars
    ]
    p = eqn.params
    skip, consts = p["cond_nconsts"], p["body_nconsts"]
    held, carry = args[skip : skip + consts], args[skip + consts :]
    start, stop = carry[inner.counter], carry[inner.bound]
    others = [k for k in range(len(carry)) if k not in (inner.counter, inner.bound)]

    def step(state: Any, t: Any) -> tuple[Any, None]:
        now = list(carry)
        now[inner.counter] = start + t
        for k, value in zip(others, state, strict=True):
            now[k] = value
        new = jc.evaluate(p["body_jaxpr"], *held, *now)
        inside = t < stop - start
        return tuple(
            lax.select_n(inside, now[k], new[k].astype(now[k].dtype)) for k in others
        ), None

    steps = lax.iota(start.dtype, inner.trip)
    first = tuple(jnp.asarray(carry[k], carry[k].dtype) for k in others)
    state, _ = lax.scan(step, first, steps)
    out = list(carry)
    out[inner.counter] = lax.max(start, stop)
    for k, value in zip(others, state, strict=True):
        out[k] = value
    return [jc.coerce(x, v.aval) for x, v in zip(out, eqn.outvars, strict=True)]
