"""Compare many random programs with their originals and print those that differ.

    python -m tests.fuzz --count 5000 --seed 0 --grad --report --numerics strict
    python -m tests.fuzz --count 1 --seed 1234 --show

The exit code is 1 where a program failed.
"""

from __future__ import annotations

import argparse
import collections
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any
from unittest import mock

import jax
import numpy as np

from tests.generate import Program, combine, random_program
from tests.generate_compare import check, check_report
from tests.generate_reduce import reduced

CLEAR_EVERY = 100  # programs, after which JAX's caches are emptied


def program_of(seed: int, group: int = 1) -> Program:
    """Return the program of a seed, or several in one."""
    if group == 1:
        return random_program(np.random.default_rng(seed))
    return combine(
        [random_program(np.random.default_rng((seed, at))) for at in range(group)]
    )


def run(program: Program, optimize: Callable[..., Any], options: Any) -> list[str]:
    """Return the outcomes of all checks of one program; a failure says what and why."""
    checks: list[tuple[str, Callable[[], Any]]] = [
        ("value", lambda: check(program, optimize))
    ]
    if options.grad and program.differentiable:
        checks.append(("gradient", lambda: check(program, optimize, grad=True)))
    if options.vmap and program.args:
        checks.append(("vmap", lambda: check(program, optimize, vmap=True)))
    if options.report:
        checks.append(("report", lambda: check_report(program, optimize)))
    outcomes = []
    for name, function in checks:
        try:
            outcomes.append(f"{name} {function() or 'right'}")
        except AssertionError as error:
            outcomes.append(f"{name} FAILED: {error}")
        except Exception as error:  # whatever a rewrite breaks is a finding
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{at.filename}:{at.lineno}"
            text = f"{type(error).__name__}: {str(error)[:500]} ({where})"
            outcomes.append(f"{name} FAILED: {text}")
    return outcomes


def optimizer(options: Any) -> Callable[..., Any]:
    """Return the function under test."""
    if options.identity:
        return jax.jit
    from rewriter import optimize

    return partial(
        optimize, numerics=options.numerics, memory_budget=options.memory_budget
    )


@contextmanager
def eager_rewriting() -> Iterator[None]:
    """Price loops as on a GPU and without lower limits: nearly all is rewritten.

    Every branch counts as dear, so that rows are grouped by the branch they take.
    """
    from passes import DEFAULT_PIPELINE
    from rewriter.machine import GPU

    pipeline = tuple(_unlimited(p) for p in DEFAULT_PIPELINE)
    with (
        mock.patch("rewriter.machine.CPU", GPU),
        mock.patch("passes.DEFAULT_PIPELINE", pipeline),
        mock.patch("passes.branch_grouping.dear", _dear),
    ):
        yield


def _dear(eqn: Any, *_: Any) -> str | None:
    return "it is to be grouped" if eqn.primitive.name == "cond" else None


def _unlimited(p: Any) -> Any:
    """Return a pass whose lower limits are as good as none."""
    least = {f.name: f.default for f in fields(p) if f.name.startswith("min_")}
    small = {k: 0.01 if isinstance(v, float) else min(v, 2) for k, v in least.items()}
    return replace(p, **small)


@contextmanager
def counted(rewrites: collections.Counter[str]) -> Iterator[None]:
    """Count the rewrites of each pass."""
    from rewriter import instrument

    def count(event: Any) -> None:
        outcome = getattr(event.plan, "outcome", "")
        rewrites[f"{event.pass_name} {outcome}".strip()] += 1

    with instrument(count):
        yield


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--group", type=int, default=1, help="programs per function")
    parser.add_argument("--grad", action="store_true", help="compare gradients too")
    parser.add_argument("--vmap", action="store_true", help="compare under vmap too")
    parser.add_argument("--report", action="store_true", help="check the report too")
    parser.add_argument("--numerics", default="reassociate")
    parser.add_argument("--memory-budget", default="256MB")
    parser.add_argument("--eager", action="store_true", help="price as on a GPU")
    parser.add_argument("--identity", action="store_true", help="test jax.jit itself")
    parser.add_argument("--show", action="store_true", help="print every program")
    parser.add_argument("--reduce", action="store_true", help="print shorter ones")
    parser.add_argument("--quiet", action="store_true", help="print no descriptions")
    return parser


def main() -> int:
    """Run the checks; return the exit code."""
    options = arguments().parse_args()
    warnings.simplefilter("ignore")
    rewrites: collections.Counter[str] = collections.Counter()
    with ExitStack() as stack:
        if not options.identity:
            stack.enter_context(counted(rewrites))
        if options.eager:
            stack.enter_context(eager_rewriting())
        counts = run_all(options)
    print(f"{options.count} programs: {dict(sorted(counts.items()))}")
    print(f"rewrites: {dict(sorted(rewrites.items()))}")
    return int(any("FAILED" in outcome for outcome in counts))


def run_all(options: Any) -> collections.Counter[str]:
    """Run the checks on all seeds, print what fails, and count the outcomes."""
    optimize = optimizer(options)
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(options.seed, options.seed + options.count):
        program = program_of(seed, options.group)
        outcomes = run(program, optimize, options)
        failed = [outcome for outcome in outcomes if "FAILED" in outcome]
        odd = any(
            outcome.endswith(("sensitive", "miscompiled")) for outcome in outcomes
        )
        counts.update(outcome.split(":")[0] for outcome in outcomes)
        if failed or odd or options.show:
            print(f"seed {seed}: {'; '.join(outcomes)}", flush=True)
        if failed and options.reduce:
            program = reduced(program, lambda p: run(p, optimize, options))
        if options.show or (failed and not options.quiet):
            print(program.description, flush=True)
        if (seed - options.seed) % CLEAR_EVERY == CLEAR_EVERY - 1:
            jax.clear_caches()
    return counts


if __name__ == "__main__":
    sys.exit(main())
