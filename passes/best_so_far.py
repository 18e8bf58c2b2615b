"""Best so far: a carried best value with what belongs to it becomes one search.

What it does: `p = v > best; best = where(p, v, best); at = where(p, i, at)`, with any
number of values kept beside the best one, becomes an `argmax` (or `argmin`) over all
steps and one lookup. The first winner stays with `>` and `<`, the last with `>=`, `<=`.

Why it pays: the values of all steps are computed at once; nothing is carried.

Legality: value and companions do not depend on a carry; nobody else reads the carries.
NaN never wins, as in the loop. The rows of companions count against the memory budget.

Numerics: strict (a selection among the same values).

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def best(W, X):
...     def step(c, x):
...         v = jnp.sum(jnp.tanh(W @ x))
...         p = v > c[0]
...         return (jnp.where(p, v, c[0]), jnp.where(p, x, c[1])), None
...     return jax.lax.scan(step, (-jnp.inf, X[0]), X)[0]
>>> report = explain(best)(jnp.ones((64, 64)), jnp.ones((1000, 64)))
>>> len(report.after.loops)
0

References: `maxloc` reductions (MPI 4.1, 6.9.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.cost import nbytes
from rewriter.graph import (
    Carry,
    Loop,
    Outputs,
    fresh_key,
    replace_final,
    variant_values,
)
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.patterns import Body, is_private, merged
from rewriter.remarks import Remark, missed, passed

_SENSE = {"gt": ("max", False), "ge": ("max", True)}
_SENSE |= {"lt": ("min", False), "le": ("min", True)}
_TURNED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}


@dataclass(frozen=True)
class Best:
    """A best value, the predicate's sense, and the carries kept beside it."""

    carry: Carry
    value: Any
    sense: str  # max or min
    last: bool  # of equal values the last one wins
    spoils: bool  # a NaN stays the best for good
    companions: tuple[tuple[Carry, Any], ...]


@dataclass(frozen=True)
class Search(Plan):
    """The groups found."""

    loop: Loop | None = None
    groups: tuple[Best, ...] = ()


@dataclass(frozen=True)
class BestSoFar(LoopPass):
    """The pass."""

    name: ClassVar = "best-so-far"
    numerics: ClassVar = "strict"

    FOUND = passed(
        "search", "{carries}: the {sense} of all steps and what belongs to it"
    )
    NONE = missed("none", "no carry keeps the best value so far")
    DEPENDS = missed(
        "depends", "{carry} keeps the best of values that depend on a carry"
    )
    MEMORY = missed(
        "memory-budget", "the rows of all steps beside {carry} are over the budget"
    )

    def match(self, loop: Loop, ctx: Context) -> Search | Remark:
        """Find best values whose candidates no carry feeds."""
        if not isinstance(loop.length, int) or loop.length < 2 or len(loop.carries) < 2:
            return self.NONE.at(loop.location)
        loop = merged(loop)
        body = Body(loop.eqns)
        groups: list[Best] = []
        declined = self.NONE.at(loop.location)
        for carry in loop.carries:
            found = _best(loop, carry, body)
            if found is None or (found.spoils and ctx.phase is Phase.EARLY):
                continue  # early, the derivative of a maximum would be another
            name = loop.name(carry.var)
            mine = {found.carry.var, *(c.var for c, _ in found.companions)}
            rows = [found.value, *(v for _, v in found.companions)]
            rows = [v for v in rows if not isinstance(v, jc.Literal)]
            tainted = variant_values(loop.eqns, mine | {c.var for c in loop.carries})
            if any(v in tainted for v in rows):
                declined = self.DEPENDS.at(loop.location, carry=name)
                continue
            if sum(map(nbytes, rows)) * loop.length > ctx.options.memory_budget:
                declined = self.MEMORY.at(loop.location, carry=name)
                continue
            groups.append(found)
        if not groups:
            return declined
        names = ", ".join(loop.name(g.carry.var) for g in groups)
        remark = self.FOUND.at(loop.location, carries=names, sense=groups[0].sense)
        return Search(remark, "", loop, tuple(groups))

    def rewrite(self, plan: Search) -> Loop:
        """Stack the candidates and search them after the loop."""
        loop = plan.loop
        assert loop is not None
        for group in plan.groups:
            loop = _searched(loop, group)
        return loop


def _best(loop: Loop, carry: Carry, body: Body) -> Best | None:
    """Return the group whose best value a carry is."""
    test = _test(carry, body)
    made = _maker(body, carry.out)
    if test is None or made is None:
        return None
    predicate, value, name = test
    sense, last = _SENSE[name]
    spoils = made.primitive.name == sense
    if spoils:
        pairs = (made.invars, made.invars[::-1])
        kept = any(
            body.plain(old) is carry.var and body.same(new, value) for old, new in pairs
        )
    else:
        case = _selected(body, predicate, carry)
        kept = case is not None and body.same(case, value)
    if not kept:
        return None
    companions = []
    for other in loop.carries:
        new = None if other is carry else _selected(body, predicate, other)
        if new is not None and value.aval.shape in ((), other.var.aval.shape):
            companions.append((other, new))
    if spoils and not companions:
        return None  # a plain reduction
    if not is_private(loop, [carry, *(c for c, _ in companions)]):
        return None
    return Best(carry, value, sense, last, spoils, tuple(companions))


