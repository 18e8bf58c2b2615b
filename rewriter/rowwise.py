"""A call inside a body that brings its own batched form.

An equation `rewriter_rowwise` computes what its jaxpr says; where the distribution
batches it, `form.batched` is used in place of JAX's batching rules. So an algorithm for
many rows at once (distances by a matrix product) takes part in partition, schedule and
memory budget like any other equation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from rewriter import jax_compat as jc


class Form(Protocol):
    """What a batched form must have; hashable."""

    @property
    def row_ns(self) -> float:
        """Estimated time of one row when batched."""
        ...

    @property
    def row_bytes(self) -> int:
        """What one row of a batch holds beyond its outputs."""
        ...

    @property
    def mapped(self) -> Sequence[bool]:
        """Which operands have one value per row."""
        ...

    def batched(self, values: Sequence[Any], jaxpr: Any) -> list[Any]:
        """Compute all rows; mapped operands and outputs have the rows first."""
        ...


def _batch(
    values: Sequence[Any], dims: Sequence[Any], jaxpr: Any, form: Form
) -> tuple[list[Any], list[int]]:
    if all(d is None or m for d, m in zip(dims, form.mapped, strict=True)):
        size = next(
            v.shape[d] for v, d in zip(values, dims, strict=True) if d is not None
        )
        rows = [
            v
            if not m
            else jnp.broadcast_to(v[None], (size, *v.shape))
            if d is None
            else jnp.moveaxis(v, d, 0)
            for v, d, m in zip(values, dims, form.mapped, strict=True)
        ]
        out = form.batched(rows, jaxpr)
    else:
        fun = jc.jaxpr_as_fun(jaxpr)
        out = jax.vmap(lambda *a: list(fun(*a)), in_axes=tuple(dims))(*values)
    return list(out), [0] * len(out)


_rowwise_p = jc.call_primitive("rewriter_rowwise", _batch)


def rowwise(jaxpr: Any, form: Form, values: Sequence[Any]) -> list[Any]:
    """Bind the call."""
    return _rowwise_p.bind(*values, jaxpr=jaxpr, form=form)


def form_of(eqn: Any) -> Any:
    """Return the batched form of a call, or None for any other equation."""
    return eqn.params["form"] if eqn.primitive is _rowwise_p else None
