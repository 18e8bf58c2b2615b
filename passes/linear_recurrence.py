"""Linear recurrences in blocks: `h = a * h + b` becomes matrix products.

What it does: the trip is cut into blocks of C steps. With a constant `a`, a block is
one product with the triangular matrix of a's powers; then the blocks are joined by the
state before each, and what the loop did with the state is done with all states at once.
Where `a` changes from step to step it is an associative scan.

Why it pays: each step of the loop waits for the one before it. On a CPU only a constant
`a` pays, for one lane, or where the rows are columns in memory; elsewhere the loop is
faster (measured).

Legality: `a` and `b` do not depend on `h`, by structure, so error-free transforms are
out; a constant `a` is at most 1 and its powers in a block do not underflow. If a state
is not finite at run time, the loop runs instead: a zero times infinity is its own case.

Numerics: reassociate.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def returns(rewards):
...     def step(g, r):
...         g = r + 0.99 * g
...         return g, g
...     return jax.lax.scan(step, 0.0, rewards, reverse=True)[1]
>>> report = explain(returns)(jnp.ones(100_000))
>>> report.before.count("dot_general"), report.after.count("dot_general")
(0, 1)

References: Blelloch, *Prefix sums and their applications*, 1990; Martin and Cundy,
*Parallelizing linear recurrent neural nets*, ICLR 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from rewriter import jax_compat as jc
from rewriter.cost import Model, elements, nbytes
from rewriter.emit import results
from rewriter.graph import Loop, Outputs, variant_values
from rewriter.linear import LinearUpdate, Split, linear_update, split
from rewriter.pass_base import Context, Emission, LoopPass, Phase, Plan
from rewriter.patterns import Body, is_private, literal
from rewriter.prefix import block_states, prefix_states
from rewriter.recurrence import uses
from rewriter.remarks import Remark, missed, passed
from rewriter.scope import Scope

_LEAST_POWER = 1e-20  # of the coefficient in a block


@dataclass(frozen=True)
class Blocks(Plan):
    """A recurrence; `coefficient` is None where it changes."""

    parts: Split | None = None
    update: LinearUpdate | None = None
    coefficient: float | None = None
    block: int = 0


@dataclass(frozen=True)
class LinearRecurrence(LoopPass):
    """The pass."""

    name: ClassVar = "linear-recurrence"
    phase: ClassVar = Phase.LATE
    numerics: ClassVar = "reassociate"
    min_gain: float = 2.0

    BLOCKED = passed(
        "blocked",
        "{carry} is a linear recurrence: blocks of {block} steps are products with the "
        "powers of {coefficient}",
    )
    PREFIX = passed(
        "prefix", "{carry} is a linear recurrence: an associative scan of all steps"
    )
    NONE = missed("none", "no carry is a linear recurrence of floats")
    LOOP = missed(
        "loop-is-faster",
        "{carry} is a linear recurrence, but the loop is faster here: about {before} "
        "ns a step, {after} in blocks",
    )
    GROWS = missed(
        "coefficient",
        "{carry} is multiplied by {coefficient} a step: its powers overflow or vanish",
    )
    MEMORY = missed("memory-budget", "the states of all steps are over the budget")

    def match(self, loop: Loop, ctx: Context) -> Blocks | Remark:
        """Find a recurrence that is cheaper in blocks."""
        declined = self.NONE.at(loop.location)
        if not isinstance(loop.length, int) or loop.length < 4 or ctx.loops:
            return declined
        body = Body(loop.eqns)
        for carry in loop.carries:
            update = linear_update(loop, carry)
            if update is None or (is_private(loop, [carry]) and not _scales(update)):
                continue
            plan = self._plan(loop, update, body, ctx)
            if isinstance(plan, Blocks):
                return plan
            declined = plan
        return declined

    def _plan(
        self, loop: Loop, update: LinearUpdate, body: Body, ctx: Context
    ) -> Blocks | Remark:
        carry, model = update.carry, ctx.model
        name = loop.name(carry.var)
        constant = _coefficient(update, body)
        block = 0
        if constant is not None:
            block = next((c for c in (32, 16) if _keeps(constant, c)), 0)
            if not block:
                return self.GROWS.at(loop.location, carry=name, coefficient=constant)
        before = self._loop_ns(loop, update, model, ctx.scope)
        after = self._block_ns(loop, update, block, model, ctx.scope)
        if before < self.min_gain * after:
            return self.LOOP.at(
                loop.location, carry=name, before=round(before), after=round(after)
            )
        read = uses(loop)
        given = [v for v in dict.fromkeys((carry.var, carry.out)) if v in read]
        parts = split(loop, carry, update.operands, given)
        if parts is None:
            return self.NONE.at(loop.location)
        held = nbytes(carry.var) * (1 + len(given)) + sum(
            nbytes(v) for v in (*parts.keys, *parts.stored)
        )
        if held * loop.length > ctx.options.memory_budget:
            return self.MEMORY.at(loop.location)
        code = self.PREFIX if constant is None else self.BLOCKED
        remark = code.at(loop.location, carry=name, block=block, coefficient=constant)
        return Blocks(remark, "blocked", parts, update, constant, block)

    def _loop_ns(
        self, loop: Loop, update: LinearUpdate, model: Model, scope: Scope | None
    ) -> float:
        m, size = model.machine, nbytes(update.carry.var)
        changed = variant_values(loop.eqns, {update.carry.var})
        work = [e for e in loop.eqns if any(v in changed for v in e.outvars)]
        waits = m.latency * sum(model.weight(e) for e in work)
        ns = model.overhead(loop.eqns) + max(waits, sum(map(model.loop, work)))
        ns += model.stacking([a for _, a in loop.ys], loop.length)
        strided = sum(nbytes(v) for v in _strided(loop, scope))
        return ns + m.byte_strided * (strided + (size if strided and loop.ys else 0))

    def _block_ns(
        self,
        loop: Loop,
        update: LinearUpdate,
        block: int,
        model: Model,
        scope: Scope | None,
    ) -> float:
        m, lanes = model.machine, elements(update.carry.var)
        if not block:
            stages = 2 * math.log2(loop.length)
            return m.prefix * lanes + m.stage * stages / loop.length
        size = nbytes(update.carry.var)
        one = lanes == 1 or bool(_strided(loop, scope))
        moved = size * (0 if one else 4 * m.byte_strided)  # to lanes and back
        passes = 5 * size * m.byte_stored
        return (
            2 * block * lanes * m.flop_batch
            + passes
            + moved
            + (6 * m.stage + 4 * m.fork) / loop.length
        )

    def rewrite(self, plan: Blocks) -> Emission:
        """Emit what makes the coefficients, the states, and what reads them."""
        parts, update = plan.parts, plan.update
        assert parts is not None
        assert update is not None
        loop, carry = parts.loop, update.carry

        def emit(args: Sequence[Any]) -> list[Any]:
            out, rows = parts.first(args, update.operands)
            consts = {v: s.get(args) for v, s in loop.consts}
            aval, length = carry.var.aval, loop.length
            start = jnp.asarray(carry.init.get(args)).astype(aval.dtype)

            def value(atom: Any) -> Any:
                if isinstance(atom, jc.Literal):
                    return np.asarray(atom.val, jc.dtype_of(atom))
                x = rows[atom] if atom in rows else consts[atom][None]
                return x.reshape(
                    *x.shape[:1], *(1,) * (aval.ndim + 1 - x.ndim), *x.shape[1:]
                )

            def whole(x: Any) -> Any:
                x = jnp.zeros((), aval.dtype) if x is None else x
                return jnp.broadcast_to(x, (length, *aval.shape)).astype(aval.dtype)

            a, b = update.map(value)
            a = 1.0 if a is None else a
            if plan.coefficient is None:
                after = prefix_states(whole(a), whole(b), start, loop.reverse)
            else:
                after = block_states(
                    plan.coefficient, whole(b), start, plan.block, loop.reverse
                )
            last = after[0] if loop.reverse else after[-1]
            ahead = (
                [after[1:], start[None]] if loop.reverse else [start[None], after[:-1]]
            )
            states = {carry.out: after, carry.var: jnp.concatenate(ahead)}
            out = Outputs(args, {**out.finals, carry.var: last}, out.stacks)
            return results(loop, parts.last(args, out, states))

        return emit


def _scales(update: LinearUpdate) -> bool:
    return any(kind not in ("add", "sub") for kind, _ in update.steps)


def _coefficient(update: LinearUpdate, body: Body) -> float | None:
    """Return the number that the state is multiplied by, None if it is not one."""

    def value(atom: Any) -> float | None:
        return literal(body.plain(atom))

    if any(value(v) is None for kind, v in update.steps if kind in ("mul", "div")):
        return None
    scale, _ = update.map(lambda v: 1.0 if value(v) is None else value(v))
    return 1.0 if scale is None else float(scale)


def _keeps(coefficient: float, block: int) -> bool:
    """Whether no power in a block overflows or vanishes."""
    return _LEAST_POWER <= abs(coefficient) ** block <= 1.0


def _strided(loop: Loop, scope: Scope | None) -> list[Any]:
    """Return the rows that are columns in memory."""
    if scope is None:
        return []
    return [
        v
        for v, s in loop.xs
        if s.operand is not None
        and not isinstance(loop.eqn.invars[s.operand], jc.Literal)
        and scope.is_transposed(loop.eqn.invars[s.operand])
    ]
