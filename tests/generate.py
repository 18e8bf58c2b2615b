"""Random loop programs for property tests; the text of one is its description."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from tests.generate_loops import tuple_text, write_loop
from tests.generate_ops import write_operation
from tests.generate_patterns import write_distances
from tests.generate_text import Value, Writer

PRELUDE = """\
import jax
from jax import lax, numpy as jnp

int32 = jnp.int32
smooth = jax.custom_jvp(lambda u: jnp.tanh(u) * u)
smooth.defjvp(lambda p, t: (smooth(*p), (jnp.tanh(p[0]) + p[0]) * t[0] * 0.5))
"""


@dataclass(frozen=True)
class Program:
    """A function of arrays, arguments for it, and its text."""

    fn: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    description: str
    differentiable: tuple[int, ...] = ()

    @cached_property
    def loops(self) -> int:
        """Return the number of loops in the traced program, nested ones included."""
        return count_loops(jax.make_jaxpr(self.fn)(*self.args).jaxpr)


def random_program(rng: np.random.Generator) -> Program:
    """Return a random program; the same generator state gives the same program."""
    w = Writer(rng, nonfinite=rng.random() < 0.08, ties=rng.random() < 0.25)
    w.wild, w.legacy_keys = w.chance(0.04), w.chance(0.3)
    long = w.number(41, 130) if w.chance(0.1) else w.number(5, 40)
    w.lengths = (long, w.draw(SHORT))
    w.lengths = w.lengths if w.chance(0.8) else w.lengths[1:]
    w.dims = tuple(w.number(1, 8) for _ in range(w.number(1, 3)))
    if w.chance(0.6):
        w.argument("f", (w.lengths[0], *w.shape()))
    for _ in range(w.draw({1: 5, 2: 2})):
        w.draw({write_loop: 6, write_part: 2, write_distances: 1})(w)
        if w.chance(0.5):
            write_operation(w)
    returned = chosen_results(w)
    w.line(f"return {results_text(w, [value.name for value in returned])}")
    header = f"def fn({', '.join(w.args)}):"
    text = "\n".join([header, *w.lines]) + "\n"
    smooth = w.differentiable and not w.nonfinite and not w.wild
    return compile_program(text, w.args, smooth)


SHORT = {0: 1, 1: 1, 2: 1, 3: 1, 6: 1, 9: 1}


def chosen_results(w: Writer) -> list[Value]:
    """Choose the values that the program returns."""
    made = w.scopes[0]
    kept = [v for v in made if w.chance(0.4 if v.name in w.used else 0.9)]
    chosen = kept or made[-1:]
    return chosen or [w.pick("f")]


def results_text(w: Writer, names: list[str]) -> str:
    """Return text of a tuple, dictionary or nested list of results."""
    if len(names) == 1 and w.chance(0.5):
        return names[0]
    if w.chance(0.2):
        pairs = [f'"{name}": {name}' for name in names]
        return "{" + ", ".join(pairs) + "}"
    if w.chance(0.2):
        return f"[{tuple_text(names[:1])}, [{', '.join(names[1:])}]]"
    return tuple_text(names)


def compile_program(
    text: str, arguments: Mapping[str, np.ndarray], differentiable: bool
) -> Program:
    """Compile the text under a file name of its own that tracebacks can show."""
    name = f"<program-{hashlib.sha1(text.encode()).hexdigest()[:10]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {}
    exec(compile(PRELUDE, "<prelude>", "exec"), namespace)
    exec(compile(text, name, "exec"), namespace)
    args = tuple(arguments.values())
    floats = tuple(at for at, x in enumerate(args) if x.dtype.kind == "f")
    shapes = [f"{n}: {x.dtype.name}{list(x.shape)}" for n, x in arguments.items()]
    about = "# " + ", ".join(shapes) + "\n" if shapes else ""
    return Program(namespace["fn"], args, about + text, floats * differentiable)


# Loops inside other transformations.


def write_part(w: Writer) -> None:
    """Write loops in a function of its own, under jit, cond, vmap and others."""
    wrap = w.draw({_jit: 2, _checkpoint: 2, _cond: 2, _vmap: 2, _grad: 1, _where: 1})
    wrap(w)


def inside(w: Writer, name: str, parameter: Value) -> list[Value]:
    """Write a function with a loop in it; return the values that it returns."""
    with w.function(name, parameter.name):
        w.add(parameter)
        if w.chance(0.4):
            write_operation(w)
        write_loop(w)
        local = [v for v in w.scopes[-1] if v.kind in "fib" and v is not parameter]
        returned = local[-w.number(1, 3) :]
        if not any(value.kind == "f" for value in returned):
            returned.append(w.pick("f", most=2))
        w.line(f"return {tuple_text([value.name for value in returned])}")
    return returned


def called(w: Writer, call: str, returned: Sequence[Value]) -> None:
    """Write the call of a part and bring its results into scope."""
    values = [Value(w.fresh("p"), value.shape, value.kind) for value in returned]
    w.line(f"{tuple_text([value.name for value in values])} = {call}")
    for value in values:
        w.add(value)


def _simple(w: Writer, wrapper: str) -> None:
    value, name = w.pick("f", least=1), w.fresh("part")
    returned = inside(w, name, Value(w.fresh("u"), value.shape, "f"))
    called(w, f"jax.{wrapper}({name})({value})", returned)


def _jit(w: Writer) -> None:
    _simple(w, "jit")


def _checkpoint(w: Writer) -> None:
    _simple(w, "checkpoint")


def _cond(w: Writer) -> None:
    value, name, flag = w.pick("f"), w.fresh("part"), w.pick("b", ())
    returned = inside(w, name, Value(w.fresh("u"), value.shape, "f"))
    dtypes = {"f": "float", "i": "int32", "b": "bool"}
    zeros = [f"jnp.ones({v.shape}, {dtypes[v.kind]})" for v in returned]
    other = f"lambda u: {tuple_text(zeros)}"
    called(w, f"lax.cond({flag}, {name}, {other}, {value})", returned)


def _vmap(w: Writer) -> None:
    array, name = w.pick("f", least=1), w.fresh("part")
    row = Value(w.fresh("u"), array.shape[1:], "f")
    returned = inside(w, name, row)
    size = array.shape[0]
    wide = [Value(v.name, (size, *v.shape), v.kind) for v in returned]
    called(w, f"jax.vmap({name})({array})", wide)


def _grad(w: Writer) -> None:
    value, name, before = w.pick("f"), w.fresh("part"), w.differentiable
    w.differentiable = True
    returned = inside(w, name, Value(w.fresh("u"), value.shape, "f"))
    if not w.differentiable:
        called(w, f"{name}({value})", returned)
        return
    w.differentiable = before
    at = [v.kind for v in returned].index("f")
    total = f"lambda u: jnp.sum({name}(u)[{at}])"
    if w.chance(0.3):
        pair = f"({value},), ({value},)"
        text = f"jax.jvp(lambda u: {name}(u)[{at}], {pair})[1]"
        w.let(text, returned[at].shape, "f")
    else:
        w.let(f"jax.grad({total})({value})", value.shape, "f")


def _where(w: Writer) -> None:
    value, name, flag = w.pick("f"), w.fresh("part"), w.pick("b", ())
    returned = inside(w, name, Value(w.fresh("u"), value.shape, "f"))
    once, twice = f"{name}({value})", f"{name}(0.5 * {value})"
    called(
        w,
        f"jax.tree.map(lambda p, q: jnp.where({flag}, p, q), {once}, {twice})",
        returned,
    )


# Counting, and several programs in one.


def sub_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs among an equation's parameters."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                yield inner


def count_loops(jaxpr: Any) -> int:
    """Count the scans and whiles of a jaxpr, nested ones included."""
    total = 0
    for eqn in jaxpr.eqns:
        total += eqn.primitive.name in ("scan", "while")
        if "pallas" not in eqn.primitive.name:
            total += sum(count_loops(inner) for inner in sub_jaxprs(eqn.params))
    return total


def combine(programs: Sequence[Program]) -> Program:
    """Return one program that runs several, so that they are compiled together."""
    starts = np.cumsum([0, *(len(program.args) for program in programs)])

    def fn(*args: Any) -> tuple[Any, ...]:
        return tuple(
            program.fn(*args[start : start + len(program.args)])
            for program, start in zip(programs, starts, strict=False)
        )

    args = tuple(x for program in programs for x in program.args)
    text = "\n".join(program.description for program in programs)
    floats = tuple(
        int(start) + at
        for program, start in zip(programs, starts, strict=False)
        for at in program.differentiable
    )
    return Program(fn, args, text, floats)
