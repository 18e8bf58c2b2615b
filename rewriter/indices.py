"""Index evaluation: integer values over the whole trip, known at compile time.

A value is *known* as an affine form `base + step * j` of the storage index j, or
as a table with one row per j. A NumPy evaluator over a closed whitelist of integer
primitives runs once per loop body; nothing passes through a float, and a form that
leaves its dtype's range is given up (ALGORITHMS.md, 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewriter.jax_compat import Literal

TABLE_LIMIT = 1 << 18  # rows a table may have
ELEMENT_LIMIT = 64  # elements of one value that is worth following


@dataclass(frozen=True)
class Affine:
    """`base + step * j`, elementwise, in an integer or boolean dtype."""

    base: np.ndarray
    step: np.ndarray
    dtype: np.dtype

    @property
    def is_constant(self) -> bool:
        """Whether the value is the same at every j."""
        return not self.step.any()

    def ends(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and last values."""
        return self.base, self.base + self.step * (max(length, 1) - 1)


@dataclass(frozen=True)
class Table:
    """One row per storage index: `rows[j]`."""

    rows: np.ndarray


Known = Affine | Table


def constant(value: Any) -> Affine | None:
    """Return the known form of a value that is the same at every j."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None and getattr(dtype, "kind", "V") not in "iub":
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "iub" or array.size > ELEMENT_LIMIT:
        return None
    base = array.astype(np.int64)
    return Affine(base, np.zeros_like(base), array.dtype)


def counter(start: int, step: int, dtype: Any) -> Affine:
    """Return the known form of `start + step * j`."""
    return Affine(
        np.asarray(start, np.int64), np.asarray(step, np.int64), np.dtype(dtype)
    )


def rows(known: Known, length: int) -> np.ndarray:
    """Return all values, one row per storage index."""
    if isinstance(known, Table):
        return known.rows
    j = np.arange(length, dtype=np.int64).reshape((-1,) + (1,) * known.base.ndim)
    return known.base + known.step * j


def reversed_in_time(known: Known, length: int) -> Known:
    """Return the form with j counted from the other end."""
    if isinstance(known, Table):
        return Table(known.rows[::-1])
    return Affine(known.base + known.step * (length - 1), -known.step, known.dtype)


def fits(values: Affine, length: int) -> bool:
    """Whether an affine form stays within its dtype over the trip."""
    if values.dtype.kind == "b":
        return True
    info = np.iinfo(values.dtype)
    return all(
        bool((e >= info.min).all() and (e <= info.max).all())
        for e in values.ends(length)
    )


# ------------------------------------------------------------ whitelist

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def _truncated_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = np.abs(a) // np.maximum(np.abs(b), 1)
    return np.where(b == 0, -1, np.where((a < 0) != (b < 0), -quotient, quotient))


def _truncated_rem(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, a, a - _truncated_div(a, b) * b)


def _broadcast_in_dim(x: np.ndarray, lead: int, eqn: Any) -> np.ndarray:
    shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    expanded = [1] * len(shape)
    for source, target in enumerate(dims):
        expanded[target] = x.shape[lead + source]
    return np.broadcast_to(
        x.reshape((*x.shape[:lead], *expanded)), (*x.shape[:lead], *shape)
    )


def _structural(x: np.ndarray, lead: int, eqn: Any) -> np.ndarray | None:
    p, name = eqn.params, eqn.primitive.name
    if name == "broadcast_in_dim":
        return _broadcast_in_dim(x, lead, eqn)
    if name in ("reshape", "squeeze", "expand_dims"):
        return x.reshape((*x.shape[:lead], *eqn.outvars[0].aval.shape))
    if name == "slice":
        strides = p["strides"] or (1,) * len(p["start_indices"])
        cut = tuple(map(slice, p["start_indices"], p["limit_indices"], strides))
        return x[(slice(None),) * lead + cut]
    return None


_STRUCTURAL = frozenset(
    {
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "expand_dims",
        "slice",
    }
)
_SAME = frozenset({"convert_element_type", "stop_gradient", "copy", "copy_p"})
WHITELIST = (
    _STRUCTURAL
    | _SAME
    | frozenset(_ARITHMETIC)
    | frozenset(_COMPARE)
    | frozenset(
        {
            "neg",
            "sign",
            "abs",
            "div",
            "rem",
            "select_n",
            "clamp",
            "concatenate",
            "stack",
            "and",
            "or",
            "not",
            "iota",
        }
    )
)


def affine_step(
    name: str, eqn: Any, ins: Sequence[Affine], length: int
) -> Affine | None:
    """Evaluate one equation on affine forms, or None where it leaves them."""
    dtype = np.dtype(eqn.outvars[0].aval.dtype)
    make = lambda base, step: Affine(np.asarray(base), np.asarray(step), dtype)  # noqa: E731
    if all(i.is_constant for i in ins):
        value = on_rows(name, eqn, [i.base for i in ins], 0)
        return None if value is None else make(value, np.zeros_like(value))
    if name in _SAME:
        return make(ins[0].base, ins[0].step) if dtype.kind in "iu" else None
    if name in _STRUCTURAL:
        base, step = (_structural(part, 0, eqn) for part in (ins[0].base, ins[0].step))
        return None if base is None or step is None else make(base, step)
    if name == "concatenate":
        axis = eqn.params["dimension"]
        return make(
            np.concatenate([i.base for i in ins], axis),
            np.concatenate([i.step for i in ins], axis),
        )
    if name == "stack":
        axis = eqn.params["axis"]
        return make(
            np.stack([i.base for i in ins], axis), np.stack([i.step for i in ins], axis)
        )
    if name == "neg":
        return make(-ins[0].base, -ins[0].step)
    if name in ("add", "sub"):
        op = _ARITHMETIC[name]
        return make(op(ins[0].base, ins[1].base), op(ins[0].step, ins[1].step))
    if name == "mul":
        for a, b in ((ins[0], ins[1]), (ins[1], ins[0])):
            if b.is_constant:
                return make(a.base * b.base, a.step * b.base)
        return None
    return _by_ends(name, eqn, ins, length, dtype)


def _by_ends(
    name: str, eqn: Any, ins: Sequence[Affine], length: int, dtype: np.dtype
) -> Affine | None:
    """Operations that keep an affine form only when the range decides them."""
    ends = [i.ends(length) for i in ins]
    if name in ("lt", "le", "gt", "ge", "max", "min"):
        differences = [ends[0][k] - ends[1][k] for k in (0, 1)]
        if name in ("max", "min"):
            above = all(bool((d >= 0).all()) for d in differences)
            below = all(bool((d <= 0).all()) for d in differences)
            if above or below:
                chosen = ins[0] if above == (name == "max") else ins[1]
                shape = np.broadcast_shapes(ins[0].base.shape, ins[1].base.shape)
                return Affine(
                    np.broadcast_to(chosen.base, shape),
                    np.broadcast_to(chosen.step, shape),
                    dtype,
                )
            return None
        zero = np.zeros(())
        first, last = (_COMPARE[name](d, zero) for d in differences)
        if np.array_equal(first, last):
            return Affine(
                first.astype(np.int64), np.zeros(first.shape, np.int64), dtype
            )
        return None
    if name in ("sign", "abs"):
        low, high = np.minimum(*ends[0]), np.maximum(*ends[0])
        if (low > 0).all():
            return _signed(name, ins[0], 1, dtype)
        if (high < 0).all():
            return _signed(name, ins[0], -1, dtype)
        return None
    if name == "select_n" and ins[0].is_constant and ins[0].base.ndim == 0:
        chosen = ins[1 + int(ins[0].base)]
        return Affine(chosen.base, chosen.step, dtype)
    if name == "clamp":
        inside = all(
            bool(((e >= ends[0][k]) & (e <= ends[2][k])).all())
            for k, e in enumerate(ends[1])
        )
        return Affine(ins[1].base, ins[1].step, dtype) if inside else None
    if (
        name == "rem"
        and ins[1].is_constant
        and all(bool(((e >= 0) & (e < ins[1].base)).all()) for e in ends[0])
    ):
        return Affine(ins[0].base, ins[0].step, dtype)
    return None


def _signed(name: str, value: Affine, sign: int, dtype: np.dtype) -> Affine:
    if name == "sign":
        base = np.full(value.base.shape, sign, np.int64)
        return Affine(base, np.zeros_like(base), dtype)
    return Affine(sign * value.base, sign * value.step, dtype)


def on_rows(
    name: str, eqn: Any, ins: Sequence[np.ndarray], lead: int
) -> np.ndarray | None:
    """Evaluate one primitive on int64 values with `lead` leading axes."""
    if name in _ARITHMETIC:
        return np.asarray(_ARITHMETIC[name](*_aligned(ins, lead)))
    if name in _COMPARE:
        return np.asarray(_COMPARE[name](*_aligned(ins, lead))).astype(np.int64)
    if name in ("div", "rem"):
        op = _truncated_div if name == "div" else _truncated_rem
        return op(*_aligned(ins, lead))
    if name in _STRUCTURAL:
        return _structural(ins[0], lead, eqn)
    if name in _SAME:
        out = np.dtype(eqn.outvars[0].aval.dtype)
        return (ins[0] != 0).astype(np.int64) if out.kind == "b" else ins[0]
    if name == "concatenate":
        return np.concatenate(list(ins), lead + eqn.params["dimension"])
    if name == "stack":
        return np.stack(list(ins), lead + eqn.params["axis"])
    if name == "select_n":
        pred, *cases = _aligned(ins, lead)
        return np.choose(pred, cases) if len(cases) <= 16 else None
    if name == "clamp":
        low, x, high = _aligned(ins, lead)
        return np.minimum(np.maximum(x, low), high)
    if name in ("neg", "sign", "abs"):
        return {"neg": np.negative, "sign": np.sign, "abs": np.abs}[name](ins[0])
    return _logical(name, eqn, ins)


def _logical(name: str, eqn: Any, ins: Sequence[np.ndarray]) -> np.ndarray | None:
    if np.dtype(eqn.outvars[0].aval.dtype).kind != "b":
        return None
    if name == "not":
        return 1 - ins[0]
    op = {"and": np.minimum, "or": np.maximum}.get(name)
    return None if op is None else op(*ins)


def _aligned(ins: Sequence[np.ndarray], lead: int) -> list[np.ndarray]:
    """Give scalars trailing axes so that only leading axes line up."""
    rank = max(i.ndim for i in ins)
    return [
        i.reshape(i.shape[:lead] + (1,) * (rank - i.ndim) + i.shape[lead:])
        if i.ndim < rank
        else i
        for i in ins
    ]


# ------------------------------------------------------------ evaluation


def step(eqn: Any, ins: Sequence[Known], length: int) -> Known | None:
    """Evaluate one equation over the trip, or None where it is not known."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    if name not in WHITELIST or getattr(out.dtype, "kind", "") not in "iub":
        return None
    dtype = np.dtype(out.dtype)
    if out.size > ELEMENT_LIMIT or len(eqn.outvars) != 1:
        return None
    if name == "iota":
        shape = [1] * len(out.shape)
        shape[eqn.params["dimension"]] = -1
        ramp = np.arange(out.shape[eqn.params["dimension"]]).reshape(shape)
        return constant(np.broadcast_to(ramp, out.shape).astype(dtype))
    if all(isinstance(i, Affine) for i in ins):
        value = affine_step(name, eqn, ins, length)  # type: ignore[arg-type]
        if value is not None:
            return value if fits(value, length) else None
    if length > TABLE_LIMIT:
        return None
    table = on_rows(name, eqn, [rows(i, length) for i in ins], 1)
    if table is None:
        return None
    if dtype.kind in "iu":
        table = table.astype(dtype).astype(np.int64)
    return Table(table)


def evaluate(
    eqns: Sequence[Any], inputs: Mapping[Any, Known], length: int
) -> dict[Any, Known]:
    """Return every variable of a body that is known over the whole trip."""
    known: dict[Any, Known] = dict(inputs)

    def read(atom: Any) -> Known | None:
        return constant(atom.val) if isinstance(atom, Literal) else known.get(atom)

    for eqn in eqns:
        if eqn.primitive.name not in WHITELIST:
            continue
        ins = [read(a) for a in eqn.invars]
        if any(i is None for i in ins):
            continue
        value = step(eqn, ins, length)  # type: ignore[arg-type]
        if value is not None:
            known[eqn.outvars[0]] = value
    return known
