"""The one door to JAX's internals: jaxprs, scan parameters, tracing, lowering.

Everything here is private API somewhere between JAX 0.10.2 and the newest
release; all other modules use public JAX and this file. Differences met so far:
`ClosedJaxpr` and `Jaxpr` became one class in 0.11, and scan's parameters went
from counts (`num_consts`, `num_carry`) to `FlatTree`s (`ft_in`, `ft_out`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src import api_util, config, core, source_info_util
from jax._src import linear_util as lu
from jax._src import pjit as pjit_lib
from jax._src.interpreters import batching, mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lax.control_flow import loops as loops_lib

Jaxpr = core.Jaxpr
ClosedJaxpr = getattr(core, "ClosedJaxpr", core.Jaxpr)
Var = core.Var
DropVar = core.DropVar
Literal = core.Literal
JaxprEqn = core.JaxprEqn
jit_p = getattr(pjit_lib, "jit_p", None) or pjit_lib.pjit_p
JIT_NAMES = frozenset({"jit", "pjit", "closed_call", "core_call"})
ONE_CLASS = ClosedJaxpr is Jaxpr

_eval_jaxpr = core.eval_jaxpr
jaxpr_as_fun = core.jaxpr_as_fun
check_jaxpr = core.check_jaxpr


# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportPrivateImportUsage=false
# (this file reads attributes that only some releases have)

# ---------------------------------------------------------------- jaxprs


def open_jaxpr(closed: Any) -> Any:
    """Return the `Jaxpr` inside a `ClosedJaxpr`; an open one as it is."""
    return getattr(closed, "jaxpr", closed)


def close_jaxpr(jaxpr: Any, consts: Sequence[Any] = ()) -> Any:
    """Attach the values of a jaxpr's constvars."""
    if ONE_CLASS:
        return jaxpr.with_consts(list(consts))
    return ClosedJaxpr(jaxpr, list(consts))


def is_closed(value: Any) -> bool:
    """Whether `value` is a jaxpr that carries its constants."""
    return isinstance(value, ClosedJaxpr)


def fresh_var(aval: Any) -> Any:
    """Make a new variable of type `aval`."""
    return Var(aval)


def build_jaxpr(
    invars: Sequence[Any],
    outvars: Sequence[Any],
    eqns: Sequence[Any],
    like: Any,
    names: Mapping[Any, str] | None = None,
) -> Any:
    """Build a closed jaxpr without constants out of existing equations.

    `names` keeps the user's names of its inputs for later remarks.
    """
    effects = core.join_effects(*(e.effects for e in eqns)) if eqns else set()
    info = like.debug_info._replace(
        arg_names=tuple((names or {}).get(v, "") for v in invars),
        result_paths=("",) * len(outvars),
    )
    jaxpr = Jaxpr((), list(invars), list(outvars), list(eqns), effects, info)
    return close_jaxpr(jaxpr)


def replace_eqns(
    closed: Any,
    eqns: Sequence[Any],
    outvars: Sequence[Any],
    constvars: Sequence[Any] = (),
    consts: Sequence[Any] = (),
) -> Any:
    """Replace a closed jaxpr's equations and outputs, appending constants."""
    jaxpr = open_jaxpr(closed)
    new_consts = [*closed.consts, *consts]
    kwargs: dict[str, Any] = {"consts": new_consts} if ONE_CLASS else {}
    new = jaxpr.replace(
        eqns=list(eqns),
        outvars=list(outvars),
        constvars=[*jaxpr.constvars, *constvars],
        debug_info=jaxpr.debug_info,
        **kwargs,
    )
    return new if ONE_CLASS else ClosedJaxpr(new, new_consts)


def sub_jaxprs(eqn: Any) -> Iterator[Any]:
    """Yield every jaxpr in an equation's parameters, closed or open."""
    for value in eqn.params.values():
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            yield value
        elif isinstance(value, (tuple, list)):
            for item in value:
                if isinstance(item, (ClosedJaxpr, Jaxpr)):
                    yield item


