"""Failures inside the rewriter, and arguments it can not accept."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from passes import DEFAULT_PIPELINE
from rewriter import explain, optimize
from tests.helpers import assert_same, random

X = random(64, 16)
W = random(16, 16, seed=1)


def _program():
    """Return a new function (nothing cached) with several kinds of loop."""

    def f(w, x):
        def step(c, r):
            h, total, k = c
            h = jnp.tanh(h @ w + r @ w)
            return (h, total + jnp.outer(r, h), k + 1), (h @ w, x[k] * 2)

        start = (jnp.zeros(16), jnp.zeros((16, 16)), 0)
        rows = lax.map(lambda r: jax.nn.softmax(w @ jnp.tanh(w @ r)), x)
        table = lax.fori_loop(0, 64, lambda i, b: b.at[i].set(x[i] * i), x * 0)
        return lax.scan(step, start, x), rows, table

    return f


class PlantedError(Exception):
    """What the tests raise inside a pass."""


def _raise(*args, **kwargs):
    raise PlantedError("planted")


def _run(jitted, *args):
    """Return the result and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = jax.block_until_ready(jitted(*args))
    return out, caught


def _names():
    return [p.name for p in DEFAULT_PIPELINE]


def _one_map():
    return lambda w, x: lax.map(lambda r: jax.nn.softmax(w @ jnp.tanh(w @ r)), x)


@pytest.mark.parametrize("method", ["match", "rewrite"])
@pytest.mark.parametrize(("make", "loops"), [(_one_map, 1), (_program, 3)])
def test_error_in_every_pass(monkeypatch, method, make, loops):
    """The original runs, with one warning a loop, and the report says why."""
    for p in DEFAULT_PIPELINE:
        monkeypatch.setattr(type(p), method, _raise)
    f = make()
    got, caught = _run(optimize(f), W, X)
    assert_same(got, jax.jit(f)(W, X), ulps=64)
    assert 1 <= len(caught) <= loops, [str(w.message) for w in caught]
    assert all("planted" in str(w.message) for w in caught)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = optimize(make()).explain(W, X)
    failed = [r for r in report.remarks if r.kind == "failed"]
    assert failed
    assert "planted" in " ".join(r.message for r in failed)
    assert {r.code.split("/")[0] for r in failed} <= {*_names(), "pass-manager"}


@pytest.mark.parametrize("p", DEFAULT_PIPELINE, ids=_names())
def test_error_in_one_pass(monkeypatch, p):
    """The other passes go on."""
    monkeypatch.setattr(type(p), "match", _raise)
    f = _program()
    got, caught = _run(optimize(f), W, X)
    assert_same(got, jax.jit(f)(W, X), ulps=64)
    assert len(caught) <= 3, [str(w.message) for w in caught]


def test_error_while_lowering_under_grad(monkeypatch):
    """The late passes run when JAX lowers: an error there must not escape either."""
    for p in DEFAULT_PIPELINE:
        monkeypatch.setattr(type(p), "match", _raise)
    f = _program()

    def loss(g):
        return lambda w, x: g(w, x)[0][0][1].sum()

    got, caught = _run(jax.jit(jax.grad(loss(optimize(f)))), W, X)
    assert_same(got, jax.jit(jax.grad(loss(f)))(W, X), ulps=64)
    assert 1 <= len(caught) <= 4, [str(w.message) for w in caught]


def test_error_of_the_user_is_shown():
    """A TypeError in the program is the user's, with the user's message."""

    def f(x):
        return lax.map(lambda r: r @ jnp.ones((3, 3)), x)

    with pytest.raises(TypeError, match="dot_general"):
        optimize(f)(X)


BAD = [
    ({"memory_budget": "lots"}, ["memory_budget", "lots"]),
    ({"memory_budget": -1}, ["memory_budget"]),
    ({"memory_budget": ["1MB"]}, ["memory_budget"]),
    ({"numerics": "fastest"}, ["numerics", "strict", "reassociate", "fast"]),
    ({"numerics": None}, ["numerics", "strict", "reassociate", "fast"]),
    ({"disable": ["no-such-pass"]}, ["disable", "no-such-pass", *_names()[:1]]),
    ({"disable": 3}, ["disable"]),
    ({"require": "everything"}, ["require", "everything", "vectorize"]),
    ({"require": ["no-such-pass"]}, ["require", "no-such-pass", *_names()[:1]]),
    ({"no_such_option": 1}, ["no_such_option"]),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[str(b[0]) for b in BAD])
def test_bad_arguments(options, words):
    """They fail at decoration, naming the argument and what is allowed."""
    for call in (
        lambda: optimize(**options)(lambda x: x),
        lambda: optimize(lambda x: x, **options),
        lambda: explain(lambda x: x, **options),
    ):
        with pytest.raises((TypeError, ValueError)) as raised:
            call()
        for word in words:
            assert word in str(raised.value)


@pytest.mark.parametrize("what", [3, "f", np.ones(3)])
def test_not_a_function(what):
    """Only a callable can be optimised, and the message shows what was given."""
    for entry in (optimize, explain):
        with pytest.raises(TypeError, match=r"callable|function"):
            entry(what)


@pytest.mark.parametrize("budget", ["512MB", "1.5GB", "64KB", "1 MB", 1 << 20, 1])
def test_memory_budgets(budget):
    """Sizes are numbers of bytes, or text with a unit."""
    f = _program()
    assert_same(optimize(f, memory_budget=budget)(W, X), jax.jit(f)(W, X), ulps=64)


@pytest.mark.parametrize("numerics", ["strict", "reassociate", "fast"])
def test_every_level_runs(numerics):
    """All levels give the same result, within rounding."""
    f = _program()
    assert_same(optimize(f, numerics=numerics)(W, X), jax.jit(f)(W, X), ulps=256)


def test_disable():
    """With all passes disabled the program is the original."""
    f = _program()
    plain = jax.jit(f).lower(W, X).as_text().count("stablehlo.while")
    off = optimize(f, disable=tuple(_names()))
    assert off.lower(W, X).as_text().count("stablehlo.while") == plain
    assert_same(off(W, X), jax.jit(f)(W, X))


def test_require():
    """A loop that must be batched and is not: a warning or an error names it."""

    def f(w, x):
        return lax.scan(lambda h, r: (jnp.tanh(h @ w + r),) * 2, x[0], x)

    try:
        _, caught = _run(optimize(f, require="vectorize"), W, X)
    except Exception as error:
        said = [str(error)]
    else:
        said = [str(w.message) for w in caught]
    assert len(said) == 1
    assert "test_never_break.py" in said[0]

    def g(w, x):
        return lax.map(lambda r: jnp.tanh(w @ r), x)

    _, caught = _run(optimize(g, require="vectorize"), W, X)
    assert not caught
