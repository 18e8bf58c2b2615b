"""Shorter versions of a program that fails: lines and names are left out by trial."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

from tests.generate import Program, compile_program

Outcomes = Callable[[Program], list[str]]
SIMPLER = (
    (r"jax\.(jit|checkpoint)\((\w+)\)\(", r"\2("),
    (r"jax\.(jit|checkpoint)\((step\w+)\)", r"\2"),
    (r", (reverse=True|unroll=\d|batch_size=\d+)", ""),
    (r"jnp\.\w+\((\w+)\)", r"\1"),
    (r"0\.\d \* \((.*)\)$", r"\1"),
)


def reduced(program: Program, outcomes: Outcomes) -> Program:
    """Return a program, as short as trial and error finds, that fails like this one."""
    wanted = signature(outcomes(program))
    found = True
    while found:
        found = False
        for candidate in candidates(program):
            if wanted <= signature(outcomes(candidate)):
                program, found = candidate, True
                break
    return program


def signature(outcomes: list[str]) -> set[str]:
    """Return what failed, without numbers."""
    failed = [outcome for outcome in outcomes if "FAILED" in outcome]
    return {re.sub(r"[\d.]+|program-\w+|\[.*?\]", "", text)[:80] for text in failed}


def candidates(program: Program) -> Iterator[Program]:
    """Yield programs with something left out that still run as they are."""
    lines = [x for x in program.description.splitlines() if not x.startswith("#")]
    names = inspect.signature(program.fn).parameters
    arguments = dict(zip(names, program.args, strict=True))
    for changed in shorter(lines):
        text = "\n".join(changed) + "\n"
        used = {n: x for n, x in arguments.items() if re.search(rf"\b{n}\b", text)}
        text = re.sub(r"^def fn\(.*\):", f"def fn({', '.join(used)}):", text)
        body = text.split("\n", 1)[1]
        kept = {n: x for n, x in used.items() if re.search(rf"\b{n}\b", body)}
        text = f"def fn({', '.join(kept)}):\n{body}"
        try:
            candidate = compile_program(text, kept, bool(program.differentiable))
            candidate.loops  # noqa: B018  traces the program
        except Exception:
            continue
        yield candidate


def shorter(lines: list[str]) -> Iterator[list[str]]:
    """Yield versions of the text that have a block, a line or a name less."""
    for start in range(1, len(lines)):
        end = start + 1
        depth = len(lines[start]) - len(lines[start].lstrip())
        while end < len(lines) and lines[start].lstrip().startswith("def "):
            if len(lines[end]) - len(lines[end].lstrip()) <= depth:
                break
            end += 1
        yield lines[:start] + lines[end + (end > start + 1) :]
        yield lines[:start] + lines[start + 1 :]
    for at, line in enumerate(lines[1:], 1):
        for match in re.finditer(r"\w+, ", line):
            if "return" in line or " = carry" in line or " = x" in line:
                shorter_line = line[: match.start()] + line[match.end() :]
                yield [*lines[:at], shorter_line, *lines[at + 1 :]]
        for pattern, replacement in SIMPLER:
            simpler = re.sub(pattern, replacement, line)
            if simpler != line:
                yield [*lines[:at], simpler, *lines[at + 1 :]]
    yield from without_carry(lines)


def without_carry(lines: list[str]) -> Iterator[list[str]]:
    """Yield versions that lack one carry or one x of one loop."""
    for at, line in enumerate(lines):
        names = re.match(r"\s+\((.*),\) = (carry|x|state)$", line)
        if names is None or "," not in names[1]:
            continue
        count = names[1].count(",") + 1
        for position in range(count):
            yield [drop(text, position, count, at, n) for n, text in enumerate(lines)]


def drop(line: str, position: int, count: int, at: int, number: int) -> str:
    """Leave out an element of the tuples of this length, near the loop at a line."""
    if number < at:
        return line

    def without(match: re.Match[str]) -> str:
        items = split(match[1])
        if len(items) != count:
            return match[0]
        return f"({', '.join(items[:position] + items[position + 1 :])},)"

    return re.sub(r"\(((?:[^()]|\([^()]*(?:\([^()]*\))?[^()]*\))+?),\)", without, line)


def split(text: str) -> list[str]:
    """Split at commas that are in no parentheses."""
    items, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]