def map_sub_jaxprs(eqn: Any, fn: Callable[[Any], Any]) -> Any:
    """Apply `fn` to an equation's closed sub-jaxprs; the same equation if unchanged.

    A slot that can take no constants (`checkpoint`, `shard_map`) keeps its jaxpr when
    `fn` needs some.
    """
    takes = eqn.primitive.name in _TAKES_CONSTANTS

    def without(closed: Any) -> Any:
        new = fn(closed)
        return new if takes or len(new.consts) == len(closed.consts) else closed

    changed: dict[str, Any] = {}
    for name, value in eqn.params.items():
        new = _map_param(value, without)
        if new is not value:
            changed[name] = new
    return eqn.replace(params={**eqn.params, **changed}) if changed else eqn


_TAKES_CONSTANTS = JIT_NAMES | {
    "scan",
    "while",
    "cond",
    "custom_jvp_call",
    "custom_vjp_call",
}


def _map_param(value: Any, fn: Callable[[Any], Any]) -> Any:
    if isinstance(value, ClosedJaxpr):
        return fn(value)
    if isinstance(value, Jaxpr):
        if value.constvars:
            return value
        closed = close_jaxpr(value)
        new = fn(closed)
        if new is closed or new.consts:
            return value
        return open_jaxpr(new)
    if isinstance(value, tuple) and any(
        isinstance(v, (ClosedJaxpr, Jaxpr)) for v in value
    ):
        new_items = tuple(_map_param(v, fn) for v in value)
        if all(a is b for a, b in zip(new_items, value, strict=True)):
            return value
        return type(value)(*new_items) if hasattr(value, "_fields") else new_items
    return value


# ---------------------------------------------------------------- scan


@dataclass(frozen=True)
class ScanParams:
    """Scan's parameters by role, whatever the release calls them."""

    body: Any
    length: int
    reverse: bool
    unroll: int
    num_consts: int
    num_carry: int


def scan_params(eqn: Any) -> ScanParams:
    """Read a scan equation's parameters."""
    p = eqn.params
    if "num_consts" in p:
        consts, carry = p["num_consts"], p["num_carry"]
    else:
        groups = p["ft_in"].unpack()
        consts, carry = len(groups[0]), len(groups[1])
    return ScanParams(p["jaxpr"], p["length"], p["reverse"], p["unroll"], consts, carry)


def bind_scan(
    body: Any,
    consts: Sequence[Any],
    init: Sequence[Any],
    xs: Sequence[Any],
    *,
    length: int,
    reverse: bool,
    unroll: int = 1,
) -> list[Any]:
    """Bind scan on a ready body jaxpr: `(*consts, *carry, *x) -> (*carry, *y)`."""
    params: dict[str, Any] = {
        "jaxpr": body,
        "length": length,
        "reverse": reverse,
        "unroll": unroll,
    }
    if ONE_CLASS:
        ft = loops_lib.ft
        n_ys = len(body.out_avals) - len(init)
        params["ft_in"] = ft.pack(
            (ft.nones(len(consts)), ft.nones(len(init)), ft.nones(len(xs)))
        )
        params["ft_out"] = ft.pack((ft.nones(len(init)), ft.nones(n_ys)))
    else:
        params["num_consts"], params["num_carry"] = len(consts), len(init)
    return list(loops_lib.scan_p.bind(*consts, *init, *xs, **params))


# ---------------------------------------------------------------- tracing


def abstractify(value: Any) -> Any:
    """Return the abstract value of an argument, weak type and sharding kept."""
    return core.shaped_abstractify(value)


def trace(
    fun: Callable[..., Any], avals: Sequence[Any], name: str, lower: bool = False
) -> Any:
    """Trace a flat function at exactly these avals into a closed jaxpr.

    `lower` expands high-level primitives, which JAX does before it lowers a jit and so
    can not do to what is traced while lowering.
    """
    info = api_util.debug_info(name, fun, tuple(avals), {})
    out = pe.trace_to_jaxpr_dynamic(
        lu.wrap_init(fun, debug_info=info), list(avals), lower=lower
    )
    jaxpr, consts = out[0], out[2]
    if ONE_CLASS and jaxpr.consts:
        return jaxpr
    return close_jaxpr(jaxpr, consts)


