"""Recurrence classification: what a carry is.

Associative operations stand in one table with their identities (after Halide's
table of associative operators). Classes: *invariant* (out is in), *reduction*
(`op(c, t)`, read nowhere else), *delay* (in no cycle: an earlier value of another),
*opaque* (the rest, in a cycle with itself).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.graph import Carry, Loop, reads
from rewriter.orient import keeping_nan


@dataclass(frozen=True)
class Associative:
    """An associative, commutative operation: how to combine and how to reduce."""

    name: str
    primitive: str
    combine: Callable[[Any, Any], Any]
    reduce: Callable[[Any], Any]  # over the leading axis
    exact: bool  # order does not matter, floats included


ASSOCIATIVE: dict[str, Associative] = {
    "sum": Associative("sum", "add", lax.add, lambda t: _same_dtype(jnp.sum, t), False),
    "prod": Associative(
        "prod", "mul", lax.mul, lambda t: _same_dtype(jnp.prod, t), False
    ),
    "max": Associative("max", "max", lax.max, lambda t: _extreme(jnp.max, t), True),
    "min": Associative("min", "min", lax.min, lambda t: _extreme(jnp.min, t), True),
    "and": Associative(
        "and", "and", lax.bitwise_and, lambda t: jnp.bitwise_and.reduce(t, axis=0), True
    ),
    "or": Associative(
        "or", "or", lax.bitwise_or, lambda t: jnp.bitwise_or.reduce(t, axis=0), True
    ),
    "xor": Associative(
        "xor", "xor", lax.bitwise_xor, lambda t: jnp.bitwise_xor.reduce(t, axis=0), True
    ),
}
_FAMILY = {
    "add": "sum",
    "add_any": "sum",
    "sub": "sum",
    "mul": "prod",
    "max": "max",
    "min": "min",
    "and": "and",
    "or": "or",
    "xor": "xor",
}


def _same_dtype(reduce: Callable[..., Any], terms: Any) -> Any:
    return reduce(terms, axis=0, dtype=terms.dtype)


def _extreme(reduce: Callable[..., Any], terms: Any) -> Any:
    return keeping_nan(reduce(terms, axis=0), terms, (0,))


@dataclass(frozen=True)
class Term:
    """One operand accumulated per step; `negative` for a subtraction."""

    atom: Any
    negative: bool = False


@dataclass(frozen=True)
class Reduction:
    """A carry that only accumulates."""

    carry: Carry
    op: Associative
    terms: tuple[Term, ...]
    eqns: tuple[int, ...]  # the accumulating equations

    @property
    def is_exact(self) -> bool:
        """Whether any order gives the same bits."""
        kind = np.dtype(self.carry.var.aval.dtype).kind
        return self.op.exact or kind in "iub"


def uses(loop: Loop) -> Counter[Any]:
    """Count the readers of every variable of a body."""
    ends = (*(a for _, a in loop.ys), *(c.out for c in loop.carries))
    return count_reads(loop.eqns, ends)


def count_reads(eqns: Sequence[Any], outs: Sequence[Any]) -> Counter[Any]:
    """Count the readers of every variable, outputs included."""
    count = Counter(v for e in eqns for v in reads(e))
    count.update(a for a in outs if not isinstance(a, jc.Literal))
    return count


def users_of(eqns: Sequence[Any]) -> dict[Any, list[int]]:
    """Map every variable to the equations that read it, once for each operand."""
    users: dict[Any, list[int]] = defaultdict(list)
    for i, eqn in enumerate(eqns):
        for var in reads(eqn):
            users[var].append(i)
    return users


def reduction_of(
    loop: Loop, carry: Carry, count: Counter[Any], users: dict[Any, list[int]]
) -> Reduction | None:
    """Return the reduction that a carry is, or None."""
    if not jc.is_array_aval(carry.var.aval) or jc.is_extended(carry.var.aval):
        return None
    found = accumulation(loop.eqns, carry.var, carry.out, count, users)
    if found is None or not found.terms or count[carry.out] != 1:
        return None
    operation = ASSOCIATIVE[found.family]
    return Reduction(carry, operation, found.terms, found.eqns)


@dataclass(frozen=True)
class Accumulation:
    """A chain of operations of one family from a value to what it becomes."""

    family: str
    terms: tuple[Term, ...]
    eqns: tuple[int, ...]


def accumulation(
    eqns: Sequence[Any],
    var: Any,
    out: Any,
    count: Counter[Any],
    users: dict[Any, list[int]],
) -> Accumulation | None:
    """Return how `var` becomes `out` by accumulating, read by nothing else, or None.

    Args:
        eqns: the equations, in order.
        var: the value at the start.
        out: the value at the end; no terms where that is the same.
        count: number of readers of a value, outputs included.
        users: which equations read a value.
    """
    start, family = var, ""
    terms: list[Term] = []
    chain: list[int] = []
    while var is not out:
        if count[var] != 1 or len(users.get(var, ())) != 1:
            return None
        index = users[var][0]
        eqn = eqns[index]
        kind = _FAMILY.get(eqn.primitive.name, "")
        if _is_retyped(eqn):
            var = eqn.outvars[0]
            chain.append(index)
            continue
        if not kind or (family and kind != family) or len(eqn.invars) != 2:
            return None
        family = kind
        position = 0 if eqn.invars[0] is var else 1
        if eqn.primitive.name == "sub" and position == 1:
            return None
        term = eqn.invars[1 - position]
        var = eqn.outvars[0]
        if var.aval.shape != start.aval.shape or var.aval.dtype != start.aval.dtype:
            return None
        terms.append(Term(term, eqn.primitive.name == "sub"))
        chain.append(index)
    if family in ("and", "or", "xor") and np.dtype(var.aval.dtype).kind not in "iub":
        return None
    return Accumulation(family, tuple(terms), tuple(chain))


def identity(name: str, dtype: Any) -> Any:
    """Return the operand of a primitive that changes no value, or None.

    Not even a negative zero: a float sum takes -0.0.
    """
    if jnp.issubdtype(dtype, jnp.bool_):
        return {"or": False, "and": True, "xor": False}.get(name)
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        extremes = {"max": info.min, "min": info.max}
        extremes["and"] = -1 if info.min < 0 else info.max
        none = dict.fromkeys(("add", "add_any", "sub", "or", "xor"), 0)
        return {**none, **extremes, "mul": 1}.get(name)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        zero = complex(-0.0, -0.0)
        return {"add": zero, "add_any": zero, "sub": 0}.get(name)
    if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize >= 2:
        none = {"add": -0.0, "add_any": -0.0, "sub": 0, "mul": 1}
        return {**none, "max": -np.inf, "min": np.inf}.get(name)
    return None


def _is_retyped(eqn: Any) -> bool:
    """Whether an equation only drops or adds a weak type."""
    return eqn.primitive.name == "convert_element_type" and (
        eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
    )


def may_reorder(reduction: Reduction, numerics: str) -> bool:
    """Whether the numerics contract lets this reduction change its order.

    Short floats stay in the loop: a float16 sum that stalls is the user's result.
    """
    if reduction.is_exact:
        return True
    return numerics != "strict" and is_long_float(reduction.carry.var.aval.dtype)


def is_long_float(dtype: Any) -> bool:
    """Whether sums of a type are rounded, and not so short that they stall."""
    return np.dtype(dtype).kind in "fc" and np.dtype(dtype).itemsize >= 4
