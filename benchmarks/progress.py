"""A progress line on stderr: redrawn on a terminal, rare plain lines in a log."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Self, TextIO

_REDRAW_S = 0.1
_LOG_S = 20.0


class Progress:
    """Counts ``total`` stages of long work and says where it is."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        """Start at stage 0 of ``total``."""
        self._label = label
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._done = 0
        self._started = time.monotonic()
        self._last = self._started if not self._live else 0.0

    def __enter__(self) -> Self:
        """Give the line itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wipe the line."""
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def step(self, detail: str = "") -> None:
        """Count one stage as done."""
        self._done += 1
        self.show(detail)

    def show(self, detail: str = "") -> None:
        """Draw the line, unless it was drawn a moment ago."""
        now = time.monotonic()
        if now - self._last < (_REDRAW_S if self._live else _LOG_S):
            return
        self._last = now
        text = f"{self._label} {self._done}/{self._total}"
        seconds = f"{now - self._started:.0f} s"
        if self._live:
            filled = round(20 * self._done / max(self._total, 1))
            bar = "#" * filled + "." * (20 - filled)
            width = shutil.get_terminal_size().columns - 1
            line = f"[{bar}] {text} {seconds} {detail}"[:width]
            self._stream.write(f"\r\x1b[K{line}")
        else:
            self._stream.write(f"{text} ({seconds}) {detail}".rstrip() + "\n")
        self._stream.flush()

    def note(self, text: str) -> None:
        """Print a full line of ``text`` to stdout without breaking the bar."""
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._last = 0.0
        print(text, flush=True)
