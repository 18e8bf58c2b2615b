"""Recurrence classification: what a carry is.

Associative operations stand in one table with their identities (after Halide's
table of associative operators). Classes: *invariant* (out is in), *reduction*
(`op(c, t)`, read nowhere else), *delay* (in no cycle: an earlier value of another),
*opaque* (the rest, in a cycle with itself).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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
    combine: Callable[[Any, Any], Any]
    reduce: Callable[[Any], Any]  # over the leading axis
    exact: bool  # order does not matter, floats included


ASSOCIATIVE: dict[str, Associative] = {
    "sum": Associative("sum", lax.add, lambda t: _same_dtype(jnp.sum, t), False),
    "prod": Associative("prod", lax.mul, lambda t: _same_dtype(jnp.prod, t), False),
    "max": Associative("max", lax.max, lambda t: _extreme(jnp.max, t), True),
    "min": Associative("min", lax.min, lambda t: _extreme(jnp.min, t), True),
    "and": Associative(
        "and", lax.bitwise_and, lambda t: jnp.bitwise_and.reduce(t, axis=0), True
    ),
    "or": Associative(
        "or", lax.bitwise_or, lambda t: jnp.bitwise_or.reduce(t, axis=0), True
    ),
    "xor": Associative(
        "xor", lax.bitwise_xor, lambda t: jnp.bitwise_xor.reduce(t, axis=0), True
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
    count: Counter[Any] = Counter()
    for eqn in loop.eqns:
        count.update(reads(eqn))
    for atom in (*(a for _, a in loop.ys), *(c.out for c in loop.carries)):
        if not isinstance(atom, jc.Literal):
            count[atom] += 1
    return count


def reduction_of(
    loop: Loop, carry: Carry, count: Counter[Any], users: dict[Any, list[int]]
) -> Reduction | None:
    """Return the reduction that a carry is, or None."""
    var, family = carry.var, ""
    terms: list[Term] = []
    chain: list[int] = []
    if not jc.is_array_aval(var.aval) or jc.is_extended(var.aval):
        return None
    while var is not carry.out:
        if count[var] != 1 or len(users.get(var, ())) != 1:
            return None
        index = users[var][0]
        eqn = loop.eqns[index]
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
        if var.aval.shape != carry.var.aval.shape or (
            var.aval.dtype != carry.var.aval.dtype
        ):
            return None
        terms.append(Term(term, eqn.primitive.name == "sub"))
        chain.append(index)
    if not terms or count[carry.out] != 1 or carry.var is carry.out:
        return None
    if family in ("and", "or", "xor") and np.dtype(var.aval.dtype).kind not in "iub":
        return None
    return Reduction(carry, ASSOCIATIVE[family], tuple(terms), tuple(chain))


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
    dtype = np.dtype(reduction.carry.var.aval.dtype)
    return numerics != "strict" and dtype.kind in "fc" and dtype.itemsize >= 4
