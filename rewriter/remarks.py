"""Remarks: what was done, what was not, and why, in stable codes.

Modelled on LLVM's optimisation remarks (passed, missed, analysis, failed): a code
`pass-name/reason`, structured arguments, and a message made out of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["passed", "missed", "failed", "analysis"]


@dataclass(frozen=True)
class Location:
    """A line of the user's program."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        name = self.file.rsplit("/", 1)[-1]
        return f"{name}:{self.line}" if self.line else name


@dataclass(frozen=True)
class Remark:
    """One fact about one place of the user's program.

    Attributes:
        kind: `passed`, `missed`, `failed` or `analysis`.
        code: stable name `pass-name/reason`.
        location: the user's file and line.
        message: text made of the code's template and `args`.
        args: the numbers and names behind the message.
        suggestion: what the user could do, or an empty string.
        loop: number of the user's loop that this is about, or None.
    """

    kind: Kind
    code: str
    location: Location
    message: str
    args: Mapping[str, Any] = field(default_factory=dict)
    suggestion: str = ""
    loop: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the remark as plain JSON values."""
        args = {
            k: v if isinstance(v, (int, float, str, bool)) else str(v)
            for k, v in self.args.items()
        }
        return {
            "kind": self.kind,
            "code": self.code,
            "location": str(self.location),
            "file": self.location.file,
            "line": self.location.line,
            "message": self.message,
            "args": args,
            "suggestion": self.suggestion,
            "loop": self.loop,
        }

    def __str__(self) -> str:
        return f"{self.location}: {self.kind}: {self.message} [{self.code}]"


@dataclass(frozen=True)
class RemarkCode:
    """A declared remark: the class attribute of a pass that can be reported."""

    kind: Kind
    reason: str
    template: str
    suggest: str = ""
    owner: str = ""

    @property
    def code(self) -> str:
        """The stable name `pass-name/reason`."""
        return f"{self.owner}/{self.reason}"

    def at(self, place: Location, /, **args: Any) -> Remark:
        """Make the remark at a place, its message filled with `args`."""
        return Remark(
            self.kind,
            self.code,
            place,
            self.template.format(**args),
            MappingProxyType(dict(args)),
            self.suggest.format(**args),
        )

    def owned_by(self, owner: str) -> RemarkCode:
        """Return the same code under a pass name."""
        return replace(self, owner=owner)


def passed(reason: str, template: str) -> RemarkCode:
    """Declare a remark of something done."""
    return RemarkCode("passed", reason, template)


def missed(reason: str, template: str, suggest: str = "") -> RemarkCode:
    """Declare a remark of something left alone."""
    return RemarkCode("missed", reason, template, suggest)


def failed(reason: str, template: str, suggest: str = "") -> RemarkCode:
    """Declare a remark of an internal failure."""
    return RemarkCode("failed", reason, template, suggest)


def analysis(reason: str, template: str, suggest: str = "") -> RemarkCode:
    """Declare a remark of a fact found on the way."""
    return RemarkCode("analysis", reason, template, suggest)
