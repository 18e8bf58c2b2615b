"""What a pass is: phases, options, plans, the context, and the instrumentation hook."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from rewriter.cost import Model
from rewriter.graph import Loop
from rewriter.machine import machine
from rewriter.remarks import Location, Remark, RemarkCode
from rewriter.scope import Scope


class Phase(Enum):
    """When a pass runs."""

    EARLY = "early"
    LATE = "late"
    BOTH = "both"
    LATE_ROLES = "late-roles"  # changes roles like BOTH, but only at lowering


NUMERICS = ("strict", "reassociate", "fast")


@dataclass(frozen=True)
class Options:
    """What the user asked for; hashable, so that a tag can name it."""

    numerics: str = "reassociate"
    memory_budget: int = 256_000_000
    disable: frozenset[str] = frozenset()
    require: frozenset[str] = frozenset()

    def allows(self, level: str) -> bool:
        """Whether a pass of this numerics level may run."""
        return NUMERICS.index(level) <= NUMERICS.index(self.numerics)


Emission = Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True)
class Plan:
    """What a pass found and means to do. `remark` says it in words."""

    remark: Remark
    outcome: str = ""  # of the loop, where the plan ends its treatment


@dataclass(frozen=True)
class Pass:
    """One optimisation. Codes are class attributes; options are fields."""

    name: ClassVar[str] = ""
    phase: ClassVar[Phase] = Phase.BOTH
    numerics: ClassVar[str] = "strict"
    worth_emitting: ClassVar[bool] = True  # by itself; else only a view of roles
    codes: ClassVar[dict[str, RemarkCode]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Bind the declared codes to the pass name."""
        super().__init_subclass__(**kwargs)
        cls.codes = {}
        for key, value in list(vars(cls).items()):
            if isinstance(value, RemarkCode):
                owned = value.owned_by(cls.name)
                setattr(cls, key, owned)
                cls.codes[owned.code] = owned


@dataclass(frozen=True)
class LoopPass(Pass):
    """A pass over loops."""

    explains: ClassVar[bool] = True  # its reason may be a kept loop's verdict

    def match(self, loop: Loop, ctx: Context) -> Plan | Remark:
        """Return a plan, or the remark that says why not. Pure."""
        raise NotImplementedError

    def rewrite(self, plan: Any) -> Loop | Emission:
        """Return the loop with other roles, or what emits its replacement."""
        raise NotImplementedError


@dataclass(frozen=True)
class EquationPass(Pass):
    """A pass over single equations of some primitives."""

    primitives: ClassVar[frozenset[str]] = frozenset()

    def match(self, eqn: Any, scope: Scope, ctx: Context) -> Plan | Remark:
        """Return a plan, or the remark that says why not. Pure."""
        raise NotImplementedError

    def rewrite(self, plan: Any) -> Emission:
        """Return what emits the replacement."""
        raise NotImplementedError


@dataclass(frozen=True)
class ProgramPass(Pass):
    """A pass over a loop and the program that it stands in."""

    explains: ClassVar[bool] = False

    def match(self, eqn: Any, closed: Any, ctx: Context) -> Plan | Remark:
        """Return a plan, or the remark that says why not. Pure."""
        raise NotImplementedError

    def rewrite(self, plan: Any) -> Any:
        """Return the new program."""
        raise NotImplementedError


# ------------------------------------------------------------ context and events


@dataclass(frozen=True)
class Event:
    """One rewrite, as the instrumentation hook sees it."""

    pass_name: str
    location: Location
    plan: Any
    seconds: float


hooks: list[Callable[[Event], None]] = []


@contextlib.contextmanager
def instrument(hook: Callable[[Event], None]) -> Iterator[None]:
    """Call `hook` after every rewrite made inside this context."""
    hooks.append(hook)
    try:
        yield
    finally:
        hooks.remove(hook)


class Sink:
    """Collects remarks and the verdict on each loop. This one keeps nothing."""

    def remark(self, remark: Remark, eqn: Any = None) -> None:
        """Take a remark about the loop made by `eqn`."""

    def verdict(self, eqn: Any, outcome: str, remark: Remark) -> None:
        """Take what became of the loop made by `eqn`."""


@dataclass
class Context:
    """What passes may ask while they match."""

    options: Options
    phase: Phase
    platform: str
    sink: Sink = field(default_factory=Sink)
    rewrites: int = 0
    loops: int = 0  # loops around what is being matched
    scope: Scope | None = None  # the program around the loop being matched

    @property
    def model(self) -> Model:
        """The cost model of the platform."""
        return Model(machine(self.platform))
