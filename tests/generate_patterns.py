"""Carries and operations that passes look for: guarded, best, running; sums, distances.

Importing this module registers them with those of `generate_carries` and
`generate_ops`.
"""

from __future__ import annotations

from tests.generate_carries import Recipe, Slot, initial, recipe
from tests.generate_ops import operation
from tests.generate_text import Value, Writer

# Carries.


@recipe(2)
def masked(w: Writer) -> Recipe:
    """Accumulate where a condition holds, of all elements or of each."""
    kind = w.choose("f", "f", "f", "i")
    shape = w.shape(1)
    (c,) = yield [Slot(initial(w, shape, kind), shape, kind, hidden=w.chance(0.8))]
    x = w.pick(kind, shape)
    text = w.choose(
        "{0} + {1}",
        "{1} + {0}",
        "{0} - {1}",
        "{0} + 1",
        "jnp.maximum({0}, {1})",
        "jnp.minimum({1}, {0})",
        "{0} * (1 + 0.1 * {1})" if kind == "f" else "{0} ^ {1}",
    )
    new, p = text.format(c, x), w.pick("b", w.choose((), (), shape))
    if p.shape == () and w.chance(0.4):
        branches = w.choose((new, c), (c, new))
        yield [f"lax.cond({p}, lambda: {branches[0]}, lambda: {branches[1]})"]
    else:
        yield [w.choose(f"jnp.where({p}, {new}, {c})", f"jnp.where({p}, {c}, {new})")]


@recipe(2)
def best_with_more(w: Writer) -> Recipe:
    """Keep the best value, of all elements or of each, with a row and a number."""
    shape = w.choose((), (), (w.choose(*w.dims),))
    kind = w.choose("f", "f", "f", "i")
    more = shape or w.shape(1)
    start = w.choose(f"jnp.full({shape}, -jnp.inf)", f"jnp.zeros({shape})")
    start = start if kind == "f" else f"jnp.zeros({shape}, int32)"
    best, row, number = yield [
        Slot(start, shape, kind, hidden=w.chance(0.9)),
        Slot(initial(w, more), more, "f", hidden=w.chance(0.9)),
        Slot(f"jnp.full({shape}, -1, int32)", shape, "i", hidden=True),
    ]
    x, sign = w.pick(kind, shape), w.choose(">", ">=", "<", "<=")
    test = w.choose(f"{x} {sign} {best}", f"{best} {sign} {x}")
    wins = w.let(test, shape, "b")
    keep = w.draw(
        {
            f"jnp.where({wins}, {x}, {best})": 4,
            f"jnp.maximum({best}, {x})": 1,
            f"jnp.minimum({x}, {best})": 1,
        }
    )
    i = w.pick("i", ())
    yield [
        keep,
        f"jnp.where({wins}, {w.pick('f', more)}, {row})",
        f"jnp.where({wins}, {i}, {number})",
    ]


@recipe(1)
def mean_by_index(w: Writer) -> Recipe:
    """Keep a mean whose count is the loop's index, and its squares perhaps."""
    shape = w.shape(1)
    zeros = f"jnp.zeros({shape})"
    mean, m2 = yield [Slot(zeros, shape, "f", w.chance(0.9)) for _ in range(2)]
    index = w.indices[-1]
    count = f"({index.name} + {w.choose(1, 1, 2 - index.first)})"
    if not index.name or index.first < 0 or index.step != 1:
        count = "2"
    x = w.pick("f", shape)
    delta = w.let(f"{x} - {mean}", shape, "f")
    new = w.let(f"{mean} + {delta} / {count}", shape, "f")
    yield [new.name, f"{m2} + {delta} * ({x} - {new})"]


@recipe(1.5)
def weighted_softmax(w: Writer) -> Recipe:
    """Keep a running maximum, the sum of exponentials, and a weighted sum."""
    own = w.choose((), (w.choose(*w.dims),))
    wide = (*own, w.choose(*w.dims))
    top = w.choose(f"jnp.full({own}, -jnp.inf)", f"jnp.zeros({own})")
    m, s, o = yield [
        Slot(top, own, "f", hidden=w.chance(0.9)),
        Slot(f"jnp.zeros({own})", own, "f", hidden=w.chance(0.9)),
        Slot(f"jnp.zeros({wide})", wide, "f", hidden=True),
    ]
    x, v = w.pick("f", own), w.pick("f", wide[-1:])
    n = w.let(f"jnp.maximum({m}, {x})", own, "f")
    a = w.let(f"jnp.exp({m} - {n})", own, "f")
    p = w.let(f"jnp.exp({x} - {n})", own, "f")
    axis = w.choose("[:, None]", "[:, None]", "[None]") if own else ""
    if axis == "[None]" and wide[0] != wide[1]:
        axis = "[:, None]"
    yield [n.name, f"{s} * {a} + {p}", f"{o} * {a}{axis} + {p}{axis} * {v}"]


# Operations.


