"""Sums of products as networks of factors, contracted in the cheapest order.

`sum(a * b)` in any disguise, `x @ A @ x`, `(A @ B) @ v`: a tree of products, sums and
dots is taken apart into *factors* whose axes carry labels, as in an einsum, and put
together again pair by pair in the order that opt_einsum finds, the trip counted as one
more axis of every factor that changes from step to step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import opt_einsum
from jax import lax

from rewriter import jax_compat as jc

MOST = 8  # factors of one network
Label = int | None  # None: an axis of size one that nothing runs along


@dataclass(frozen=True)
class Factor:
    """A value, and a label for each of its axes."""

    atom: Any
    labels: tuple[Label, ...]


@dataclass(frozen=True)
class Network:
    """A sum over products of factors; `labels` are those of the result's axes."""

    root: Any
    factors: tuple[Factor, ...]
    labels: tuple[Label, ...]
    sizes: dict[int, int] = field(hash=False)
    used: tuple[Any, ...]  # equations taken apart, the root first
    precision: Any
    preferred: Any

    def path(self, changing: Callable[[Any], bool], length: int) -> list[Any]:
        """Return the order of pairs that is cheapest over the whole trip."""
        trip = max(self.sizes, default=0) + 1
        sizes = {**self.sizes, trip: max(2, length)}
        parts = [
            [*_kept(f.labels), *([trip] if changing(f.atom) else [])]
            for f in self.factors
        ]
        out = [*_kept(self.labels), *([trip] if any(trip in p for p in parts) else [])]
        terms = ",".join(_letters(p) for p in parts)
        shapes = [tuple(sizes[label] for label in p) for p in parts]
        found, _ = opt_einsum.contract_path(
            f"{terms}->{_letters(out)}", *shapes, shapes=True, optimize="optimal"
        )
        return [tuple(pair) for pair in found]

    def evaluate(self, values: Sequence[Any], path: Sequence[Any]) -> Any:
        """Contract the factors' values along a path."""
        operands: list[Any] = []
        for factor, value in zip(self.factors, values, strict=True):
            kept = _kept(factor.labels)
            operands += [
                jnp.reshape(value, [self.sizes[k] for k in kept]),
                _letters(kept),
            ]
        terms = ",".join(operands[1::2])
        out = jnp.einsum(
            f"{terms}->{_letters(_kept(self.labels))}",
            *operands[::2],
            optimize=list(path),
            precision=self.precision,
            preferred_element_type=self.preferred,
        )
        return jnp.reshape(out, self.root.outvars[0].aval.shape)


def _kept(labels: Sequence[Label]) -> list[int]:
    return [k for k in labels if k is not None]


def _letters(labels: Sequence[int]) -> str:
    return "".join(opt_einsum.get_symbol(k) for k in labels)


# ------------------------------------------------------------ recognition


@dataclass
class _Reading:
    maker: Callable[[Any], Any]  # the equation that makes a value, or None
    readers: Callable[[Any], int]
    fresh: Iterator[int] = field(default_factory=itertools.count)
    sizes: dict[int, int] = field(default_factory=dict)
    factors: list[Factor] = field(default_factory=list)
    used: list[Any] = field(default_factory=list)
    precisions: set[Any] = field(default_factory=set)
    preferred: set[Any] = field(default_factory=set)

    def label(self, size: int) -> Label:
        """Return a new label for an axis."""
        if size == 1:
            return None
        k = next(self.fresh)
        self.sizes[k] = size
        return k


