"""Known outputs: what is known at every step need not be stacked by the loop.

What it does: an output row that is known at compile time for all steps (an index made
from a counter, which `grad` saves for the backward loop) is made from an `iota` after
the loop.

Why it pays: the loop that reads it back then knows its indices too, so its reads are
rows and its writes outputs.

Legality: always; integers only, bit-exact. Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(x):
...     def step(c, i):
...         return jnp.sin(c), (7 - 2 * i, c)
...     return jax.lax.scan(step, x, jnp.arange(100))[1]
>>> report = explain(f)(1.0)
>>> print(report.after.outline())
add iota mul
scan 100, 1 carried:
  sin

References: induction variable substitution, as for carries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.graph import Loop, Outputs, Result
from rewriter.indices import Affine
from rewriter.pass_base import Context, LoopPass, Plan
from rewriter.remarks import Remark, missed, passed


@dataclass(frozen=True)
class KnownRows(Plan):
    """Outputs by key with their affine rows."""

    loop: Loop | None = None
    rows: Mapping[int, tuple[Affine, Any]] | None = None


@dataclass(frozen=True)
class KnownOutput(LoopPass):
    """The pass."""

    name: ClassVar = "known-output"
    numerics: ClassVar = "strict"

    FOUND = passed("counter", "{count} output(s) known at every step are not stacked")
    NONE = missed("none", "no output is known at every step")

    def match(self, loop: Loop, ctx: Context) -> KnownRows | Remark:
        """Find integer outputs that are affine in the step."""
        integer = [
            (k, a)
            for k, a in loop.ys
            if not isinstance(a, jc.Literal) and jc.is_integer(a.aval)
        ]
        if not integer:
            return self.NONE.at(loop.location)
        known = loop.known()
        rows = {
            k: (value, a.aval)
            for k, a in integer
            if isinstance(value := known.get(a), Affine)
        }
        if not rows:
            return self.NONE.at(loop.location)
        return KnownRows(self.FOUND.at(loop.location, count=len(rows)), "", loop, rows)

    def rewrite(self, plan: KnownRows) -> Loop:
        """Make the rows outside of the loop."""
        loop, rows = plan.loop, plan.rows
        assert loop is not None
        assert rows is not None
        results = tuple(
            r
            if r is None or not any(k in rows for k in r.keys)
            else Result(
                _stack(r.get, {k: rows[k] for k in r.keys if k in rows}, loop.length),
                r.carry,
                None,
                tuple(k for k in r.keys if k not in rows),
            )
            for r in loop.results
        )
        return loop.replace(
            results=results, ys=tuple(y for y in loop.ys if y[0] not in rows)
        )


def _stack(get: Any, rows: Mapping[int, tuple[Affine, Any]], length: int) -> Any:
    def made(out: Outputs) -> Any:
        stacks = {
            **out.stacks,
            **{k: _rows(a, v, length) for k, (a, v) in rows.items()},
        }
        return get(Outputs(out.args, out.finals, stacks))

    return made


def _rows(affine: Affine, aval: Any, length: int) -> Any:
    j = lax.iota(aval.dtype, length).reshape((length,) + (1,) * affine.base.ndim)
    step = jnp.asarray(affine.step.astype(aval.dtype))
    return jnp.asarray(affine.base.astype(aval.dtype)) + step * j
