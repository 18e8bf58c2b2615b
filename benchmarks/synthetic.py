"""Synthetic programs of any size, for measuring how the rewriter's time grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Program = tuple[Callable[..., Any], tuple[Any, ...]]
_STEPS, _WIDTH = 16, 4
_EQUATIONS_A_UNIT = 13


def count_equations(jaxpr: Any) -> int:
    """Count the equations of a jaxpr and of all jaxprs inside it."""
    total = 0
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        total += 1 + sum(map(count_equations, _inner(eqn.params.values())))
    return total


def _inner(values: Any) -> Iterator[Any]:
    """Find the jaxprs among parameters."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _inner(value)
        elif hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
            yield value


def _one_scan(kind: int, factor: float, rows: jax.Array) -> jax.Array:
    """Run a small loop: map-shaped, a reduction, a recurrence with work to hoist."""

    def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = jnp.sin(row * factor) + row * 2.0
        if kind == 0:
            return carry, z * z
        if kind == 1:
            return carry + z, row
        carry = jnp.tanh(carry * 0.5 + z)
        return carry, carry * row

    total, stacked = lax.scan(step, jnp.zeros(_WIDTH), rows)
    return stacked + total


def many_scans(size: int) -> Program:
    """Build many small independent scans and straight-line equations between them."""
    units = max(1, size // _EQUATIONS_A_UNIT)

    def program(rows: jax.Array) -> jax.Array:
        out = jnp.zeros_like(rows)
        for k in range(units):
            out = out + jnp.cos(_one_scan(k % 3, 1.0 + k, rows - 1.0))
        return out

    return program, (jnp.ones((_STEPS, _WIDTH)),)


def long_body(size: int) -> Program:
    """Build one scan with a long body: half of it reads the carry, half does not."""
    units = max(1, size // 6)

    def program(rows: jax.Array) -> jax.Array:
        def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            free = row
            for k in range(units):
                free = jnp.sin(free * (1.0 + k)) + row
                carry = jnp.tanh(carry * 0.5) + free
            return carry, carry * free

        return lax.scan(step, jnp.zeros(_WIDTH), rows)[1]

    return program, (jnp.ones((_STEPS, _WIDTH)),)


VARIANTS: dict[str, Callable[[int], Program]] = {
    "many small scans": many_scans,
    "one scan, long body": long_body,
}
