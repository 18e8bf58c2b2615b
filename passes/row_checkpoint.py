"""Row checkpoint: what differentiation need not store of a step.

What it does: before differentiation, the body of a loop whose rows grow large on the
way (`X - row`, all its pairs) is put under `jax.checkpoint` with a policy: results of
elementwise work that are much larger than what the step reads and carries are made
again in the backward step, all else is stored as before.

Why it pays: as `residual-recomputation`, for `grad(optimize(f))`, where forward and
backward loop are compiled apart and the rows would cross between them.

Legality: values do not change; a program that is not differentiated does not either.
Only above 4 MB of rows, and not for dear functions.

Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import optimize
>>> def energy(X):
...     rows = jax.lax.map(lambda p: jnp.exp(-jnp.sum((X - p) ** 2, axis=1)), X)
...     return jnp.sum(rows)
>>> X = jnp.ones((500, 40))
>>> def temporary(f):
...     stats = jax.jit(jax.grad(f)).lower(X).compile().memory_analysis()
...     return stats.temp_size_in_bytes // 2**20
>>> temporary(energy) > 30, temporary(optimize(energy)) < 10
(True, True)

References: Chen et al., *Training deep nets with sublinear memory cost*, 2016;
`jax.checkpoint` and its policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rewriter import jax_compat as jc
from rewriter.cost import elements, nbytes
from rewriter.emit import emit_loop
from rewriter.graph import Loop, reads, substitute
from rewriter.orient import evaluate
from rewriter.pass_base import Context, Emission, LoopPass, Phase, Plan
from rewriter.remarks import Remark, missed, passed
from rewriter.report import format_bytes
from rewriter.residuals import SmallRows, is_light


@dataclass(frozen=True)
class Wrapped(Plan):
    """A loop and the largest row that is stored."""

    loop: Loop | None = None
    most: int = 0


@dataclass(frozen=True)
class RowCheckpoint(LoopPass):
    """The pass."""

    name: ClassVar = "row-checkpoint"
    phase: ClassVar = Phase.EARLY
    numerics: ClassVar = "strict"
    explains: ClassVar = False
    min_bytes: int = 4 << 20
    min_growth: int = 8  # of a row over what a step reads, carries and stores
    most_work: float = 6.0  # cheap operations per element of the largest row

    FOUND = passed(
        "made-again",
        "differentiated, rows of more than {most} elements are made again in the "
        "backward step instead of {bytes_text} being stored",
    )
    NONE = missed("none", "no step makes large rows by elementwise work")

    def match(self, loop: Loop, ctx: Context) -> Wrapped | Remark:
        """Find large rows that cheap work makes from little."""
        none = self.NONE.at(loop.location)
        if not isinstance(loop.length, int) or any(e.effects for e in loop.eqns):
            return none
        given = [v for v, _ in loop.xs] + [c.var for c in loop.carries]
        if not all(
            jc.is_array_aval(v.aval) and not jc.is_extended(v.aval) for v in given
        ):
            return none
        made = [(e, e.outvars[0]) for e in loop.eqns if _is_float(e.outvars[0])]
        light = [(e, v) for e, v in made if is_light(e.primitive.name)]
        largest = max((elements(v) for _, v in light), default=0)
        row = max((nbytes(v) for _, v in light), default=0)
        if largest <= self.min_growth * max(1, sum(map(elements, given))):
            return none
        if row * loop.length < self.min_bytes:
            return none
        heavy = [v for e, v in made if not is_light(e.primitive.name)]
        kept = max(map(elements, heavy), default=0)
        most = max(largest // 4, kept)
        again = [(e, v) for e, v in light if elements(v) > most]
        work = sum(ctx.model.weight(e) * nbytes(v) for e, v in again)
        if work > self.most_work * row or self.min_growth * kept > largest:
            return none
        total = row * loop.length
        remark = self.FOUND.at(
            loop.location, most=most, bytes=total, bytes_text=format_bytes(total)
        )
        return Wrapped(remark, "", loop, most)

    def rewrite(self, plan: Wrapped) -> Emission:
        """Emit the loop with its body under a checkpoint."""
        loop = plan.loop
        assert loop is not None
        made = {v for e in loop.eqns for v in e.outvars}
        inputs = list(
            dict.fromkeys(v for e in loop.eqns for v in reads(e) if v not in made)
        )
        ends = [*(a for _, a in loop.ys), *(c.out for c in loop.carries)]
        outs = list(
            dict.fromkeys(
                a for a in ends if not isinstance(a, jc.Literal) and a in made
            )
        )

        def body(*values: Any) -> list[Any]:
            env = dict(zip(inputs, values, strict=True))
            evaluate(loop.eqns, env, set())
            return [env[v] for v in outs]

        policy = SmallRows(plan.most)
        wrapped = jax.checkpoint(body, prevent_cse=False, policy=policy)
        eqns, new = jc.traced_equations(wrapped, inputs, loop.eqn)
        mapping = dict(zip(outs, new, strict=True))
        new_loop = substitute(loop.replace(eqns=tuple(eqns)), mapping)
        return lambda args: emit_loop(new_loop, args)


def _is_float(var: Any) -> bool:
    return bool(jnp.issubdtype(jc.dtype_of(var), jnp.inexact))
