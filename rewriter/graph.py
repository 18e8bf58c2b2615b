"""The program view: loops by role, built on JAX's own equations.

A `Loop` is an immutable view of one `scan`: trip count, *consts*, *carries*, *xs*,
*ys* and the equations of its body, with plain `jit` calls inlined. What a loop
reads from outside is a `Source` (an array made from the operands of the original
equation) and what it gives back is a `Result`, so that a pass can change roles
(a carry that is a counter becomes an `xs`) without tracing anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rewriter import jax_compat as jc
from rewriter.indices import Affine, Known, evaluate
from rewriter.inline import inline
from rewriter.remarks import Location
from rewriter.scope import Scope

EMITTED = "rewriter_emitted"  # name of the jit around the body of an emitted loop
KEPT = "rewriter_keep"  # name scope of loops the user opted out


# ------------------------------------------------------------ sources and results


@dataclass(frozen=True)
class Source:
    """An array outside of the loop, made from the loop equation's operands."""

    get: Callable[[Sequence[Any]], Any]
    known: Known | None = None  # its value (a const) or its rows (an xs)
    operand: int | None = None  # set when it simply is this operand

    @staticmethod
    def of(index: int, known: Known | None = None) -> Source:
        """Return the source that is operand `index` itself."""
        return Source(lambda args: args[index], known, index)


@dataclass(frozen=True)
class Outputs:
    """What the loop gave back: final carries by body variable, ys by key."""

    args: Sequence[Any]
    finals: Mapping[Any, Any]
    stacks: Mapping[int, Any]


@dataclass(frozen=True)
class Result:
    """How one output of the original equation is made from `Outputs`."""

    get: Callable[[Outputs], Any]
    carry: Any = None  # the carry variable whose final value it needs
    ys: int | None = None  # the key of the ys it needs
    also: tuple[int, ...] = ()  # keys of more of them

    @property
    def keys(self) -> tuple[int, ...]:
        """The keys of all ys that it needs."""
        return self.also if self.ys is None else (self.ys, *self.also)

    @staticmethod
    def final(var: Any) -> Result:
        """Return the final value of a carry."""
        return Result(lambda out: out.finals[var], carry=var)

    @staticmethod
    def stacked(key: int) -> Result:
        """Return the ys of this key."""
        return Result(lambda out: out.stacks[key], ys=key)


# ------------------------------------------------------------ loops


@dataclass(frozen=True)
class Carry:
    """A loop-carried value: body variable in, initial value, body atom out."""

    var: Any
    init: Source
    out: Any


@dataclass(frozen=True)
class Counter:
    """A carry that grows by the same integer every step: `init + step * t`.

    `eqn` is the addition that made it, from which a scan can carry it again.
    """

    var: Any
    init: Source
    step: Source
    eqn: Any
    known: Known | None

    def rows(self, args: Sequence[Any], first: Any, count: int, back: bool) -> Any:
        """Return its values at `count` storage indices whose first runs at `first`.

        `first` is the execution step of the first row; `back` counts down.
        """
        import jax.numpy as jnp
        from jax import lax

        init, step = self.init.get(args), self.step.get(args)
        dtype = self.var.aval.dtype
        t = lax.iota(dtype, count)
        steps = jnp.asarray(first).astype(dtype) + (-t if back else t)
        steps = steps.reshape((count,) + (1,) * len(self.var.aval.shape))
        return init + jnp.asarray(step).astype(dtype) * steps


@dataclass(frozen=True)
class Loop:
    """One loop by role. Indices along the trip are storage indices of xs and ys."""

    eqn: Any
    length: int
    reverse: bool
    unroll: int
    consts: tuple[tuple[Any, Source], ...]
    carries: tuple[Carry, ...]
    xs: tuple[tuple[Any, Source], ...]
    ys: tuple[tuple[int, Any], ...]  # key, body atom
    eqns: tuple[Any, ...]
    results: tuple[Result | None, ...]  # None: nobody reads it
    like: Any  # a jaxpr to copy debug info from
    names: Mapping[Any, str] = field(default_factory=dict)
    counters: tuple[Counter, ...] = ()
    is_marked: bool = False  # emitted with the mark of an emitted loop
    saved: float = 0.0  # ns a step of carried work that passes have taken out

    @property
    def location(self) -> Location:
        """The user's line that made the loop."""
        return Location(*jc.location(self.eqn))

    def replace(self, **changes: Any) -> Loop:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def known(self) -> dict[Any, Known]:
        """Evaluate the integer part of the body over the trip."""
        inputs: dict[Any, Known] = {}
        for var, source in (*self.consts, *self.xs):
            if source.known is not None:
                inputs[var] = source.known
        for counter in self.counters:
            if counter.known is not None:
                inputs[counter.var] = counter.known
        return evaluate(self.eqns, inputs, self.length)

    def name(self, var: Any) -> str:
        """Return the user's name of a carry or input."""
        known = self.names.get(var, "")
        position = next((i for i, c in enumerate(self.carries) if c.var is var), None)
        return known or ("a value" if position is None else f"carry {position}")

    def made_by(self) -> dict[Any, int]:
        """Map every variable of the body to the equation that makes it."""
        return {v: i for i, e in enumerate(self.eqns) for v in e.outvars}

    def is_constant(self, atom: Any) -> bool:
        """Whether an atom is a literal or a loop constant."""
        return isinstance(atom, jc.Literal) or any(v is atom for v, _ in self.consts)


