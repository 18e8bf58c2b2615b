"""Recognition of squared differences between a row and all rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from rewriter import jax_compat as jc
from rewriter.graph import Loop


@dataclass(frozen=True)
class SquaredDistance:
    """`sum(after * (before * (table - row)) ** 2)` over the features."""

    out: Any
    row: Any
    table: Any
    used: frozenset[int]  # ids of its equations
    before: Any = None  # constant factors, one per feature
    divides: bool = False  # the differences are divided by `before`
    after: Any = None

    @property
    def factors(self) -> list[Any]:
        """The constant vectors of the weights."""
        return [v for v in (self.before, self.after) if v is not None]

    def terms(self, difference: Any, *factors: Any) -> Any:
        """Return weighted squares as the step computes them, of any shape."""
        values = dict(zip(self.factors, factors, strict=True))
        if self.before is not None:
            factor = values[self.before]
            difference = difference / factor if self.divides else factor * difference
        square = difference * difference
        return square if self.after is None else values[self.after] * square

    def weights(self, *factors: Any) -> Any:
        """Return the weight of each squared difference (d,), NaN where out of range.

        A weight out of range is zero, or loses digits, where its factors are none.
        """
        if not factors:
            return None
        values = dict(zip(self.factors, (f.reshape(-1) for f in factors), strict=True))
        weights, silent = jnp.ones(()), jnp.zeros((), bool)
        if self.before is not None:
            factor = values[self.before]
            weights = 1 / (factor * factor) if self.divides else factor * factor
            silent |= (factor == 0) & (not self.divides)
        if self.after is not None:
            weights = weights * values[self.after]
            silent |= values[self.after] == 0
        inside = (weights > 2.0**-60) & (weights < 2.0**60)
        return jnp.where(inside | silent & (weights == 0), weights, jnp.nan)


def squared_distance(
    loop: Loop, is_row: Callable[[Any], bool]
) -> SquaredDistance | None:
    """Return the distances of a step to the rows of a loop constant, if it has them.

    `is_row` says which variables may be the row.
    """
    looking = _Looking(
        {v: e for e in loop.eqns for v in e.outvars},
        {v for v, _ in loop.consts},
        is_row,
    )
    for eqn in loop.eqns:
        found = looking.distance(eqn)
        if found is not None:
            return found
    return None


@dataclass(frozen=True)
class _Looking:
    made: dict[Any, Any]
    consts: set[Any]
    is_row: Callable[[Any], bool]

    def distance(self, root: Any) -> SquaredDistance | None:
        """Read the distances from the sum, or product with weights, at their end."""
        name, used = root.primitive.name, [root]
        if name == "reduce_sum" and tuple(root.params["axes"]) == (1,):
            terms, after = self.maker(root.invars[0]), None
        elif name == "dot_general" and _sums_columns(root):
            terms, after = self.maker(root.invars[0]), self.vector(root.invars[1], used)
            if after is None:
                return None
        else:
            return None
        terms, weights = self.weighed(terms, used) if after is None else (terms, after)
        square = self.maker(_root(terms))
        used.append(terms)
        square, before, divides = self.scaled(square, used)
        if square is None or square.primitive.name != "sub":
            return None
        used.append(square)
        for table, other in (square.invars, square.invars[::-1]):
            spread = self.maker(other)
            row = _row_of(spread)
            if row is None or not self.is_row(row) or not self.is_table(table, row):
                continue
            ids = frozenset(id(e) for e in (*used, spread))
            out = root.outvars[0]
            return SquaredDistance(out, row, table, ids, before, divides, weights)
        return None

    def maker(self, atom: Any) -> Any:
        return None if isinstance(atom, jc.Literal) else self.made.get(atom)

    def weighed(self, terms: Any, used: list[Any]) -> tuple[Any, Any]:
        """Return what is multiplied by constant weights, and these."""
        if terms is None or terms.primitive.name != "mul":
            return terms, None
        for one, other in (terms.invars, terms.invars[::-1]):
            spread: list[Any] = []
            vector, inner = self.vector(one, spread), self.maker(other)
            if vector is not None and inner is not None:
                used += [terms, *spread]
                return inner, vector
        return terms, None

    def scaled(self, square: Any, used: list[Any]) -> tuple[Any, Any, bool]:
        """Return the differences before they are scaled by a constant vector."""
        if square is None or square.primitive.name != "div":
            inner, vector = self.weighed(square, used)
            return inner, vector, False
        vector = self.vector(square.invars[1], used)
        if vector is None:
            return square, None, False
        used.append(square)
        return self.maker(square.invars[0]), vector, True

    def vector(self, atom: Any, used: list[Any]) -> Any:
        """Return the constant vector whose copies are the rows of an operand."""
        if isinstance(atom, jc.Literal):
            return None
        shape = atom.aval.shape
        if atom in self.consts and (len(shape) == 1 or shape[:-1] == (1,)):
            return atom
        spread = self.maker(atom)
        source = _row_of(spread)
        if source is None or source not in self.consts:
            return None
        used.append(spread)
        return source

    def is_table(self, table: Any, row: Any) -> bool:
        if isinstance(table, jc.Literal) or table not in self.consts:
            return False
        aval = table.aval
        return (
            len(aval.shape) == 2
            and row.aval.shape == aval.shape[1:]
            and jnp.issubdtype(aval.dtype, jnp.floating)
            and aval.dtype.itemsize >= 4
            and not jc.is_sharded(aval)
        )


def _sums_columns(dot: Any) -> bool:
    """Whether a dot is a matrix times a vector."""
    (lc, rc), (lb, _) = dot.params["dimension_numbers"]
    ranks = [len(v.aval.shape) for v in dot.invars]
    return ranks == [2, 1] and tuple(lc) == (1,) and tuple(rc) == (0,) and not lb


def _root(square: Any) -> Any:
    """Return what an equation squares; a literal if it does not square."""
    if square is None:
        return jc.Literal(0, None)
    name = square.primitive.name
    if name == "square" or (name == "integer_pow" and square.params["y"] == 2):
        return square.invars[0]
    if name == "mul" and square.invars[0] is square.invars[1]:
        return square.invars[0]
    return jc.Literal(0, square.outvars[0].aval)


def _row_of(spread: Any) -> Any:
    """Return the vector that an equation makes the rows of."""
    if spread is None or isinstance(spread.invars[0], jc.Literal):
        return None
    name, shape = spread.primitive.name, spread.outvars[0].aval.shape
    source = spread.invars[0]
    if (
        len(shape) != 2
        or len(source.aval.shape) != 1
        or source.aval.shape[0] != shape[1]
    ):
        return None
    if name == "broadcast_in_dim":
        return source if tuple(spread.params["broadcast_dimensions"]) == (1,) else None
    return source if name in ("reshape", "expand_dims") and shape[0] == 1 else None
