"""What reads the rows of a loop's stacked output one by one: its row-wise consumers.

`argmin(rows, axis=1)` needs one row at a time, `max(rows)` one row and a maximum.
`consumers` follows stacked outputs forward through such equations, with the axis along
which the rows lie, up to *exits* that are smaller than what is stacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.cost import nbytes
from rewriter.planes import ELEMENTWISE
from rewriter.producers import unit_equation
from rewriter.recurrence import ASSOCIATIVE, Associative

FOLDS = {
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
    "reduce_xor": "xor",
}
_RESHAPES = ("reshape", "squeeze", "expand_dims")
_CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "rev")
Axes = dict[Any, int]


@dataclass(frozen=True)
class Consumers:
    """Equations that work row by row, and where their rows lie.

    eqns: in the order of the program.
    axes: of every value with rows, the axis along which they lie.
    exits: values with rows that others read.
    folds: equations that reduce over the rows.
    """

    eqns: tuple[Any, ...]
    axes: Axes
    exits: tuple[Any, ...]
    folds: tuple[Any, ...]

    @property
    def kept(self) -> int:
        """Bytes that are stored still."""
        return sum(map(nbytes, self.exits))


def consumers(
    stacks: Sequence[Any],
    eqns: Sequence[Any],
    outvars: Sequence[Any],
    sums: bool,
) -> Consumers | None:
    """Return the row-wise consumers of stacked outputs.

    Args:
        stacks: the stacked outputs, rows along their first axis.
        eqns: the equations of the program, in order.
        outvars: what the program returns.
        sums: whether sums of float rows are folds: in order, which is less accurate.
    """
    length = stacks[0].aval.shape[0]
    axes: Axes = dict.fromkeys(stacks, 0)
    later = set(stacks)
    taken: list[Any] = []
    reduced: list[Any] = []
    for eqn in eqns:
        if not any(v in later for v in eqn.invars if not isinstance(v, jc.Literal)):
            continue
        rule = _rule(eqn, axes, length)
        outside = [v for v in _reads(eqn) if v in later and v not in axes]
        is_fold = rule is not None and rule[1] is None
        if rule is not None and not outside and (not is_fold or sums or is_exact(eqn)):
            axes.update(rule[0])
            if is_fold:
                reduced.append(eqn)
            else:
                axes.update(dict.fromkeys(eqn.outvars, rule[1]))
            taken.append(eqn)
        later.update(eqn.outvars)
    found = Consumers(tuple(taken), axes, (), tuple(reduced))
    while True:  # what makes more than it reads stays outside
        found = _with_exits(found, stacks, eqns, outvars)
        wide = [e for e in found.eqns if _widens(e, found)]
        if not wide:
            break
        found = replace(
            found, eqns=tuple(e for e in found.eqns if not any(e is w for w in wide))
        )
    return found if found.eqns else None


def _with_exits(
    found: Consumers, stacks: Sequence[Any], eqns: Sequence[Any], outvars: Sequence[Any]
) -> Consumers:
    inside = {id(e) for e in found.eqns}
    mine = {*stacks, *(v for e in found.eqns for v in e.outvars)}
    read = {v for e in eqns if id(e) not in inside for v in _reads(e)}
    read |= {v for v in outvars if not isinstance(v, jc.Literal)}
    folds = tuple(e for e in found.folds if id(e) in inside)
    total = {v for e in folds for v in e.outvars}
    exits = tuple(dict.fromkeys(v for v in found.axes if v in mine & read - total))
    return replace(found, exits=exits, folds=folds)


def _widens(eqn: Any, found: Consumers) -> bool:
    """Whether an equation at the end makes more than it would leave to be stored."""
    if any(eqn is f for f in found.folds):
        return False
    ends = [v for v in eqn.outvars if v in found.exits]
    inside = {v for e in found.eqns for v in _reads(e)}
    if not ends or any(v in inside for v in eqn.outvars):
        return False
    rows = {v for v in _reads(eqn) if v in found.axes and v not in found.exits}
    return sum(map(nbytes, ends)) > sum(map(nbytes, rows))


def _reads(eqn: Any) -> list[Any]:
    return [v for v in eqn.invars if not isinstance(v, jc.Literal)]


def _rule(eqn: Any, axes: Axes, length: int) -> tuple[Axes, int | None] | None:
    """Return the operands that have rows, and the axis of the result's (None: a fold).

    None if the equation does not work row by row.
    """
    name, p = eqn.primitive.name, eqn.params
    given = [axes.get(v) for v in eqn.invars if not isinstance(v, jc.Literal)]
    at = next((a for a in given if a is not None), None)
    if at is None or eqn.effects:
        return None
    if any(
        jc.is_sharded(v.aval) or jc.is_extended(v.aval)
        for v in (*_reads(eqn), *eqn.outvars)
    ):
        return None
    if name in ELEMENTWISE or name in ("select_n", "sort", "clamp"):
        return _elementwise_rule(eqn, axes, at, length)
    if name == "dot_general":
        return _dot_rule(eqn, axes)
    first, out = eqn.invars[0], eqn.outvars[0].aval.shape
    if len(_reads(eqn)) != 1 or first is not _reads(eqn)[0]:
        return None
    if name in FOLDS and at in p["axes"]:
        aval = first.aval
        short = jnp.issubdtype(aval.dtype, jnp.floating) and aval.dtype.itemsize < 4
        return None if short else ({first: at}, None)
    to = _moved(name, p, at, first.aval.shape, out)
    return None if to is None or out[to] != length else ({first: at}, to)


def _moved(
    name: str, p: Any, at: int, before: Sequence[int], after: Sequence[int]
) -> int | None:
    """Return where the axis of the rows is after an equation of one operand."""
    to: int | None = None
    if name in FOLDS or name in ("argmin", "argmax"):
        to = None if at in p["axes"] else at - sum(a < at for a in p["axes"])
    elif name == "broadcast_in_dim":
        to = p["broadcast_dimensions"][at]
    elif name == "transpose":
        to = tuple(p["permutation"]).index(at)
    elif name in _RESHAPES:
        to = _reshaped(before, after, at)
    elif name == "slice":
        to = at if before[at] == after[at] else None
    elif name in _CUMULATIVE:
        to = None if at in (p.get("dimensions") or (p.get("axis"),)) else at
    elif name == "top_k":
        over = p.get("axis", len(before) - 1) % len(before)
        to = None if over == at else at
    return to


def _elementwise_rule(
    eqn: Any, axes: Axes, at: int, length: int
) -> tuple[Axes, int | None] | None:
    out = eqn.outvars[0].aval.shape
    found: Axes = {}
    for v in _reads(eqn):
        shape = v.aval.shape
        if v in axes and axes[v] != at:
            return None
        if len(shape) == len(out) and shape[at] == length:
            found[v] = at
        elif shape and not (len(shape) == len(out) and shape[at] == 1):
            return None
    if eqn.primitive.name == "sort" and (
        eqn.params["dimension"] == at or len(found) < len(_reads(eqn))
    ):
        return None
    return found, at


def _dot_rule(eqn: Any, axes: Axes) -> tuple[Axes, int | None] | None:
    """Return the rule of a product with a matrix that is the same for every row."""
    left, right = eqn.invars
    mine = 0 if left in axes else 1
    if (left in axes) == (right in axes):
        return None
    contracted, batch = eqn.params["dimension_numbers"]
    operand, at = eqn.invars[mine], axes[eqn.invars[mine]]
    if at in contracted[mine] or batch[mine]:
        return None
    free = [k for k in range(len(operand.aval.shape)) if k not in contracted[mine]]
    skipped = len(left.aval.shape) - len(contracted[0]) if mine else 0
    return {operand: at}, skipped + free.index(at)


def _reshaped(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Return where an axis is after a reshape that leaves it whole."""
    ahead, size = int(np.prod(before[:axis])), before[axis]
    for k in range(len(after)):
        if int(np.prod(after[:k])) == ahead and after[k] == size:
            return k
    return None


