"""`rowwise`: a call in a body that brings its own batched form."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import jax_compat as jc
from rewriter.rowwise import form_of, rowwise
from tests.helpers import random

X, W = random(7, 4), random(4, 3, seed=1)


@dataclass(frozen=True, eq=False)
class Doubled:
    """A form that counts how often it is used and doubles what the step computes."""

    mapped: Sequence[bool]
    row_ns: float = 1.0
    row_bytes: int = 8
    calls: list = field(default_factory=list)

    def batched(self, values: Sequence[Any], jaxpr: Any) -> list[Any]:
        """Compute all rows, twice as large, so that tests see which one ran."""
        self.calls.append([v.shape for v in values])
        x, w = values
        assert jc.open_jaxpr(jaxpr).eqns
        text = "ni,nij->nj" if self.mapped[1] else "ni,ij->nj"
        return [2 * jnp.einsum(text, x, w), 2 * jnp.sum(x, axis=1)]


def called(mapped=(True, False)):
    """Return a form, and a function that calls it."""
    form = Doubled(mapped)
    step = lambda x, w: [x @ w, jnp.sum(x)]  # noqa: E731
    jaxpr = jc.trace(step, [jc.abstractify(X[0]), jc.abstractify(W)], "step")
    return form, lambda x, w: rowwise(jaxpr, form, [x, w])


def same(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-6)


def test_one_row():
    """The step itself, whether traced or not."""
    form, f = called()
    want = [X[0] @ W, X[0].sum()]
    same(f(X[0], W), want)
    same(jax.jit(f)(X[0], W), want)
    same(lax.map(lambda x: tuple(f(x, W)), X), [X @ W, X.sum(1)])
    assert not form.calls


@pytest.mark.parametrize(("axes", "x"), [((0, None), X), ((1, None), X.T)])
def test_rows(axes, x):
    form, f = called()
    same(jax.jit(jax.vmap(f, axes))(x, W), [2 * X @ W, 2 * X.sum(1)])
    assert form.calls == [[(7, 4), (4, 3)]]


def test_a_mapped_operand_that_is_the_same_for_all_rows():
    form, f = called((True, True))
    weights = np.stack([W] * 7)
    got = jax.vmap(f, (None, 0))(X[0], weights)
    want = [np.stack([2 * X[0] @ W] * 7), np.full(7, 2 * X[0].sum())]
    same(got, want)
    assert form.calls == [[(7, 4), (7, 4, 3)]]


def test_a_table_per_row_needs_the_general_rule():
    """What the form takes as one value differs from row to row: JAX's own rules."""
    form, f = called()
    tables = random(7, 4, 3)
    same(jax.vmap(f)(X, tables), [np.einsum("ni,nij->nj", X, tables), X.sum(1)])
    assert not form.calls


def test_batched_twice():
    form, f = called()
    x = random(5, 7, 4)
    same(jax.vmap(jax.vmap(f, (0, None)), (0, None))(x, W), [2 * x @ W, 2 * x.sum(2)])
    assert len(form.calls) == 1


def test_form_of():
    form, f = called()
    call, other = jax.make_jaxpr(lambda x, w: jnp.sin(f(x, w)[1]))(X[0], W).jaxpr.eqns
    assert form_of(call) is form
    assert form_of(other) is None
