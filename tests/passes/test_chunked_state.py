"""`chunked-state`: accumulated products that products read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.fuzz import eager_rewriting
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, fired, report_of

NAME = "chunked-state"
N, K, V, H = 150, 6, 5, 3
nan, inf = np.nan, np.inf
fires, declines = Cases(), Cases()


@pytest.fixture(autouse=True)
def eager():
    """Whatever may be rewritten is, however small."""
    with eager_rewriting():
        yield


def rows(n=N, k=K, v=V, heads=()):
    """Return queries, keys, values and gates."""
    return (
        random(n, *heads, k),
        random(n, *heads, k, seed=1),
        random(n, *heads, v, seed=2),
        random(n, seed=3),
    )


def case(cases, name, fn, *args, **options):
    """Register a program by name."""
    cases.append(pytest.param(fn, args, options, id=name))


def attention(
    update=lambda s, k, v, g: s + jnp.outer(k, v),
    read=lambda q, old, new: q @ new,
    init=0.25,
    reverse=False,
    shape=(K, V),
):
    """Return the loop with an update of the state and a read of it."""

    def f(q, k, v, g):
        def step(s, row):
            q, k, v, g = row
            new = update(s, k, v, g)
            return new, read(q, s, new)

        return lax.scan(step, jnp.full(shape, init), (q, k, v, g), reverse=reverse)

    return f


UPDATES = {
    "sum": lambda s, k, v, g: s + jnp.outer(k, v),
    "difference": lambda s, k, v, g: s - k[:, None] * v,
    "decay": lambda s, k, v, g: 0.9 * s + jnp.einsum("k,v->kv", k, v),
    "gate": lambda s, k, v, g: jax.nn.sigmoid(g) * s + jnp.outer(k, v),
    "gate and decay": lambda s, k, v, g: s * jnp.cos(g) * 0.95 + jnp.outer(k, v),
    "reset": lambda s, k, v, g: jnp.where(g > 1, 0.0, 1.0) * s + jnp.outer(k, v),
    "two terms": lambda s, k, v, g: s + jnp.outer(k, v) - jnp.outer(k * k, v),
    "scaled": lambda s, k, v, g: s + 0.5 * jnp.outer(k, v) * g,
}
READS = {
    "new": lambda q, old, new: q @ new,
    "old": lambda q, old, new: q @ old,
    "both": lambda q, old, new: (q @ old, jnp.tanh(q @ new)),
    "sum": lambda q, old, new: jnp.sum(new * q[:, None], axis=0),
    "form": lambda q, old, new: q @ new @ jnp.arange(5.0),
}
for update in UPDATES:
    for reverse in (False, True):
        case(
            fires,
            f"{update}, {'back' if reverse else 'ahead'}",
            attention(UPDATES[update], reverse=reverse),
            *rows(),
        )
for read in READS:
    for reverse in (False, True):
        case(
            fires,
            f"read {read}, {'back' if reverse else 'ahead'}",
            attention(UPDATES["gate"], READS[read], reverse=reverse),
            *rows(),
        )
for n in (64, 65, 95, 33):
    for reverse in (False, True):
        case(
            fires,
            f"{n} rows, {'back' if reverse else 'ahead'}",
            attention(UPDATES["decay"], reverse=reverse),
            *rows(n),
        )
case(
    fires,
    "heads",
    attention(
        lambda s, k, v, g: s + jnp.einsum("hk,hv->hkv", k, v),
        lambda q, old, new: jnp.einsum("hk,hkv->hv", q, new),
        shape=(H, K, V),
    ),
    *rows(heads=(H,)),
)


@fires.add(*rows())
def _with_a_normaliser(q, k, v, g):
    def step(c, row):
        s, z = c
        q, k, v, _ = row
        f = jnp.exp(k)
        s, z = s + f[:, None] * v, z + f
        return (s, z), (q @ s) / (jnp.exp(q) @ z)

    return lax.scan(step, (jnp.zeros((K, V)), jnp.ones(K)), (q, k, v, g))


@fires.add(*rows(), loops=3)
def _reads_that_feed_another_state(q, k, v, g):
    def step(c, row):
        s, h, total = c
        q, k, v, g = row
        s = 0.9 * s + jnp.outer(k, v)
        y = q @ s
        h = jnp.tanh(h + y)
        return (s, h, total + y), (h, g)

    return lax.scan(step, (jnp.zeros((K, V)), jnp.zeros(V), jnp.zeros(V)), (q, k, v, g))


def bad(at, value):
    """Return arguments with a value that is not finite."""
    q, k, v, g = rows()
    v = v.copy()
    v[at, 2] = value
    return q, k, v, g


for value in (inf, -inf, nan):
    for at in (0, 70, N - 1):
        case(fires, f"{value} at {at}", attention(UPDATES["gate"]), *bad(at, value))


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "chunks", **options)


READ = READS["new"]
case(
    declines,
    "the state is an output",
    attention(read=lambda q, old, new: (q @ new, new)),
    *rows(),
)
case(
    declines,
    "read by an activation",
    attention(read=lambda q, old, new: q @ jnp.tanh(new)),
    *rows(),
)
case(
    declines,
    "a delta rule",
    attention(lambda s, k, v, g: s + jnp.outer(k, v - k @ s)),
    *rows(),
)
case(
    declines,
    "a decay per row of the state",
    attention(lambda s, k, v, g: jnp.cos(k)[:, None] * s + jnp.outer(k, v)),
    *rows(),
)
case(
    declines,
    "a term that is no product",
    attention(lambda s, k, v, g: s + jnp.tanh(jnp.outer(k, v))),
    *rows(),
)
case(
    declines,
    "a decay that overflows",
    attention(lambda s, k, v, g: 1e3 * s + jnp.outer(k, v)),
    *rows(20),
)
case(declines, "under strict", attention(), *rows(), numerics="strict")
case(declines, "over the budget", attention(), *rows(), memory_budget=5_000)


@declines.add(*rows())
def _queries_from_the_state(q, k, v, g):
    def step(c, row):
        s, h = c
        s = s + jnp.outer(row[1], row[2])
        h = jnp.tanh(s @ jnp.ones(V))
        return (s, h), h @ s + row[0] @ jnp.ones((K, V)) * jnp.sum(h)

    return lax.scan(step, (jnp.zeros((K, V)), jnp.zeros(K)), (q, k, v, g))


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_in_a_gradient():
    """The backward loop accumulates and reads products too."""

    def loss(v, q, k, g):
        return jnp.sum(jnp.sin(attention()(q, k, v, g)[1]))

    q, k, v, g = rows()
    args = v, q, k, g
    report = report_of(jax.grad(loss), args)
    assert fired(report, NAME)
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(jax.grad(loss))(*map(np.float64, args)))
    ours, loop = (
        np.float64(f(*args)) for f in (optimize(jax.grad(loss)), jax.grad(loss))
    )
    assert abs(ours - exact).max() <= 2 * abs(loop - exact).max()
