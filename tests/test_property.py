"""Random loop programs: optimised and original agree, and the report adds up."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from rewriter import optimize
from tests.fuzz import eager_rewriting, program_of
from tests.generate import Program, random_program
from tests.generate_compare import check, check_report

CHUNK = 20  # programs per test
VALUES = range(0, 80, CHUNK)
EAGER = range(500, 560, CHUNK)
GRADIENTS = range(1000, 1040, CHUNK)
VMAPPED = range(1500, 1520, CHUNK)
STRICT = range(2000, 2020, CHUNK)
REPORTS = range(3000, 3040, CHUNK)
GROUPS = range(4000, 4002)


def programs(first: int) -> list[tuple[int, Program]]:
    """Return the programs of one chunk of seeds."""
    return [(seed, program_of(seed)) for seed in range(first, first + CHUNK)]


def assert_each(first: int, test: Callable[[Program], object]) -> None:
    """Assert that a test passes for each program of a chunk; show those that fail."""
    failures = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed, program in programs(first):
            try:
                test(program)
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                failures.append(f"seed {seed}: {what}\n{program.description}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("first", VALUES)
def test_results_agree(first: int) -> None:
    """Values, types and NaN positions agree at the default level."""
    assert_each(first, lambda program: check(program, optimize))


@pytest.mark.parametrize("first", EAGER)
def test_results_agree_where_all_that_is_legal_is_rewritten(first: int) -> None:
    """Values agree when nothing stays a loop for its price, in small blocks too."""
    small = partial(optimize, memory_budget=1500)
    with eager_rewriting():
        assert_each(first, lambda program: check(program, small))


@pytest.mark.parametrize("first", VMAPPED)
def test_vmapped_results_agree(first: int) -> None:
    """Values agree under vmap of the optimised function."""
    assert_each(first, lambda program: check(program, optimize, vmap=True))


@pytest.mark.parametrize("first", GRADIENTS)
def test_gradients_agree(first: int) -> None:
    """Gradients through the optimised function agree."""
    assert_each(first, lambda program: check(program, optimize, grad=True))


@pytest.mark.parametrize("first", STRICT)
def test_strict_results_agree(first: int) -> None:
    """Values agree under strict numerics."""
    strict = partial(optimize, numerics="strict")
    assert_each(first, lambda program: check(program, strict))


@pytest.mark.parametrize("first", REPORTS)
def test_reports_add_up(first: int) -> None:
    """One verdict for each loop, and a second run of the rewriter changes nothing."""
    assert_each(first, lambda program: check_report(program, optimize))


@pytest.mark.parametrize("seed", GROUPS)
def test_many_loops_in_one_function(seed: int) -> None:
    """Several programs in one function agree too."""
    check(program_of(seed, 6), optimize)


def test_a_seed_gives_one_program() -> None:
    """The same seed gives the same text and the same arguments."""
    one, two = (random_program(np.random.default_rng(11)) for _ in range(2))
    assert one.description == two.description
    for x, y in zip(one.args, two.args, strict=True):
        np.testing.assert_array_equal(x, y)
