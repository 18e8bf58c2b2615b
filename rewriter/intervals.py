"""Values that are known within ends, and the decisions that can be taken on them.

A row whose distances are known within bounds takes the same decisions (`argmin`,
`top_k`, `<`) as the exact one unless bounds overlap. `classify` says beforehand what
becomes of the distances; `rewriter.decisions` then follows the ends through the step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.graph import reads
from rewriter.orient import extreme
from rewriter.planes import ELEMENTWISE

# monotone in any one operand, the others fixed
_MONOTONE = frozenset(
    {
        "neg",
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "exp",
        "exp2",
        "log",
        "log1p",
        "expm1",
        "tanh",
        "logistic",
        "sqrt",
        "rsqrt",
        "cbrt",
        "erf",
        "atan",
    }
)
_APPROXIMATE = frozenset(  # XLA's are wrong, and not monotone, by a few roundings
    {
        "exp",
        "exp2",
        "log",
        "log1p",
        "expm1",
        "tanh",
        "logistic",
        "rsqrt",
        "cbrt",
        "erf",
        "atan",
    }
)
_ROUNDINGS = 8
_SHAPES = frozenset(
    {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "stop_gradient", "copy"}
)
COMPARE = frozenset({"lt", "le", "gt", "ge"})
_INDICES = frozenset({"argmin", "argmax", "top_k"})
_EXTREME = frozenset({"reduce_max", "reduce_min"})
_BROKEN = frozenset(
    {"eq", "ne", "floor", "ceil", "round", "sign", "rem", "nextafter", "is_finite"}
)
_SMOOTH = frozenset(
    {"reduce_sum", "dot_general", "select_n", "transpose", "integer_pow"}
)
_KEEPING = _MONOTONE | _SHAPES | _EXTREME | {"convert_element_type"}
_CONTINUOUS = ELEMENTWISE | _SMOOTH | _SHAPES | _EXTREME


@dataclass(frozen=True)
class Decisions:
    """What becomes of an uncertain value: bounded values, and decisions on them."""

    start: Any
    bounded: frozenset[Any]
    smooth: frozenset[Any]  # depends on it, without bounds
    deciding: frozenset[int]  # ids of equations
    pointwise: tuple[Any, ...]  # equations on each element of `start` by itself
    counts: dict[int, Any]  # the sum that counts what a comparison says
    rough: frozenset[Any]  # has an error of `start`, not only of its winners
    reason: str = ""

    @property
    def uncertain(self) -> frozenset[Any]:
        """All values that inherit an error."""
        return self.bounded | self.smooth


def classify(eqns: Sequence[Any], start: Any, outs: Collection[Any] = ()) -> Decisions:
    """Follow the uncertain `start` through equations in order; `outs` leave them."""
    bounded, smooth, deciding = {start}, set(), set()
    rough, pointwise, made = {start}, [], {start}

    for eqn in eqns:
        name = eqn.primitive.name
        own = [v for v in reads(eqn) if v in bounded]
        loose = [v for v in reads(eqn) if v in smooth]
        if not own and not loose:
            continue
        wins = is_choice(eqn) and own[0] in made
        decides = name in COMPARE or name in _INDICES
        if not rough.isdisjoint(reads(eqn)) and not wins:
            rough.update(() if decides and name != "top_k" else eqn.outvars)
        if decides:
            if loose:
                return _refused(start, f"{name} of a value whose error is not known")
            if name == "top_k" and not is_choice(eqn):
                return _refused(start, name)
            deciding.add(id(eqn))
            if name == "top_k":
                bounded.add(eqn.outvars[0])
            continue
        floating = all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars)
        if name in _BROKEN or not floating:
            return _refused(start, f"{name}, which a rounding may tip,")
        if not loose and len(own) == 1 and _keeps_ends(eqn, bounded):
            bounded.update(eqn.outvars)
            if own[0] in made and _is_pointwise(eqn, start):
                made.update(eqn.outvars)
                pointwise.append(eqn)
        elif _is_smooth(eqn, bounded | smooth):
            smooth.update(eqn.outvars)
        else:
            return _refused(start, name)
    return Decisions(
        start,
        frozenset(bounded),
        frozenset(smooth),
        frozenset(deciding),
        tuple(pointwise),
        _counts(eqns, deciding, outs),
        frozenset(rough),
    )


def _refused(start: Any, reason: str) -> Decisions:
    empty: frozenset[Any] = frozenset()
    return Decisions(start, empty, empty, empty, (), {}, empty, reason)


def _keeps_ends(eqn: Any, bounded: Collection[Any]) -> bool:
    """Whether the result for the ends of its one bounded operand are ends of it."""
    if eqn.primitive.name == "select_n":
        return not among(eqn.invars[0], bounded)
    return eqn.primitive.name in _KEEPING


def _is_smooth(eqn: Any, uncertain: Collection[Any]) -> bool:
    """Whether a small error of an operand is a small error of the result."""
    if eqn.primitive.name == "gather":
        return not among(eqn.invars[1], uncertain)
    return eqn.primitive.name in _CONTINUOUS


def is_choice(eqn: Any) -> bool:
    """Whether an equation takes values of a vector that could be evaluated again."""
    name = eqn.primitive.name
    return name in (*_EXTREME, "top_k") and len(eqn.invars[0].aval.shape) == 1


def _is_pointwise(eqn: Any, start: Any) -> bool:
    """Whether an equation acts on every element of a vector by itself."""
    elementwise = eqn.primitive.name in ELEMENTWISE or eqn.primitive.name == "select_n"
    return elementwise and all(
        v.aval.shape in ((), start.aval.shape) for v in (*eqn.invars, *eqn.outvars)
    )


def _counts(
    eqns: Sequence[Any], deciding: Collection[int], outs: Collection[Any]
) -> dict[int, Any]:
    """Return the sums that count what comparisons say, by their ids."""
    readers: dict[Any, list[Any]] = {}
    for eqn in eqns:
        for v in reads(eqn):
            readers.setdefault(v, []).append(eqn)

    def counting(eqn: Any) -> Any:
        (out,) = eqn.outvars
        if out in outs or len(readers.get(out, [])) != 1:
            return None
        (reader,) = readers[out]
        if reader.primitive.name == "convert_element_type":
            return counting(reader) if _counts_exactly(reader.outvars[0]) else None
        whole = len(reader.params.get("axes", ())) == len(out.aval.shape)
        return reader if reader.primitive.name == "reduce_sum" and whole else None

    found = {
        id(e): counting(e)
        for e in eqns
        if id(e) in deciding and e.primitive.name in COMPARE
    }
    return {k: e for k, e in found.items() if e is not None}


def _counts_exactly(var: Any) -> bool:
    dtype, size = var.aval.dtype, max(var.aval.size, 1)
    if jnp.issubdtype(dtype, jnp.floating):
        return size <= 2 ** jnp.finfo(dtype).nmant
    return jnp.issubdtype(dtype, jnp.integer) and size <= jnp.iinfo(dtype).max


class Ends(NamedTuple):
    """Two values between which a value lies; the first is the lower one if sorted."""

    one: Any
    other: Any
    is_sorted: bool = False

    def ordered(self) -> Ends:
        """Return the ends with the lower one first in every element."""
        if self.is_sorted or self.one is self.other:
            return self
        return Ends(lax.min(self.one, self.other), lax.max(self.one, self.other), True)

    def negated(self) -> Ends:
        """Return the ends of the negative."""
        return Ends(-self.other, -self.one, self.is_sorted)

    def at(self, index: Any) -> Ends:
        """Return the ends of elements."""
        return Ends(self.one[index], self.other[index], self.is_sorted)


def among(atom: Any, values: Collection[Any]) -> bool:
    """Whether an operand is a variable among others."""
    return not isinstance(atom, jc.Literal) and atom in values


def ends_among(eqn: Any, values: Sequence[Any], ends: Mapping[Any, Ends]) -> list[Ends]:
    """Return the ends of an equation's operands, where they have any."""
    return [
        Ends(x, x) if isinstance(v, jc.Literal) else ends.get(v, Ends(x, x))
        for v, x in zip(eqn.invars, values, strict=True)
    ]