def evaluate(closed: Any, *args: Any) -> list[Any]:
    """Evaluate a closed jaxpr, keeping source locations and name stacks."""
    return list(_eval_jaxpr(open_jaxpr(closed), closed.consts, *args))


def rebind(eqn: Any, values: Sequence[Any]) -> list[Any]:
    """Bind an equation's primitive on new operands, at the user's location."""
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with (
        source_info_util.user_context(eqn.source_info.traceback, name_stack=stack),
        eqn.ctx.manager,
    ):
        bound = eqn.primitive.get_bind_params(eqn.params)
        if isinstance(bound, tuple):
            subfuns, params = bound
            out = eqn.primitive.bind(*subfuns, *values, **params)
        else:
            out = eqn.primitive.bind(*values, **bound)
    return list(out) if eqn.primitive.multiple_results else [out]


@contextlib.contextmanager
def at_location(eqn: Any) -> Iterator[None]:
    """Trace new equations as if the user had written them at `eqn`."""
    with (
        eqn.ctx.manager,
        source_info_util.user_context(
            eqn.source_info.traceback, name_stack=eqn.source_info.name_stack
        ),
    ):
        yield


def relocate(new: Any, old: Any) -> Any:
    """Source information for an equation traced in place of `old`."""
    info = new.source_info
    return info.replace(
        name_stack=old.source_info.name_stack + info.name_stack,
        traceback=info.traceback or old.source_info.traceback,
    )


def inlined(inner: Any, call: Any) -> Any:
    """Source information for an equation inlined out of `call`."""
    stack = call.source_info.name_stack + inner.source_info.name_stack
    return inner.source_info.replace(name_stack=stack)


def coerce(value: Any, aval: Any) -> Any:
    """Give `value` exactly the dtype and weak type of `aval`."""
    from jax._src.lax import lax as lax_internal

    have = core.typeof(value) if hasattr(core, "typeof") else core.get_aval(value)
    same = have.dtype == aval.dtype and getattr(have, "weak_type", False) == getattr(
        aval, "weak_type", False
    )
    if same:
        return value
    return lax_internal._convert_element_type(
        value, aval.dtype, weak_type=getattr(aval, "weak_type", False)
    )


def is_extended(aval: Any) -> bool:
    """Whether an aval has an extended dtype (typed PRNG keys)."""
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)


def is_tracer(value: Any) -> bool:
    """Whether a value is a tracer, not an array."""
    return isinstance(value, core.Tracer)


def shape_of(atom: Any) -> tuple[Any, ...]:
    """Return the shape of a variable or literal."""
    return tuple(atom.aval.shape)


def dtype_of(atom: Any) -> Any:
    """Return the dtype of a variable or literal."""
    return atom.aval.dtype


def is_integer(aval: Any) -> bool:
    """Whether an aval is an array of ordinary integers."""
    return is_array_aval(aval) and jax.dtypes.issubdtype(aval.dtype, np.integer)


def is_sharded(aval: Any) -> bool:
    """Whether an aval's type says that it is spread over an explicit mesh."""
    spec = getattr(getattr(aval, "sharding", None), "spec", ())
    return any(axis is not None for axis in spec or ())


def is_array_aval(aval: Any) -> bool:
    """Whether an aval is an ordinary array, not a ref or a token."""
    return type(aval) is core.ShapedArray


def has_64_bit(jaxpr: Any) -> bool:
    """Whether any value of a jaxpr is 64 bit (it was traced under x64)."""

    def wide(v: Any) -> bool:
        dtype = getattr(v.aval, "dtype", None)
        return (
            isinstance(dtype, np.dtype)
            and dtype.itemsize == 8
            and (dtype.kind in "iuf")
        )

    if any(wide(v) for v in (*jaxpr.invars, *jaxpr.constvars)):
        return True
    for eqn in jaxpr.eqns:
        if any(wide(v) for v in eqn.outvars):
            return True
        if any(has_64_bit(open_jaxpr(s)) for s in sub_jaxprs(eqn)):
            return True
    return False