def network(
    root: Any, maker: Callable[[Any], Any], readers: Callable[[Any], int]
) -> Network | None:
    """Take apart a sum or dot; None if its labels do not come out.

    Sums and dots inside are taken apart too where nobody else reads them.
    """
    aval = root.outvars[0].aval
    if not jnp.issubdtype(aval.dtype, jnp.floating) or aval.dtype.itemsize < 4:
        return None
    if jc.is_sharded(aval):
        return None
    reading = _Reading(maker, readers)
    labels = tuple(reading.label(n) for n in aval.shape)
    if not _sum(reading, root, labels) or len(reading.factors) > MOST:
        return None
    have = {k for f in reading.factors for k in f.labels}
    if any(k is not None and k not in have for k in labels):
        return None  # an axis that is only broadcast
    if any(k not in have for k in reading.sizes):
        return None  # a sum over a broadcast axis counts it
    if len(reading.precisions) > 1 or len(reading.preferred) > 1:
        return None
    plain = not reading.precisions
    return Network(
        root,
        tuple(reading.factors),
        labels,
        reading.sizes,
        tuple(reading.used),
        lax.Precision.HIGHEST if plain else reading.precisions.pop(),
        reading.preferred.pop() if reading.preferred else aval.dtype,
    )


@dataclass(frozen=True)
class StateRead:
    """A sum of products that reads a state, and the state's terms in its place.

    `own` are the factors that belong to the reading step, `terms` those of each term of
    the state, with the same labels.
    """

    root: Any
    own: tuple[Factor, ...]
    state: Factor
    terms: tuple[tuple[Factor, ...], ...]
    labels: tuple[Label, ...]
    sizes: dict[int, int] = field(hash=False)
    used: tuple[Any, ...]  # equations taken apart

    @property
    def batch(self) -> int:
        """The number of independent states: axes that everything has (heads)."""
        parts = [self.labels, self.state.labels, *(f.labels for f in self.own)]
        parts += [f.labels for term in self.terms for f in term]
        shared = set(_kept(self.labels)).intersection(*parts)
        return math.prod(self.sizes[k] for k in shared)


def state_read(
    root: Any,
    states: set[Any],
    terms: Sequence[Any],
    maker: Callable[[Any], Any],
    readers: Callable[[Any], int],
) -> StateRead | None:
    """Take apart a dot that reads one of some states once, and the state's terms."""
    net = network(root, lambda v: None if v in states else maker(v), readers)
    if net is None:
        return None
    at = [
        f
        for f in net.factors
        if not isinstance(f.atom, jc.Literal) and f.atom in states
    ]
    if len(at) != 1:
        return None
    sizes = dict(net.sizes)
    found = []
    for term in terms:
        reading = _Reading(maker, readers, itertools.count(len(sizes)), sizes)
        reading.used.append(root)
        if not _product(reading, term, at[0].labels) or len(reading.factors) > MOST:
            return None
        have = {k for f in reading.factors for k in f.labels}
        if any(k not in have for k in _kept(at[0].labels)):
            return None  # an axis that is only broadcast
        found.append(tuple(reading.factors))
    own = tuple(f for f in net.factors if f is not at[0])
    return StateRead(root, own, at[0], tuple(found), net.labels, sizes, net.used)


def contract(
    operands: Sequence[tuple[Any, Sequence[Label]]],
    labels: Sequence[Label],
    sizes: Mapping[int, int],
) -> Any:
    """Contract values with labels in the cheapest order, at full precision.

    Axes of size one are lost.
    """
    given: list[Any] = []
    for value, own in operands:
        kept = _kept(own)
        given += [jnp.reshape(value, [sizes[k] for k in kept]), _letters(kept)]
    terms = ",".join(given[1::2])
    return jnp.einsum(
        f"{terms}->{_letters(_kept(labels))}",
        *given[::2],
        optimize="optimal",
        precision=lax.Precision.HIGHEST,
    )