@operation(3)
def sum_of_products(w: Writer) -> Value:
    """Write a sum of products in some disguise."""
    u, v = w.choose(*w.dims), w.choose(*w.dims)
    a, x, y = w.matrix(u, v), w.pick("f", (v,)), w.pick("f", (u,))
    text, shape = w.choose(
        ("jnp.sum({a} * {x}, axis=1)", (u,)),
        ("jnp.sum({x} * {a}, axis=-1)", (u,)),
        ("jnp.sum({a} * {y}[:, None], axis=0)", (v,)),
        ("jnp.sum({a}.T * {y}, axis=1)", (v,)),
        ("jnp.sum({a} * {x} * {y}[:, None])", ()),
        ("{y} @ {a} @ {x}", ()),
        ("jnp.einsum('ij,j,i->', {a}, {x}, {y})", ()),
        ("jnp.einsum('ij,j,i->j', {a}, {x}, {y})", (v,)),
        ("jnp.sum(({a} * {x}) ** 2)", ()),
        ("jnp.sum(jnp.outer({y}, {x}) * {a})", ()),
        ("({a} @ {a}.T) @ {y}", (u,)),
        ("{a}.T @ ({a} @ {x})", (v,)),
        ("jnp.sum({a} * {x}, axis=1) * {y}", (u,)),
        ("jnp.sum(jnp.sum({a} * {x}, axis=1) * {y})", ()),
        ("jnp.sum({a} * {a} * {x})", ()),
        ("jnp.sum(jnp.broadcast_to({x}, ({u}, {v})) * {y}[0], axis=0)", (v,)),
    )
    return w.let(f"0.3 * {text.format(a=a, x=x, y=y, u=u, v=v)}", shape, "f")


@operation(3)
def distances(w: Writer) -> Value:
    """Write distances to the rows of a table, and what follows."""
    d, m = w.choose(*w.dims, 9), w.number(2, 12)
    found = w.find("f", least=2, most=2)
    if found is not None and found in w.globals and w.chance(0.5):
        table = found
    else:
        table = w.argument("f", (m, d))
    return decided(w, w.pick("f", table.shape[1:]), table)


def write_distances(w: Writer) -> None:
    """Write a map, or a loop with a carry, over points and their distances."""
    trip, m, d = w.length() or 2, w.number(2, 12), w.choose(2, 3, 9)
    points, table = w.argument("f", (trip, d)), w.argument("f", (m, d))
    function, row = w.fresh("point"), Value(w.fresh("u"), (d,), "f")
    carried = w.chance(0.3)
    with w.function(function, f"c, {row}" if carried else row.name):
        if carried:
            w.add(Value("c", (), "f"))
        w.add(row)
        found = decided(w, row, table)
        if found.kind == "f" and w.chance(0.4):
            found = w.let(f"0.5 * {found} + 1.0", found.shape, "f")
        result = f"({found},)"
        result = f"jnp.sin(c + {row}[0]), {result}" if carried else result
        w.line(f"return {result}")
    stacked = Value(w.fresh("s"), (trip, *found.shape), found.kind)
    if carried:
        w.line(f"_, ({stacked},) = lax.scan({function}, 0.0, {points})")
    else:
        w.line(f"({stacked},) = lax.map({function}, {points})")
    w.add(stacked)


DISTANCES = (
    "jnp.sum(({t} - {p}) ** 2, axis=1)",
    "jnp.sum(({t} - {p}) ** 2, axis=1)",
    "jnp.sum(({p} - {t}) ** 2, axis=1)",
    "jnp.sum(jnp.square({p} - {t}), axis=1)",
    "jnp.sum(jnp.abs({t} - {p}), axis=1)",
    "jnp.max(jnp.abs({t} - {p}), axis=1)",
    "jnp.sqrt(1e-3 + jnp.sum(({t} - {p}) ** 2, axis=1))",
)


def decided(w: Writer, p: Value, table: Value) -> Value:
    """Write distances of a point, and decide on them or sum over them."""
    m, d = table.shape
    s = w.let(w.choose(*DISTANCES).format(t=table, p=p), (m,), "f")
    k = w.number(1, m)
    text, shape, kind = w.choose(
        ("jnp.argmin({s})", (), "i"),
        ("jnp.argmax({s})", (), "i"),
        ("jnp.argmin(jnp.exp(-{s}))", (), "i"),
        ("jnp.argmax(1 / ({s} - 1.0))", (), "i"),
        ("jnp.argmin({s} * 2 + {v})", (), "i"),
        ("jnp.argmin(jnp.where({b}, {s}, jnp.inf))", (), "i"),
        ("lax.top_k(-{s}, {k})[1]", (k,), "i"),
        ("lax.top_k(-{s}, {k})[0]", (k,), "f"),
        ("jnp.sum({s} < 1.5)", (), "i"),
        ("jnp.any({s} < 0.5)", (), "b"),
        ("jnp.max({s} * {v}) > 0.5", (), "b"),
        ("jnp.min({s})", (), "f"),
        ("jnp.max({s})", (), "f"),
        ("jnp.exp(-{s}) @ {v}", (), "f"),
        ("jax.nn.softmax(-{s}) @ {t}", (d,), "f"),
        ("{t}[jnp.argmin({s})]", (d,), "f"),
        ("jnp.sum(jnp.where({s} < 2.0, {s}, 0.0))", (), "f"),
        ("jnp.tanh({s})", (m,), "f"),
    )
    more = {"v": w.pick("f", (m,)), "b": w.pick("b", (m,))}
    text = text.format(s=s, t=table, k=k, **more)
    return w.let(f"jnp.asarray({text}, int32)" if kind == "i" else text, shape, kind)