def _test(carry: Carry, body: Body) -> tuple[Any, Any, str] | None:
    """Return the predicate of a comparison with a carry, the other side, and how."""
    aval = carry.var.aval
    if not jc.is_array_aval(aval):
        return None
    readers = body.readers(carry.var)
    tests = [e for e in readers if e.primitive.name in _SENSE]
    if len(tests) != 1 or len(readers) != 2:
        return None
    (test,) = tests
    name, turned = test.primitive.name, body.plain(test.invars[0]) is carry.var
    value = test.invars[1 if turned else 0]
    if isinstance(value, jc.Literal) or body.plain(value) is carry.var:
        return None
    if value.aval.shape != aval.shape or value.aval.dtype != aval.dtype:
        return None
    return test.outvars[0], value, _TURNED[name] if turned else name


def _maker(body: Body, atom: Any) -> Any:
    plain = body.plain(atom)
    return None if isinstance(plain, jc.Literal) else body.made.get(plain)


def _selected(body: Body, predicate: Any, carry: Carry) -> Any:
    """Return what a carry becomes where a predicate holds, if else it is kept."""
    eqn = _maker(body, carry.out)
    if eqn is None or eqn.primitive.name != "select_n" or len(eqn.invars) != 3:
        return None
    which, old, new = eqn.invars
    kept = body.plain(which) is predicate and body.plain(old) is carry.var
    return new if kept else None


def _searched(loop: Loop, group: Best) -> Loop:
    """Return the loop without the group's carries."""
    first = fresh_key(loop)
    values = [group.value, *(v for _, v in group.companions)]
    keys = list(range(first, first + len(values)))
    init = group.carry.init
    back = loop.reverse

    def stack(out: Outputs, k: int) -> Any:
        rows = out.stacks[keys[k]]
        return jnp.flip(rows, 0) if back else rows

    def winner(out: Outputs) -> tuple[Any, Any, Any]:
        rows, start = stack(out, 0), jnp.asarray(init.get(out.args))
        return _winner(rows, start.astype(rows.dtype), group)

    def best(out: Outputs) -> Any:
        rows, start = stack(out, 0), jnp.asarray(init.get(out.args))
        at, some, _ = winner(out)
        found = _row(rows, at)
        value = jnp.where(some, found, start.astype(rows.dtype))
        if group.spoils and _is_float(rows.dtype):
            bad = jnp.any(jnp.isnan(rows), axis=0) | jnp.isnan(start)
            value = jnp.where(bad, jnp.asarray(jnp.nan, rows.dtype), value)
        return value

    also = tuple(keys)
    results = replace_final(loop, group.carry.var, best, keys[0], also)
    for k, (carry, _) in enumerate(group.companions, 1):

        def companion(out: Outputs, k: int = k, carry: Carry = carry) -> Any:
            at, some, _ = winner(out)
            return jnp.where(some, _row(stack(out, k), at), carry.init.get(out.args))

        results = replace_final(
            loop.replace(results=results), carry.var, companion, keys[0], also
        )
    gone = {group.carry.var, *(c.var for c, _ in group.companions)}
    return loop.replace(
        ys=(*loop.ys, *zip(keys, values, strict=True)),
        carries=tuple(c for c in loop.carries if c.var not in gone),
        results=results,
    )


def _winner(rows: Any, start: Any, group: Best) -> tuple[Any, Any, Any]:
    """Return where the winner is, and whether there is one."""
    if group.sense == "max":
        able = rows >= start if group.last else rows > start
    else:
        able = rows <= start if group.last else rows < start
    if group.spoils and _is_float(rows.dtype):
        able &= jnp.cumsum(jnp.isnan(rows), axis=0) == 0
    worst = _worst(rows.dtype, group.sense)
    reduce = jnp.max if group.sense == "max" else jnp.min
    top = reduce(jnp.where(able, rows, worst), axis=0)
    wins = able & (rows == top)
    if group.last:
        at = rows.shape[0] - 1 - jnp.argmax(jnp.flip(wins, 0), axis=0)
    else:
        at = jnp.argmax(wins, axis=0)
    return at, jnp.any(able, axis=0), top


def _row(rows: Any, at: Any) -> Any:
    if at.ndim == 0:
        return lax.dynamic_index_in_dim(rows, at, keepdims=False)
    return jnp.take_along_axis(rows, at[None], axis=0)[0]


def _is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _worst(dtype: Any, sense: str) -> Any:
    if _is_float(dtype):
        return jnp.asarray(-jnp.inf if sense == "max" else jnp.inf, dtype)
    if np.dtype(dtype).kind == "b":
        return jnp.asarray(sense != "max")
    info = jnp.iinfo(dtype)
    return jnp.asarray(info.min if sense == "max" else info.max, dtype)
