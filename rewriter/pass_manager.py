"""The pass manager: passes, phases, order, rewrite budget, one instrumentation hook.

Early passes run when the tagged function is traced, inside-out; late passes run when
JAX lowers it, outside-in, on the program after `grad`, `vmap` and friends.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rewriter import jax_compat as jc
from rewriter.emit import emit_loop
from rewriter.graph import Loop, is_emitted, is_kept, loop_of, prune
from rewriter.inline import TAG
from rewriter.nests import has_loops, holds_a_map, is_users_loop
from rewriter.pass_base import (
    Context,
    Emission,
    EquationPass,
    Event,
    LoopPass,
    Pass,
    Phase,
    ProgramPass,
    hooks,
)
from rewriter.pricing import saved
from rewriter.remarks import Location, Remark, failed, missed
from rewriter.scope import Scope
from rewriter.shapes import collapsed
from rewriter.verify import used_outvars, verify

_BUDGET = 20_000  # rewrites of one program
_DEPTH = 12  # rewrites of what a rewrite emitted
_ROUNDS = 8  # times that the role passes look at one loop
_done = 0
_warned: set[str] = set()  # loops of the program in hand already warned about


def _bisect_limit() -> int:
    text = os.environ.get("REWRITER_BISECT", "")
    return int(text) if text.lstrip("-").isdigit() else -1


def new_program() -> None:
    """Forget which loops were warned about."""
    _warned.clear()


@dataclass(frozen=True)
class _Manager(Pass):
    """Remarks of the manager itself."""

    name: ClassVar[str] = "pass-manager"

    FAILED = failed(
        "exception",
        "{pass_name} raised {error}; the original runs",
        "please report this with the program; REWRITER_DISABLE={pass_name} avoids it",
    )
    KEPT = missed("kept-by-user", "left alone inside rewriter.keep()")
    UNSEEN = missed("no-pass", "no pass looked at this loop")
    BUDGET = missed("rewrite-budget", "rewrite budget of {n} spent or bisected")


class Rewriter:
    """Runs one phase's passes over a program and everything inside it."""

    def __init__(self, passes: Sequence[Pass], ctx: Context) -> None:
        off = ctx.options.disable | frozenset(
            filter(None, os.environ.get("REWRITER_DISABLE", "").split(","))
        )
        now = {
            Phase.EARLY: (Phase.EARLY, Phase.BOTH),
            Phase.LATE: (Phase.LATE, Phase.BOTH, Phase.LATE_ROLES),
        }[ctx.phase]
        active = [
            p
            for p in passes
            if p.phase in now and p.name not in off and ctx.options.allows(p.numerics)
        ]
        self.ctx = ctx
        loop_passes = [p for p in active if isinstance(p, LoopPass)]
        roles = (Phase.BOTH, Phase.LATE_ROLES)
        self.role_passes = [p for p in loop_passes if p.phase in roles]
        self.emitting_passes = [p for p in loop_passes if p.phase not in roles]
        self.program_passes = [p for p in active if isinstance(p, ProgramPass)]
        self.equation_passes = [p for p in active if isinstance(p, EquationPass)]
        self._depth = 0
        self._declined = _Manager.UNSEEN.at(Location("", 0))
        self.targets = frozenset().union(*(p.primitives for p in self.equation_passes))

    def run(self, closed: Any) -> Any:
        """Rewrite a closed jaxpr; the same object if nothing changed."""
        jaxpr = jc.open_jaxpr(closed)
        if not any(self._is_interesting(e) for e in jaxpr.eqns):
            return closed
        given = closed
        closed = self._whole(closed)
        jaxpr = jc.open_jaxpr(closed)
        scope = Scope(closed)
        env: dict[Any, Any] = {}
        out: list[Any] = []
        consts: list[tuple[Any, Any]] = []
        changed = closed is not given
        for eqn in jaxpr.eqns:
            new = self._equation(eqn, scope)
            ins = [_substituted(env, v) for v in eqn.invars]
            if new is None or not isinstance(new, _Replacement):
                kept = eqn if new is None else new
                if any(a is not b for a, b in zip(ins, kept.invars, strict=True)):
                    kept = kept.replace(invars=ins)
                changed |= kept is not eqn
                out.append(kept)
                continue
            changed = True
            ins = [_substituted(env, v) for v in new.eqn.invars]
            self._splice(new.eqn, ins, new.closed, env, out, consts)
        if not changed:
            return closed
        outvars = [_substituted(env, v) for v in jaxpr.outvars]
        return jc.replace_eqns(
            closed, out, outvars, [v for v, _ in consts], [c for _, c in consts]
        )

    def _whole(self, closed: Any) -> Any:
        """Run the passes that look at each loop within its program."""
        for p in self.program_passes:
            seen: dict[int, Any] = {}
            again = True
            while again:
                again = False
                for eqn in jc.open_jaxpr(closed).eqns:
                    if id(eqn) in seen or not is_users_loop(eqn):
                        continue
                    seen[id(eqn)] = eqn
                    new = self._within(p, eqn, closed)
                    if new is not None:
                        closed, again = new, True
                        break
        return closed

    def _within(self, p: Any, eqn: Any, closed: Any) -> Any:
        try:
            return self._apply(p, eqn, closed)
        except Exception as error:
            self.fail(eqn, error)
            return None

    def _is_interesting(self, eqn: Any) -> bool:
        return (
            eqn.primitive.name in ("scan", "while")
            or (eqn.primitive.name in self.targets)
            or (next(iter(jc.sub_jaxprs(eqn)), None) is not None)
        )

    @staticmethod
    def _splice(
        eqn: Any,
        ins: Sequence[Any],
        closed: Any,
        env: dict[Any, Any],
        out: list[Any],
        consts: list[tuple[Any, Any]],
    ) -> None:
        inner = jc.open_jaxpr(closed)
        local = dict(zip(inner.invars, _given(eqn, ins), strict=True))
        consts.extend(zip(inner.constvars, closed.consts, strict=True))
        for e in inner.eqns:
            out.append(
                e.replace(
                    invars=[_substituted(local, v) for v in e.invars],
                    source_info=jc.relocate(e, eqn),
                )
            )
        for old, new in zip(used_outvars(eqn), inner.outvars, strict=True):
            env[old] = _substituted(local, new)

    # -------------------------------------------------------- one equation

    def _equation(self, eqn: Any, scope: Scope) -> Any:
        """Return None, an edited equation, or a `_Replacement`."""
        name = eqn.primitive.name
        if name in ("scan", "while") and is_kept(eqn):
            self._record(eqn, "kept", _Manager.KEPT.at(_where(eqn)))
            return None
        if self.ctx.phase is Phase.EARLY:
            inner = self._inside(eqn)
            return self._rewritten(inner, scope) or (None if inner is eqn else inner)
        # the rows of a map inside belong to a step of this loop
        inner = self._inside(eqn) if holds_a_map(eqn) else None
        flat = inner is not None and not any(map(has_loops, jc.sub_jaxprs(inner)))
        replaced = self._again(inner if flat else eqn, scope)
        if replaced is not None:
            return replaced
        inner = self._inside(eqn) if inner is None else inner
        if inner is eqn:
            return None
        if name == "scan" and not flat:  # its body is another one now
            replaced = self._again(inner, scope)
        return inner if replaced is None else replaced

    def _again(self, eqn: Any, scope: Scope) -> _Replacement | None:
        """Rewrite an equation, and then what it became."""
        replaced = self._rewritten(eqn, scope) if self._depth < _DEPTH else None
        if replaced is None:
            return None
        self._depth += 1
        try:
            return _Replacement(self.run(replaced.closed), replaced.eqn)
        finally:
            self._depth -= 1

    def _rewritten(self, eqn: Any, scope: Scope) -> _Replacement | None:
        name = eqn.primitive.name
        try:
            if name == "scan" and not is_emitted(eqn):
                return self._loop(eqn, scope)
            if name in self.targets:
                return self._single(eqn, scope)
        except Exception as error:
            self.fail(eqn, error)
        return None

    def _inside(self, eqn: Any) -> Any:
        """Rewrite the programs inside an equation."""
        name = eqn.primitive.name
        if name in ("pallas_call", "custom_vmap_call", "run_state", "xla_pmap"):
            return eqn
        if self.ctx.phase is Phase.EARLY and name.startswith(
            ("custom_jvp", "custom_vjp", "custom_lin")
        ):
            return eqn
        if name in jc.JIT_NAMES and TAG in str(eqn.params.get("name", "")):
            return eqn
        if next(iter(jc.sub_jaxprs(eqn)), None) is None:
            return eqn
        looping = name in ("scan", "while")
        self.ctx.loops += looping
        try:
            with jc.inside(eqn):
                return jc.map_sub_jaxprs(eqn, self.run)
        finally:
            self.ctx.loops -= looping

    def _record(self, eqn: Any, outcome: str, remark: Remark) -> None:
        self.ctx.sink.remark(remark, eqn)
        self.ctx.sink.verdict(eqn, outcome, remark)

    def fail(self, eqn: Any, error: Exception) -> None:
        """Report an internal failure: a remark and one warning."""
        if os.environ.get("REWRITER_RAISE"):
            raise error
        name = getattr(error, "pass_name", "the rewriter")
        text = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        remark = _Manager.FAILED.at(_where(eqn), pass_name=name, error=text)
        self._record(eqn, "kept", remark)
        if str(remark.location) not in _warned:
            _warned.add(str(remark.location))
            warnings.warn(f"rewriter: {remark}", RuntimeWarning, stacklevel=2)

    # -------------------------------------------------------- matching

    def _spend(self) -> bool:
        """Count one rewrite; False when the budget or the bisection says stop."""
        global _done
        limit = _bisect_limit()
        if (limit >= 0 and _done >= limit) or self.ctx.rewrites >= _BUDGET:
            return False
        _done += 1
        self.ctx.rewrites += 1
        return True

    def _apply(self, p: Any, *subject: Any) -> Any:
        """Match and rewrite: a new loop, an emission, or None if declined."""
        started = time.perf_counter()
        eqn = subject[0].eqn if isinstance(subject[0], Loop) else subject[0]
        try:
            plan = p.match(*subject, self.ctx)
            if not isinstance(plan, Remark) and not self._spend():
                plan = _Manager.BUDGET.at(_where(eqn), n=self.ctx.rewrites)
            if isinstance(plan, Remark):
                if getattr(p, "explains", True):
                    self._declined = plan
                self.ctx.sink.remark(plan, eqn)
                return None
            new = p.rewrite(plan)
        except Exception as error:
            error.pass_name = p.name  # type: ignore[attr-defined]
            raise
        self.ctx.sink.remark(plan.remark, eqn)
        if plan.outcome:
            self.ctx.sink.verdict(eqn, plan.outcome, plan.remark)
        for hook in hooks:
            hook(Event(p.name, _where(eqn), plan, time.perf_counter() - started))
        return new

    def _loop(self, eqn: Any, scope: Scope) -> _Replacement | None:
        """Change roles until nothing changes, then let a pass emit the loop."""
        late = self.ctx.phase is Phase.LATE
        self.ctx.scope = scope
        loop = first = _tidy(loop_of(eqn, scope, late))
        changed = False
        for _ in range(_ROUNDS):
            before = loop
            for p in self.role_passes:
                new = self._apply(p, loop)
                if new is not None:
                    loop = _tidy(new)
                    changed |= p.worth_emitting
            if loop is before:
                break
        if loop is not first:
            loop = loop.replace(saved=saved(first, loop, self.ctx.model))
        for p in self.emitting_passes:
            emission = self._apply(p, loop)
            if emission is not None:
                return self._traced(loop.eqn, emission)
        if self.emitting_passes:
            self.ctx.sink.verdict(eqn, "kept", self._declined)
        if not changed:
            return None
        return self._traced(loop.eqn, lambda args: emit_loop(loop, args))

    def _single(self, eqn: Any, scope: Scope) -> _Replacement | None:
        for p in self.equation_passes:
            if eqn.primitive.name in p.primitives:
                applied = self._apply(p, eqn, scope)
                if applied is not None:
                    return self._traced(eqn, applied)
        return None

    def _traced(self, eqn: Any, emission: Emission) -> _Replacement:
        used = [not isinstance(v, jc.DropVar) for v in eqn.outvars]
        inputs = _given(eqn, eqn.invars)

        def run(*given: Any) -> list[Any]:
            values = iter(given)
            args = [
                np.asarray(v.val, jc.dtype_of(v))[()]
                if isinstance(v, jc.Literal)
                else next(values)
                for v in eqn.invars
            ]
            return [o for o, u in zip(emission(args), used, strict=True) if u]

        with jc.at_location(eqn):
            late = self.ctx.phase is Phase.LATE
            closed = jc.trace(run, [v.aval for v in inputs], "rewritten", late)
        verify(eqn, closed)
        return _Replacement(closed, eqn)


@dataclass(frozen=True)
class _Replacement:
    """A program in place of an equation, whose operands may be more by now."""

    closed: Any
    eqn: Any


def _given(eqn: Any, atoms: Sequence[Any]) -> list[Any]:
    """Return the atoms in the places of operands that are not literals.

    A replacement holds the literals itself, so that what it emits still knows them.
    """
    pairs = zip(eqn.invars, atoms, strict=True)
    return [a for v, a in pairs if not isinstance(v, jc.Literal)]


def _tidy(loop: Loop) -> Loop:
    return prune(collapsed(loop))


def _where(eqn: Any) -> Location:
    return Location(*jc.location(eqn))


def _substituted(env: dict[Any, Any], v: Any) -> Any:
    return v if isinstance(v, jc.Literal) else env.get(v, v)
