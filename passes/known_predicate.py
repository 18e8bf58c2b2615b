"""Known predicates: a selection that goes the same way at every step is no selection.

What it does: `where` and `select` with a predicate that is known to be the same at
every step (a bounds check on a counter, `i < n`) become the case that is taken.

Why it pays: the case that is never taken need not be computed or read, which frees
buffers that were only read to be kept.

Legality: the predicate's values over the trip are evaluated at compile time. Before
differentiation only where the other cases are read, not computed: the derivative of a
case that is never taken may be NaN all the same.

Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(W, x):
...     def step(i, c):
...         return jnp.where(i < 100, jnp.sin(W @ c), W @ jnp.cos(c))
...     return jax.lax.fori_loop(0, 100, step, x)
>>> report = explain(f)(jnp.ones((8, 8)), jnp.ones(8))
>>> report.before.count("cos"), report.after.count("cos")
(1, 0)

References: predicate and range propagation, any compiler textbook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from rewriter import jax_compat as jc
from rewriter.graph import Loop, substitute
from rewriter.indices import TABLE_LIMIT, Affine, Known, rows
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.remarks import Remark, missed, passed

_LINEAR = frozenset(
    {
        "add",
        "sub",
        "neg",
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "expand_dims",
        "transpose",
        "rev",
        "slice",
        "dynamic_slice",
        "gather",
        "concatenate",
        "pad",
        "dynamic_update_slice",
        "scatter",
        "select_n",
        "convert_element_type",
        "stop_gradient",
    }
)


@dataclass(frozen=True)
class Taken(Plan):
    """The case that each selection always takes."""

    loop: Loop | None = None
    cases: Mapping[Any, Any] | None = None


@dataclass(frozen=True)
class KnownPredicate(LoopPass):
    """The pass."""

    name: ClassVar = "known-predicate"
    numerics: ClassVar = "strict"

    FOUND = passed("same", "{count} selection(s) go the same way at every step")
    NONE = missed("none", "no selection is known to go the same way at every step")

    def match(self, loop: Loop, ctx: Context) -> Taken | Remark:
        """Find selections with a predicate that never changes."""
        selections = [e for e in loop.eqns if e.primitive.name == "select_n"]
        if not selections or not isinstance(loop.length, int) or loop.length < 1:
            return self.NONE.at(loop.location)
        known = loop.known()
        made = {v: e for e in loop.eqns for v in e.outvars}
        cases: dict[Any, Any] = {}
        for eqn in selections:
            which = _constant(eqn.invars[0], known, made, loop.length)
            if which is None or not 0 <= which < len(eqn.invars) - 1:
                continue
            others = [v for k, v in enumerate(eqn.invars[1:]) if k != which]
            if ctx.phase is Phase.EARLY and not _linear(others, made):
                continue
            case = eqn.invars[1 + which]
            case = cases.get(case, case) if not isinstance(case, jc.Literal) else case
            if jc.same_type(case.aval, eqn.outvars[0].aval):
                cases[eqn.outvars[0]] = case
        if not cases:
            return self.NONE.at(loop.location)
        return Taken(self.FOUND.at(loop.location, count=len(cases)), "", loop, cases)

    def rewrite(self, plan: Taken) -> Loop:
        """Put the cases in place of the selections."""
        loop = plan.loop
        assert loop is not None
        assert plan.cases is not None
        eqns = tuple(
            e for e in loop.eqns if not any(v in plan.cases for v in e.outvars)
        )
        return substitute(loop.replace(eqns=eqns), plan.cases)


def _linear(atoms: Sequence[Any], made: Mapping[Any, Any]) -> bool:
    """Whether no derivative of some values is anything but zero times a number."""
    live, seen = list(atoms), set()
    while live:
        atom = live.pop()
        if isinstance(atom, jc.Literal) or atom in seen or atom not in made:
            continue
        seen.add(atom)
        if not jnp.issubdtype(atom.aval.dtype, jnp.inexact):
            continue
        if made[atom].primitive.name not in _LINEAR:
            return False
        live += made[atom].invars
    return True


def _constant(
    atom: Any, known: Mapping[Any, Known], made: Mapping[Any, Any], length: int
) -> int | None:
    """Return the one value of a predicate, all elements and steps, or None."""
    if isinstance(atom, jc.Literal):
        values = np.unique(np.asarray(atom.val))
        return int(values[0]) if values.size == 1 else None
    while atom not in known and atom in made:
        if made[atom].primitive.name != "broadcast_in_dim":
            return None
        atom = made[atom].invars[0]
        if isinstance(atom, jc.Literal):
            return _constant(atom, known, made, length)
    value = known.get(atom)
    if value is None or (not isinstance(value, Affine) and length > TABLE_LIMIT):
        return None
    if isinstance(value, Affine) and not value.is_constant:
        return None
    values = (
        np.unique(value.base)
        if isinstance(value, Affine)
        else np.unique(rows(value, length))
    )
    return int(values[0]) if values.size == 1 else None