def ends_of(eqn: Any, pairs: Sequence[Ends]) -> Ends:
    """Return two values between which a bounded result lies."""
    name = eqn.primitive.name
    if name in _EXTREME:  # which end is the upper one may differ between elements
        low, high, _ = pairs[0].ordered()
        return Ends(extreme(eqn, [low]), extreme(eqn, [high]), True)
    one, two = (jc.rebind(eqn, [p[side] for p in pairs])[0] for side in (0, 1))
    direction = _direction(eqn, pairs)
    ends = Ends(two, one, True) if direction < 0 else Ends(one, two, direction > 0)
    if name not in _APPROXIMATE:
        return ends
    low, high, _ = ends.ordered()
    error = _ROUNDINGS * float(jnp.finfo(low.dtype).eps)
    return Ends(
        lax.min(low * (1 - error), low * (1 + error)),
        lax.max(high * (1 - error), high * (1 + error)),
        True,
    )


def _direction(eqn: Any, pairs: Sequence[Ends]) -> int:
    """Return 1 if sorted ends stay sorted, -1 if they change places, else 0."""
    own = [k for k, p in enumerate(pairs) if p.one is not p.other]
    if len(own) != 1 or not pairs[own[0]].is_sorted:
        return 0
    name = eqn.primitive.name
    if name in ("neg", "rsqrt") or (name == "sub" and own == [1]):
        return -1
    if name in ("mul", "div"):
        factor = eqn.invars[1 - own[0]]
        if not isinstance(factor, jc.Literal) or (name == "div" and own == [1]):
            return 0
        return int(np.sign(factor.val))
    return 1


def may_be_zero(pair: Ends) -> Any:
    """Return whether a divisor may pass zero, where a quotient is not monotone."""
    a, b, _ = pair
    return ~jnp.all((a >= 0) & (b >= 0) | (a < 0) & (b < 0))
