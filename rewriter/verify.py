"""Verification: a replacement has the types and effects of what it replaces."""

from __future__ import annotations

from typing import Any

from rewriter import jax_compat as jc


class VerifyError(Exception):
    """A rewrite changed a type or lost an effect."""


def used_outvars(eqn: Any) -> list[Any]:
    """Return an equation's outputs that have a name."""
    return [v for v in eqn.outvars if not isinstance(v, jc.DropVar)]


def verify(eqn: Any, closed: Any) -> None:
    """Check a traced replacement against the equation it replaces.

    Raises:
        VerifyError: if shapes, dtypes, weak types or effects differ.
    """
    outvars = jc.open_jaxpr(closed).outvars
    for old, new in zip(used_outvars(eqn), outvars, strict=True):
        if not jc.same_type(old.aval, new.aval):
            raise VerifyError(f"{eqn.primitive.name}: {old.aval} became {new.aval}")
    before = {type(e) for e in eqn.effects}
    after = {type(e) for e in jc.open_jaxpr(closed).effects}
    if not after <= before:
        raise VerifyError(f"{eqn.primitive.name}: effects {after - before} appeared")
