"""The report: before and after programs, a verdict per loop, all remarks."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from typing import Any

from rewriter import jax_compat as jc
from rewriter import printer
from rewriter.remarks import Location, Remark

WIDTH = 88


@dataclass(frozen=True)
class Program:
    """A program before or after rewriting."""

    jaxpr: Any

    @property
    def loops(self) -> list[printer.LoopInfo]:
        """All loops, nested ones included, outer before inner."""
        return list(printer.loops(self.jaxpr))

    def count(self, primitive: str) -> int:
        """Return the number of equations of a primitive, nested ones included."""
        return sum(e.primitive.name == primitive for e in printer.walk(self.jaxpr))

    def outline(self) -> str:
        """Return the program's loops and operations, a line each."""
        return printer.outline(self.jaxpr)

    def to_networkx(self) -> Any:
        """Return the equations as a directed graph (networkx.DiGraph).

        Nodes carry `label` and `depth`; edges are values, from maker to reader, and
        from a loop to the equations of its body (`kind="inside"`).
        """
        import networkx as nx

        graph = nx.DiGraph()
        _add(graph, self.jaxpr, None, 0)
        return graph

    def to_dot(self) -> str:
        """Return the same graph in Graphviz's DOT language."""
        graph = self.to_networkx()
        lines = ["digraph program {", '  node [shape=box, fontname="monospace"];']
        for node, data in graph.nodes(data=True):
            label = str(data["label"]).replace('"', "'")
            style = ', style=filled, fillcolor="#ffe9c7"' if data["loop"] else ""
            lines.append(f'  n{node} [label="{label}"{style}];')
        for a, b, data in graph.edges(data=True):
            style = " [style=dashed]" if data.get("kind") == "inside" else ""
            lines.append(f"  n{a} -> n{b}{style};")
        return "\n".join([*lines, "}"])


def _add(graph: Any, closed: Any, parent: int | None, depth: int) -> None:
    made: dict[Any, int] = {}
    for eqn in jc.open_jaxpr(closed).eqns:
        node = graph.number_of_nodes()
        shapes = " ".join(v.aval.str_short() for v in eqn.outvars)
        is_loop = eqn.primitive.name in ("scan", "while")
        name = eqn.primitive.name
        if eqn.primitive.name == "scan":
            name = f"scan {jc.scan_params(eqn).length}"
        graph.add_node(node, label=f"{name} {shapes}", depth=depth, loop=is_loop)
        if parent is not None:
            graph.add_edge(parent, node, kind="inside")
        for v in eqn.invars:
            if not isinstance(v, jc.Literal) and v in made:
                graph.add_edge(made[v], node)
        made.update((v, node) for v in eqn.outvars)
        for inner in jc.sub_jaxprs(eqn):
            _add(graph, inner, node, depth + 1)


@dataclass(frozen=True)
class Verdict:
    """What became of one loop of the user's program, and why.

    Attributes:
        outcome: `batched`, `blocked`, `distributed`, `sectioned`; `vectorized`,
            `fused`, `sparse` or `unrolled` (a loop is left, made faster); or `kept`.
        trip_count: number of steps, None if it is not known at compile time.
        bytes_at_once: bytes of stacked rows alive at once in the rewritten program.
        notes: what was recognised on the way.
    """

    location: Location
    primitive: str
    trip_count: int | None
    outcome: str
    code: str
    message: str
    suggestion: str = ""
    bytes_at_once: int = 0
    depth: int = 0
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain JSON values."""
        values = dict(vars(self))
        values.update(
            location=str(self.location),
            file=self.location.file,
            line=self.location.line,
            function=self.location.function,
            notes=list(self.notes),
        )
        return values


@dataclass(frozen=True)
class Report:
    """What `explain` returns; printing it gives the text."""

    name: str
    platform: str
    numerics: str
    memory_budget: int
    before: Program
    after: Program
    verdicts: tuple[Verdict, ...]
    remarks: tuple[Remark, ...]
    seconds: float = 0.0

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int = WIDTH) -> str:
        """Return the report as text no wider than `width` columns."""
        changed = sum(v.outcome != "kept" for v in self.verdicts)
        loops = f"{len(self.verdicts)} loop" + ("s" if len(self.verdicts) != 1 else "")
        lines = [
            f"{self.name}: {loops}, {changed} rewritten "
            f"({self.platform}, {self.numerics}, "
            f"budget {format_bytes(self.memory_budget)})"
        ]
        for v in self.verdicts:
            lines += ["", *_verdict_lines(v, width)]
        failures = [r for r in self.remarks if r.kind == "failed"]
        for r in failures:
            lines += ["", *_wrapped(f"failed: {r.message}", width, "  ")]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return verdicts, remarks and outlines as JSON text."""
        return json.dumps(
            {
                "name": self.name,
                "platform": self.platform,
                "numerics": self.numerics,
                "memory_budget": self.memory_budget,
                "verdicts": [v.to_dict() for v in self.verdicts],
                "remarks": [r.to_dict() for r in self.remarks],
                "before": self.before.outline(),
                "after": self.after.outline(),
                "seconds": self.seconds,
            },
            indent=1,
        )


def _verdict_lines(v: Verdict, width: int) -> list[str]:
    indent = "  " * v.depth
    where = f"{v.location}" + (
        f" in {v.location.function}"
        if v.location.function and not v.location.function.startswith("<")
        else ""
    )
    steps = (
        "unknown trip count"
        if v.trip_count is None
        else (f"{v.trip_count} step" + ("s" if v.trip_count != 1 else ""))
    )
    head = f"{indent}{where}: {v.primitive}, {steps} -> {v.outcome}"
    lines = [head, *_wrapped(v.message, width, indent + "    ")]
    for note in v.notes:
        lines += _wrapped(f"- {note}", width, indent + "    ")
    if v.suggestion:
        lines += _wrapped(f"try: {v.suggestion}", width, indent + "    ")
    lines.append(f"{indent}    [{v.code}]")
    return lines


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent + "  "
    ) or [indent]


def format_bytes(n: float) -> str:
    """Return a size as text, in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if n >= 10 or unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError
