"""Random operations for loop bodies: each writes a line or two from values in scope."""

from __future__ import annotations

from collections.abc import Callable

from tests.generate_text import Shape, Value, Writer

Operation = Callable[[Writer], object]
OPERATIONS: dict[Operation, float] = {}

UNARY = (
    "jnp.tanh({0})",
    "jnp.tanh({0})",
    "jnp.sin({0})",
    "jnp.cos(2.0 * {0})",
    "jax.nn.sigmoid({0})",
    "jnp.abs({0})",
    "-{0}",
    "0.5 * {0}",
    "jax.nn.relu({0})",
    "0.5 * jax.nn.softplus({0})",
    "jax.nn.silu({0})",
    "jnp.exp(-jnp.abs({0}))",
    "jnp.tanh({0} * {0})",
    "jnp.clip({0}, -0.5, 0.8)",
    "jnp.sqrt(1.0 + {0} * {0})",
    "1.0 / (1.5 + jnp.cos({0}))",
    "jnp.log1p(jnp.abs({0}))",
    "jnp.where({0} > 0, {0}, 0.1 * {0})",
    "jnp.where({0} > 0.1, jnp.log({0}), 0.0)",
    "lax.stop_gradient({0})",
    "jax.nn.softmax({0})",
    "jnp.cumsum(0.3 * {0}, axis=-1)",
    "lax.cummax({0}, axis={1})",
    "jnp.sort({0}, axis=-1)",
    "jnp.flip({0})",
    "jnp.roll({0}, 1, axis=0)",
    "jax.jit(jnp.tanh)({0})",
    "jax.checkpoint(lambda u: jnp.sin(jnp.tanh(u)))({0})",
    "smooth({0})",
)
VECTOR_ONLY = ("softmax", "cumsum", "cummax", "sort", "roll")
BINARY = (
    "0.5 * ({0} + {1})",
    "{0} + {1}",
    "{0} - {1}",
    "0.5 * {0} * {1}",
    "jnp.tanh({0} * {1})",
    "jnp.maximum({0}, {1})",
    "jnp.minimum({0}, {1})",
    "{0} / (1.0 + jnp.abs({1}))",
    "jnp.arctan2({0}, 1.0 + jnp.abs({1}))",
    "jnp.logaddexp({0}, {1}) * 0.5",
    "jnp.hypot({0}, 0.5 + jnp.abs({1}))",
)
INTEGER = (
    "{0} * 3 + {1}",
    "{0} ^ {1}",
    "{0} & {1}",
    "{0} - {1}",
    "{0} % 7",
    "{0} // 2",
    "jnp.minimum({0}, {1})",
    "jnp.where({0} > {1}, {0}, 2 * {1})",
    "lax.shift_left({0}, jnp.full_like({0}, 3))",
    "lax.population_count({0})",
    "lax.rem({0}, jnp.full_like({0}, 5))",
    "jnp.clip({0}, -4, 9)",
)


def operation(weight: float) -> Callable[[Operation], Operation]:
    """Register an operation with its weight."""

    def register(function: Operation) -> Operation:
        OPERATIONS[function] = weight
        return function

    return register


def write_operation(w: Writer) -> None:
    """Write one random operation."""
    w.draw(OPERATIONS)(w)


def partner(w: Writer, value: Value) -> Value:
    """Return a value that broadcasts with this one."""
    shape: Shape = value.shape[w.number(0, len(value.shape)) :]
    return w.pick(value.kind, shape if w.chance(0.6) else value.shape)


@operation(9)
def unary(w: Writer) -> Value:
    """Write an elementwise operation, or one along an axis."""
    template = w.choose(*UNARY)
    least = 1 if any(name in template for name in VECTOR_ONLY) else 0
    value = w.pick("f", least=least)
    axis = len(value.shape) - 1
    return w.let(template.format(value, axis), value.shape, "f")


@operation(9)
def binary(w: Writer) -> Value:
    """Write an elementwise operation of two values, one of them broadcast perhaps."""
    value = w.pick("f")
    other = partner(w, value)
    pair = (value, other) if w.chance(0.5) else (other, value)
    return w.let(w.choose(*BINARY).format(*pair), value.shape, "f")


@operation(3)
def integer(w: Writer) -> Value:
    """Write integer arithmetic, which wraps around."""
    value = w.pick("i")
    other = partner(w, value)
    template = w.choose(*INTEGER)
    return w.let(template.format(value, other), value.shape, "i")


@operation(2)
def comparison(w: Writer) -> Value:
    """Write a comparison or a logical operation."""
    kind = w.choose("f", "i", "b")
    value = w.pick(kind)
    other = partner(w, value)
    symbol = w.choose("&", "|", "^") if kind == "b" else w.choose(">", "<=", "!=")
    return w.let(f"{value} {symbol} {other}", value.shape, "b")


