"""Schedule: how much of the trip runs at once (ALGORITHMS.md, 2).

Whole when the rows that must be in memory fit in cache and budget; else in blocks
(*sections*, where a residual scan is inside) sized for the cache, a divisor of the
trip where one is near, never above the budget. Sections copy what crosses them, so
they are taken where that costs less than the fresh pages of one large allocation.
"""

from __future__ import annotations

from dataclasses import dataclass

from rewriter.machine import Machine
from rewriter.memory import Footprint


@dataclass(frozen=True)
class Schedule:
    """`block` rows at once, or the whole trip when None."""

    block: int | None
    bytes_per_step: int  # beyond the outputs that the loop stacks anyway
    length: int
    cost: float = 0.0  # ns a step of fresh pages, or of copies into sections

    @property
    def peak_bytes(self) -> int:
        """Bytes of stacked rows, beyond the outputs, that are alive at once."""
        return self.bytes_per_step * (self.block or self.length)

    def __str__(self) -> str:
        if self.block is None:
            return "whole"
        return f"blocks of {self.block}"


def choose(
    length: int,
    size: Footprint,
    kept: int,
    machine: Machine,
    budget: int,
    crossing: int | None = None,
) -> Schedule | None:
    """Choose a block size; None if not even the fewest rows fit in the budget.

    Args:
        length: trip count.
        size: what a step must hold that the loop does not.
        kept: bytes a step adds to the outputs.
        machine: whose cache a block should stay within.
        budget: bytes that must not be exceeded.
        crossing: bytes a step reads and stacks, where a residual scan stays.
    """
    if size.held == 0:
        return Schedule(None, 0, length)
    least = 1 if crossing is None else 16
    most = min(length, budget // size.held)
    if most < min(least, length):
        return None
    hot = size.hot + (kept if size.hot else 0)
    target = max(least, min(most, machine.cache // hot if hot else most))
    fresh = machine.fresh_pages(length * size.held) * size.held
    copies = machine.byte_copied * (crossing or 0)
    fits = length * hot <= 2 * machine.cache or (
        crossing is not None and fresh <= copies
    )
    if most >= length and (fits or target >= length):
        return Schedule(None, size.held, length, fresh if crossing is not None else 0.0)
    return Schedule(
        divisor_near(length, target, most, least), size.held, length, copies
    )


def divisor_near(length: int, target: int, most: int, least: int = 1) -> int:
    """Return a divisor of `length` within a factor of two of `target`, or `target`."""
    low = max(least, (target + 1) // 2, min(target, 2))
    divisors = [k for k in range(low, min(most, 2 * target) + 1) if length % k == 0]
    return min(divisors, key=lambda k: abs(k - target), default=target)
