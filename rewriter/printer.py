"""Text of programs: one line per loop, the same on every JAX release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rewriter import jax_compat as jc
from rewriter.graph import EMITTED, is_emitted
from rewriter.remarks import Location

_QUIET = frozenset(
    {
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "convert_element_type",
        "slice",
        "stop_gradient",
        "copy",
        "expand_dims",
        "pvary",
    }
)


@dataclass(frozen=True)
class LoopInfo:
    """A loop of a program: primitive, trip count (None if unknown), place."""

    primitive: str
    trip_count: int | None
    location: Location
    emitted: bool
    depth: int
    eqn: Any


def walk(closed: Any) -> Iterator[Any]:
    """Yield all equations of a program, those inside included."""
    for eqn in jc.open_jaxpr(closed).eqns:
        yield eqn
        for inner in jc.sub_jaxprs(eqn):
            yield from walk(inner)


def loops(closed: Any, depth: int = 0) -> Iterator[LoopInfo]:
    """Yield all loops of a program, outer before inner."""
    for eqn in jc.open_jaxpr(closed).eqns:
        name, deeper = eqn.primitive.name, depth
        if name in ("scan", "while"):
            trip = jc.scan_params(eqn).length if name == "scan" else None
            emitted = name == "scan" and is_emitted(eqn)
            yield LoopInfo(name, trip, Location(*jc.location(eqn)), emitted, depth, eqn)
            deeper += 1
        for inner in jc.sub_jaxprs(eqn):
            yield from loops(inner, deeper)


def outline(closed: Any) -> str:
    """Return a program's shape: its loops and the operations in and around them.

    Cheap structural operations are left out, jits are looked through.
    """
    return "\n".join(_outline(closed, 0))


def _outline(closed: Any, depth: int) -> list[str]:
    indent = "  " * depth
    lines: list[str] = []
    work: Counter[str] = Counter()
    inner_lines: list[str] = []
    for eqn in _looked_through(closed):
        name = eqn.primitive.name
        if name in ("scan", "while", "cond"):
            inner_lines += _control(eqn, depth)
        elif name not in _QUIET:
            work[name] += 1
    if work:
        lines.append(
            indent
            + " ".join(n if c == 1 else f"{n}*{c}" for n, c in sorted(work.items()))
        )
    return lines + inner_lines


def _looked_through(closed: Any) -> Iterator[Any]:
    for eqn in jc.open_jaxpr(closed).eqns:
        if eqn.primitive.name in jc.JIT_NAMES:
            for inner in jc.sub_jaxprs(eqn):
                yield from _looked_through(inner)
        else:
            yield eqn


def _control(eqn: Any, depth: int) -> list[str]:
    indent = "  " * depth
    if eqn.primitive.name == "scan":
        p = jc.scan_params(eqn)
        carried = "" if p.num_carry == 0 else f", {p.num_carry} carried"
        marked = ""
        if is_emitted(eqn):
            inner = jc.open_jaxpr(p.body).eqns[0].params["name"]
            marked = " " + str(inner).removeprefix(EMITTED + "_")
        head = f"{indent}scan {p.length}{marked}{carried}:"
        return [head, *_outline(p.body, depth + 1)]
    lines = [f"{indent}{eqn.primitive.name}:"]
    for inner in jc.sub_jaxprs(eqn):
        lines += _outline(inner, depth + 1)
    return lines
