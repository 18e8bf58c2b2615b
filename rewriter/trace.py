"""Tracing: a callable with pytrees, keyword and closed-over values to a jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from rewriter import jax_compat as jc


@dataclass(frozen=True)
class Traced:
    """A traced call: closed jaxpr, flat arguments, and the shape of the result."""

    closed: Any
    flat: list[Any]
    out_tree: Any

    def unflatten(self, out: Sequence[Any]) -> Any:
        """Give flat outputs the structure that the function returned."""
        return jax.tree.unflatten(self.out_tree, out)


def trace_function(
    f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Traced:
    """Trace `f` at these arguments; closed-over tracers become constants."""
    flat, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    out_tree: list[Any] = []

    def run(*leaves: Any) -> list[Any]:
        a, k = jax.tree.unflatten(tree, leaves)
        out, shape = jax.tree.flatten(f(*a, **k))
        out_tree.append(shape)
        return out

    closed = jc.trace(
        run, [jc.abstractify(x) for x in flat], getattr(f, "__name__", "f")
    )
    return Traced(closed, flat, out_tree[0])
