"""`schedule` and sizes: blocks within cache and budget, texts of bytes."""

import dataclasses

import numpy as np
import pytest

from rewriter.machine import CPU
from rewriter.memory import Footprint, parse_bytes
from rewriter.report import format_bytes
from rewriter.schedule import Schedule, choose, divisor_near

KB, MB = 1000, 1_000_000


def _choose(length, held, hot=None, kept=0, cache=MB, budget=100 * MB, crossing=None):
    size = Footprint(held, held if hot is None else hot)
    machine = dataclasses.replace(CPU, cache=cache)
    return choose(length, size, kept, machine, budget, crossing)


def test_sections_copy_what_crosses_them():
    """Taken where that costs less than fresh pages; whole where pages are recycled."""
    held, length = 16 * KB, 4096
    few, many = (_choose(length, held, crossing=c) for c in (held, 10 * held))
    assert few.block is not None
    assert few.cost == CPU.byte_copied * held
    assert many.block is None
    assert many.cost == CPU.byte_fresh * held
    short = _choose(1000, held, crossing=held)
    assert short.block is None
    assert short.cost == 0


def test_nothing_held():
    """No bytes beyond the outputs: all at once, whatever the length."""
    assert _choose(10**9, 0) == Schedule(None, 0, 10**9)


def test_fits():
    assert _choose(100, KB) == Schedule(None, KB, 100)
    assert _choose(100, KB).peak_bytes == 100 * KB
    assert str(_choose(100, KB)) == "whole"


@pytest.mark.parametrize("length", [3000, 3001, 4096, 10_007])
@pytest.mark.parametrize("held", [KB, 10 * KB, 300 * KB])
def test_cache(length, held):
    """Blocks are near what the cache holds, and never over the budget."""
    plan = _choose(length, held, budget=5 * MB)
    assert 1 <= plan.block <= length
    assert plan.peak_bytes <= 5 * MB
    assert plan.block * held <= 2 * MB
    assert plan.block * held >= MB // 2 or plan.block == MB // held
    assert str(plan) == f"blocks of {plan.block}"


@pytest.mark.parametrize("budget", [KB, 10 * KB, 999 * KB])
def test_budget(budget):
    """The budget bounds the block where the cache would allow more."""
    plan = _choose(5000, KB, budget=budget)
    assert plan.peak_bytes <= budget
    assert plan.block <= budget // KB


def test_over_the_budget():
    assert _choose(100, 2 * KB, budget=KB) is None
    assert _choose(100, KB, budget=10 * KB, crossing=KB) is None


def test_least():
    """A divisor of the trip is no reason for a block that is too short."""
    assert _choose(100, KB, budget=16 * KB, crossing=KB).block == 16


def test_fewer_steps_than_the_least():
    """A short trip is taken whole even if it is less than a block should be."""
    assert _choose(5, KB, budget=5 * KB, crossing=KB) == Schedule(None, KB, 5)


def test_outputs_count_for_the_cache():
    """Bytes of the outputs are touched too, but are not held beyond the original."""
    alone = _choose(4000, KB)
    beside = _choose(4000, KB, kept=9 * KB)
    assert beside.block < alone.block
    assert beside.peak_bytes == beside.block * KB


def test_streamed_rows_are_not_hot():
    """What is held but not touched again does not make blocks smaller."""
    assert _choose(4000, KB, hot=1).block is None


@pytest.mark.parametrize(
    ("length", "target", "most", "want"),
    [
        (100, 20, 100, 20),
        (100, 30, 100, 25),
        (100, 23, 100, 25),
        (100, 23, 24, 20),
        (97, 20, 97, 20),
        (7, 3, 7, 3),
        (4096, 1000, 4096, 1024),
        (1, 1, 1, 1),
    ],
)
def test_divisor_near(length, target, most, want):
    assert divisor_near(length, target, most) == want


def test_divisor_near_at_random():
    rng = np.random.default_rng(0)
    for length, target in rng.integers(1, 3000, (200, 2)):
        target = min(length, target)
        got = divisor_near(int(length), int(target), int(length))
        assert got == target or (length % got == 0 and target / 2 - 1 <= got)
        assert got <= 2 * target


SIZES = {
    "512MB": 512 * MB,
    "512 MB": 512 * MB,
    "512mb": 512 * MB,
    "2GB": 2000 * MB,
    "1.5k": 1500,
    "1500": 1500,
    "1e3": 1000,
    " 3 T ": 3 * 10**12,
    "100B": 100,
    "1GiB": 1000 * MB,
}


@pytest.mark.parametrize("text", SIZES)
def test_parse_bytes(text):
    if "i" in text:  # binary units, where they are told apart, are larger
        assert parse_bytes(text) in (SIZES[text], 1 << 30)
    else:
        assert parse_bytes(text) == SIZES[text]


@pytest.mark.parametrize("value", [1, 2.5e6, np.int64(7), np.float64(8e3)])
def test_numbers_of_bytes(value):
    assert parse_bytes(value) == int(value)


@pytest.mark.parametrize(
    "value", ["", "MB", "many", "12XB", "-5MB", "0", 0, -1, "inf", float("inf"), "nan"]
)
def test_no_size(value):
    with pytest.raises(ValueError, match="memory_budget"):
        parse_bytes(value)


@pytest.mark.parametrize("value", [None, True, [1], (2,), b"1MB"])
def test_no_number_and_no_text(value):
    with pytest.raises(TypeError, match="memory_budget"):
        parse_bytes(value)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1200, "1.2 kB"), (25_600, "26 kB"), (3e9, "3.0 GB")],
)
def test_format_bytes(size, text):
    assert format_bytes(size) == text


def test_sum_of_footprints():
    assert Footprint(1, 2) + Footprint(10, 20) == Footprint(11, 22)
