"""Planes: rows of tiny arrays evaluated component by component.

An axis of length 3 as the innermost one defeats vector units, and a library call per
3x3 matrix costs more than its arithmetic. Here every component of a tiny value is an
array over the rows of its own: elementwise operations act on each component, structural
ones only rearrange them, small dots, LU factorisations (with LAPACK's partial pivoting)
and triangular solves are written out, and `cond` becomes a selection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.tiny_linalg import lu, together, triangular_solve

ELEMENTS = 16  # largest value that is split
WIDEST = 8  # innermost axis from which on rows suit vector units as they are
OPERATIONS = 3000  # components of all equations together

# fmt: off
ELEMENTWISE = frozenset({
    "add", "sub", "mul", "div", "rem", "neg", "sign", "abs", "max", "min", "pow",
    "integer_pow", "sqrt", "rsqrt", "cbrt", "exp", "exp2", "log", "log1p", "expm1",
    "tanh", "logistic", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh",
    "cosh", "erf", "erf_inv", "erfc", "square", "floor", "ceil", "round", "is_finite",
    "not", "and", "or", "xor", "eq", "ne", "lt", "le", "gt", "ge", "clamp",
    "nextafter", "convert_element_type", "stop_gradient", "copy", "add_any",
    "shift_left", "shift_right_logical", "shift_right_arithmetic", "lgamma",
    "digamma",
})
# fmt: on
_REDUCE: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": lax.add,
    "reduce_prod": lax.mul,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_and": lax.bitwise_and,
    "reduce_or": lax.bitwise_or,
}
_STRUCTURE = frozenset(
    {
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "expand_dims",
        "transpose",
        "slice",
        "rev",
        "concatenate",
        "stack",
        "iota",
        "select_n",
        "empty",
        "empty2",
    }
)
_LINEAR = frozenset({"dot_general", "lu", "triangular_solve"})


def operations(eqns: Sequence[Any]) -> int | None:
    """Return how many component operations equations take; None if not supported."""
    total = 0
    for eqn in eqns:
        count = _count(eqn)
        if count is None:
            return None
        total += count
    return total if total <= OPERATIONS else None


def _count(eqn: Any) -> int | None:
    name = eqn.primitive.name
    for v in (*eqn.invars, *eqn.outvars):
        if (
            not jc.is_array_aval(v.aval)
            or jc.is_extended(v.aval)
            or (v.aval.size > ELEMENTS or v.aval.size == 0)
        ):
            return None
    size = max((v.aval.size for v in eqn.outvars), default=1)
    if name == "cond":
        counts = [operations(jc.open_jaxpr(b).eqns) for b in eqn.params["branches"]]
        return (
            None
            if any(c is None for c in counts)
            else size + sum(c for c in counts if c is not None)
        )
    if name in ELEMENTWISE or name in _STRUCTURE:
        return int(size) if name in ELEMENTWISE or name == "select_n" else 0
    if name in _REDUCE:
        return int(eqn.invars[0].aval.size)
    if name == "dot_general":
        return int(2 * size * eqn.invars[0].aval.size)
    if name in _LINEAR:
        p = eqn.params
        if name == "triangular_solve" and (p["conjugate_a"] or not p["left_side"]):
            return None
        return int(6 * eqn.invars[0].aval.size * size)
    if name == "gather":
        return int(2 * size * eqn.invars[0].aval.size) if _is_permutation(eqn) else None
    return None


def _is_permutation(eqn: Any) -> bool:
    """Whether a gather takes whole rows of the leading axis at a vector of indices."""
    n = eqn.params["dimension_numbers"]
    operand, index = (v.aval.shape for v in eqn.invars[:2])
    return (
        len(index) == 2
        and index[1] == 1
        and "FILL" not in str(eqn.params["mode"])
        and tuple(n.start_index_map) == (0,)
        and tuple(n.collapsed_slice_dims) == (0,)
        and not n.operand_batching_dims
        and tuple(n.offset_dims) == tuple(range(1, len(operand)))
        and tuple(eqn.params["slice_sizes"]) == (1, *operand[1:])
    )


# ------------------------------------------------------------ values


def split(value: Any, shape: tuple[int, ...], rows: bool) -> np.ndarray:
    """Split an array (with a leading row axis if `rows`) into its components."""
    out = np.empty(shape, object)
    lead = 1 if rows else 0
    for index in np.ndindex(*shape):
        cut = tuple(itertools.chain([slice(None)] * lead, index))
        out[index] = value[cut] if shape else value
    return out


def join(components: np.ndarray, length: int, dtype: Any) -> Any:
    """Put components back together, rows first."""
    flat = [_rows(jnp.asarray(c, dtype), length) for c in components.reshape(-1)]
    if components.shape == ():
        return flat[0]
    return jnp.stack(flat, axis=-1).reshape(length, *components.shape)


def _rows(value: Any, length: int) -> Any:
    return value if value.ndim else jnp.broadcast_to(value, (length,))


# ------------------------------------------------------------ evaluation


def evaluate(eqns: Sequence[Any], env: dict[Any, np.ndarray]) -> None:
    """Evaluate equations on split values."""
    for eqn in eqns:
        ins = [_literal(v) if isinstance(v, jc.Literal) else env[v] for v in eqn.invars]
        env.update(zip(eqn.outvars, _apply(eqn, ins), strict=True))


def _literal(atom: Any) -> np.ndarray:
    return split(np.asarray(atom.val, atom.aval.dtype), atom.aval.shape, rows=False)


def _apply(eqn: Any, ins: list[np.ndarray]) -> list[np.ndarray]:
    name = eqn.primitive.name
    with jc.at_inner_location(eqn):
        if name in ELEMENTWISE:
            return [_elementwise(eqn, ins)]
        if name in _STRUCTURE:
            return [_structure(eqn, ins)]
        if name in _REDUCE:
            return [_reduce(_REDUCE[name], ins[0], eqn.params["axes"])]
        if name == "dot_general":
            return [_dot(eqn, *ins)]
        if name == "lu":
            return lu(ins[0])
        if name == "triangular_solve":
            return [triangular_solve(eqn.params, *ins)]
        if name == "gather":
            return [_permute(*ins[:2])]
        assert name == "cond", name
        return _cond(eqn, ins)


def _elementwise(eqn: Any, ins: list[np.ndarray]) -> np.ndarray:
    shape = np.broadcast_shapes(*(i.shape for i in ins))
    ins = [np.broadcast_to(i, shape) for i in ins]
    out = np.empty(shape, object)
    for index in np.ndindex(*shape):
        out[index] = jc.rebind(eqn, together([i[index] for i in ins]))[0]
    return out


def _structure(eqn: Any, ins: list[np.ndarray]) -> np.ndarray:
    name, p, shape = eqn.primitive.name, eqn.params, eqn.outvars[0].aval.shape
    x = ins[0] if ins else None
    if name == "iota":
        ramp = np.arange(shape[p["dimension"]]).reshape(
            [-1 if k == p["dimension"] else 1 for k in range(len(shape))]
        )
        values = np.broadcast_to(ramp, shape).astype(p["dtype"])
        return split(values, shape, rows=False)
    if name.startswith("empty"):
        return split(np.zeros(shape, eqn.outvars[0].aval.dtype), shape, rows=False)
    assert x is not None
    if name == "broadcast_in_dim":
        expanded = [1] * len(shape)
        for source, target in enumerate(p["broadcast_dimensions"]):
            expanded[target] = x.shape[source]
        return np.broadcast_to(x.reshape(expanded), shape)
    if name == "transpose":
        return x.transpose(p["permutation"])
    if name == "slice":
        strides = p["strides"] or (1,) * len(shape)
        return x[tuple(map(slice, p["start_indices"], p["limit_indices"], strides))]
    if name == "rev":
        return np.flip(x, p["dimensions"])
    if name == "concatenate":
        return np.concatenate(ins, p["dimension"])
    if name == "stack":
        return np.stack(ins, p["axis"])
    if name == "select_n":
        return _select(x, ins[1:])
    return x.reshape(shape)


def _select(which: np.ndarray, cases: Sequence[np.ndarray]) -> np.ndarray:
    shape = cases[0].shape
    which = np.broadcast_to(which, shape)
    out = np.empty(shape, object)
    for index in np.ndindex(*shape):
        out[index] = lax.select_n(*together([which[index], *(c[index] for c in cases)]))
    return out


def _reduce(
    op: Callable[[Any, Any], Any], x: np.ndarray, axes: Sequence[int]
) -> np.ndarray:
    kept = [k for k in range(x.ndim) if k not in axes]
    moved = x.transpose(*kept, *axes).reshape(*(x.shape[k] for k in kept), -1)
    out = np.empty(moved.shape[:-1], object)
    for index in np.ndindex(*out.shape):
        parts = list(moved[index])
        total = parts[0]
        for part in parts[1:]:
            total = op(*together([total, part]))
        out[index] = total
    return out


def _dot(eqn: Any, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
    dtype = eqn.outvars[0].aval.dtype
    lf = [k for k in range(left.ndim) if k not in (*lc, *lb)]
    rf = [k for k in range(right.ndim) if k not in (*rc, *rb)]
    a = left.transpose(*lb, *lf, *lc)
    b = right.transpose(*rb, *rf, *rc)
    batch = a.shape[: len(lb)]
    k = int(np.prod([left.shape[i] for i in lc], dtype=int))
    a = a.reshape(*batch, -1, k)
    b = b.reshape(*batch, -1, k)
    out = np.empty((*batch, a.shape[-2], b.shape[-2]), object)
    for index in np.ndindex(*out.shape):
        rows, cols = a[index[:-1]], b[(*index[:-2], index[-1])]
        total = None
        for x, y in zip(rows, cols, strict=True):
            product = lax.mul(*together([jnp.asarray(x, dtype), jnp.asarray(y, dtype)]))
            total = product if total is None else lax.add(*together([total, product]))
        out[index] = jnp.zeros((), dtype) if total is None else total
    return out.reshape(eqn.outvars[0].aval.shape)


def _permute(operand: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Rows of `operand` at computed positions, by selection; positions clamp."""
    n = operand.shape[0]
    out = np.empty((index.shape[0], *operand.shape[1:]), object)
    for i in range(index.shape[0]):
        at = index[i, 0]
        for rest in np.ndindex(*operand.shape[1:]):
            value = operand[(0, *rest)]
            for k in range(1, n):
                here = lax.ge(*together([at, jnp.asarray(k, at.dtype)]))
                value = lax.select_n(*together([here, value, operand[(k, *rest)]]))
            out[(i, *rest)] = value
    return out


def _cond(eqn: Any, ins: list[np.ndarray]) -> list[np.ndarray]:
    results = []
    for closed in eqn.params["branches"]:
        jaxpr = jc.open_jaxpr(closed)
        env = {
            v: split(c, v.aval.shape, rows=False)
            for v, c in zip(jaxpr.constvars, closed.consts, strict=True)
        }
        env.update(zip(jaxpr.invars, ins[1:], strict=True))
        evaluate(jaxpr.eqns, env)
        results.append(
            [
                _literal(v) if isinstance(v, jc.Literal) else env[v]
                for v in jaxpr.outvars
            ]
        )
    which = ins[0].reshape(())[()]
    if which.dtype != jnp.bool_:
        which = lax.clamp(
            jnp.asarray(0, which.dtype),
            which,
            jnp.asarray(len(results) - 1, which.dtype),
        )
    index = np.empty((), object)
    index[()] = which
    return [_select(index, cases) for cases in zip(*results, strict=True)]
