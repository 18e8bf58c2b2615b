"""Whether a pass fires: remarks, verdicts and values of one program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import passes
from passes.loop_distribution import LoopDistribution
from rewriter import Report, optimize
from rewriter.jax_compat import sub_jaxprs
from rewriter.printer import walk
from tests.helpers import assert_equivalent

SETTINGS = ("numerics", "memory_budget", "disable", "require")


@contextmanager
def distributed_for_any_gain() -> Iterator[None]:
    """Let the distribution take loops for which it expects next to nothing."""
    pipeline = tuple(
        replace(p, min_gain=0.01, min_gain_scan=0.01)
        if isinstance(p, LoopDistribution)
        else p
        for p in passes.DEFAULT_PIPELINE
    )
    with mock.patch("passes.DEFAULT_PIPELINE", pipeline):
        yield


def report_of(fn: Callable, args: Any, **options: Any) -> Report:
    """Explain one program under the settings among `options`."""
    chosen = {k: v for k, v in options.items() if k in SETTINGS}
    report = optimize(fn, **chosen).explain(*args)
    broken = [str(r) for r in report.remarks if r.kind == "failed"]
    assert not broken, broken
    return report


def fired(report: Report, name: str) -> list:
    """Return the remarks of what a pass did."""
    return [
        r
        for r in report.remarks
        if r.kind == "passed" and r.code.startswith(name + "/")
    ]


def codes(report: Report) -> set[str]:
    """Return all remark codes of a report."""
    return {r.code for r in report.remarks}


def in_loops(report: Report) -> Iterator[Any]:
    """Yield the equations inside the loops that are left."""
    for loop in report.after.loops:
        for inner in sub_jaxprs(loop.eqn):
            yield from walk(inner)


def assert_fires(
    name: str,
    fn: Callable,
    args: Any,
    code: str = "",
    loops: int | None = None,
    outcome: str = "",
    without: tuple[str, ...] = (),
    **options: Any,
) -> Report:
    """Check that a pass fires, what is left, and the values.

    `loops` are the loops left, `outcome` is the first verdict's, `without` names
    primitives that no loop has any more; the rest are options of `assert_equivalent`.
    """
    report = report_of(fn, args, **options)
    remarks = fired(report, name)
    assert remarks, sorted(codes(report))
    if code:
        assert f"{name}/{code}" in {r.code for r in remarks}
    _check(report, loops, outcome)
    inside = {e.primitive.name for e in in_loops(report)}
    assert not inside & set(without), report.after.outline()
    _compare(fn, args, options)
    return report


def assert_declines(
    name: str,
    fn: Callable,
    args: Any,
    code: str = "",
    loops: int | None = None,
    outcome: str = "",
    **options: Any,
) -> Report:
    """Check that a pass does not fire, why, and the values."""
    report = report_of(fn, args, **options)
    assert not fired(report, name), [str(r) for r in fired(report, name)]
    if code:
        assert f"{name}/{code}" in codes(report), sorted(codes(report))
    _check(report, loops, outcome)
    _compare(fn, args, options)
    return report


def _compare(fn: Callable, args: Any, options: dict[str, Any]) -> None:
    """Compare values; without an oracle, to within what reordering a dot may cost."""
    if not options.setdefault("oracle", False):
        options.setdefault("ulps", 64)
    assert_equivalent(fn, *args, **options)


def _check(report: Report, loops: int | None, outcome: str) -> None:
    if loops is not None:
        assert len(report.after.loops) == loops, report.after.outline()
    if outcome:
        first = report.verdicts[0]
        assert first.outcome in outcome.split("|"), (first.outcome, first.message)
