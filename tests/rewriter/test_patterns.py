"""`patterns`: expressions of a body, through retypings and broadcasts."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from rewriter.patterns import (
    Bind,
    Body,
    Op,
    depends_on,
    initial_literal,
    is_private,
    literal,
    merged,
)
from tests.helpers import random
from tests.rewriter.bodies import body_of

X = random(8, 4)


def expression(fn, *args):
    """Return the body of a function without loops, its inputs and its output."""
    jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
    return Body(jaxpr.eqns), jaxpr.invars, jaxpr.outvars[0]


def match(pattern, fn, *args, **bound):
    """Match the output; `bound` names inputs by their number."""
    body, ins, out = expression(fn, *args)
    found = body.match(pattern, out, {k: ins[v] for k, v in bound.items()})
    return None if found is None else {k: v for k, v in found.items() if " " not in k}


SUM = Op("add", Bind("a"), Op("mul", Bind("b"), Bind("a")))
A, B, C = X[0], X[1], X[2]


def test_a_name_means_one_value():
    assert match(SUM, lambda a, b: a + b * a, A, B)
    assert match(SUM, lambda a, b: b * a + a, A, B)
    assert match(SUM, lambda a, b: a * b + a, A, B)
    assert not match(SUM, lambda a, b, c: a + b * c, A, B, C)
    assert not match(SUM, lambda a, b: a - b * a, A, B)


def test_names_bound_before():
    assert match(SUM, lambda a, b: a + a * b, A, B, a=0)
    assert not match(SUM, lambda a, b: a + a * b, A, B, a=1)
    assert match(SUM, lambda a, b: b + a * b, A, B, a=1)


def test_not_everything_commutes():
    pattern = Op("sub", Bind("a"), Bind("b"))
    assert match(pattern, lambda a, b: a - b, A, B, a=0)
    assert not match(pattern, lambda a, b: b - a, A, B, a=0)


def test_all_ways_are_tried():
    """The first order of the sum binds the wrong value."""
    pattern = Op("add", Bind("m"), Op("mul", Bind("x"), Bind("x")))
    assert match(pattern, lambda m, x: (x * x) + m, A, B, m=0)
    both = lambda m, x: (x * x) + (m * m)  # noqa: E731
    assert match(pattern, both, A, B)


def test_numbers():
    pattern = Op("add", Bind("c"), 1.0)
    assert match(pattern, lambda c: c + 1, jnp.int32(2))
    assert match(pattern, lambda c: 1.0 + c, A)
    assert not match(pattern, lambda c: c + 2, A)
    assert not match(pattern, lambda c, d: c + d, A, B)


def test_alternatives():
    pattern = Op("max|min", Bind("a"), Bind("b"))
    assert match(pattern, jnp.minimum, A, B)
    assert match(pattern, jnp.maximum, A, B)
    assert not match(pattern, lambda a, b: a + b, A, B)


def test_weak_types_are_looked_through():
    assert match(SUM, lambda a, b: a + b * a, 1.0, jnp.float32(2))
    converted = lambda a, b: a + b * a.astype("f").astype("e").astype("f")  # noqa: E731
    assert not match(SUM, converted, A, B)


SAME = Op("mul", Op("sin", Bind("a")), Op("cos", Bind("a")))


@pytest.mark.parametrize(
    ("rows", "columns", "same"),
    [
        (lambda a: a[:, None], lambda a: a[:, None], True),
        (lambda a: a[None], lambda a: a[None], True),
        (lambda a: a[None], lambda a: a[:, None], False),
        (lambda a: a.reshape(4, 1), lambda a: a[:, None], True),
        (lambda a: a.reshape(1, 4), lambda a: a[:, None], False),
        (lambda a: a[None, :, None][0], lambda a: a[:, None], True),
        (lambda a: a[0], lambda a: a[0], False),  # two slices
    ],
)
def test_broadcasts_along_one_axis_or_another(rows, columns, same):
    def spread(v):
        return jnp.broadcast_to(v, (4, 4))

    def fn(a):
        return jnp.sin(spread(rows(a))) * jnp.cos(spread(columns(a)))

    def outside(a):
        return spread(jnp.sin(rows(a))) * spread(jnp.cos(columns(a)))

    assert bool(match(SAME, fn, A)) == same
    assert bool(match(SAME, outside, A)) == same


def test_a_name_bound_before_lies_along_the_first_axes():
    fn = lambda a, b: jnp.sin(a)[:, None] * jnp.cos(a[:, None]) + b  # noqa: E731
    other = lambda a, b: jnp.sin(a)[None] * jnp.cos(a[None]) + b  # noqa: E731
    pattern = Op("add", SAME, Bind("b"))
    square = X[:4]
    assert match(pattern, fn, A, square, a=0)
    assert match(pattern, other, A, square)
    assert not match(pattern, other, A, square, a=0)


def test_same():
    def fn(a):
        return [a[:, None] * jnp.ones((4, 4)), a[None] * jnp.ones((4, 4))]

    jaxpr = jax.make_jaxpr(fn)(A).jaxpr
    body = Body(jaxpr.eqns)
    one, two = (e.invars[0] for e in jaxpr.eqns if e.primitive.name == "mul")
    assert body.plain(one) is body.plain(two) is jaxpr.invars[0]
    assert body.same(one, one)
    assert not body.same(one, two)


def test_readers():
    body, (a,), _ = expression(lambda a: jnp.sin(a)[0] + jnp.cos(a[:, None])[0, 0], A)
    assert [e.primitive.name for e in body.readers(a)] == ["sin", "cos"]


def test_literal():
    (eqn,) = jax.make_jaxpr(lambda a: a + 2.0)(A).jaxpr.eqns
    assert literal(eqn.invars[1]) == 2.0
    assert literal(eqn.invars[0]) is None


# ------------------------------------------------------------ loops


def scan(step, *start):
    """Return the view of a loop over the rows."""
    return body_of(lambda x: lax.scan(step, start, x), X)


def test_initial_literal():
    loop = body_of(
        lambda x, n: lax.scan(lambda c, r: ((c[0] + r, c[1] * 2.0), None), (n, 3.0), x),
        X[:, 0],
        X[0, 0],
    )
    assert [initial_literal(loop, c) for c in loop.carries] == [None, 3.0]


def test_privacy():
    a, b = X[0], X[1]
    private = lambda c, r: ((c[0] + r, c[1] * r), r)  # noqa: E731
    read = lambda c, r: ((c[0] + r, c[1] * c[0]), r)  # noqa: E731
    stacked = lambda c, r: ((c[0] + r, c[1] * r), c[0] * 2)  # noqa: E731
    loop = scan(private, a, b)
    assert is_private(loop, loop.carries[:1])
    assert is_private(loop, loop.carries)
    loop = scan(read, a, b)
    assert not is_private(loop, loop.carries[:1])
    assert is_private(loop, loop.carries[1:])
    assert is_private(loop, loop.carries)
    loop = scan(stacked, a, b)
    assert not is_private(loop, loop.carries[:1])
    assert is_private(loop, loop.carries[1:])


def test_dependence():
    loop = scan(lambda c, r: ((c[0] + jnp.sin(r), c[1] * c[0]), jnp.cos(r)), A, B)
    first, second = (c.var for c in loop.carries)
    outs = [c.out for c in loop.carries]
    (row,) = [a for _, a in loop.ys]
    assert depends_on(loop.eqns, outs[1], {first})
    assert depends_on(loop.eqns, outs[1], {second})
    assert not depends_on(loop.eqns, outs[0], {second})
    assert not depends_on(loop.eqns, row, {first, second})


# ------------------------------------------------------------ equal equations


def names(loop):
    return [e.primitive.name for e in loop.eqns]


def test_merged():
    def step(c, r):
        return (jnp.sin(c[0] * r) + jnp.sin(c[0] * r), c[1] * r[0] + r[0]), None

    loop = scan(step, A, B)
    assert names(loop).count("sin") == 2
    once = merged(loop)
    assert names(once).count("sin") == 1
    assert names(once).count("slice") == 1
    assert all(a.out in {v for e in once.eqns for v in e.outvars} for a in once.carries)


@pytest.mark.parametrize(
    "step",
    [
        lambda c, r: (jnp.sin(c[0]) + jnp.sin(c[1]), c[1] + 1),
        lambda c, r: (c[0][::-1] - c[0][::1], c[1] + r[0] + r[1]),
        lambda c, r: (c[0] * 2.0 + c[1] * 3.0, c[0] * -0.0 + c[1] * 0.0),
        lambda c, r: (c[0] @ c[1] + c[1] @ c[1] + r, c[1].sum() + r.max()),
    ],
)
def test_only_equals_are_merged(step):
    def body(c, r):
        return tuple(jnp.broadcast_to(v, (4,)) for v in step(c, r)), None

    loop = scan(body, A, B)
    slices = [e for e in loop.eqns if e.primitive.name == "slice"]
    assert len(merged(loop).eqns) == len(loop.eqns), slices


def test_effects_are_not_merged():
    def step(c, r):
        for _ in range(2):
            jax.debug.callback(lambda c: None, c)
        return c + r, None

    loop = scan(lambda c, r: ((step(c[0], r)[0],), None), A)
    assert merged(loop) is loop
