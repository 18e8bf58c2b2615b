"""What may never be batched or reordered, and what only pays in the loop."""

from __future__ import annotations

from typing import Any

from rewriter import jax_compat as jc
from rewriter.cost import Model
from rewriter.rowwise import form_of

_REFS = frozenset(
    {
        "get",
        "swap",
        "addupdate",
        "ref_new",
        "mutable_array",
        "freeze",
        "new_ref",
        "empty_ref",
        "free_ref",
    }
)
_BATCHING_CALLBACKS = frozenset({"expand_dims", "broadcast_all", "legacy_vectorized"})


def unbatchable(eqn: Any) -> str | None:
    """Return why an equation may not be batched, or None.

    Effects keep their order; `custom_vmap` means something else when batched; rbg
    keys draw other numbers; a callback is batched only as its `vmap_method` says.
    """
    name = eqn.primitive.name
    if eqn.effects:
        return f"{name} has side effects"
    if name in _REFS or any("Ref" in type(v.aval).__name__ for v in eqn.invars):
        return f"{name} works on a mutable reference"
    if name.startswith("custom_vmap"):
        return "a custom_vmap function means something else when batched"
    if name == "rng_bit_generator":
        return "rng_bit_generator draws other numbers when batched"
    if name in ("pure_callback", "io_callback"):
        method = eqn.params.get("vmap_method")
        if method not in _BATCHING_CALLBACKS:
            return f"a callback with vmap_method={method!r} runs once per step"
    if any(_is_rbg(v) for v in (*eqn.invars, *eqn.outvars)):
        return "rbg keys draw other numbers when batched"
    for inner in jc.sub_jaxprs(eqn):
        for e in jc.open_jaxpr(inner).eqns:
            reason = unbatchable(e)
            if reason is not None:
                return reason
    return None


def _is_rbg(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and "rbg" in str(dtype)


def dear(eqn: Any, model: Model, overhead: float) -> str | None:
    """Return why batching an equation may cost more than it saves, or None.

    A batched `cond` runs all branches and a batched `while` the most trips of all
    rows, so both stay in the loop unless they are cheaper than the loop's overhead.
    """
    name = eqn.primitive.name
    if form_of(eqn) is not None:
        return None  # it brings its own batched form
    if name == "while":
        return "a while loop runs as long as its slowest row when batched"
    if name == "cond":
        branches = [jc.open_jaxpr(b) for b in eqn.params["branches"]]
        for branch in branches:
            for e in branch.eqns:
                if is_foreign(e):
                    return "a branch holds an operation of another library"
                if contains(e, "while"):
                    return "a branch holds a while loop, and batching runs all branches"
        together = model.control(eqn, [True] * len(eqn.invars))
        least = min(model.body(b) for b in branches)
        if together > least + overhead + model.machine.kernel:
            return (
                f"batching cond runs all branches ({together:.0f} ns a step; "
                f"the cheapest costs {least:.0f} ns)"
            )
    for inner in jc.sub_jaxprs(eqn):
        for e in jc.open_jaxpr(inner).eqns:
            reason = dear(e, model, overhead)
            if reason is not None:
                return reason
    return None


def contains(eqn: Any, primitive: str) -> bool:
    """Whether an equation is or holds one of a primitive."""
    return eqn.primitive.name == primitive or any(
        contains(e, primitive)
        for j in jc.sub_jaxprs(eqn)
        for e in jc.open_jaxpr(j).eqns
    )


def is_foreign(eqn: Any) -> bool:
    """Whether an equation is or holds a primitive of another library.

    Such a one is run only where the program runs it: it may raise.
    """
    return jc.is_foreign(eqn.primitive) or any(
        is_foreign(e) for j in jc.sub_jaxprs(eqn) for e in jc.open_jaxpr(j).eqns
    )
