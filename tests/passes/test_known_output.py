"""`known-output`: integers that are known at every step are not stacked by the loop."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, fired

NAME = "known-output"
X = random(30, 4)
fires, declines = Cases(), Cases()


def _beside(index, dtype=jnp.int32, **scan):
    """Return a recurrence that also gives `index(i)` at every step."""

    def f(x):
        def step(c, r):
            i, row = r
            return jnp.sin(c + row), (index(i), c)

        return lax.scan(step, x[0], (jnp.arange(30, dtype=dtype), x), **scan)

    return f


KNOWN = {
    "affine": (lambda i: 7 - 2 * i,),
    "two_terms": (lambda i: 3 * i + i - 5,),
    "vector": (lambda i: i * jnp.array([1, 2, -3]) - 1,),
    "stacked": (lambda i: jnp.stack([i, 2 * i, i - 1]),),
    "constant": (lambda i: jnp.int32(3) + 0 * i,),
    "int8": (lambda i: i * jnp.int8(4), jnp.int8),
    "wide": (lambda i: (i * jnp.int8(4)).astype(jnp.int32) * 1000, jnp.int8),
    "in_range_select": (lambda i: jnp.where(i < 0, i + 30, i),),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("case", KNOWN)
def test_known(case, reverse):
    f = _beside(*KNOWN[case], reverse=reverse)
    report = assert_fires(NAME, f, (X,), "counter", loops=1)
    assert fired(report, NAME)[0].args["count"] == 1
    stacked = [v.aval.dtype for v in report.after.loops[0].eqn.outvars]
    assert all(d == jnp.float32 for d in stacked), stacked


UNKNOWN = {
    "a_table": (lambda i: (7 * i) % 30,),
    "square": (lambda i: i * i,),
    "wraps": (lambda i: i * jnp.int8(10), jnp.int8),
    "halved": (lambda i: i // 2,),
    "float": (lambda i: i.astype(jnp.float32),),
    "choice": (lambda i: jnp.where(i < 9, i, 0),),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown(case):
    """Not an affine form, or one that leaves the range of its type."""
    assert_declines(NAME, _beside(*UNKNOWN[case]), (X,), "none", loops=1)


@declines.add(X, np.arange(30), code="none")
def _index_is_an_argument(x, index):
    return lax.scan(lambda c, r: (jnp.sin(c + r[1]), r[0]), x[0], (index, x))


@declines.add(X, code="none")
def _depends_on_the_data(x):
    def step(c, r):
        i, row = r
        return jnp.sin(c + row), i + jnp.int32(row[0] > 0)

    return lax.scan(step, x[0], (jnp.arange(30), x))


@declines.add(X, code="none")
def _only_final_values(x):
    return lax.scan(lambda c, r: (jnp.sin(c + r), None), x[0], x)


@declines.add(X, code="none")
def _a_count_of_events(x):
    def step(c, row):
        n, h = c
        return (n + (row[0] > 0), jnp.sin(h + row)), n

    return lax.scan(step, (0, x[0]), x)


@fires.add(X, loops=1)
def _from_a_counter(x):
    def step(c, row):
        t, h = c
        return (t + 3, jnp.sin(h + row)), (t, h)

    return lax.scan(step, (5, x[0]), x)


@fires.add(X, grad=True)
def _index_that_grad_saves(x):
    def step(i, h):
        return jnp.tanh(h + x[29 - i])

    return lax.fori_loop(0, 30, step, x[0])


@fires.add(X, vmap=(0,), loops=1)
def _under_vmap(x):
    return lax.scan(
        lambda c, r: (jnp.sin(c + r[1]), 2 * r[0]), x[0], (jnp.arange(30), x)
    )


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    if options.get("grad"):  # only the forward loop of the gradient stacks the index
        import jax

        inner = fn
        fn = lambda x: jax.grad(lambda x: inner(x).sum())(x)  # noqa: E731
        options = {k: v for k, v in options.items() if k != "grad"}
    assert_fires(NAME, fn, args, "counter", **options)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)
