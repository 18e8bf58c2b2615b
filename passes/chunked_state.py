"""Chunked state: an accumulated matrix that every step reads, in chunks of steps.

What it does: `S = g * S + outer(k, v)`, read as `q @ S` in each step (linear attention,
with or without decay, heads and all), is run in chunks. Inside a chunk the reads are
products of the q's, k's and v's under a triangular mask; the state is carried from
chunk to chunk.

Why it pays: the loop reads and writes all of `S` at every step, a chunk does it once.

Legality: the terms are products that do not depend on `S`, the decay is a scalar, and
`S` is read by sums of products only. If a result is not finite at run time, the loop
runs instead: a masked zero times infinity is its own case.

Numerics: reassociate.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def attention(Q, K, V):
...     def step(S, qkv):
...         q, k, v = qkv
...         S = S + jnp.outer(k, v)
...         return S, q @ S
...     return jax.lax.scan(step, jnp.zeros((128, 128)), (Q, K, V))[1]
>>> report = explain(attention)(*3 * [jnp.ones((4096, 128))])
>>> print(report.verdicts[0].outcome)
blocked

References: Katharopoulos et al., *Transformers are RNNs*, ICML 2020; Yang et al.,
*Gated linear attention*, ICML 2024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.chunks import Attention, states_in_chunks, states_in_order
from rewriter.cost import Model, elements, nbytes
from rewriter.emit import results
from rewriter.graph import Loop, Outputs, reads
from rewriter.linear import LinearUpdate, Split, dependents, linear_update, split
from rewriter.network import StateRead, state_read
from rewriter.pass_base import Context, Emission, LoopPass, Phase, Plan
from rewriter.patterns import Body, literal
from rewriter.recurrence import uses
from rewriter.remarks import Remark, missed, passed


@dataclass(frozen=True)
class Chunks(Plan):
    """A state and the loop split at its reads."""

    parts: Split | None = None
    update: LinearUpdate | None = None
    attention: Attention | None = None


@dataclass(frozen=True)
class ChunkedState(LoopPass):
    """The pass."""

    name: ClassVar = "chunked-state"
    phase: ClassVar = Phase.LATE
    numerics: ClassVar = "reassociate"
    chunk: int = 32
    large: int = 1 << 14  # elements of a state whose products run at full speed
    min_gain: float = 1.95

    FOUND = passed(
        "chunks",
        "{carry} accumulates products and is read by {reads} product(s): chunks of "
        "{chunk} steps",
    )
    NONE = missed("none", "no carry accumulates products that products read")
    LOOP = missed(
        "loop-is-faster",
        "{carry} could be run in chunks, but the loop is faster here: about {before} "
        "ns a step, {after} in chunks",
    )
    MEMORY = missed("memory-budget", "what {carry} is made of is over the budget")

    def match(self, loop: Loop, ctx: Context) -> Chunks | Remark:
        """Find a state that is cheaper in chunks."""
        declined = self.NONE.at(loop.location)
        if not isinstance(loop.length, int) or loop.length < 2 or ctx.loops:
            return declined
        for carry in loop.carries:
            if not getattr(carry.var.aval, "shape", ()):
                continue
            update = linear_update(loop, carry)
            found = None if update is None else _attention(loop, update)
            if found is None or update is None or not self._keeps(found):
                continue
            plan = self._plan(loop, update, found, ctx)
            if isinstance(plan, Chunks):
                return plan
            declined = plan
        return declined

    def _keeps(self, found: Attention) -> bool:
        """Whether no power of a constant decay overflows or vanishes in a chunk."""
        numbers = [literal(v) for v in found.decay]
        power = math.prod(abs(1.0 if n is None else n) for n in numbers) ** self.chunk
        return 1e-20 < power < 1e20

    def _plan(
        self, loop: Loop, update: LinearUpdate, found: Attention, ctx: Context
    ) -> Chunks | Remark:
        name = loop.name(update.carry.var)
        factors = [f for r in found.reads for f in (*r.own, *sum(r.terms, ()))]
        wanted = [*(f.atom for f in factors), *found.decay]
        given = [r.root.outvars[0] for r in found.reads]
        parts = split(loop, update.carry, wanted, given)
        if parts is None:
            return self.NONE.at(loop.location)
        before, after = self._costs(loop, found, parts, ctx.model)
        if before < self.min_gain * after:
            return self.LOOP.at(
                loop.location, carry=name, before=round(before), after=round(after)
            )
        held = sum(nbytes(v) for v in (*parts.keys, *given, *parts.stored))
        if held * loop.length > ctx.options.memory_budget:
            return self.MEMORY.at(loop.location, carry=name)
        remark = self.FOUND.at(
            loop.location, carry=name, reads=len(given), chunk=self.chunk
        )
        return Chunks(remark, "blocked", parts, update, found)

    def _costs(
        self, loop: Loop, found: Attention, parts: Split, model: Model
    ) -> tuple[float, float]:
        """Return ns per step of the loop and in chunks."""
        m, size = model.machine, elements(found.before)
        before = m.element_long * size + model.overhead(loop.eqns)
        before += sum(model.loop(e) for r in found.reads for e in r.used)
        flops = 2 * size * len(found.negative)
        heads = 1
        for r in found.reads:
            inner = max((elements(f.atom) for f in r.own), default=1)
            inner += elements(r.root.outvars[0])
            flops += 2 * size + 2 * self.chunk * inner * len(found.negative)
            heads = max(heads, r.batch)
        # batched products, masks and sums between them, some four kernels each
        calls = 4 * (2 + 3 * len(found.reads)) * heads * m.matrix_call + m.step
        rate = m.flop_large if size >= heads * self.large else m.flop_matrix
        after = flops * rate + calls / self.chunk
        if any(not isinstance(v, jc.Literal) for v in found.decay):
            after += 6 * m.element * self.chunk
        if parts.before.carries or parts.after.carries:  # a loop stays all the same
            rows = [r.root.outvars[0] for r in found.reads]
            after += model.overhead(loop.eqns) + model.stacking(rows, loop.length)
        return before, after

    def rewrite(self, plan: Chunks) -> Emission:
        """Emit what makes the factors, the chunks, and what uses the reads."""
        parts, update, found = plan.parts, plan.update, plan.attention
        assert parts is not None
        assert update is not None
        assert found is not None
        loop, carry = parts.loop, update.carry

        def emit(args: Sequence[Any]) -> list[Any]:
            out, rows = parts.first(args, list(parts.keys))
            consts = {v: s.get(args) for v, s in loop.consts}
            start = jnp.asarray(carry.init.get(args)).astype(carry.var.aval.dtype)
            state, seen = states_in_chunks(
                found, rows, consts, start, loop.length, self.chunk
            )
            finite = [jnp.all(jnp.isfinite(x)) for x in (state, *seen)]
            state, seen = lax.cond(
                jnp.all(jnp.stack(finite)),
                lambda: (state, seen),
                lambda: states_in_order(found, rows, consts, start),
            )
            roots = [r.root.outvars[0] for r in found.reads]
            out = Outputs(args, {**out.finals, carry.var: state}, out.stacks)
            given = dict(zip(roots, seen, strict=True))
            return results(loop, parts.last(args, out, given))

        return emit


def _attention(loop: Loop, update: LinearUpdate) -> Attention | None:
    """Return the state that a linear update makes if only products read it."""
    body, carry = Body(loop.eqns), update.carry
    kinds = [kind for kind, _ in update.steps]
    scales = kinds.count("mul")
    if kinds[:scales] != ["mul"] * scales or scales == len(kinds):
        return None
    if any(kind not in ("add", "sub") for kind in kinds[scales:]):
        return None
    decay = tuple(body.plain(v) for _, v in update.steps[:scales])
    if any(jc.shape_of(v) for v in decay):
        return None
    terms = [v for _, v in update.steps[scales:]]
    if any(isinstance(v, jc.Literal) for v in terms):
        return None
    reading = _reads(loop, update, terms)
    tainted = dependents(loop, carry)
    constant = {v for v, _ in loop.consts}
    for read in reading or ():
        for factors in (read.own, *read.terms):
            atoms = [f.atom for f in factors if not isinstance(f.atom, jc.Literal)]
            if any(v in tainted for v in atoms):
                return None
        if any(
            all(isinstance(f.atom, jc.Literal) or f.atom in constant for f in factors)
            for factors in read.terms
        ):
            return None
        matrix = len(carry.var.aval.shape) > 1
        if matrix and any(len(factors) < 2 for factors in read.terms):
            return None  # not a product: a chunk would have to store it
    if not reading:
        return None
    return Attention(
        carry.var,
        carry.out,
        decay,
        tuple(kind == "sub" for kind in kinds[scales:]),
        tuple(reading),
        loop.reverse,
    )


def _reads(
    loop: Loop, update: LinearUpdate, terms: Sequence[Any]
) -> list[StateRead] | None:
    """Return all reads of a state, or None if one is not a product."""
    carry = update.carry
    states = {carry.var, carry.out}
    made, count = {v: e for e in loop.eqns for v in e.outvars}, uses(loop)
    if any(a in states for _, a in loop.ys if not isinstance(a, jc.Literal)):
        return None
    if sum(c.out is carry.out or c.out is carry.var for c in loop.carries) != 1:
        return None
    found: list[StateRead] = []
    taken = {id(e) for e in update.eqns}
    for eqn in reversed(loop.eqns):
        if eqn.primitive.name not in ("dot_general", "reduce_sum") or id(eqn) in taken:
            continue
        read = state_read(eqn, states, terms, made.get, lambda v: count[v])
        if read is not None:
            found.append(read)
            taken.update(id(e) for e in read.used)
    inside = states.union(*(e.outvars for e in update.eqns))
    others = [e for e in loop.eqns if id(e) not in taken]
    if any(v in inside for e in others for v in reads(e)):
        return None
    return found
