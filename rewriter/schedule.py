"""Schedule: how much of the trip runs at once (ALGORITHMS.md, 2).

Whole when the rows that must be in memory fit in cache and budget; else in blocks
(*sections*, where a residual scan is inside) sized for the cache, a divisor of the
trip where one is near, never above the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from rewriter.memory import Footprint


@dataclass(frozen=True)
class Schedule:
    """`block` rows at once, or the whole trip when None."""

    block: int | None
    bytes_per_step: int  # beyond the outputs that the loop stacks anyway
    length: int

    @property
    def peak_bytes(self) -> int:
        """Bytes of stacked rows, beyond the outputs, that are alive at once."""
        return self.bytes_per_step * (self.block or self.length)

    def __str__(self) -> str:
        if self.block is None:
            return "whole"
        return f"blocks of {self.block}"


def choose(
    length: int, size: Footprint, kept: int, cache: int, budget: int, least: int = 1
) -> Schedule | None:
    """Choose a block size; None if not even `least` rows fit in the budget.

    Args:
        length: trip count.
        size: what a step must hold that the loop does not.
        kept: bytes a step adds to the outputs.
        cache: bytes that a block should stay within.
        budget: bytes that must not be exceeded.
        least: fewest rows worth a block.
    """
    if size.held == 0:
        return Schedule(None, 0, length)
    most = min(length, budget // size.held)
    if most < min(least, length):
        return None
    hot = size.hot + (kept if size.hot else 0)
    if length * hot <= 2 * cache and most >= length:
        return Schedule(None, size.held, length)
    target = max(least, min(most, cache // hot if hot else most))
    if target >= length:
        return Schedule(None, size.held, length)
    return Schedule(divisor_near(length, target, most, least), size.held, length)


def divisor_near(length: int, target: int, most: int, least: int = 1) -> int:
    """Return a divisor of `length` within a factor of two of `target`, or `target`."""
    low = max(least, (target + 1) // 2, min(target, 2))
    divisors = [k for k in range(low, min(most, 2 * target) + 1) if length % k == 0]
    return min(divisors, key=lambda k: abs(k - target), default=target)