@contextlib.contextmanager
def same_x64(closed: Any) -> Iterator[None]:
    """Retrace under the x64 setting the jaxpr was made with."""
    with (
        jax.enable_x64(True)
        if has_64_bit(open_jaxpr(closed))
        else (contextlib.nullcontext())
    ):
        yield


@contextlib.contextmanager
def inside(eqn: Any) -> Iterator[None]:
    """Enter the axis environment that an equation gives its sub-jaxprs."""
    if eqn.primitive.name != "shard_map":
        yield
        return
    from jax._src import mesh as mesh_lib
    from jax._src import shard_map as shard_map_lib

    mesh = eqn.params["mesh"]
    manual = eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes"))
    manual = frozenset(mesh.axis_names) if manual is None else manual
    check = eqn.params.get("check_vma", True)
    abstract = shard_map_lib._as_manual_mesh(mesh, manual)
    if not isinstance(abstract, mesh_lib.AbstractMesh):
        abstract = abstract.abstract_mesh
    with (
        shard_map_lib._extend_axis_env(mesh, manual),
        mesh_lib.use_abstract_mesh(abstract),
        config._check_vma(check),
    ):
        yield


# ---------------------------------------------------------------- locations

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN = (os.path.join(_HERE, "rewriter"), os.path.join(_HERE, "passes"))


def location(eqn: Any) -> tuple[str, int, str]:
    """Return file, line and function of the user's code behind an equation."""
    for frame in source_info_util.user_frames(eqn.source_info.traceback):
        if not frame.file_name.startswith(_OWN):
            return frame.file_name, frame.start_line, frame.function_name
    return "<unknown>", 0, ""


def name_stack(eqn: Any) -> str:
    """Return an equation's name stack as text."""
    return str(eqn.source_info.name_stack)


# ---------------------------------------------------------------- lowering


def install_lowering(replace: Callable[[str, Any, str], Any]) -> bool:
    """Let `replace(name, jaxpr, platform)` change a jit's jaxpr when it is lowered.

    Returns False where this JAX offers no such hook.
    """
    entry = mlir._lowerings.get(jit_p)
    rule = getattr(entry, "rule", entry)
    if rule is None:
        return False

    @functools.wraps(rule)
    def lower(ctx: Any, *args: Any, jaxpr: Any, name: str, **params: Any) -> Any:
        platform = ctx.module_context.platforms[0]
        return rule(
            ctx, *args, jaxpr=replace(name, jaxpr, platform), name=name, **params
        )

    mlir.register_lowering(jit_p, lower, cacheable=False)
    return True


def cache_by_identity(maxsize: int = 512) -> Callable[..., Any]:
    """Memoise a function of a jaxpr (held weakly) and hashable arguments."""
    from jax._src.util import weakref_lru_cache

    return functools.partial(weakref_lru_cache, maxsize=maxsize)


# ---------------------------------------------------------------- small edits


def replace_params(eqn: Any, **changes: Any) -> Any:
    """Return an equation with some parameters replaced."""
    return eqn.replace(params={**eqn.params, **changes})


@contextlib.contextmanager
def at_inner_location(eqn: Any) -> Iterator[None]:
    """Trace new equations at `eqn`, inside the current name stack."""
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with (
        eqn.ctx.manager,
        source_info_util.user_context(eqn.source_info.traceback, name_stack=stack),
    ):
        yield


def with_outputs_of(new: Any, old: Any) -> Any:
    """Check that a retraced jaxpr has the types of the old one, and return it."""
    for a, b in zip(new.out_avals, old.out_avals, strict=True):
        if not same_type(a, b):
            raise TypeError(f"retraced jaxpr gives {a}, expected {b}")
    return new


def same_type(a: Any, b: Any) -> bool:
    """Whether two avals agree in shape, dtype and weak type."""
    return (
        getattr(a, "shape", None) == getattr(b, "shape", None)
        and getattr(a, "dtype", None) == getattr(b, "dtype", None)
        and getattr(a, "weak_type", False) == getattr(b, "weak_type", False)
    )