def _sum(r: _Reading, eqn: Any, labels: tuple[Label, ...]) -> bool:
    """Take apart a sum or dot whose result has these labels."""
    name, p = eqn.primitive.name, eqn.params
    if name == "reduce_sum":
        axes, shape = p["axes"], eqn.invars[0].aval.shape
        rest = iter(labels)
        inner = tuple(
            r.label(n) if k in axes else next(rest) for k, n in enumerate(shape)
        )
        r.used.append(eqn)
        return _product(r, eqn.invars[0], inner)
    if name != "dot_general":
        return False
    if p.get("out_sharding") is not None:
        return False
    (lc, rc), (lb, rb) = p["dimension_numbers"]
    left: list[Label] = [None] * len(eqn.invars[0].aval.shape)
    right: list[Label] = [None] * len(eqn.invars[1].aval.shape)
    rest = iter(labels)
    for i, j in zip(lb, rb, strict=True):
        left[i] = right[j] = next(rest)
    for side, taken in ((left, {*lb, *lc}), (right, {*rb, *rc})):
        for k in range(len(side)):
            if k not in taken:
                side[k] = next(rest)
    for i, j in zip(lc, rc, strict=True):
        left[i] = right[j] = r.label(eqn.invars[0].aval.shape[i])
    r.used.append(eqn)
    r.precisions.add(p["precision"])
    r.preferred.add(p["preferred_element_type"])
    return _product(r, eqn.invars[0], tuple(left)) and _product(
        r, eqn.invars[1], tuple(right)
    )


def _product(r: _Reading, atom: Any, labels: tuple[Label, ...]) -> bool:
    """Take apart a value with these labels into factors."""
    if len(r.factors) > MOST:
        return False
    eqn = None if isinstance(atom, jc.Literal) else r.maker(atom)
    if jc.dtype_of(atom) != jc.dtype_of(r.used[0].outvars[0]):
        eqn = None  # a product of short floats is rounded to one
    parts = None if eqn is None else _parts(eqn, labels)
    if parts is not None:
        r.used.append(eqn)
        return all(_product(r, v, own) for v, own in parts)
    summed = eqn is not None and eqn.primitive.name in ("reduce_sum", "dot_general")
    if summed and r.readers(atom) == 1:
        return _sum(r, eqn, labels)
    r.factors.append(Factor(atom, labels))
    return True


def _parts(
    eqn: Any, labels: tuple[Label, ...]
) -> list[tuple[Any, tuple[Label, ...]]] | None:
    """Return the operands whose product an equation is, with their labels."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    if name == "mul":
        return [(v, _matched(v.aval.shape, out.shape, labels)) for v in eqn.invars]
    if name == "square" or (name == "integer_pow" and eqn.params["y"] == 2):
        return [(eqn.invars[0], labels)] * 2
    source = eqn.invars[0] if eqn.invars else None
    if source is None or isinstance(source, jc.Literal):
        return None
    if name == "transpose":
        order = eqn.params["permutation"]
        return [(source, tuple(labels[order.index(k)] for k in range(len(order))))]
    if name == "broadcast_in_dim":
        dims = eqn.params["broadcast_dimensions"]
        own = tuple(
            labels[d] if out.shape[d] == n else None
            for d, n in zip(dims, source.aval.shape, strict=True)
        )
        return [(source, own)]
    if name in ("reshape", "expand_dims", "squeeze"):
        wide = [k for k, n in enumerate(out.shape) if n != 1]
        if [out.shape[k] for k in wide] != [n for n in source.aval.shape if n != 1]:
            return None
        rest = iter(wide)
        return [
            (
                source,
                tuple(
                    None if n == 1 else labels[next(rest)] for n in source.aval.shape
                ),
            )
        ]
    return None


def _matched(
    shape: Sequence[int], whole: Sequence[int], labels: tuple[Label, ...]
) -> tuple[Label, ...]:
    """Return the labels of an operand that is broadcast along axes of size one."""
    if len(shape) != len(whole):
        return ()
    return tuple(
        k if n == m else None for k, n, m in zip(labels, shape, whole, strict=True)
    )


def elements(network: Network, factors: Sequence[Factor]) -> int:
    """Return the number of elements of the product of some factors."""
    return math.prod(
        network.sizes[k]
        for k in {k for f in factors for k in f.labels}
        if k is not None
    )
