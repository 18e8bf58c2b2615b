"""Random loops: scan, map, fori_loop and while_loop around random bodies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.generate_carries import Recipe, Slot, any_recipe, buffer, index_carry
from tests.generate_ops import write_operation
from tests.generate_text import Index, Value, Writer

LARGEST_ROW = 72  # elements of a value that a loop may stack


@dataclass
class Carries:
    """The carries of one loop: their recipes, and slots and names of each recipe."""

    recipes: list[Recipe]
    slots: list[list[Slot]]
    names: list[list[str]]

    def flat(self) -> list[tuple[str, Slot]]:
        """Return (name, slot) of every carry."""
        return [
            pair
            for names, slots in zip(self.names, self.slots, strict=True)
            for pair in zip(names, slots, strict=True)
        ]

    def add_index(self, index: Index) -> None:
        """Add a carry that counts the steps under the name of this index."""
        recipe = index_carry(index.first)
        self.recipes.insert(0, recipe)
        self.slots.insert(0, next(recipe))
        self.names.insert(0, [index.name])

    def inits(self, w: Writer) -> list[str]:
        """Return the initial values, sometimes one for two carries of a type."""
        texts = [slot.init for _, slot in self.flat()]
        types = [(slot.shape, slot.kind) for _, slot in self.flat()]
        for first in range(len(texts)):
            for second in range(first):
                if types[first] == types[second] and w.chance(0.1):
                    texts[first] = texts[second]
        return texts


def make_carries(w: Writer, least: int, most: int, buffers: float = 0.0) -> Carries:
    """Start some recipes; to be called before the body is opened."""
    recipes = [any_recipe(w) for _ in range(w.number(least, most))]
    if w.chance(buffers):
        recipes.append(buffer(w))
    slots = [next(recipe) for recipe in recipes]
    names = [[w.fresh("c") for _ in some] for some in slots]
    return Carries(recipes, slots, names)


def write_body(w: Writer, carries: Carries) -> list[str]:
    """Write the operations of a body; return the names of the next carries."""
    for name, slot in carries.flat():
        if not slot.hidden:
            w.add(Value(name, slot.shape, slot.kind))
    index = w.indices[-1]
    if index.name and w.chance(0.6):
        array = w.row(max(index.trip, 1), w.shape(1 if w.depth == 1 else 0))
        at = index.name if w.chance(0.5) else w.position(array.shape[0])
        w.let(f"{array}[{at}]", array.shape[1:], "f")
    for _ in range(w.number(1, 5 if w.depth == 1 else 3)):
        if w.depth < 3 and w.budget > 0 and w.chance(0.2 / w.depth):
            write_loop(w)
        else:
            write_operation(w)
    texts: list[str] = []
    for recipe, names in zip(carries.recipes, carries.names, strict=True):
        texts += recipe.send(names)
    return rewire(w, carries, texts)


def rewire(w: Writer, carries: Carries, texts: list[str]) -> list[str]:
    """Name the next carries, show some to the rest, exchange two of a type perhaps."""
    slots = [slot for _, slot in carries.flat()]
    results = []
    for text, slot in zip(texts, slots, strict=True):
        name = w.fresh("n")
        w.line(f"{name} = {text}")
        if w.chance(0.15 if slot.hidden else 0.5):
            w.add(Value(name, slot.shape, slot.kind))
        results.append(name)
    for first in range(len(slots)):
        for second in range(first):
            same = (slots[first].shape, slots[first].kind) == (
                slots[second].shape,
                slots[second].kind,
            )
            if same and slots[first].kind != "short" and w.chance(0.08):
                results[first], results[second] = results[second], results[first]
    return results


def outputs(w: Writer, least: int, most: int) -> list[Value]:
    """Choose what a body returns per step: newer values of its own scope, mostly."""
    local = [
        value
        for value in w.scopes[-1]
        if value.kind in "fib" and math.prod(value.shape) <= LARGEST_ROW
    ]
    chosen: list[Value] = []
    for _ in range(w.number(least, most)):
        if local and w.chance(0.9):
            chosen.append(w.newest(local))
        else:
            chosen.append(w.pick("f", most=1))
    return chosen


def tuple_text(names: list[str]) -> str:
    """Return text of a tuple, or None where there are no names."""
    return f"({', '.join(names)},)" if names else "None"


def bind(w: Writer, carries: Carries, stacked: list[Value], trip: int) -> list[str]:
    """Bring the results of a loop into scope; return their names."""
    values = [Value(w.fresh("r"), s.shape, s.kind) for _, s in carries.flat()]
    values += [Value(w.fresh("s"), (trip, *v.shape), v.kind) for v in stacked]
    for value in values:
        if w.chance(0.9):
            w.add(value)
    return [value.name for value in values]


def rows(w: Writer, trip: int, least: int, most: int) -> list[tuple[str, Value]]:
    """Choose arrays to loop over: (text of the array, its row in the body)."""
    chosen = []
    for _ in range(w.number(least, most)):
        kind = w.draw({"f": 8, "i": 1.5, "b": 0.7, "k": 0.8})
        name = w.fresh("x")
        if kind == "k":
            key = w.find("k") or w.key()
            text = f"jax.random.split({key}, {trip})"
            chosen.append((text, Value(name, (), "k")))
            continue
        array = w.find(kind, least=1)
        if array is None or array.shape[0] != trip or w.chance(0.3):
            array = w.argument(kind, (trip, *w.shape(2 if w.depth == 1 else 1)))
        chosen.append((array.name, Value(name, array.shape[1:], kind)))
    return chosen


def counter_rows(w: Writer, index: Index) -> list[tuple[str, Value]]:
    """Return an arange to loop over, where the index has a name."""
    if not index.name:
        return []
    text = f"jnp.arange({index.trip}, dtype=int32)"
    if index.first:
        text = f"jnp.arange({index.first}, {index.first + index.trip}, dtype=int32)"
    return [(text, Value(index.name, (), "i"))]


def write_loop(w: Writer) -> None:
    """Write one random loop."""
    w.budget -= 1
    forms: dict[Callable[[Writer], None], float] = {scan: 5, mapped: 3, fori: 4}
    forms |= {while_counted: 1, while_data: 0.7, fori_dynamic: 0.7}
    if any(index.name for index in w.indices):
        forms[triangular] = 1
    w.draw(forms)(w)


def scan(w: Writer) -> None:
    """Write a scan: forward or reverse, with xs, a length, or neither carry nor xs."""
    trip = w.length()
    name = w.fresh("i") if w.chance(0.5) else ""
    index = Index(name, w.choose(0, 0, 1), 1, trip)
    with w.iterating(index):
        carries = make_carries(w, 0, 3, buffers=0.2 if name else 0.0)
        xs = rows(w, trip, 0, 3)
        if w.chance(0.5):
            xs += counter_rows(w, index)
        elif name:
            carries.add_index(index)
        function, stacked = write_scan_body(w, carries, xs)
    array = tuple_text([text for text, _ in xs])
    options = "" if xs and w.chance(0.8) else f", length={trip}"
    options += ", reverse=True" if w.chance(0.4) else ""
    options += f", unroll={w.choose(2, 3)}" if w.chance(0.06) else ""
    function = w.draw(
        {function: 12, f"jax.checkpoint({function})": 1, f"jax.jit({function})": 1}
    )
    inits = tuple_text(carries.inits(w))
    results = bind(w, carries, stacked, trip)
    split = len(carries.flat())
    left = tuple_text(results[:split]).replace("None", "_")
    right = tuple_text(results[split:]).replace("None", "_")
    w.line(f"{left}, {right} = lax.scan({function}, {inits}, {array}{options})")


def write_scan_body(
    w: Writer, carries: Carries, xs: list[tuple[str, Value]]
) -> tuple[str, list[Value]]:
    """Write the body function of a scan; return its name and what it stacks."""
    function = w.fresh("step")
    names = [name for name, _ in carries.flat()]
    with w.function(function, "carry, x"):
        if names:
            w.line(f"{tuple_text(names)} = carry")
        if xs:
            w.line(f"{tuple_text([value.name for _, value in xs])} = x")
        for _, value in xs:
            w.add(value)
        after = write_body(w, carries)
        stacked = outputs(w, 0, 2)
        ys = tuple_text([value.name for value in stacked])
        w.line(f"return {tuple_text(after)}, {ys}")
    return function, stacked


def mapped(w: Writer) -> None:
    """Write a map, sometimes with a batch size."""
    trip = w.length()
    index = Index(w.fresh("i") if w.chance(0.4) else "", 0, 1, trip)
    function = w.fresh("row")
    nothing = Carries([], [], [])
    with w.iterating(index):
        xs = rows(w, trip, 0 if index.name else 1, 2) + counter_rows(w, index)
        with w.function(function, "x"):
            w.line(f"{tuple_text([value.name for _, value in xs])} = x")
            for _, value in xs:
                w.add(value)
            write_body(w, nothing)
            stacked = outputs(w, 1, 2)
            w.line(f"return {tuple_text([value.name for value in stacked])}")
    size = w.number(1, max(trip, 1) + 1)
    option = f", batch_size={size}" if w.chance(0.15) else ""
    array = tuple_text([text for text, _ in xs])
    results = tuple_text(bind(w, nothing, stacked, trip))
    w.line(f"{results} = lax.map({function}, {array}{option})")


def write_fori(w: Writer, index: Index, lower: str, upper: str) -> None:
    """Write a fori_loop between these bounds."""
    function = w.fresh("turn")
    with w.iterating(index):
        carries = make_carries(w, 1, 2, buffers=0.5)
        names = [name for name, _ in carries.flat()]
        with w.function(function, f"{index.name}, carry"):
            w.line(f"{tuple_text(names)} = carry")
            w.add(Value(f"jnp.int32({index.name})", (), "i"))
            after = write_body(w, carries)
            w.line(f"return {tuple_text(after)}")
    inits = tuple_text(carries.inits(w))
    results = tuple_text(bind(w, carries, [], 0))
    w.line(f"{results} = lax.fori_loop({lower}, {upper}, {function}, {inits})")


def fori(w: Writer) -> None:
    """Write a fori_loop with static bounds."""
    trip, first = w.length(), w.choose(0, 0, 0, 1, 2, -3)
    index = Index(w.fresh("i"), first, 1, trip)
    write_fori(w, index, str(first), str(first + trip))


def fori_dynamic(w: Writer) -> None:
    """Write a fori_loop whose bound is an input."""
    w.differentiable = False
    bound = w.pick("i", ())
    index = Index(w.fresh("i"), 0, 1, 7)
    write_fori(w, index, w.choose("0", "1"), f"{bound} % 8")


def triangular(w: Writer) -> None:
    """Write a fori_loop that starts or ends at the counter of the loop around it."""
    w.differentiable = False
    outer = w.choose(*[index for index in w.indices if index.name])
    last = outer.first + outer.trip
    index = Index(w.fresh("j"), 0, 1, max(last, 1))
    lower, upper = w.choose(
        ("0", outer.name), ("0", f"{outer.name} + 1"), (outer.name, str(last))
    )
    write_fori(w, index, lower, upper)


def write_while(w: Writer, index: Index, test: str, start: str, step: str) -> None:
    """Write a while_loop; the test may use the carries by the name state."""
    w.differentiable = False
    function = w.fresh("turn")
    with w.iterating(index):
        carries = make_carries(w, 1, 2)
        names = [name for name, _ in carries.flat()]
        with w.function(function, "state"):
            w.line(f"{tuple_text([index.name, *names])} = state")
            w.add(Value(index.name, (), "i"))
            after = write_body(w, carries)
            next_index = f"{index.name} {step}"
            w.line(f"return {tuple_text([next_index, *after])}")
    inits = tuple_text([start, *carries.inits(w)])
    results = tuple_text(["_", *bind(w, carries, [], 0)])
    if "CARRY" in test:
        found = [at for at, (_, s) in enumerate(carries.flat(), 1) if s.kind == "f"]
        at = f"state[{w.choose(*found)}]" if found else "1.0"
        test = test.replace("CARRY", at)
    test = f"lambda state: {test}"
    w.line(f"{results} = lax.while_loop({test}, {function}, {inits})")


def while_counted(w: Writer) -> None:
    """Write a while_loop that counts up or down."""
    trip, first = w.length(), w.choose(0, 0, 1, 3)
    name = w.fresh("i")
    test, start, step, by = w.choose(
        (f"state[0] < {first + trip}", first, "+ 1", 1),
        (f"state[0] <= {first + trip - 1}", first, "+ 1", 1),
        (f"state[0] != {first + trip}", first, "+ 1", 1),
        (f"state[0] > {first}", first + trip, "- 1", -1),
        (f"{first + trip * 2 - 1} > state[0]", first, "+ 2", 2),
    )
    write_while(w, Index(name, start, by, trip), test, f"jnp.int32({start})", step)


def while_data(w: Writer) -> None:
    """Write a while_loop that data end, after a dozen steps at most."""
    bound = w.pick("i", ())
    test = w.choose(
        f"state[0] < {bound} % 9",
        "(state[0] < 9) & (jnp.max(jnp.abs(CARRY)) < 0.9)",
        "(state[0] < 9) & (jnp.sum(CARRY) > 0.05)",
    )
    write_while(w, Index(w.fresh("i"), 0, 1, 9), test, "jnp.int32(0)", "+ 1")
