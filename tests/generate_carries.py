"""Carries of random loops: a recipe yields slots, gets their names, yields updates.

A recipe may write lines and use anything in scope.  A hidden slot is one that the rest
of the body does not see, as a reduction wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from tests.generate_text import Shape, Writer


@dataclass(frozen=True)
class Slot:
    """One carry: its initial value as text, its type, and whether the body sees it."""

    init: str
    shape: Shape
    kind: str
    hidden: bool = False


Recipe = Generator[list, list, None]
RECIPES: dict[Callable[[Writer], Recipe], float] = {}


def recipe(weight: float) -> Callable:
    """Register a recipe with its weight."""

    def register(function: Callable[[Writer], Recipe]) -> Callable:
        RECIPES[function] = weight
        return function

    return register


def any_recipe(w: Writer) -> Recipe:
    """Return a random recipe."""
    return w.draw(RECIPES)(w)


def index_carry(first: int) -> Recipe:
    """Count the steps from a first value."""
    (c,) = yield [Slot(f"jnp.int32({first})", (), "i")]
    yield [f"{c} + 1"]


def initial(w: Writer, shape: Shape, kind: str = "f") -> str:
    """Return text for an initial value: zeros, ones or something in scope."""
    if kind == "f" and w.chance(0.5):
        return w.pick("f", shape).name
    if kind == "f":
        if shape == () and w.chance(0.4):
            return w.choose("0.0", "1.0", "-0.5")
        return w.choose(f"jnp.zeros({shape})", f"jnp.ones({shape})")
    if kind == "i":
        return (
            w.pick("i", shape).name if w.chance(0.3) else f"jnp.zeros({shape}, int32)"
        )
    return w.pick("b", shape).name if w.chance(0.3) else f"jnp.zeros({shape}, bool)"


@recipe(2)
def counter(w: Writer) -> Recipe:
    """Count in steps; the counter serves as an index and as a value."""
    step = w.choose("+ 1", "+ 1", "+ 2", "- 1", "+ 3")
    (c,) = yield [Slot(f"jnp.int32({w.number(-2, 3)})", (), "i")]
    yield [f"{c} {step}"]


@recipe(0.7)
def small_counter(w: Writer) -> Recipe:
    """Count in a short integer type, which may wrap around."""
    dtype = w.choose("int8", "uint8", "int16")
    start = w.choose(0, 1, 90, 120)
    (c,) = yield [Slot(f"jnp.{dtype}({start})", (), "short", hidden=True)]
    w.let(f"{c}.astype(jnp.int32)", (), "i")
    yield [f"{c} {w.choose('+ 1', '+ 1', '+ 3', '- 1', '* 3')}"]


@recipe(0.6)
def half_sum(w: Writer) -> Recipe:
    """Fold in a short floating-point type."""
    dtype, shape = w.choose("float16", "bfloat16"), w.shape(1)
    init = f"jnp.zeros({shape}, jnp.{dtype})"
    (c,) = yield [Slot(init, shape, "short", hidden=True)]
    x = f"{w.pick('f', shape)} + jnp.zeros({shape})"
    text = w.choose("{0} + {1}", "jnp.maximum({0}, {1})", "{0} * 0.5 + {1}")
    yield [text.format(c, f"({x}).astype(jnp.{dtype})")]


@recipe(0.7)
def float_counter(w: Writer) -> Recipe:
    """Count in floating point: time in an integrator."""
    (c,) = yield [Slot(w.choose("0.0", "1.0"), (), "f")]
    yield [f"{c} + {w.choose('0.125', '1.0', '0.1')}"]


@recipe(1)
def invariant(w: Writer) -> Recipe:
    """Hand a carry on as it is."""
    shape = w.shape()
    (c,) = yield [Slot(initial(w, shape), shape, "f")]
    yield [c]


@recipe(4)
def delay(w: Writer) -> Recipe:
    """Keep the previous value of something, or a chain of two."""
    shape = w.shape(1)
    if w.chance(0.4):
        init = initial(w, shape)
        other = init if w.chance(0.5) else initial(w, shape)
        c, _ = yield [Slot(init, shape, "f"), Slot(other, shape, "f")]
        yield [w.pick("f", shape).name, c]
    else:
        yield [Slot(initial(w, shape), shape, "f")]
        yield [w.pick("f", shape).name]


@recipe(1.5)
def swap(w: Writer) -> Recipe:
    """Exchange two carries, perhaps with an update of one."""
    shape = w.shape(1)
    init = initial(w, shape)
    other = init if w.chance(0.3) else initial(w, shape)
    a, b = yield [Slot(init, shape, "f"), Slot(other, shape, "f")]
    x = w.pick("f", shape)
    yield w.choose([b, a], [b, f"jnp.tanh({a} + {x})"], [f"{b} * 0.9", f"{a} + 0.1"])


@recipe(4)
def reduction(w: Writer) -> Recipe:
    """Fold with an associative operation; the carry is mostly not read elsewhere."""
    shape = w.shape()
    text, init = w.choose(
        ("{0} + {1}", "0.0"),
        ("{0} + {1}", "0.0"),
        ("{1} + {0}", "1.0"),
        ("{0} - {1}", "0.0"),
        ("jnp.maximum({0}, {1})", "-jnp.inf"),
        ("jnp.minimum({1}, {0})", "5.0"),
        ("{0} * (1.0 + 0.1 * {1})", "1.0"),
        ("{0} + 0.1 * {1} * {1}", "0.0"),
        ("jnp.logaddexp({0}, {1})", "-jnp.inf"),
        ("jnp.logaddexp({0}, {1})", "0.0"),
        ("jnp.hypot({0}, 0.1 + jnp.abs({1}))", "0.5"),
    )
    init = init if shape == () else f"jnp.full({shape}, {init})"
    (c,) = yield [Slot(init, shape, "f", hidden=w.chance(0.75))]
    yield [text.format(c, w.pick("f", shape))]


@recipe(2)
def contraction(w: Writer) -> Recipe:
    """Accumulate products: a dot, an outer product, a matrix-vector product."""
    u, v = w.choose(*w.dims), w.choose(*w.dims)
    shape = w.choose((), (u,), (u, v))
    (c,) = yield [Slot(f"jnp.zeros({shape})", shape, "f", hidden=w.chance(0.85))]
    left = w.pick("f", (u,))
    if shape == ():
        text = f"{left} @ {w.pick('f', (u,))}"
    elif shape == (u,):
        text = f"{left} * {w.pick('f', ())}"
    else:
        text = f"jnp.outer({left}, {w.pick('f', (v,))})"
    yield [f"{c} {w.choose('+', '+', '-')} {text}"]


@recipe(2.5)
def integer_fold(w: Writer) -> Recipe:
    """Fold integers: sums and hashes that wrap, xor, maximum, counts."""
    shape = w.shape(1)
    text = w.choose(
        "{0} * 31 + {1}",
        "{0} + {1}",
        "{0} ^ {1}",
        "{0} * ({1} | 1)",
        "jnp.maximum({0}, {1})",
        "{0} & ({1} | 7)",
        "({0} + {1}) % 5",
        "{0} - {1}",
        "{0} * {0} + {1}",
    )
    (c,) = yield [Slot(initial(w, shape, "i"), shape, "i", hidden=w.chance(0.5))]
    yield [text.format(c, w.pick("i", shape))]


@recipe(1.5)
def boolean_fold(w: Writer) -> Recipe:
    """Fold booleans: any, all, parity, or the last one."""
    shape = w.shape(1)
    text = w.choose("{0} | {1}", "{0} & {1}", "{0} ^ {1}", "~{0}", "{1}", "{0} | ~{1}")
    (c,) = yield [Slot(initial(w, shape, "b"), shape, "b", hidden=w.chance(0.3))]
    yield [text.format(c, w.pick("b", shape))]


@recipe(0.8)
def welford(w: Writer) -> Recipe:
    """Keep a running count, mean and sum of squared deviations."""
    shape, start = w.shape(1), w.choose("1.0", "0.0")
    zeros = f"jnp.zeros({shape})"
    n, mean, m2 = yield [
        Slot(start, (), "f", hidden=w.chance(0.5)),
        Slot(zeros, shape, "f", hidden=w.chance(0.8)),
        Slot(zeros, shape, "f", hidden=True),
    ]
    x = w.pick("f", shape)
    k = w.let(f"{n} + 1.0", (), "f")
    delta = w.let(f"{x} - {mean}", shape, "f")
    new = w.let(f"{mean} + {delta} / {k}", shape, "f")
    yield [k.name, new.name, f"{m2} + {delta} * ({x} - {new})"]


@recipe(0.8)
def kahan(w: Writer) -> Recipe:
    """Keep a compensated sum."""
    s, e = yield [Slot("0.0", (), "f", True), Slot("0.0", (), "f", True)]
    y = w.let(f"{w.pick('f', ())} - {e}", (), "f")
    t = w.let(f"{s} + {y}", (), "f")
    yield [t.name, f"({t} - {s}) - {y}"]


@recipe(1)
def running_softmax(w: Writer) -> Recipe:
    """Keep a running maximum and the sum of exponentials below it."""
    shape = w.shape(1)
    m, s = yield [
        Slot(f"jnp.full({shape}, -jnp.inf)", shape, "f", hidden=w.chance(0.8)),
        Slot(f"jnp.zeros({shape})", shape, "f", hidden=True),
    ]
    x = w.pick("f", shape)
    new = w.let(f"jnp.maximum({m}, {x})", shape, "f")
    yield [new.name, f"{s} * jnp.exp({m} - {new}) + jnp.exp({x} - {new})"]


@recipe(1.2)
def best(w: Writer) -> Recipe:
    """Keep the best value and its argument: the first or the last winner."""
    value, at = yield [
        Slot("-jnp.inf", (), "f", hidden=True),
        Slot("jnp.int32(-1)", (), "i", hidden=True),
    ]
    x, i = w.pick("f", ()), w.pick("i", ())
    wins = w.let(f"{x} {w.choose('>', '>=')} {value}", (), "b")
    yield [f"jnp.where({wins}, {x}, {value})", f"jnp.where({wins}, {i}, {at})"]


@recipe(1)
def latch(w: Writer) -> Recipe:
    """Keep the last value for which a condition held."""
    shape = w.shape(1)
    (c,) = yield [Slot(initial(w, shape), shape, "f", hidden=w.chance(0.5))]
    x, p = w.pick("f", shape), w.pick("b", ())
    if w.chance(0.5):
        yield [f"lax.cond({p}, lambda: {x} + 0.0, lambda: {c} + 0.0)"]
    else:
        yield [f"jnp.where({p}, {x}, {c})"]


@recipe(3)
def linear(w: Writer) -> Recipe:
    """Step a linear recurrence with constant, given or computed coefficients."""
    shape = w.shape(1)
    (c,) = yield [Slot(initial(w, shape), shape, "f", hidden=w.chance(0.5))]
    x = w.pick("f", shape)
    if shape and w.chance(0.5):
        yield [f"0.7 * {w.matrix(shape[0], shape[0])} @ {c} + {x}"]
        return
    a = w.pick("f", w.choose((), shape))
    text = w.choose(
        "0.9 * {0} + {1}",
        "{0} + 0.1 * ({1} - {0})",
        "jax.nn.sigmoid({2}) * {0} + {1}",
        "{0} * jnp.tanh({2}) + 0.5 * {1}",
        "1.05 * {0} + {1}",
        "{1} - {0}",
        "{0} / (1.0 + jnp.abs({2})) + {1}",
    )
    yield [text.format(c, x, a)]


@recipe(4)
def recurrent(w: Writer) -> Recipe:
    """Step a nonlinear recurrent cell."""
    size, width = w.choose(*w.dims), w.choose(*w.dims)
    (h,) = yield [Slot(initial(w, (size,)), (size,), "f", hidden=w.chance(0.4))]
    u, v = w.matrix(size, size), w.matrix(size, width)
    x = w.pick("f", (width,))
    text = w.choose(f"{u} @ {h} + {v} @ {x}", f"{h} @ {u} + {v} @ {x}")
    if w.chance(0.3):
        gate = w.let(f"jax.nn.sigmoid({v} @ {x} - 0.5 * {h})", (size,), "f")
        yield [f"{gate} * {h} + (1.0 - {gate}) * jnp.tanh({text})"]
    else:
        yield [f"{w.choose('jnp.tanh', 'jnp.sin')}({text})"]


@recipe(3)
def wired(w: Writer) -> Recipe:
    """Take any value of the body as the next carry."""
    shape = w.shape()
    kind = w.choose("f", "f", "f", "i", "b")
    (c,) = yield [Slot(initial(w, shape, kind), shape, kind)]
    value = w.pick(kind, shape).name
    if kind == "f":
        value = w.choose(
            f"jnp.tanh({value})", f"jnp.tanh({value} + 0.5 * {c})", f"0.9 * {value}"
        )
    yield [value]


@recipe(1)
def history(w: Writer) -> Recipe:
    """Keep a window of the last values."""
    size, rest = w.number(2, 4), w.shape(1)
    shape = (size, *rest)
    (c,) = yield [Slot(initial(w, shape), shape, "f")]
    x = w.pick("f", rest)
    text = w.choose(
        "jnp.concatenate([{0}[1:], jnp.expand_dims({1}, 0)])",
        "jnp.roll({0}, 1, axis=0).at[0].set({1})",
        "jnp.concatenate([jnp.expand_dims({1}, 0), {0}])[:-1]",
    )
    yield [text.format(c, x)]


@recipe(1)
def histogram(w: Writer) -> Recipe:
    """Count in bins that data choose, or let the last writer win."""
    size = w.number(2, 6)
    hidden = w.chance(0.6)
    (c,) = yield [Slot(f"jnp.zeros(({size},), int32)", (size,), "i", hidden=hidden)]
    at = w.pick("i", ())
    what = w.choose("add(1)", f"add({at})", f"set({at})")
    yield [f"{c}.at[{at} % {size}].{what}"]


@recipe(1)
def key_chain(w: Writer) -> Recipe:
    """Split a key in every step."""
    key = w.key()
    (c,) = yield [Slot(key.name, (), "k", hidden=True)]
    pair = w.let(f"jax.random.split({c})", (2,), "pair")
    w.let(f"{pair}[1]", (), "k")
    yield [f"{pair}[0]"]


@recipe(4)
def buffer(w: Writer) -> Recipe:
    """Fill an array row by row at an index, perhaps reading other rows of it."""
    trip = max((index.trip for index in w.indices), default=1)
    size = max(1, min(48, w.choose(trip, trip, trip, trip + 2, trip - 1, 4)))
    rest = w.shape(1)
    shape = (size, *rest)
    init = w.choose(f"jnp.zeros({shape})", f"jnp.zeros({shape})", initial(w, shape))
    (c,) = yield [Slot(init, shape, "f", hidden=w.chance(0.8))]
    at = w.position(size)
    if w.chance(0.6) and w.indices[-1].name:
        at = w.indices[-1].name
    x = w.pick("f", rest)
    text = w.draw(
        {
            "{c}.at[{i}].set({x})": 6,
            "{c}.at[{i}].add({x})": 2,
            "{c}.at[{i}].set(0.5 * {c}[{i}] + {x})": 1,
            "{c}.at[{i}].set(0.5 * {c}[{i} - 1] + {x})": 2,
            "{c}.at[{i}].set(jnp.tanh({c}[{i} - 1] - 0.3 * {c}[{i} - 2] + {x}))": 1,
            "{c}.at[{i}].multiply(0.5 + 0.1 * {x}, unique_indices=True)": 1,
            "lax.dynamic_update_index_in_dim({c}, {x}, {i}, 0)": 2,
            "{c}.at[{i}].set({x}, mode='clip')": 0.7,
            "{c}.at[{i}].set({x}).at[{j}].add(0.1)": 0.7,
            "jnp.where({p}, {c}.at[{i}].set({x}), {c})": 0.7,
            "{c}.at[{i}].set(0.5 * {c}[{j}] + {x})": 2,
        }
    )
    if "multiply" in text:
        w.differentiable = False
    new = text.format(c=c, i=f"({at})", j=w.position(size), x=x, p=w.pick("b", ()))
    yield [new]