def is_exact(fold: Any) -> bool:
    """Whether a fold gives the same in any order."""
    exact = fold.outvars[0].aval.dtype.kind in "iub"
    return exact or fold.primitive.name in ("reduce_max", "reduce_min")


def parted(
    stacks: Sequence[Any], eqns: Sequence[Any], outvars: Sequence[Any]
) -> list[Any]:
    """Return the equations with float sums over rows and more in two parts.

    First over the axes of a row, which is done row by row, then over the rows.
    """
    found = consumers(stacks, eqns, outvars, sums=True)
    out: list[Any] = []
    for eqn in eqns:
        folds = () if found is None else found.folds
        if found is None or not any(eqn is f for f in folds) or is_exact(eqn):
            out.append(eqn)
            continue
        (v,) = eqn.invars
        at, axes = found.axes[v], eqn.params["axes"]
        others = tuple(a for a in axes if a != at)
        if not others:
            out.append(eqn)
            continue
        shape = tuple(n for k, n in enumerate(v.aval.shape) if k not in others)
        part = jc.fresh_var(v.aval.update(shape=shape))
        rest = (at - sum(a < at for a in others),)
        first = jc.replace_params(eqn, axes=others)
        out.append(first.replace(outvars=[part]))
        out.append(jc.replace_params(eqn, axes=rest).replace(invars=[part]))
    return out


# ------------------------------------------------------------ one row


def evaluate_row(found: Consumers, env: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Return a row of each exit and of each fold.

    `env`: a row of each value that has rows, with an axis of size one in its place, and
    all of the others.
    """
    for eqn in found.eqns:
        ins = [v.val if isinstance(v, jc.Literal) else env[v] for v in eqn.invars]
        if any(eqn is f for f in found.folds):
            env[eqn.outvars[0]] = jc.rebind(eqn, ins)[0]
            continue
        axis = found.axes[eqn.outvars[0]]
        env.update(zip(eqn.outvars, unit_equation(eqn, ins, axis), strict=True))
    exits = [lax.squeeze(env[v], (found.axes[v],)) for v in found.exits]
    return exits, [env[e.outvars[0]] for e in found.folds]


def operation(fold: Any) -> Associative:
    """Return the operation of a fold."""
    return ASSOCIATIVE[FOLDS[fold.primitive.name]]
