"""`shapes`: chains of reshapes that change nothing are gone."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from rewriter.graph import prune
from rewriter.shapes import collapsed
from tests.helpers import random
from tests.rewriter.bodies import body_of

X = random(8, 4, 3)
SHAPES = {
    "reshape",
    "squeeze",
    "expand_dims",
    "broadcast_in_dim",
    "transpose",
    "convert_element_type",
}


def left(change, x=X):
    """Return the shape operations that are left of a chain between two functions."""
    fn = lambda x: lax.map(lambda r: jnp.tanh(change(jnp.sin(r))), x)  # noqa: E731
    loop = prune(collapsed(body_of(fn, x)))
    return [e.primitive.name for e in loop.eqns if e.primitive.name in SHAPES]


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r,
        lambda r: r[None][0],
        lambda r: r[:, None, :][:, 0],
        lambda r: r.reshape(12).reshape(4, 3),
        lambda r: jnp.squeeze(jnp.expand_dims(r, (0, 3)), (0, 3)),
        lambda r: lax.transpose(r[None], (1, 0, 2))[:, 0],
        lambda r: jnp.broadcast_to(r[None], (1, 4, 3))[0],
        lambda r: lax.convert_element_type(r, jnp.float32),
    ],
)
def test_nothing_is_left(change):
    assert not left(change)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.T.reshape(4, 3),
        lambda r: r.reshape(3, 4),
        lambda r: lax.reshape(r, (4, 3), dimensions=(1, 0)),
        lambda r: jnp.broadcast_to(r[:1], (4, 3)),
        lambda r: jnp.broadcast_to(r[:, :1], (4, 3)),
        lambda r: lax.transpose(r, (1, 0)),
        lambda r: r.astype("e").astype("f"),
        lambda r: r.astype("i").astype("f"),
        lambda r: r[:, None],
    ],
)
def test_what_changes_something_stays(change):
    assert left(change)


def test_square_transposes_stay():
    assert left(lambda r: r.T, X[:, :3]) == ["transpose"]


def test_types_stay():
    """A weak type is a type of its own."""
    fn = lambda x: lax.scan(lambda c, r: (c * 2.0, r[None][0]), 1.0, x)  # noqa: E731
    loop = collapsed(body_of(fn, X))
    before = body_of(fn, X)
    for a, b in zip(loop.carries, before.carries, strict=True):
        assert a.out.aval.weak_type == b.out.aval.weak_type


def test_keys():
    keys = jax.random.split(jax.random.key(0), 4)
    fn = lambda k: lax.map(lambda k: jax.random.normal(k[None][0]), k)  # noqa: E731
    loop = collapsed(body_of(fn, keys))
    assert len(loop.eqns) <= len(body_of(fn, keys).eqns)