@operation(2)
def mask(w: Writer) -> Value:
    """Write a predicate on the counter of a loop."""
    counters = [index for index in w.indices if index.name]
    if not counters:
        return comparison(w)
    index = w.choose(*counters)
    i, some = index.name, index.first + index.step * w.number(0, max(index.trip, 1))
    return w.let(
        w.choose(f"{i} < {some}", f"{i} % 2 == 0", f"{i} == {some}", f"{some} <= {i}"),
        (),
        "b",
    )


@operation(2)
def selection(w: Writer) -> Value:
    """Write a where of a boolean and two values."""
    value = w.pick(w.choose("f", "f", "f", "i"))
    mask = w.pick("b", w.choose((), value.shape))
    other = w.pick(value.kind, value.shape)
    return w.let(f"jnp.where({mask}, {value}, {other})", value.shape, value.kind)


@operation(2)
def conversion(w: Writer) -> Value:
    """Write a conversion between kinds."""
    if w.chance(0.5):
        value = w.pick("i")
        return w.let(f"0.1 * ({value} % 17)", value.shape, "f")
    value = w.pick("b")
    if w.chance(0.5):
        return w.let(f"jnp.where({value}, 0.8, -0.3)", value.shape, "f")
    return w.let(f"{value}.astype(jnp.int32)", value.shape, "i")


@operation(7)
def product(w: Writer) -> Value:
    """Write a matrix product with a vector or a matrix."""
    value = w.pick("f", least=1, most=2)
    out = w.choose(*w.dims)
    if w.chance(0.5):
        matrix, rest = w.matrix(out, value.shape[0]), value.shape[1:]
        text, shape = f"{matrix} @ {value}", (out, *rest)
    else:
        matrix, rest = w.matrix(value.shape[-1], out), value.shape[:-1]
        text, shape = f"{value} @ {matrix}", (*rest, out)
    bounded = w.choose("jnp.tanh({})", "jnp.tanh({})", "{}", "0.3 * ({})")
    return w.let(bounded.format(text), shape, "f")


@operation(2)
def vectors(w: Writer) -> Value:
    """Write an inner, outer or squared-distance product of vectors."""
    u = w.pick("f", least=1, most=1)
    if w.chance(0.35):
        v = w.pick("f", least=1, most=1)
        return w.let(f"0.5 * jnp.outer({u}, {v})", u.shape + v.shape, "f")
    v = w.pick("f", u.shape)
    if w.chance(0.5):
        return w.let(f"({u} @ {v}) / {u.shape[0]}", (), "f")
    rows = w.pick("f", (w.choose(*w.dims), *u.shape))
    text = f"jnp.tanh(jnp.sum(({rows} - {u}) ** 2, axis=1))"
    return w.let(text, rows.shape[:1], "f")


@operation(4)
def reduction(w: Writer) -> Value:
    """Write a reduction over one or all axes."""
    value = w.pick("f", least=1)
    axis = w.choose(0, len(value.shape) - 1)
    shape = value.shape[:axis] + value.shape[axis + 1 :]
    name = w.choose("mean", "max", "min", "sum", "prod", "var", "logsumexp")
    if name == "prod":
        return w.let(f"jnp.prod(1.0 + 0.1 * {value}, axis={axis})", shape, "f")
    if name == "logsumexp":
        return w.let(f"0.5 * jax.nn.logsumexp({value}, axis={axis})", shape, "f")
    if name == "sum":
        return w.let(f"jnp.tanh(jnp.sum({value}, axis={axis}))", shape, "f")
    if w.chance(0.2):
        return w.let(f"jnp.{name}({value})", (), "f")
    return w.let(f"jnp.{name}({value}, axis={axis})", shape, "f")


@operation(2)
def order(w: Writer) -> Value:
    """Write an argmax, argsort, count or top_k."""
    value = w.pick("f", least=1)
    shape = value.shape[:-1]
    name = w.choose("argmax", "argmin", "argsort", "count", "top_k")
    if name == "argsort":
        text = f"jnp.argsort({value}, axis=-1).astype(jnp.int32)"
        return w.let(text, value.shape, "i")
    if name == "count":
        text = f"jnp.sum({value} > 0.2, axis=-1).astype(jnp.int32)"
    elif name == "top_k":
        text = f"lax.top_k({value}, 1)[1][..., 0].astype(jnp.int32)"
    else:
        text = f"jnp.{name}({value}, axis=-1).astype(jnp.int32)"
    return w.let(text, shape, "i")


