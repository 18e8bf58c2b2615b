"""Patterns over a loop body: small expressions, matched modulo commutativity.

A pattern is `Any_("name")` (binds anything), `Same("name")` (what was bound before), a
number (a literal of that value), or `Op(primitive, *patterns)`. Conversions that only
drop a weak type and broadcasts of the operand are looked through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewriter import jax_compat as jc
from rewriter.graph import variant_values

_COMMUTATIVE = frozenset({"add", "mul", "max", "min", "add_any", "and", "or", "eq"})
Bound = dict[str, Any]


@dataclass(frozen=True)
class Bind:
    """Binds a value; a name seen before must be the same value."""

    name: str


@dataclass(frozen=True)
class Op:
    """An equation of this primitive; names of alternatives are separated by `|`."""

    names: str
    operands: tuple[Any, ...]

    def __init__(self, names: str, *operands: Any) -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "operands", operands)


class Body:
    """The equations of a body by what they make."""

    def __init__(self, eqns: Any) -> None:
        self.eqns = tuple(eqns)
        self.made = {v: e for e in eqns for v in e.outvars}

    def plain(self, atom: Any) -> Any:
        """Return what an atom is behind retypings and broadcasts."""
        while not isinstance(atom, jc.Literal) and atom in self.made:
            eqn = self.made[atom]
            name = eqn.primitive.name
            if name == "convert_element_type":
                if eqn.invars[0].aval.dtype != eqn.outvars[0].aval.dtype:
                    return atom
            elif name not in (
                "broadcast_in_dim",
                "reshape",
                "squeeze",
                "expand_dims",
            ) or (name != "broadcast_in_dim" and not _only_units(eqn)):
                return atom
            atom = eqn.invars[0]
        return atom

    def readers(self, atom: Any) -> list[Any]:
        """Return the equations that read a value, retyped or broadcast or not."""
        found: dict[int, Any] = {}
        for eqn in self.eqns:
            if any(self.plain(v) is atom for v in eqn.invars):
                if self.plain(eqn.outvars[0]) is not atom:
                    found[id(eqn)] = eqn
        return list(found.values())

    def match(self, pattern: Any, atom: Any, bound: Bound) -> Bound | None:
        """Return the bindings of the first way in which a pattern fits, or None."""
        return next(self._ways(pattern, atom, bound), None)

    def _ways(self, pattern: Any, atom: Any, bound: Bound) -> Iterator[Bound]:
        if isinstance(pattern, Bind):
            known = bound.get(pattern.name)
            if known is None:
                yield {**bound, pattern.name: atom}
            elif self._same(known, atom):
                yield bound
            return
        seen = self.plain(atom)
        if not isinstance(pattern, Op):
            if literal(seen) is not None and literal(seen) == pattern:
                yield bound
            return
        eqn = None if isinstance(seen, jc.Literal) else self.made.get(seen)
        if eqn is None or eqn.primitive.name not in pattern.names.split("|"):
            return
        if len(pattern.operands) != len(eqn.invars):
            return
        orders = [tuple(eqn.invars)]
        if eqn.primitive.name in _COMMUTATIVE:
            orders.append(tuple(eqn.invars[::-1]))
        for order in orders:
            yield from self._all(pattern.operands, order, bound)

    def _all(self, patterns: Any, atoms: Any, bound: Bound) -> Iterator[Bound]:
        if not patterns:
            yield bound
            return
        for more in self._ways(patterns[0], atoms[0], bound):
            yield from self._all(patterns[1:], atoms[1:], more)

    def _same(self, a: Any, b: Any) -> bool:
        if a is b:
            return True
        a, b = self.plain(a), self.plain(b)
        return a is b and not isinstance(a, jc.Literal)


def literal(atom: Any) -> float | None:
    """Return the value of a scalar literal."""
    if not isinstance(atom, jc.Literal) or np.size(atom.val) != 1:
        return None
    return float(np.asarray(atom.val).reshape(()))


def _only_units(eqn: Any) -> bool:
    a, b = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return [n for n in a if n != 1] == [n for n in b if n != 1]


def initial_literal(loop: Any, carry: Any) -> float | None:
    """Return the initial value of a carry if the program has it as a literal."""
    operand = carry.init.operand
    return None if operand is None else literal(loop.eqn.invars[operand])


def depends_on(eqns: Any, atom: Any, sources: Mapping[Any, Any] | set[Any]) -> bool:
    """Whether a value depends on any of the sources."""
    if isinstance(atom, jc.Literal):
        return False
    live, made = [atom], {v: e for e in eqns for v in e.outvars}
    seen: set[Any] = set()
    while live:
        v = live.pop()
        if v in sources:
            return True
        if v in seen or v not in made:
            continue
        seen.add(v)
        live += [x for x in made[v].invars if not isinstance(x, jc.Literal)]
    return False


def is_private(loop: Any, carries: Any) -> bool:
    """Whether nothing but the carries themselves depends on them."""
    inside = {c.var for c in carries}
    if any(e.effects for e in loop.eqns):
        return False
    live = variant_values(loop.eqns, inside)
    ends = [c.out for c in loop.carries if c.var not in inside]
    ends += [a for _, a in loop.ys]
    return not any(a in live for a in ends if not isinstance(a, jc.Literal))
