"""Sums of products over the trip as one contraction.

`acc + a_t * b_t` with a dot or an outer product as its term, scaled by anything, is one
`dot_general` that contracts the trip too: nothing of the size of the term is stored per
step. A term is taken apart into *factors*, values with a known place among the term's
axes; factors that share no axis go to the two sides of the dot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.graph import reads
from rewriter.partition import Partition


@dataclass(frozen=True)
class Factor:
    """A value multiplied into the term, and the term's axis for each of its own."""

    atom: Any
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Product:
    """Two groups of factors without a common axis; `shape` is the term's."""

    left: tuple[Factor, ...]
    right: tuple[Factor, ...]
    shape: tuple[int, ...]
    replaced: tuple[Any, ...] = ()  # equations that need not be evaluated

    @property
    def atoms(self) -> list[Any]:
        """The values it reads."""
        return [f.atom for f in (*self.left, *self.right)]

    def total(
        self, stacked: Mapping[Any, Any], consts: Mapping[Any, Any], length: int
    ) -> Any:
        """Return the sum over all rows."""
        left, axes_l = _group(self.left, stacked, consts, length)
        right, axes_r = _group(self.right, stacked, consts, length)
        out = lax.dot_general(
            left,
            right,
            (((0,), (0,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=left.dtype,
        )
        return _placed(out, (*axes_l, *axes_r), self.shape)


@dataclass(frozen=True)
class Dot:
    """A dot whose results are only summed, perhaps transposed."""

    eqn: Any
    transpose: tuple[int, ...] | None
    replaced: tuple[Any, ...]

    @property
    def atoms(self) -> list[Any]:
        """The values it reads."""
        return reads(self.eqn)

    def total(
        self, stacked: Mapping[Any, Any], consts: Mapping[Any, Any], length: int
    ) -> Any:
        """Return the sum over all rows."""
        p = self.eqn.params
        (lc, rc), (lb, rb) = p["dimension_numbers"]
        left, right = (stacked[v] for v in self.eqn.invars)
        dims = (((0, *_shift(lc)), (0, *_shift(rc))), (_shift(lb), _shift(rb)))
        leading = tuple(range(len(lc)))
        if not lb and tuple(lc) == leading and tuple(rc) == leading:
            # one contracted axis: XLA copies an operand for more than one
            left = left.reshape(-1, *left.shape[1 + len(lc) :])
            right = right.reshape(-1, *right.shape[1 + len(rc) :])
            dims = (((0,), (0,)), ((), ()))
        order = self.transpose
        free = left.ndim - len(dims[0][0])
        rank = len(self.eqn.outvars[0].aval.shape)
        precision = p["precision"]
        if not lb and order == (*range(free, rank), *range(free)):
            # the sides change places: XLA would copy for the transpose
            left, right, order = right, left, None
            dims = ((dims[0][1], dims[0][0]), ((), ()))
            if isinstance(precision, tuple):
                precision = precision[::-1]
        with jc.at_inner_location(self.eqn):
            out = lax.dot_general(
                left,
                right,
                dims,
                precision=precision,
                preferred_element_type=p["preferred_element_type"],
            )
            return out if order is None else lax.transpose(out, order)


def _shift(dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(d + 1 for d in dims)


def _group(
    factors: Sequence[Factor],
    stacked: Mapping[Any, Any],
    consts: Mapping[Any, Any],
    length: int,
) -> tuple[Any, tuple[int, ...]]:
    """Multiply factors into one array of rows; return it and its term axes.

    A group that no step changes still counts once for every step.
    """
    axes = tuple(sorted({a for f in factors for a in f.axes}))
    product: Any = None
    for f in sorted(factors, key=lambda f: len(f.axes)):
        value = stacked[f.atom] if f.atom in stacked else consts[f.atom][None]
        order = sorted(range(len(f.axes)), key=lambda k: f.axes[k])
        value = value.transpose(0, *(k + 1 for k in order))
        shape = [value.shape[0]] + [1] * len(axes)
        for k in order:
            shape[1 + axes.index(f.axes[k])] = value.shape[1 + order.index(k)]
        value = value.reshape(shape)
        product = value if product is None else product * value
    return jnp.broadcast_to(product, (length, *product.shape[1:])), axes


def _placed(value: Any, axes: Sequence[int], shape: tuple[int, ...]) -> Any:
    order = sorted(range(len(axes)), key=lambda k: axes[k])
    return value.transpose(order).reshape(shape)


# ------------------------------------------------------------ recognition


def contractions(part: Partition, invariant: frozenset[int]) -> dict[Any, Any]:
    """Return the contraction behind each term of the batched sums, by term."""
    dep = part.dependence
    found: dict[Any, Any] = {}
    for v in part.in_batch:
        reduction = dep.nodes[v].reduction
        if reduction is None or reduction.op.name != "sum":
            continue
        for term in reduction.terms:
            if isinstance(term.atom, jc.Literal) or term.atom in part.stored:
                continue
            contraction = _dot(part, invariant, term.atom) or _product(part, term.atom)
            if contraction is not None:
                found[term.atom] = contraction
    return found


def _eqn(part: Partition, atom: Any) -> Any:
    made = None if isinstance(atom, jc.Literal) else part.dependence.made.get(atom)
    if made is None or made in part.in_scan or made not in part.in_batch:
        return None
    return part.dependence.nodes[made].eqn


def _dot(part: Partition, invariant: frozenset[int], atom: Any) -> Dot | None:
    dep, order = part.dependence, None
    outer = eqn = _eqn(part, atom)
    if eqn is not None and eqn.primitive.name == "transpose":
        order = tuple(eqn.params["permutation"])
        if _readers(part, eqn.outvars[0]) != 1:
            return None
        eqn = _eqn(part, eqn.invars[0])
    if eqn is None or eqn.primitive.name != "dot_general":
        return None
    if _readers(part, eqn.outvars[0]) != 1 or eqn.outvars[0] in part.stored:
        return None
    constant = {v for v, _ in dep.loop.consts}
    varying = [
        v
        for v in reads(eqn)
        if v not in constant and not (v in dep.made and dep.made[v] in invariant)
    ]
    if len(varying) != 2 or any(jc.is_sharded(v.aval) for v in varying):
        return None
    return Dot(eqn, order, (eqn, outer))


def _readers(part: Partition, var: Any) -> int:
    dep = part.dependence
    count = sum(n.reads.count(var) for n in dep.nodes)
    count += sum(1 for n in dep.nodes if n.carry is not None and n.carry.out is var)
    return count + sum(1 for _, a in dep.loop.ys if a is var)


def _product(part: Partition, atom: Any) -> Product | None:
    aval = atom.aval
    if (
        not jnp.issubdtype(aval.dtype, jnp.floating)
        or aval.dtype.itemsize < 4
        or (not aval.shape or jc.is_sharded(aval))
    ):
        return None
    factors: list[Factor] = []
    replaced: list[Any] = []
    if not _factors(part, atom, tuple(range(len(aval.shape))), factors, replaced):
        return None
    split = _sides(factors)
    if split is None:
        return None
    axes = {a for f in factors for a in f.axes}
    if any(size != 1 and k not in axes for k, size in enumerate(aval.shape)):
        return None
    return Product(*split, aval.shape, tuple(replaced))


def _factors(
    part: Partition,
    atom: Any,
    axes: tuple[int, ...],
    out: list[Factor],
    replaced: list[Any],
    needed: bool = False,
) -> bool:
    """Collect the factors of `atom`, whose own axes lie at `axes` of the term.

    What makes a product is `replaced`, unless the product is `needed` elsewhere too.
    """
    if isinstance(atom, jc.Literal) or len(out) > 6:
        return False
    eqn = _eqn(part, atom)
    parts = None if eqn is None else _operands(eqn, axes)
    if parts is None:
        return _leaf(atom, axes, out)
    needed |= _readers(part, atom) != 1 or atom in part.stored
    if not all(_factors(part, v, own, out, replaced, needed) for v, own in parts):
        return False
    if not needed:
        replaced.append(eqn)
    return True


def _operands(
    eqn: Any, axes: tuple[int, ...]
) -> list[tuple[Any, tuple[int, ...]]] | None:
    """Return the operands whose product an equation is, with their term axes."""
    name, out = eqn.primitive.name, eqn.outvars[0]
    if name == "mul":
        if all(
            v.aval.shape in (out.aval.shape, ()) or _keeps(v, out) for v in eqn.invars
        ):
            return [(v, axes if v.aval.shape else ()) for v in eqn.invars]
    elif name == "transpose":
        order = eqn.params["permutation"]
        return [(eqn.invars[0], tuple(axes[order.index(k)] for k in range(len(order))))]
    elif name in ("broadcast_in_dim", "reshape", "expand_dims"):
        dims = _source_axes(eqn)
        if dims is not None:
            return [(eqn.invars[0], tuple(axes[d] for d in dims))]
    return None


def _leaf(atom: Any, axes: tuple[int, ...], out: list[Factor]) -> bool:
    if any(s == 1 for s in atom.aval.shape):
        return False
    out.append(Factor(atom, axes))
    return True


def _keeps(v: Any, atom: Any) -> bool:
    """Whether a factor has the rank of the product, ones where it is broadcast."""
    return len(v.aval.shape) == len(atom.aval.shape) and all(
        a in (1, b) for a, b in zip(v.aval.shape, atom.aval.shape, strict=True)
    )


def _source_axes(eqn: Any) -> tuple[int, ...] | None:
    """Return the output axis of each input axis of an operation that adds axes."""
    source, target = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.primitive.name == "broadcast_in_dim":
        dims = tuple(eqn.params["broadcast_dimensions"])
        same = all(target[d] == s for d, s in zip(dims, source, strict=True))
        return dims if same and 1 not in source else None
    kept = [k for k, s in enumerate(target) if s != 1]
    return tuple(kept) if tuple(target[k] for k in kept) == source else None


def _sides(
    factors: Sequence[Factor],
) -> tuple[tuple[Factor, ...], tuple[Factor, ...]] | None:
    """Split factors into two groups without a common axis, scalars to the smaller."""
    scalars = [f for f in factors if not f.axes]
    groups: list[tuple[set[int], list[Factor]]] = []
    for f in factors:
        if not f.axes:
            continue
        touching = [g for g in groups if g[0] & set(f.axes)]
        merged = (
            set(f.axes).union(*(g[0] for g in touching)),
            [f, *(x for g in touching for x in g[1])],
        )
        groups = [g for g in groups if g not in touching] + [merged]
    if len(groups) == 2:
        groups.sort(key=lambda g: min(g[0]))
        left, right = groups[0][1], groups[1][1]
        return tuple(left + scalars), tuple(right)
    if len(groups) == 1 and scalars:
        return tuple(scalars), tuple(groups[0][1])
    return None
