"""Closed sums: `s + (2*i + 1) * c` over all i is a formula, not a loop.

What it does: a sum whose terms are affine in the counter, or in other integers that are
known at every step, with coefficients that no step changes, is computed from the sum
(integers) or the mean (floats) of those integers: no loop and no row of terms is left.
Of floats only products and quotients: a mean would be rounded before a difference.

Why it pays: one evaluation of the term instead of one per step.

Legality: the carry is read by nothing else. Integers: ring operations in one dtype, so
the wrapped result is the loop's. Floats: where a coefficient or the result is not
finite, all terms are added, so NaN and infinity appear where the loop has them.

Numerics: strict; sums of floats are replaced only from `reassociate` on.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(c):
...     return jax.lax.fori_loop(0, 1000, lambda i, s: s + (2 * i + 1) * c, 0)
>>> report = explain(f)(7)
>>> len(report.after.loops), f(7)
(0, Array(7000000, dtype=int32, weak_type=True))

References: LLVM's scalar evolution (chains of recurrences, Bachmann, Wang and Zima,
ISSAC 1994).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.cost import Model
from rewriter.emit import value_of
from rewriter.exact import integers, largest, total, wrapped
from rewriter.graph import Loop, Outputs, prune, reads, replace_final
from rewriter.indices import Affine, Known
from rewriter.legality import is_foreign, unbatchable
from rewriter.orient import evaluate
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.patterns import merged
from rewriter.recurrence import Reduction, may_reorder, reduction_of, users_of, uses
from rewriter.remarks import Remark, missed, passed

_VIEWS = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "neg",
        "reshape",
        "squeeze",
        "transpose",
    }
)
_SUMS = frozenset({"add", "add_any", "sub", "reduce_sum"})


@dataclass(frozen=True)
class Closed:
    """A sum with the equations of its terms and the known integers they read."""

    reduction: Reduction
    eqns: tuple[Any, ...]
    known: tuple[tuple[Any, Known], ...]

    @property
    def reads(self) -> set[Any]:
        """All that the terms and their equations read."""
        terms = [t.atom for t in self.reduction.terms]
        found = {v for v in terms if not isinstance(v, jc.Literal)}
        return found.union(*(reads(e) for e in self.eqns))


@dataclass(frozen=True)
class Sums(Plan):
    """The sums of one loop."""

    loop: Loop | None = None
    sums: tuple[Closed, ...] = ()


@dataclass(frozen=True)
class ClosedSum(LoopPass):
    """The pass."""

    name: ClassVar = "closed-sum"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "strict"
    least_share: float = 0.2  # of the loop's work; its terms are there twice

    FOUND = passed("closed", "{count} sum(s) over all steps are computed at once")
    SMALL = missed("small", "a sum that is {percent} % of a loop stays in it")
    NONE = missed("none", "no carry sums terms that are affine in the counter")

    def match(self, loop: Loop, ctx: Context) -> Sums | Remark:
        """Find sums of affine terms."""
        loop = merged(loop)
        if not isinstance(loop.length, int) or loop.length < 2:
            return self.NONE.at(loop.location)
        count, users = uses(loop), users_of(loop.eqns)
        found = []
        for carry in loop.carries:
            reduction = reduction_of(loop, carry, count, users)
            if reduction is None or reduction.op.name != "sum":
                continue
            if may_reorder(reduction, ctx.options.numerics):
                closed = _closed(loop, reduction)
                found += [] if closed is None else [closed]
        if not found:
            return self.NONE.at(loop.location)
        share = _share(loop, found, ctx.model)
        if share < self.least_share:
            return self.SMALL.at(loop.location, percent=round(100 * share))
        remark = self.FOUND.at(loop.location, count=len(found))
        return Sums(remark, "", loop, tuple(found))

    def rewrite(self, plan: Sums) -> Loop:
        """Take the carries out; their final values are computed after the loop."""
        whole = loop = plan.loop
        assert whole is not None
        assert loop is not None
        for closed in plan.sums:
            var = closed.reduction.carry.var
            get = _total(whole, closed)
            loop = loop.replace(
                results=replace_final(loop, var, get),
                carries=tuple(c for c in loop.carries if c.var is not var),
            )
        return loop


def _share(loop: Loop, sums: Sequence[Closed], model: Model) -> float:
    """Return the part of a step's work that goes with some sums."""
    gone = {c.reduction.carry.var for c in sums}
    results = tuple(r for r in loop.results if r is not None and r.carry not in gone)
    rest = prune(loop.replace(results=results))
    if not rest.carries and not rest.ys:
        return 1.0
    before, after = (
        sum(map(model.loop, x.eqns)) + model.overhead(x.eqns) for x in (loop, rest)
    )
    return 1 - after / before


def _closed(loop: Loop, reduction: Reduction) -> Closed | None:
    """Return the sum, if its terms are affine in what is known at every step."""
    dtype = reduction.carry.var.aval.dtype
    if dtype.kind not in "iuf":
        return None
    known = loop.known()
    fixed = {v for v, _ in loop.consts}
    affine: set[Any] = set()
    used: dict[Any, Known] = {}
    made = {v: e for e in loop.eqns for v in e.outvars}
    cone = _cone(reduction, made, known)
    eqns = [e for e in loop.eqns if id(e) in cone]
    for eqn in eqns:
        changing = [v for v in reads(eqn) if v not in fixed]
        if any(v not in affine and v not in known for v in changing):
            return None
        used.update((v, known[v]) for v in changing if v in known)
        if not changing:
            if unbatchable(eqn) is not None or is_foreign(eqn):
                return None
            fixed.update(eqn.outvars)
        elif _is_affine(eqn, changing, any(v in known for v in changing), dtype):
            affine.update(eqn.outvars)
        else:
            return None
    for term in reduction.terms:
        if isinstance(term.atom, jc.Literal) or term.atom in fixed | affine:
            continue
        if term.atom not in known or dtype.kind == "f":
            return None
        used[term.atom] = known[term.atom]
    if dtype.kind == "f":  # the conversion of a known integer must be exact
        most = 2.0 ** (jnp.finfo(dtype).nmant + 1)
        if any(np.max(largest(k, loop.length)) > most for k in used.values()):
            return None
    return Closed(reduction, tuple(eqns), tuple(used.items()))


