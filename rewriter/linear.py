"""Loops around a linear state: its update, and the loops before and after it.

A carry `S` whose next value is `a * S + b`, where `a` and `b` do not depend on it, may
be computed in another way than step by step. What makes `a` and `b` is then a loop of
its own, *before*; what reads `S` is another, *after*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from rewriter import jax_compat as jc
from rewriter.emit import emit_outputs
from rewriter.graph import (
    Carry,
    Loop,
    Outputs,
    Source,
    fresh_key,
    prune,
    reads,
    variant_values,
)

_VIEWS = frozenset(
    {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type"}
)
_MEANING = {"add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "div": "div"}


@dataclass(frozen=True)
class LinearUpdate:
    """The operations that lead from a carry to its next value, in their order.

    Each is `add`, `sub`, `from` (the operand less the state), `mul`, `div` or `neg`
    with an operand that does not depend on the carry.
    """

    carry: Carry
    steps: tuple[tuple[str, Any], ...]
    eqns: tuple[Any, ...]  # from the next value back to the carry

    @property
    def operands(self) -> tuple[Any, ...]:
        """The variables among the operands of the operations."""
        atoms = [v for _, v in self.steps if v is not None]
        return tuple(dict.fromkeys(v for v in atoms if not isinstance(v, jc.Literal)))

    def map(self, value: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return `a` and `b` of `a * S + b` from the operands' values; None: 1 or 0."""
        a: Any = None
        b: Any = None
        for kind, atom in self.steps:
            x: Any = None if atom is None else value(atom)
            if kind in ("neg", "from"):
                a = -1.0 if a is None else -a
                b = None if b is None else -b
            if kind in ("add", "from"):
                b = x if b is None else b + x
            elif kind == "sub":
                b = -x if b is None else b - x
            elif kind == "mul":
                a, b = x if a is None else a * x, None if b is None else b * x
            elif kind == "div":
                a, b = 1.0 / x if a is None else a / x, None if b is None else b / x
        return a, b


def linear_update(loop: Loop, carry: Carry) -> LinearUpdate | None:
    """Return how a floating-point carry is updated if that is linear, else None.

    Linear is decided by structure: no operand depends on the carry, not by way of
    others either. Error-free transforms are not, since their terms do.
    """
    aval = carry.var.aval
    if not jc.is_array_aval(aval) or not jnp.issubdtype(aval.dtype, jnp.floating):
        return None
    if aval.dtype.itemsize < 4 or jc.is_sharded(aval) or carry.out is carry.var:
        return None
    if isinstance(carry.out, jc.Literal):
        return None
    made, tainted = (
        {v: e for e in loop.eqns for v in e.outvars},
        dependents(loop, carry),
    )
    steps: list[tuple[str, Any]] = []
    chain: list[Any] = []
    var = carry.out
    while var is not carry.var:
        eqn = made.get(var)
        if eqn is None or var.aval.shape != aval.shape or var.aval.dtype != aval.dtype:
            return None
        chain.append(eqn)
        name = eqn.primitive.name
        if name in ("neg", "convert_element_type"):
            steps += [("neg", None)] if name == "neg" else []
            var = eqn.invars[0]
        elif name in _MEANING:
            left, right = eqn.invars
            inside = [
                not isinstance(v, jc.Literal) and v in tainted for v in (left, right)
            ]
            if sum(inside) != 1 or (name == "div" and inside[1]):
                return None
            kind = "from" if name == "sub" and inside[1] else _MEANING[name]
            var, other = (left, right) if inside[0] else (right, left)
            steps.append((kind, other))
        else:
            return None
        if isinstance(var, jc.Literal):
            return None
    if not steps:
        return None
    return LinearUpdate(carry, tuple(reversed(steps)), tuple(chain))


def dependents(loop: Loop, carry: Carry) -> set[Any]:
    """Return all values that depend on a carry, by way of other carries too."""
    found = {carry.var}
    while True:
        new = variant_values(loop.eqns, found)
        new |= {
            c.var
            for c in loop.carries
            if not isinstance(c.out, jc.Literal) and c.out in new
        }
        if len(new) == len(found):
            return new
        found = new


