"""A writer of random programs: typed values in scope, lines of Python, arguments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A name in the written program; kind is f(loat), i(nt32), b(ool) or k(ey)."""

    name: str
    shape: Shape
    kind: str
    stored: bool = True

    def __str__(self) -> str:
        """Return the name, so that values can be put into f-strings."""
        return self.name


@dataclass(frozen=True)
class Index:
    """The counter of the loop being written, its first value, step and trip count."""

    name: str
    first: int
    step: int
    trip: int


@dataclass
class Writer:
    """Holds the text, the arguments and the scopes of one program being written."""

    rng: np.random.Generator
    nonfinite: bool = False
    wild: bool = False
    ties: bool = False
    legacy_keys: bool = False
    differentiable: bool = True
    lengths: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    lines: list[str] = field(default_factory=list)
    args: dict[str, np.ndarray] = field(default_factory=dict)
    globals: list[Value] = field(default_factory=list)
    scopes: list[list[Value]] = field(default_factory=lambda: [[]])
    indices: list[Index] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    budget: int = 3
    numbers: Iterator[int] = field(default_factory=itertools.count)

    # Random choices.

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < probability)

    def choose(self, *options: Any) -> Any:
        """Return one of the options."""
        return options[int(self.rng.integers(len(options)))]

    def draw(self, table: dict[Any, float]) -> Any:
        """Return a key of the table, drawn by its weight."""
        weights = np.array(list(table.values()), float)
        return list(table)[int(self.rng.choice(len(table), p=weights / weights.sum()))]

    def number(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def shape(self, most: int = 2) -> Shape:
        """Return a small random shape made of this program's dimensions."""
        rank = self.number(0, most)
        return tuple(self.choose(*self.dims) for _ in range(rank))

    def length(self) -> int:
        """Return a trip count: the program's own at the top, a few inside loops."""
        if self.depth == 0:
            return self.choose(*self.lengths)
        return self.choose(1, 2, 3, 3, 4, 5, *self.dims)

    @property
    def depth(self) -> int:
        """Return the number of loops around the line being written."""
        return len(self.indices)

    # Text.

    def fresh(self, prefix: str) -> str:
        """Return a new name."""
        return f"{prefix}{next(self.numbers)}"

    def line(self, text: str) -> None:
        """Write one line."""
        self.lines.append("    " * len(self.scopes) + text)

    @contextmanager
    def function(self, name: str, parameters: str) -> Iterator[None]:
        """Write a nested function; values made inside go out of scope after it."""
        self.line(f"def {name}({parameters}):")
        self.scopes.append([])
        yield
        self.scopes.pop()

    @contextmanager
    def iterating(self, index: Index) -> Iterator[None]:
        """Write a loop with this counter (its name may be '')."""
        self.indices.append(index)
        yield
        self.indices.pop()

    def add(self, value: Value) -> Value:
        """Bring a value into scope."""
        self.scopes[-1].append(value)
        return value

    def let(self, expression: str, shape: Shape, kind: str) -> Value:
        """Write an assignment and bring its value into scope."""
        name = self.fresh("v")
        self.line(f"{name} = {expression}")
        return self.add(Value(name, tuple(shape), kind))

    # Values.

    def visible(self) -> list[Value]:
        """Return all values in scope, outer ones first."""
        return self.globals + [value for scope in self.scopes for value in scope]

    def find(
        self, kind: str, shape: Shape | None = None, *, least: int = 0, most: int = 3
    ) -> Value | None:
        """Return a value in scope of this kind and shape (or rank), or None."""
        found = [
            value
            for value in self.visible()
            if value.kind == kind
            and (value.shape == shape if shape is not None else True)
            and least <= len(value.shape) <= most
            and 0 not in value.shape
        ]
        return self.newest(found) if found else None

    def newest(self, values: list[Value]) -> Value:
        """Return a value, preferring unused ones of this scope and newer ones."""
        local = {value.name for value in self.scopes[-1]} - self.used
        waiting = [value for value in values if value.name in local]
        if waiting and self.chance(0.6):
            values = waiting
        at = len(values) - 1 - int(len(values) * self.rng.random() ** 2.5)
        self.used.add(values[at].name)
        return values[at]

    def pick(
        self, kind: str, shape: Shape | None = None, *, least: int = 0, most: int = 3
    ) -> Value:
        """Return a value in scope, or a new argument or literal."""
        found = self.find(kind, shape, least=least, most=most)
        if found is not None and not self.chance(0.04):
            return found
        if shape is None:
            rank = max(least, min(most, self.number(0, 2)))
            shape = tuple(self.choose(*self.dims) for _ in range(rank))
        return self.make(kind, shape)

    def make(self, kind: str, shape: Shape) -> Value:
        """Return a literal for a scalar float, and otherwise a new argument."""
        if kind == "f" and shape == () and self.chance(0.6):
            return Value(repr(round(float(self.rng.uniform(-1, 1)), 2)), (), "f", False)
        if kind == "i" and shape == () and self.chance(0.6):
            return Value(f"jnp.int32({self.number(-3, 9)})", (), "i", False)
        if kind == "k":
            return self.key()
        return self.argument(kind, shape)

    def argument(self, kind: str, shape: Shape) -> Value:
        """Return a new argument of the program."""
        value = Value(self.fresh("a"), tuple(shape), kind)
        self.args[value.name] = self.data(kind, value.shape)
        self.globals.append(value)
        return value

    def data(self, kind: str, shape: Shape) -> np.ndarray:
        """Return random numbers for an argument."""
        if kind == "b":
            return self.rng.random(shape) < 0.6
        if kind == "i":
            high = self.choose(5, 20, 2**31 - 1)
            low = 0 if self.chance(0.5) else -high
            return self.rng.integers(low, high, shape).astype(np.int32)
        x = np.clip(self.rng.standard_normal(shape), -2, 2)
        if self.ties and self.chance(0.5):
            x = np.round(2 * x) / 2
        if self.wild and self.chance(0.4):
            x = x * 10.0 ** self.rng.integers(-30, 31, shape)
        if self.nonfinite and self.chance(0.6):
            bad = self.rng.choice([np.nan, np.inf, -np.inf], shape)
            x = np.where(self.rng.random(shape) < 0.1, bad, x)
        return np.asarray(x, np.float32)

    def matrix(self, rows: int, columns: int) -> Value:
        """Return a matrix of moderate norm, preferably one that is used already."""
        found = self.find("f", (rows, columns))
        if found is not None and self.chance(0.7):
            return found
        value = self.argument("f", (rows, columns))
        self.args[value.name] = self.args[value.name] / np.float32(columns**0.5 + 0.5)
        return value

    def key(self) -> Value:
        """Write a new PRNG key from a seed argument, at the start of the program."""
        seed, name = self.argument("i", ()), self.fresh("key")
        self.args[seed.name] = np.int32(self.number(0, 1000))
        make = "jax.random.PRNGKey" if self.legacy_keys else "jax.random.key"
        self.lines.insert(0, f"    {name} = {make}({seed})")
        value = Value(name, (), "k")
        self.globals.append(value)
        return value

    def row(self, trip: int, rest: Shape) -> Value:
        """Return an array to be read row by row: mostly of this trip count."""
        found = self.find("f", (trip, *rest)) or self.find("f", least=1)
        if found is None or found.shape[0] < trip or self.chance(0.2):
            return self.argument("f", (trip + self.choose(0, 0, 1), *rest))
        return found

    def position(self, size: int) -> str:
        """Return an index expression, of a loop's counter or of data, for an axis."""
        counters = [index for index in self.indices if index.name]
        if not counters or self.chance(0.1):
            return f"{self.pick('i', ())} % {size}"
        weight = self.rng.random() ** 2
        index = counters[len(counters) - 1 - int(weight * len(counters))]
        i = index.name
        last = index.first + index.step * max(index.trip - 1, 0)
        return self.choose(
            i,
            i,
            f"{size - 1} - {i}",
            f"({self.choose(1, 2, 3, 5, 7)} * {i} + {self.number(0, 4)}) % {size}",
            f"({self.choose(1, 2, 3, 5, 7)} * {i} + {self.number(0, 4)}) % {size}",
            f"{i} + 1",
            f"{i} - 1",
            f"{i} // 2",
            f"{i} - {index.first}",
            f"2 * {i}",
            f"-{i}",
            f"jnp.minimum({i}, {size - 1})",
            f"jnp.where({i} % 2 == 0, {i}, {self.number(0, size)})",
            f"({i} * 1103515245 + 12345) % {size}",
            f"({i} * {i}) % {size}",
            f"({i} ^ 1)",
            f"{last} - {i}",
            f"{self.number(0, size)}",
        )
