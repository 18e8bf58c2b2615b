"""`explain`: run both phases for given arguments and tell what was done."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from rewriter import phases, printer
from rewriter.pass_base import Options, Sink
from rewriter.remarks import Remark
from rewriter.report import Program, Report, Verdict
from rewriter.trace import trace_function


@dataclass
class _Record:
    """One loop of the user's program and what was said of it."""

    number: int
    info: printer.LoopInfo
    outcome: str = ""
    remark: Remark | None = None
    notes: list[str] = field(default_factory=list)
    decided: bool = False  # in the phase that runs now


class Recorder(Sink):
    """Gives every loop of a program exactly one verdict.

    A loop is known again by its traceback, which batching and transposing keep;
    loops that share one are told apart by their order.
    """

    def __init__(self, program: Any) -> None:
        self.records = [
            _Record(i, info)
            for i, info in enumerate(
                info for info in printer.loops(program) if not info.emitted
            )
        ]
        self.remarks: list[Remark] = []
        self._by_key: dict[Any, list[_Record]] = defaultdict(list)
        for record in self.records:
            self._by_key[_key(record.info.eqn)].append(record)

    def next_phase(self) -> None:
        """Start the next phase, whose verdicts replace earlier ones."""
        for record in self.records:
            record.decided = False

    def _record(self, eqn: Any) -> _Record | None:
        records = self._by_key.get(_key(eqn), ())
        undecided = next((r for r in records if not r.decided), None)
        return undecided or (records[-1] if records else None)

    def remark(self, remark: Remark, eqn: Any = None) -> None:
        """Keep a remark; what was recognised becomes a note of its loop."""
        record = None if eqn is None else self._record(eqn)
        if record is not None:
            remark = replace(remark, loop=record.number)
            note = f"{remark.message} [{remark.code}]"
            if remark.kind in ("passed", "analysis") and note not in record.notes:
                record.notes.append(note)
        self.remarks.append(remark)

    def verdict(self, eqn: Any, outcome: str, remark: Remark) -> None:
        """Decide the loop made by `eqn`."""
        record = self._record(eqn)
        if record is None or (record.decided and outcome == "kept"):
            return  # what was done to it before it was looked at again stands
        if record.outcome == "blocked" and outcome == "batched":
            return  # a part of it
        record.outcome, record.remark, record.decided = outcome, remark, True

    def verdicts(self) -> tuple[Verdict, ...]:
        """Return the verdicts in the order of the program."""
        return tuple(_verdict(r) for r in self.records)


def _key(eqn: Any) -> Any:
    return id(eqn.source_info.traceback)


def _verdict(record: _Record) -> Verdict:
    info, remark = record.info, record.remark
    if remark is None:
        return Verdict(
            info.location,
            info.primitive,
            info.trip_count,
            "kept",
            "pass-manager/not-reached",
            "inside an operation that is not looked into",
            depth=info.depth,
        )
    own = f"{remark.message} [{remark.code}]"
    size = remark.args.get("bytes", 0)
    return Verdict(
        info.location,
        info.primitive,
        info.trip_count,
        record.outcome,
        remark.code,
        remark.message,
        remark.suggestion,
        size if isinstance(size, int) else 0,
        info.depth,
        tuple(n for n in record.notes if n != own),
    )


def explain(f: Callable[..., Any], **options: Any) -> Callable[..., Report]:
    """Return a function that explains what `optimize` would do to `f`.

    Usage: `print(explain(f)(*args))`. Takes the arguments of `optimize`; a decorated
    function keeps its own options.

    Raises:
        TypeError: if `f` is not callable or an argument has the wrong type.
        ValueError: if an argument is none of the allowed values.
    """
    from rewriter.optimize import optimize

    if hasattr(f, "explain") and not options:
        return getattr(f, "explain")  # noqa: B009
    return optimize(f, **options).explain


def explain_call(
    f: Callable[..., Any],
    options: Options,
    jit_options: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Report:
    """Trace `f` at these arguments, run both phases, and report."""
    from rewriter.optimize import static_arguments

    positions, keywords = static_arguments(f, dict(jit_options))
    call = _with_static(f, args, kwargs, positions, keywords)
    dynamic = [a for i, a in enumerate(args) if i not in positions]
    named = {k: v for k, v in kwargs.items() if k not in keywords}
    before = trace_function(call, dynamic, named).closed
    started = time.perf_counter()
    recorder = Recorder(before)
    platform = jax.default_backend()
    middle = phases.early(before, options, recorder)
    recorder.next_phase()
    after = phases.late(middle, options, platform, recorder)
    return Report(
        getattr(f, "__name__", type(f).__name__),
        platform,
        options.numerics,
        options.memory_budget,
        Program(before),
        Program(after),
        recorder.verdicts(),
        tuple(recorder.remarks),
        time.perf_counter() - started,
    )


def _with_static(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    positions: Iterable[int],
    keywords: Iterable[str],
) -> Callable[..., Any]:
    fixed = {i: args[i] for i in positions if i < len(args)}
    fixed_kwargs = {k: v for k, v in kwargs.items() if k in keywords}

    @functools.wraps(f)
    def call(*rest: Any, **named: Any) -> Any:
        values = iter(rest)
        full = [fixed[i] if i in fixed else next(values) for i in range(len(args))]
        return f(*full, **named, **fixed_kwargs)

    return call
