"""Runs a piece of a benchmark in a process of its own, so that a crash costs a row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_MARK = "RESULT "
_ROOT = Path(__file__).parent.parent


def hand_back(result: dict[str, Any]) -> None:
    """Send ``result`` to the parent; a later one replaces an earlier one."""
    print(_MARK + json.dumps(result), flush=True)


def _environment() -> dict[str, str]:
    """Return the environment of a child: this source tree, one LAPACK thread."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(
        [str(_ROOT), *filter(None, [env.get("PYTHONPATH")])]
    )
    # LAPACK threads spin while they wait, which disturbs the timing of XLA's own.
    env.setdefault("OPENBLAS_NUM_THREADS", "1")
    return env


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:160] if lines else ""


def run_child(
    module: str,
    arguments: Sequence[str],
    timeout_s: float,
    python: str = sys.executable,
) -> tuple[dict[str, Any] | None, str]:
    """Run ``python -m module arguments``; return what it handed back, and trouble."""
    trouble = ""
    try:
        done = subprocess.run(
            [python, "-m", module, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=_environment(),
        )
        output = done.stdout
        if done.returncode != 0:
            trouble = f"exit {done.returncode}: {_last_line(done.stderr)}"
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        trouble = f"no end after {timeout_s:.0f} s"
    handed = [line for line in output.splitlines() if line.startswith(_MARK)]
    return (json.loads(handed[-1][len(_MARK) :]) if handed else None), trouble