def _cone(reduction: Reduction, made: Any, known: Any) -> set[int]:
    """Return the equations that make the terms from known integers and constants."""
    todo = [t.atom for t in reduction.terms]
    found: set[int] = set()
    while todo:
        atom = todo.pop()
        if isinstance(atom, jc.Literal) or atom in known or atom not in made:
            continue
        if id(made[atom]) not in found:
            found.add(id(made[atom]))
            todo += reads(made[atom])
    return found


def _is_affine(eqn: Any, changing: list[Any], reads_known: bool, dtype: Any) -> bool:
    """Whether an equation's result is affine in what changes from step to step.

    For integers all is done in the dtype of the sum. For floats the known integers
    must first become floats, since what stands for them need not be whole.
    """
    name, whole = eqn.primitive.name, dtype.kind in "iu"
    have, out = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    if name == "convert_element_type" and not whole:
        if reads_known:
            return out.kind == "f" and out.itemsize >= 4
        return out.kind == "f" and out.itemsize >= have.itemsize
    if reads_known and not whole:
        return False
    if any(
        v.aval.dtype != (dtype if whole else out) for v in (*eqn.invars, *eqn.outvars)
    ):
        return False
    if name in _VIEWS or (name in _SUMS and whole):
        return True
    if name == "mul":
        return len(changing) == 1
    return name == "div" and not whole and changing == [eqn.invars[0]]


def _total(loop: Loop, closed: Closed) -> Callable[[Outputs], Any]:
    """Return what computes the final value of a carry."""
    length, reduction = loop.length, closed.reduction
    aval = reduction.carry.var.aval
    dtype = aval.dtype

    def whole(consts: dict[Any, Any]) -> list[Any]:
        def at(known: Known, aval: Any, times: int) -> Any:
            value = integers(lambda v: times * v, total(known, length))
            return wrapped(value, aval)

        at_sum = _terms(closed, consts, lambda k, aval: at(k, aval, 1))
        at_zero = _terms(closed, consts, lambda k, aval: at(k, aval, 0))
        more = np.asarray(length - 1).astype(aval.dtype)
        return [one + none * more for one, none in zip(at_sum, at_zero, strict=True)]

    def rounded(consts: dict[Any, Any]) -> list[Any]:
        def mean(known: Known, aval: Any) -> Any:
            value = np.asarray(total(known, length), object).astype(np.float64) / length
            return np.broadcast_to(value, aval.shape).astype(dtype)

        def most(known: Known, aval: Any) -> Any:
            return np.broadcast_to(largest(known, length), aval.shape).astype(dtype)

        # no other step has larger values
        env = _evaluated(closed, consts, most)
        values = [env[v] for e in closed.eqns for v in e.outvars]
        sums = [one * length for one in _terms(closed, consts, mean)]
        values += [one * length for one in _read(closed, env)] + sums
        values += [x for v, x in consts.items() if v in closed.reads]
        floats = [jnp.all(jnp.isfinite(x)) for x in values if x.dtype.kind == "f"]
        return lax.cond(
            jnp.all(jnp.stack(floats)),
            lambda: sums,
            lambda: _by_rows(closed, consts, length),
        )

    def get(out: Outputs) -> Any:
        consts = {v: s.get(out.args) for v, s in loop.consts}
        value = lax.convert_element_type(reduction.carry.init.get(out.args), dtype)
        sums = rounded(consts) if dtype.kind == "f" else whole(consts)
        for term, one in zip(reduction.terms, sums, strict=True):
            value = value - one if term.negative else value + one
        return value

    return get


def _by_rows(closed: Closed, consts: dict[Any, Any], length: int) -> list[Any]:
    """Return the sum of each term, from a row per step."""
    j = jnp.arange(length)

    def one(j: Any) -> list[Any]:
        return _terms(closed, consts, lambda known, aval: _at(known, j, aval))

    return [jnp.sum(rows, axis=0) for rows in jax.vmap(one)(j)]


def _at(known: Known, j: Any, aval: Any) -> Any:
    """Return a known value at storage index `j`."""
    if not isinstance(known, Affine):
        return jnp.asarray(known.rows.astype(aval.dtype))[j]
    step = known.step.astype(aval.dtype)
    return known.base.astype(aval.dtype) + step * j.astype(aval.dtype)


def _terms(
    closed: Closed, consts: dict[Any, Any], value: Callable[[Known, Any], Any]
) -> list[Any]:
    """Return the terms with some value in place of each known integer."""
    return _read(closed, _evaluated(closed, consts, value))


def _evaluated(
    closed: Closed, consts: dict[Any, Any], value: Callable[[Known, Any], Any]
) -> dict[Any, Any]:
    """Evaluate the equations with some value in place of each known integer."""
    env = consts | {v: value(known, v.aval) for v, known in closed.known}
    evaluate(closed.eqns, env, set())
    return env


def _read(closed: Closed, env: dict[Any, Any]) -> list[Any]:
    """Return the terms in the type of the sum."""
    aval = closed.reduction.carry.var.aval
    return [
        jnp.broadcast_to(jnp.asarray(value_of(t.atom, env), aval.dtype), aval.shape)
        for t in closed.reduction.terms
    ]