@operation(2)
def layout(w: Writer) -> Value:
    """Write a reshape, transpose, stack, concatenation or broadcast."""
    value = w.pick("f", least=1, most=2)
    name = w.choose("T", "stack", "concatenate", "reverse", "ravel", "first")
    if name == "T":
        return w.let(f"{value}.T", value.shape[::-1], "f")
    if name == "stack" and len(value.shape) == 1:
        other = w.pick("f", value.shape)
        text = f"jnp.stack([{value}, {other}], axis=1)"
        return w.let(text, (*value.shape, 2), "f")
    if name == "concatenate":
        text = f"jnp.concatenate([{value}[1:], -{value}[:1]])"
        return w.let(text, value.shape, "f")
    if name == "ravel" and len(value.shape) == 2:
        size = value.shape[0] * value.shape[1]
        return w.let(f"{value}.ravel()", (size,), "f") if size <= 16 else value
    if name == "first":
        return w.let(f"{value}[0]", value.shape[1:], "f")
    return w.let(f"{value}[::-1]", value.shape, "f")


@operation(6)
def indexed_read(w: Writer) -> Value:
    """Write a read of a row at an index; indices out of range clamp, wrap or fill."""
    value = w.pick(w.choose("f", "f", "f", "f", "i"), least=1)
    size, shape = value.shape[0], value.shape[1:]
    at = w.position(size)
    template = w.draw(
        {
            "{0}[{1}]": 6,
            "lax.dynamic_index_in_dim({0}, {1}, 0, keepdims=False)": 2,
            "jnp.take({0}, {1}, axis=0, mode='clip')": 1,
            "{0}.at[{1}].get(mode='fill', fill_value=0)": 1,
            "lax.dynamic_slice_in_dim({0}, {1}, 1, axis=0)[0]": 1,
        }
    )
    return w.let(template.format(value, at), shape, value.kind)


@operation(1.5)
def window(w: Writer) -> Value:
    """Write a dynamic slice, a gather at several indices, or two indices."""
    value = w.pick("f", least=1)
    size, rest = value.shape[0], value.shape[1:]
    name = w.choose("slice", "gather", "pair")
    if name == "gather":
        index = w.find("i", least=1, most=1)
        if index is not None and len(rest) < 2:
            text = f"{value}[{index} % {size}]"
            return w.let(text, index.shape + rest, "f")
    if name == "pair" and rest:
        text = f"{value}[{w.position(size)}, {w.position(rest[0])}]"
        return w.let(text, rest[1:], "f")
    width = w.number(1, size)
    at = w.position(size)
    text = f"lax.dynamic_slice_in_dim({value}, {at}, {width}, axis=0)"
    return w.let(text, (width, *rest), "f")


@operation(2)
def scatter(w: Writer) -> Value:
    """Write an update of one row; an index out of range is dropped."""
    value = w.pick("f", least=1)
    row = w.pick("f", value.shape[1:])
    at, how = w.position(value.shape[0]), w.choose("set", "add", "set", "add", "max")
    if how == "max":
        w.differentiable = False
    mode = ", mode='clip'" if w.chance(0.2) else ""
    return w.let(f"{value}.at[{at}].{how}({row}{mode})", value.shape, "f")


@operation(1)
def solve(w: Writer) -> Value:
    """Write the solution of a small, well conditioned linear system."""
    size = w.choose(2, 3)
    matrix, right = w.matrix(size, size), w.pick("f", (size,))
    system = f"2.0 * jnp.eye({size}) + 0.3 * jnp.tanh({matrix})"
    if w.chance(0.3):
        factor = f"jnp.linalg.cholesky({system} @ ({system}).T)"
        return w.let(f"0.5 * {factor} @ {right}", (size,), "f")
    return w.let(f"jnp.linalg.solve({system}, {right})", (size,), "f")


@operation(3)
def branch(w: Writer) -> Value:
    """Write a cond or a switch of small branches."""
    value = w.pick("f")
    branches = ["lambda u: jnp.tanh(2.0 * u)", "lambda u: -0.5 * u", "lambda u: u"]
    if len(value.shape) == 1:
        matrix = w.matrix(value.shape[0], value.shape[0])
        branches.append(f"lambda u: jnp.sin({matrix} @ u)")
    first, second = w.choose(*branches), w.choose(*branches)
    if w.chance(0.3):
        at = w.pick("i", ())
        text = f"lax.switch({at} % 3, [{first}, {second}, jnp.cos], {value})"
    else:
        text = f"lax.cond({w.pick('b', ())}, {first}, {second}, {value})"
    return w.let(text, value.shape, "f")


@operation(2)
def draw(w: Writer) -> Value:
    """Write a random draw; under 64 bits it still draws 32."""
    key = w.find("k") or (w.key() if w.chance(0.5) else None)
    if key is None:
        return unary(w)
    text = key.name
    if w.chance(0.6) or key in w.globals:
        at = w.pick("i", ())
        text = f"jax.random.fold_in({text}, {at})"
    shape = w.shape(1)
    if w.chance(0.2):
        return w.let(
            f"jax.random.randint({text}, {shape}, 0, 9, jnp.int32)", shape, "i"
        )
    name = w.choose("normal", "uniform")
    draws = f"jax.random.{name}({text}, {shape}, jnp.float32)"
    return w.let(f"0.5 * {draws}.astype(float)", shape, "f")
