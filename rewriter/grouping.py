"""Branches of a condition for many rows at once, each on the rows that take it.

JAX's own rule for a batched `cond` runs every branch on every row and selects. Here a
dear branch runs on blocks of its own rows only: the k-th of them is found in the
running count of the mask (*stream compaction*; routing of tokens to experts), the last
block is filled up with the last row. Cheap branches run on all rows.

References: Blelloch, *Prefix sums and their applications*, 1990 (compaction by a scan).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.emit import emitted, value_of
from rewriter.graph import variant_values
from rewriter.orient import evaluate


@dataclass(frozen=True)
class Grouped:
    """The batched form; operands are those of the `cond`, the index first."""

    mapped: tuple[bool, ...]
    own_rows: tuple[bool, ...]  # per branch: run on blocks of its own rows
    block: int
    row_ns: float
    row_bytes: int

    def batched(self, values: Sequence[Any], jaxpr: Any) -> list[Any]:
        """Compute all rows."""
        (eqn,) = jc.open_jaxpr(jaxpr).eqns
        index, *operands = values
        branches = eqn.params["branches"]
        index = jnp.clip(index, 0, len(branches) - 1)
        out = [
            jnp.zeros((*index.shape, *v.aval.shape), v.aval.dtype) for v in eqn.outvars
        ]
        for k, branch in enumerate(branches):
            if not self.own_rows[k]:
                new = self._rows(branch, operands, len(index))
                out = [_where(index == k, a, b) for a, b in zip(new, out, strict=True)]
        for k, branch in enumerate(branches):
            if self.own_rows[k]:
                out = self._on_own_rows(branch, index == k, operands, out)
        return out

    def _rows(self, branch: Any, operands: Sequence[Any], count: int) -> list[Any]:
        """Run a branch on all the rows given."""
        body = jc.open_jaxpr(branch)
        flags = self.mapped[1:]
        seeds = {v for v, m in zip(body.invars, flags, strict=True) if m}
        variant = variant_values(body.eqns, seeds)

        def one(*row: Any) -> list[Any]:
            env = dict(zip(body.constvars, branch.consts, strict=True))
            env.update(zip(body.invars, row, strict=True))
            evaluate(body.eqns, env, variant)
            return [value_of(a, env) for a in body.outvars]

        axes = [0 if m else None for m in flags]
        return jax.vmap(one, in_axes=axes, axis_size=count)(*operands)

    def _on_own_rows(
        self, branch: Any, chosen: Any, operands: Sequence[Any], out: list[Any]
    ) -> list[Any]:
        """Run a branch on blocks of the rows that chose it, and write those rows."""
        size = min(self.block, len(chosen))
        count = jnp.cumsum(chosen, dtype=jnp.int32)
        total = count[-1]

        def body(state: Any) -> Any:
            done, out = state
            ranks = jnp.minimum(done + 1 + jnp.arange(size, dtype=jnp.int32), total)
            rows = jnp.searchsorted(count, ranks)
            here = {"mode": "promise_in_bounds", "indices_are_sorted": True}
            taken = [
                v.at[rows].get(**here) if m else v
                for v, m in zip(operands, self.mapped[1:], strict=True)
            ]
            new = self._rows(branch, taken, size)
            out = [o.at[rows].set(y, **here) for o, y in zip(out, new, strict=True)]
            return done + size, out

        start = (jnp.zeros((), jnp.int32), out)
        return lax.while_loop(lambda s: s[0] < total, emitted(body, "group"), start)[1]


def _where(chosen: Any, new: Any, old: Any) -> Any:
    return jnp.where(chosen.reshape(-1, *[1] * (old.ndim - 1)), new, old)