def reads(eqn: Any) -> list[Any]:
    """Return the variables an equation reads."""
    return [v for v in eqn.invars if not isinstance(v, jc.Literal)]


def is_emitted(eqn: Any) -> bool:
    """Whether a scan equation was made by the rewriter."""
    inner = jc.open_jaxpr(jc.scan_params(eqn).body).eqns
    return (
        len(inner) == 1
        and inner[0].primitive.name in jc.JIT_NAMES
        and str(inner[0].params.get("name", "")).startswith(EMITTED)
    )


def is_kept(eqn: Any) -> bool:
    """Whether the user traced an equation inside `rewriter.keep()`."""
    return KEPT in jc.name_stack(eqn)


@contextlib.contextmanager
def keep() -> Iterator[None]:
    """Leave the loops traced inside this context alone."""
    import jax

    with jax.named_scope(KEPT):
        yield


def loop_of(eqn: Any, scope: Scope, inline_custom: bool = False) -> Loop:
    """Return the view of a scan equation."""
    p = jc.scan_params(eqn)
    body = jc.open_jaxpr(p.body)
    eqns, subst, extra = inline(body.eqns, inline_custom)

    def atom(v: Any) -> Any:
        return v if isinstance(v, jc.Literal) else subst.get(v, v)

    consts: list[tuple[Any, Source]] = [
        (var, Source(lambda _, value=value: value, _scalar_constant(value)))
        for var, value in (*zip(body.constvars, p.body.consts, strict=True), *extra)
    ]
    nc, nk = p.num_consts, p.num_carry
    names = body.debug_info.arg_names
    ins = list(zip(body.invars, eqn.invars, range(len(eqn.invars)), strict=True))
    consts += [(v, Source.of(k, scope.scalar(a))) for v, a, k in ins[:nc]]
    carries = tuple(
        Carry(v, Source.of(k, scope.scalar(a)), atom(body.outvars[k - nc]))
        for v, a, k in ins[nc : nc + nk]
    )
    xs = tuple((v, Source.of(k, scope.stacked(a))) for v, a, k in ins[nc + nk :])
    made = (
        *(Result.final(c.var) for c in carries),
        *(Result.stacked(i) for i in range(len(body.outvars) - nk)),
    )
    results = tuple(
        None if isinstance(v, jc.DropVar) else r
        for v, r in zip(eqn.outvars, made, strict=True)
    )
    return Loop(
        eqn=eqn,
        length=p.length,
        reverse=p.reverse,
        unroll=p.unroll,
        consts=tuple(consts),
        carries=carries,
        xs=xs,
        ys=tuple((i, atom(v)) for i, v in enumerate(body.outvars[nk:])),
        eqns=tuple(eqns),
        results=results,
        like=body,
        names={v: n for v, n in zip(body.invars, names or (), strict=False) if n},
    )


def _scalar_constant(value: Any) -> Affine | None:
    from rewriter.indices import constant

    size = getattr(value, "size", 1)
    dtype = getattr(value, "dtype", None)
    if dtype is None or size > 64 or not hasattr(value, "shape"):
        return None
    return constant(value) if getattr(dtype, "kind", "") in "iub" else None


