"""Documentation generated from the passes: a page per pass, the README's table.

`python -m rewriter.pass_docs` writes them, `--check` only tells whether they are up to
date (exit code 1 if not).
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
import sys
from typing import Any

from rewriter import phases

ROOT = pathlib.Path(__file__).resolve().parent.parent
START, END = "<!-- passes: generated -->", "<!-- passes: end -->"


def page(p: Any) -> str:
    """Return a pass's page in Markdown."""
    module = importlib.import_module(type(p).__module__)
    title, _, body = (module.__doc__ or "").partition("\n")
    lines = [f"# {p.name}", "", title.strip(), "", *_paragraphs(body)]
    lines += ["", "Remarks:", "", "| code | kind | message |", "|---|---|---|"]
    for code, remark in sorted(type(p).codes.items()):
        lines.append(f"| `{code}` | {remark.kind} | {remark.template} |")
    options = {
        k: v for k, v in vars(p).items() if isinstance(v, (int, float, str, bool))
    }
    if options:
        lines += ["", "Options: " + ", ".join(f"`{k}={v}`" for k, v in options.items())]
    return "\n".join(lines) + "\n"


def _paragraphs(body: str) -> list[str]:
    """Return a docstring's body with its examples fenced."""
    out: list[str] = []
    inside = False
    for line in body.strip().splitlines():
        if line.startswith(">>>") and not inside:
            out.append("```python")
            inside = True
        elif inside and not line.strip():
            out.append("```")
            inside = False
        out.append(line)
    return [*out, "```"] if inside else out


def table() -> str:
    """Return the README's table of passes."""
    lines = ["| pass | what it does | phase | numerics |", "|---|---|---|---|"]
    for p in phases.passes():
        module = importlib.import_module(type(p).__module__)
        title = (module.__doc__ or "").partition("\n")[0]
        _, _, what = title.partition(":")
        what = (what or title).strip().rstrip(".")
        phase = p.phase.value.replace("-roles", "")
        lines.append(
            f"| [{p.name}](passes/docs/{p.name}.md) | {what} | {phase} | {p.numerics} |"
        )
    return "\n".join(lines)


def files() -> dict[pathlib.Path, str]:
    """Return every generated file with its text."""
    made = {ROOT / "passes" / "docs" / f"{p.name}.md": page(p) for p in phases.passes()}
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    made[readme] = f"{before}{START}\n{table()}\n{END}{after}"
    return made


def main() -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    stale = [
        path
        for path, text in files().items()
        if not path.exists() or path.read_text() != text
    ]
    for path in stale:
        if check:
            print(f"out of date: {path.relative_to(ROOT)}")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path])
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
