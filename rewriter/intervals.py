"""Decisions on uncertain values: which rows could come out differently.

A row whose distances are known within bounds takes the same decisions (`argmin`,
`top_k`, `<`) as the exact one unless bounds overlap. `Uncertain` follows values with
lower and upper ends through a step; `classify` says beforehand whether it can.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.graph import reads, variant_values
from rewriter.orient import evaluate, extreme
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
_COMPARE = frozenset({"lt", "le", "gt", "ge"})
_EXTREME = frozenset({"reduce_max", "reduce_min"})
_BROKEN = frozenset(
    {"eq", "ne", "floor", "ceil", "round", "sign", "rem", "nextafter", "is_finite"}
)
_SMOOTH = frozenset(
    {"reduce_sum", "dot_general", "select_n", "transpose", "integer_pow"}
)


@dataclass(frozen=True)
class Decisions:
    """What becomes of an uncertain value: bounded values, and decisions on them."""

    bounded: frozenset[Any]
    smooth: frozenset[Any]  # depends on it, without bounds
    deciding: frozenset[int]  # ids of equations
    reason: str = ""

    @property
    def uncertain(self) -> frozenset[Any]:
        """All values that inherit an error."""
        return self.bounded | self.smooth


def classify(eqns: Sequence[Any], start: Any) -> Decisions:
    """Follow the uncertain `start` through equations in order."""
    bounded, smooth, deciding = {start}, set(), set()

    def refused(what: str) -> Decisions:
        return Decisions(frozenset(), frozenset(), frozenset(), what)

    for eqn in eqns:
        name = eqn.primitive.name
        own = [v for v in reads(eqn) if v in bounded]
        loose = [v for v in reads(eqn) if v in smooth]
        if not own and not loose:
            continue
        if name in _COMPARE or name in ("argmin", "argmax", "top_k"):
            if loose:
                return refused(f"{name} of a value whose error is not known")
            if name == "top_k" and len(eqn.invars[0].aval.shape) != 1:
                return refused(name)
            deciding.add(id(eqn))
            if name == "top_k":
                bounded.add(eqn.outvars[0])
            continue
        floating = all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars)
        if name in _BROKEN or not floating:
            return refused(f"{name}, which a rounding may tip,")
        if (
            not loose
            and len(own) == 1
            and (
                name in _MONOTONE
                or name in _SHAPES
                or name in _EXTREME
                or (name == "select_n" and not _among(eqn.invars[0], bounded))
                or name == "convert_element_type"
            )
        ):
            bounded.update(eqn.outvars)
        elif (
            name in ELEMENTWISE
            or name in _SMOOTH
            or name in _SHAPES
            or name in _EXTREME
            or (name == "gather" and not _among(eqn.invars[1], bounded | smooth))
        ):
            smooth.update(eqn.outvars)
        else:
            return refused(name)
    return Decisions(frozenset(bounded), frozenset(smooth), frozenset(deciding))


def run(
    eqns: Sequence[Any], known: Decisions, env: dict[Any, Any], ends: dict[Any, Any]
) -> Any:
    """Evaluate one row in `env` and return whether a decision was uncertain.

    `ends` maps bounded values to a pair of values between which they lie.
    """
    doubt = jnp.zeros((), bool)

    def read(v: Any) -> Any:
        return v.val if isinstance(v, jc.Literal) else env[v]

    variant = variant_values(eqns, set(known.uncertain))
    for eqn in eqns:
        values = [read(v) for v in eqn.invars]
        evaluate([eqn], env, variant)
        if id(eqn) in known.deciding:
            doubt |= _doubt(eqn, values, env, ends)
        elif eqn.outvars[0] in known.bounded:
            pairs = _pairs(eqn, values, ends)
            ends[eqn.outvars[0]] = _ends(eqn, pairs)
            by = eqn.invars[-1] if eqn.primitive.name == "div" else None
            if by is not None and _among(by, known.bounded):
                doubt |= _may_be_zero(pairs[1])
    return doubt


def _among(atom: Any, values: Collection[Any]) -> bool:
    return not isinstance(atom, jc.Literal) and atom in values


Pair = tuple[Any, Any]


def _pairs(eqn: Any, values: Sequence[Any], ends: dict[Any, Any]) -> list[Pair]:
    """Return the ends of an equation's operands."""
    return [
        (x, x) if isinstance(v, jc.Literal) else ends.get(v, (x, x))
        for v, x in zip(eqn.invars, values, strict=True)
    ]


def _ends(eqn: Any, pairs: Sequence[Pair]) -> Pair:
    """Return two values between which a bounded result lies."""
    name = eqn.primitive.name
    if name in _EXTREME:  # which end is the upper one may differ between elements
        low, high = _ordered(pairs[0])
        return extreme(eqn, [low]), extreme(eqn, [high])
    one, two = (jc.rebind(eqn, [p[side] for p in pairs])[0] for side in (0, 1))
    if name not in _APPROXIMATE:
        return one, two
    low, high = _ordered((one, two))
    error = _ROUNDINGS * float(jnp.finfo(low.dtype).eps)
    return (
        lax.min(low * (1 - error), low * (1 + error)),
        lax.max(high * (1 - error), high * (1 + error)),
    )


def _may_be_zero(pair: Pair) -> Any:
    """Return whether a divisor may pass zero, where a quotient is not monotone."""
    a, b = pair
    return ~jnp.all((a >= 0) & (b >= 0) | (a < 0) & (b < 0))


def _doubt(
    eqn: Any, values: Sequence[Any], env: dict[Any, Any], ends: dict[Any, Any]
) -> Any:
    """Return whether a decision could be another one within the bounds."""
    name = eqn.primitive.name
    if name in _COMPARE:
        pairs = _pairs(eqn, values, ends)
        (a, b), (c, d) = (_ordered(p) for p in pairs)
        first, second = jc.rebind(eqn, [a, d])[0], jc.rebind(eqn, [b, c])[0]
        return jnp.any(first != second)
    low, high = _ordered(ends[eqn.invars[0]])
    if name in ("argmax", "top_k"):
        low, high = -high, -low
    if name == "top_k":
        taken = env[eqn.outvars[1]]
        lows, highs = low[taken], high[taken]
        ends[eqn.outvars[0]] = (-highs, -lows)
        k = taken.shape[-1]
        inside = jnp.sum((~(low > highs[-1])).astype(jnp.int32))
        crossing = jnp.any(~(lows[1:] > highs[:-1]))
        return crossing | (inside > k)
    (axis,) = eqn.params["axes"]
    at = jnp.expand_dims(env[eqn.outvars[0]], axis)
    nearest = high[at] if high.ndim == 1 else jnp.take_along_axis(high, at, axis)
    able = (~(low > nearest)).astype(jnp.int32)
    return jnp.any(jnp.sum(able, axis=axis) > 1)


def _ordered(pair: Pair) -> Pair:
    a, b = pair
    if a is b:
        return a, b
    return lax.min(a, b), lax.max(a, b)