@dataclass(frozen=True)
class Split:
    """A loop as what comes before a linear state, and what comes after."""

    loop: Loop
    before: Loop
    after: Loop
    keys: Mapping[Any, int]  # keys of `before`'s ys, by the variable they stack
    stored: tuple[Any, ...]  # those that `after` reads
    copied: tuple[tuple[int, Any], ...]  # ys that are rows of what is known then

    def first(self, args: Sequence[Any], atoms: Sequence[Any]) -> tuple[Outputs, Any]:
        """Emit the loop before; return its outputs and the rows of some values."""
        out = emit_outputs(self.before, args)
        return out, {v: out.stacks[self.keys[v]] for v in atoms if v in self.keys}

    def last(
        self, args: Sequence[Any], out: Outputs, rows: Mapping[Any, Any]
    ) -> Outputs:
        """Emit the loop after, given rows of what it was split at."""
        copies = {k: rows[v] for k, v in self.copied}
        out = Outputs(args, out.finals, {**out.stacks, **copies})
        if not self.after.ys and not self.after.carries:
            return out
        known = {**rows, **{v: out.stacks[self.keys[v]] for v in self.stored}}
        xs = tuple(
            (v, Source(lambda _, v=v: known[v]) if v in known else s)
            for v, s in self.after.xs
        )
        new = emit_outputs(self.after.replace(xs=xs), args)
        return Outputs(args, {**out.finals, **new.finals}, {**out.stacks, **new.stacks})


def split(
    loop: Loop, carry: Carry, wanted: Sequence[Any], given: Sequence[Any]
) -> Split | None:
    """Split a loop at a linear carry, or return None.

    Args:
        loop: a loop without effects.
        carry: the state.
        wanted: atoms whose rows are needed to compute the state.
        given: values that are known before the loop after runs, in place of the state.
    """
    tainted = dependents(loop, carry)
    constant = {v for v, _ in loop.consts}
    if any(e.effects for e in loop.eqns) or any(
        not isinstance(v, jc.Literal) and v in tainted for v in wanted
    ):
        return None
    own = {c.var for c in loop.carries if c.var in tainted} - {carry.var}
    rest = tuple((k, a) for k, a in loop.ys if _in(a, tainted & set(given)))
    made = {v: e for e in loop.eqns for v in e.outvars}
    cut = set(given)
    later = [
        e
        for e in loop.eqns
        if any(v in tainted for v in e.outvars) and not cut.issuperset(e.outvars)
    ]
    after = prune(
        loop.replace(
            eqns=tuple(later),
            carries=tuple(c for c in loop.carries if c.var in own),
            ys=tuple((k, a) for k, a in loop.ys if _in(a, tainted - cut)),
            xs=(*loop.xs, *((v, Source(_unknown)) for v in given)),
            results=tuple(
                r
                if r is not None
                and (r.carry in own or any(_in(a, tainted) for a in _ys(loop, r.keys)))
                else None
                for r in loop.results
            ),
        )
    )
    views: list[Any] = []
    while True:  # broadcasts are made again, not stored
        read = _read(after.replace(eqns=(*views, *after.eqns)))
        inside = {v for e in (*views, *after.eqns) for v in e.outvars}
        missing = [v for v in read if v not in inside and v in made and v not in cut]
        again = [made[v] for v in missing if made[v].primitive.name in _VIEWS]
        if not again:
            break
        views = [*dict.fromkeys(again), *views]
    inside_now = {id(e) for e in (*views, *after.eqns)}
    after = after.replace(eqns=tuple(e for e in loop.eqns if id(e) in inside_now))
    read = _read(after)
    if any(v in tainted and v not in cut | own for v in read - inside):
        return None
    others = {c.var for c in loop.carries} - own
    stored = tuple(
        v for v in read if (v in made or v in others) and v not in inside | cut
    )
    rows = [v for v in wanted if not isinstance(v, jc.Literal) and v not in constant]
    first = fresh_key(loop)
    keys = {v: first + i for i, v in enumerate(dict.fromkeys((*rows, *stored)))}
    before = loop.replace(
        carries=tuple(c for c in loop.carries if c.var not in tainted),
        ys=(
            *((k, a) for k, a in loop.ys if not _in(a, tainted)),
            *((k, v) for v, k in keys.items()),
        ),
        eqns=tuple(e for e in loop.eqns if not any(v in tainted for v in e.outvars)),
    )
    xs = {
        v: s for v, s in (*loop.xs, *((v, Source(_unknown)) for v in (*given, *stored)))
    }
    after = after.replace(
        xs=tuple((v, s) for v, s in xs.items() if v in read),
        consts=tuple(c for c in loop.consts if c[0] in read),
        counters=tuple(c for c in loop.counters if c.var in read),
    )
    return Split(loop, before, after, keys, stored, rest)


def _unknown(_: Any) -> Any:
    raise AssertionError("rows of a value that is not known yet")


def _in(atom: Any, values: set[Any]) -> bool:
    return not isinstance(atom, jc.Literal) and atom in values


def _ys(loop: Loop, keys: Sequence[int]) -> list[Any]:
    return [a for k, a in loop.ys if k in keys]


def _read(loop: Loop) -> set[Any]:
    ends = [*(a for _, a in loop.ys), *(c.out for c in loop.carries)]
    found = {a for a in ends if not isinstance(a, jc.Literal)}
    return found.union(*map(reads, loop.eqns)) - {c.var for c in loop.carries}
