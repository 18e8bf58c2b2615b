"""Patterns over a loop body: small expressions, matched modulo commutativity.

A pattern is `Bind("name")` (binds anything, or means what was bound before), a number
(a literal of that value), or `Op(primitive, *patterns)` of an elementwise primitive.
Conversions that only drop a weak type and broadcasts of the operand are looked through;
of two broadcasts of one value only those along the same axes are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewriter import jax_compat as jc
from rewriter.graph import Loop, substitute, variant_values

_COMMUTATIVE = frozenset({"add", "mul", "max", "min", "add_any", "and", "or", "eq"})
Bound = dict[str, Any]  # "x": an atom; "axes of x": where it lies in the whole
Axes = tuple[int | None, ...]  # of the whole; None: of size one
Placed = tuple[Any, Axes]


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
        return self._behind(atom, _own_axes(atom))[0]

    def same(self, a: Any, b: Any) -> bool:
        """Whether two atoms are one value, broadcast along the same axes."""
        return self._same((a, _own_axes(a)), (b, _own_axes(b)))

    def readers(self, atom: Any) -> list[Any]:
        """Return the equations that read a value, retyped or broadcast or not."""
        return [
            eqn
            for eqn in self.eqns
            if any(self.plain(v) is atom for v in eqn.invars)
            and self.plain(eqn.outvars[0]) is not atom
        ]

    def match(self, pattern: Any, atom: Any, bound: Bound) -> Bound | None:
        """Return the bindings of the first way in which a pattern fits, or None.

        A name that was bound before, to a value of fewer axes than the atom, means it
        along the first of them.
        """
        return next(self._ways(pattern, (atom, _own_axes(atom)), bound), None)

    def _behind(self, atom: Any, axes: Axes) -> Placed:
        """Look through an atom that lies along some axes of a whole."""
        while not isinstance(atom, jc.Literal) and atom in self.made:
            eqn = self.made[atom]
            if not _is_view(eqn):
                break
            atom, axes = eqn.invars[0], _source_axes(eqn, axes)
        sizes = jc.shape_of(atom)
        return atom, tuple(
            None if n == 1 else k for k, n in zip(axes, sizes, strict=True)
        )

    def _ways(self, pattern: Any, placed: Placed, bound: Bound) -> Iterator[Bound]:
        if isinstance(pattern, Bind):
            known = bound.get(pattern.name)
            at = f"axes of {pattern.name}"
            if known is None:
                yield {**bound, pattern.name: placed[0], at: placed[1]}
            elif self._same((known, bound.get(at, _own_axes(known))), placed):
                yield bound
            return
        seen, axes = self._behind(*placed)
        if not isinstance(pattern, Op):
            if literal(seen) is not None and literal(seen) == pattern:
                yield bound
            return
        eqn = None if isinstance(seen, jc.Literal) else self.made.get(seen)
        if eqn is None or eqn.primitive.name not in pattern.names.split("|"):
            return
        if len(pattern.operands) != len(eqn.invars):
            return
        operands = [(v, axes if v.aval.shape else ()) for v in eqn.invars]
        yield from self._all(pattern.operands, operands, bound)
        if eqn.primitive.name in _COMMUTATIVE:
            yield from self._all(pattern.operands, operands[::-1], bound)

    def _all(
        self, patterns: Sequence[Any], atoms: Sequence[Placed], bound: Bound
    ) -> Iterator[Bound]:
        if not patterns:
            yield bound
            return
        for more in self._ways(patterns[0], atoms[0], bound):
            yield from self._all(patterns[1:], atoms[1:], more)

    def _same(self, a: Placed, b: Placed) -> bool:
        (one, axes), (other, others) = self._behind(*a), self._behind(*b)
        return one is other and axes == others


def _own_axes(atom: Any) -> Axes:
    return tuple(range(len(atom.aval.shape)))


def _is_view(eqn: Any) -> bool:
    """Whether an equation only retypes, broadcasts, or adds and drops unit axes."""
    name = eqn.primitive.name
    if name == "convert_element_type":
        return eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
    if name in ("reshape", "squeeze", "expand_dims"):
        a, b = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        return [n for n in a if n != 1] == [n for n in b if n != 1]
    return name == "broadcast_in_dim"


def _source_axes(eqn: Any, axes: Axes) -> Axes:
    """Return the axes along which the operand of a view lies, given its result's."""
    shape, whole = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.primitive.name == "broadcast_in_dim":
        dims = eqn.params["broadcast_dimensions"]
        return tuple(
            axes[d] if n == whole[d] else None for d, n in zip(dims, shape, strict=True)
        )
    wide = iter([k for k, n in zip(axes, whole, strict=True) if n != 1])
    return tuple(None if n == 1 else next(wide) for n in shape)


def merged(loop: Loop) -> Loop:
    """Return the loop with what several equations compute in the same way done once."""
    first: dict[Any, Any] = {}
    mapping: dict[Any, Any] = {}
    kept: list[Any] = []
    for eqn in loop.eqns:
        key = _meaning(eqn, mapping)
        known = None if key is None else first.setdefault(key, eqn)
        if known is None or known is eqn:
            kept.append(eqn)
        else:
            mapping.update(zip(eqn.outvars, known.outvars, strict=True))
    return substitute(loop.replace(eqns=tuple(kept)), mapping) if mapping else loop


def _meaning(eqn: Any, mapping: Mapping[Any, Any]) -> Any:
    """Return what an equation computes, to be compared; None if it stays as it is."""
    if eqn.effects or any(isinstance(v, jc.DropVar) for v in eqn.outvars):
        return None
    if next(iter(jc.sub_jaxprs(eqn)), None) is not None:
        return None
    operands = tuple(
        (np.asarray(v.val).tobytes(), str(v.aval))
        if isinstance(v, jc.Literal)
        else mapping.get(v, v)
        for v in eqn.invars
    )
    key = (eqn.primitive, eqn.ctx, operands, tuple(sorted(eqn.params.items())))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def literal(atom: Any) -> float | None:
    """Return the value of a real scalar literal."""
    if not isinstance(atom, jc.Literal) or np.size(atom.val) != 1:
        return None
    if np.iscomplexobj(atom.val):
        return None
    return float(np.asarray(atom.val).reshape(()))


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