def dce(closed: Any) -> Any:
    """Drop equations whose results nobody uses, inputs kept (JAX's own pass)."""
    jaxpr = open_jaxpr(closed)
    new, _ = pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    if len(new.constvars) != len(jaxpr.constvars):
        return closed
    return close_jaxpr(new, closed.consts) if not ONE_CLASS else new


def has_refs(closed: Any) -> bool:
    """Whether a program takes or makes mutable references."""
    jaxpr = open_jaxpr(closed)
    return any(
        not is_array_aval(v.aval) and "Ref" in type(v.aval).__name__
        for v in (*jaxpr.invars, *(o for e in jaxpr.eqns for o in e.outvars))
    )


def traced_equations(
    fun: Callable[..., Any], atoms: Sequence[Any], like: Any
) -> tuple[list[Any], list[Any]]:
    """Trace `fun` at the types of `atoms` and return its equations on them.

    They stand at the place of `like`. Atoms may be literals; there are no constants.
    """

    def flat(*values: Any) -> list[Any]:
        out = fun(*values)
        return list(out) if isinstance(out, (list, tuple)) else [out]

    with at_location(like):
        closed = trace(flat, [v.aval for v in atoms], "traced")
    jaxpr = open_jaxpr(closed)
    if closed.consts:
        raise ValueError("traced equations may not hold constants")
    env = dict(zip(jaxpr.invars, atoms, strict=True))

    def read(v: Any) -> Any:
        return v if isinstance(v, Literal) else env.get(v, v)

    eqns = [
        e.replace(invars=[read(v) for v in e.invars], source_info=relocate(e, like))
        for e in jaxpr.eqns
    ]
    return eqns, [read(v) for v in jaxpr.outvars]


# ---------------------------------------------------------------- lax.map(batch_size=)


def _frames(eqn: Any) -> list[tuple[str, str]]:
    """Return (function, file) of all frames of an equation, innermost first."""
    traceback = eqn.source_info.traceback
    codes, _ = traceback.raw_frames() if traceback else ([], [])
    return [(c.co_name, c.co_filename) for c in codes]


def _is_loops(file: str) -> bool:
    return file.endswith(os.path.join("control_flow", "loops.py"))


def is_chunked_map(eqn: Any) -> bool:
    """Whether a scan is a `lax.map` whose body is a `vmap`, as `batch_size` makes it.

    The body's frames then show `vmap` called by the lambda that `map` scans over.
    """
    if not any(name == "map" and _is_loops(file) for name, file in _frames(eqn)):
        return False
    for inner in open_jaxpr(scan_params(eqn).body).eqns:
        frames = [f for f in _frames(inner) if "traceback_util" not in f[1]]
        for (name, _), (caller, file) in itertools.pairwise(frames):
            if name == "vmap_f" and caller == "<lambda>" and _is_loops(file):
                return True
    return False


# ---------------------------------------------------------------- a primitive


def call_primitive(name: str, batched: Callable[..., Any]) -> Any:
    """Return a primitive that runs its `jaxpr`, and `batched` when it is batched."""
    call_p = core.Primitive(name)
    call_p.multiple_results = True

    def run(*args: Any, jaxpr: Any, form: Any) -> list[Any]:
        del form
        return evaluate(jaxpr, *args)

    def avals(*_: Any, jaxpr: Any, form: Any) -> list[Any]:
        return [v.aval for v in open_jaxpr(jaxpr).outvars]

    call_p.def_impl(run)
    call_p.def_abstract_eval(avals)
    mlir.register_lowering(call_p, mlir.lower_fun(run, multiple_results=True))
    batching.primitive_batchers[call_p] = batched
    return call_p


def is_foreign(primitive: Any) -> bool:
    """Whether another library defines a primitive: it may do anything."""
    impl = primitive.impl
    while isinstance(impl, functools.partial):
        impl = impl.func
    module = getattr(impl, "__module__", None) or "jax"
    return module.partition(".")[0] not in ("jax", "rewriter")
