"""Plain text tables and the number formats that go into them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

MISSING = "-"
_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?\s?(x|%|\[.*\])?( \[.*\])?( / .*)?$")


def _looks_numeric(cell: str) -> bool:
    return cell in ("", MISSING) or _NUMBER.match(cell) is not None


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align ``rows`` under ``headers``; columns of numbers go to the right."""
    columns = [[row[k] for row in rows] for k in range(len(headers))]
    widths = [max(map(len, (h, *c))) for h, c in zip(headers, columns, strict=True)]
    right = [all(map(_looks_numeric, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(cells, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(headers), rule, *map(line, rows)])


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Print a Markdown table; all columns but the first go to the right."""
    rule = ["---", *["---:"] * (len(headers) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (headers, rule, *rows))


def number(value: float | None, digits: int = 3) -> str:
    """Print ``value`` with about ``digits`` significant digits, never as 1e+03."""
    if value is None or math.isnan(value):
        return MISSING
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(places, digits)}f}"


def small(value: float | None) -> str:
    """Print an error or a difference: two digits and an exponent."""
    if value is None or math.isnan(value):
        return MISSING
    return "0" if value == 0 else f"{value:.1e}"


def times(value: float | None) -> str:
    """Print a ratio."""
    return MISSING if value is None else f"{number(value)}x"


def interval(bounds: tuple[float, float] | None) -> str:
    """Print the two ends of an interval of a ratio."""
    if bounds is None:
        return MISSING
    return f"[{number(bounds[0])}, {number(bounds[1])}]"


def megabytes(count: float | None) -> str:
    """Print a number of bytes in MB (10^6)."""
    return MISSING if count is None else f"{count / 1e6:.1f}"