def prune(loop: Loop) -> Loop:
    """Drop equations, inputs, carries and ys that no result needs."""
    results = [r for r in loop.results if r is not None]
    needed = {k for r in results for k in r.keys}
    ys = tuple(y for y in loop.ys if y[0] in needed)
    live_carry = {r.carry for r in results if r.carry is not None}
    carry_out = {c.var: c.out for c in loop.carries}
    while True:
        live: set[Any] = set()
        for atom in (*(a for _, a in ys), *(carry_out[v] for v in live_carry)):
            if not isinstance(atom, jc.Literal):
                live.add(atom)
        kept: list[Any] = []
        for eqn in reversed(loop.eqns):
            if eqn.effects or any(v in live for v in eqn.outvars):
                kept.append(eqn)
                live.update(reads(eqn))
        more = {c.var for c in loop.carries if c.var in live} - live_carry
        if not more:
            break
        live_carry |= more
    if (
        len(kept) == len(loop.eqns)
        and len(ys) == len(loop.ys)
        and len(live_carry) == len(loop.carries)
        and all(v in live for v, _ in (*loop.consts, *loop.xs))
    ):
        return loop
    return loop.replace(
        eqns=tuple(reversed(kept)),
        ys=ys,
        consts=tuple(c for c in loop.consts if c[0] in live),
        xs=tuple(x for x in loop.xs if x[0] in live),
        carries=tuple(c for c in loop.carries if c.var in live_carry),
        counters=tuple(c for c in loop.counters if c.var in live),
    )


def replace_final(
    loop: Loop,
    var: Any,
    get: Callable[[Outputs], Any],
    ys: int | None = None,
    also: tuple[int, ...] = (),
) -> tuple[Result | None, ...]:
    """Return the results with the final value of a carry made in another way."""
    return tuple(
        Result(get, None, ys, also) if r is not None and r.carry is var else r
        for r in loop.results
    )


def fresh_key(loop: Loop) -> int:
    """Return a key that no ys of the loop has."""
    return 1 + max((k for k, _ in loop.ys), default=-1)


def counters_as_carries(loop: Loop) -> Loop:
    """Return the loop with its counters carried again, as a scan needs them."""
    present = {v for e in loop.eqns for v in e.outvars}
    added = [c.eqn for c in loop.counters if c.eqn.outvars[0] not in present]
    carries = tuple(Carry(c.var, c.init, c.eqn.outvars[0]) for c in loop.counters)
    consts = {v for v, _ in loop.consts}
    steps = tuple(
        (v, c.step)
        for c in loop.counters
        for v in reads(c.eqn)
        if v is not c.var and v not in consts
    )
    return loop.replace(
        eqns=(*loop.eqns, *added),
        counters=(),
        carries=(*loop.carries, *carries),
        consts=(*loop.consts, *dict(steps).items()),
    )


def renamed_atom(atom: Any, names: Mapping[Any, Any]) -> Any:
    """Return what an atom is called by these names."""
    return atom if isinstance(atom, jc.Literal) else names.get(atom, atom)


def substitute(loop: Loop, mapping: Mapping[Any, Any]) -> Loop:
    """Replace variables by atoms throughout the body."""

    def atom(v: Any) -> Any:
        return v if isinstance(v, jc.Literal) else mapping.get(v, v)

    eqns = tuple(
        e.replace(invars=[atom(v) for v in e.invars])
        if any(atom(v) is not v for v in e.invars)
        else e
        for e in loop.eqns
    )
    return loop.replace(
        eqns=eqns,
        ys=tuple((k, atom(v)) for k, v in loop.ys),
        carries=tuple(replace(c, out=atom(c.out)) for c in loop.carries),
    )


def edited(
    loop: Loop, edits: Mapping[int, Sequence[Any]], mapping: Mapping[Any, Any]
) -> Loop:
    """Put equations in place of others, by their `id`, and atoms for variables.

    An atom may itself be a variable that is replaced.
    """
    ends = dict(mapping)
    for var, atom in ends.items():
        while not isinstance(atom, jc.Literal) and atom in mapping:
            atom = mapping[atom]
        ends[var] = atom
    eqns = tuple(n for e in loop.eqns for n in edits.get(id(e), [e]))
    return substitute(loop.replace(eqns=eqns), ends)


def variant_values(eqns: Sequence[Any], seeds: set[Any]) -> set[Any]:
    """Return the seeds and all values that depend on them."""
    found = set(seeds)
    for eqn in eqns:
        if any(v in found for v in reads(eqn)):
            found.update(eqn.outvars)
    return found


def carry_fixpoint(
    jaxpr: Any, flags: list[bool], consts: int, carry: int
) -> list[bool]:
    """Return which inputs of a loop body change, given which do at its start."""
    for _ in range(carry + 1):
        seeds = {v for v, f in zip(jaxpr.invars, flags, strict=True) if f}
        found = variant_values(jaxpr.eqns, seeds)
        new = list(flags)
        for i in range(carry):
            out = jaxpr.outvars[i]
            new[consts + i] |= not isinstance(out, jc.Literal) and out in found
        if new == flags:
            break
        flags = new
    return flags
