"""`table-layout`: columns gathered from a table at every step."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter.printer import walk
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, fired

NAME = "table-layout"
TABLE = random(512, 32)
QUERIES = np.random.default_rng(0).integers(0, 32, (600, 3))
fires, declines = Cases(), Cases()


def columns(table, queries):
    """Return a sum of products of three columns, for each query."""
    return lax.map(lambda q: jnp.prod(table[:, q], axis=1).sum(), queries)


fires.add(TABLE, QUERIES)(columns)
fires.add(TABLE, QUERIES - 16)(lambda t, q: columns(t, q))


@fires.add(TABLE, QUERIES)
def _in_a_recurrence(table, queries):
    def step(c, q):
        return jnp.sin(c + jnp.prod(table[:, q], axis=1)), c.sum()

    return lax.scan(step, jnp.zeros(512), queries)


@fires.add(TABLE, QUERIES)
def _two_gathers_of_one_table(table, queries):
    def one(q):
        return jnp.prod(table[:, q], axis=1) @ jnp.sum(table[:, q + 1], axis=1)

    return lax.map(one, queries)


@fires.add(TABLE, QUERIES + 20)
def _clip_mode(table, queries):
    def one(q):
        return jnp.prod(table.at[:, q].get(mode="clip"), axis=1).sum()

    return lax.map(one, queries)


@fires.add(TABLE, QUERIES + 20)
def _fill_mode(table, queries):
    def one(q):
        taken = table.at[:, q].get(mode="fill", fill_value=1.0)
        return jnp.prod(taken, axis=1).sum()

    return lax.map(one, queries)


@fires.add((TABLE * 8).astype(np.int32), QUERIES)
def _integers(table, queries):
    return lax.map(lambda q: jnp.prod(table[:, q], axis=1), queries)


@declines.add(TABLE.T.copy(), QUERIES, code="none")
def _rows(table, queries):
    return lax.map(lambda q: jnp.prod(table[q], axis=0).sum(), queries)


@declines.add(TABLE[:16], QUERIES, code="none")
def _short_columns(table, queries):
    return columns(table, queries)


@declines.add(TABLE, QUERIES[:8], code="none")
def _few_steps(table, queries):
    return columns(table, queries)


@declines.add(TABLE, QUERIES, code="none")
def _table_that_changes(table, queries):
    def step(t, q):
        return t * 0.99, jnp.prod(t[:, q], axis=1).sum()

    return lax.scan(step, table, queries)


@declines.add(TABLE, QUERIES[:, 0], code="none")
def _one_column(table, queries):
    return lax.map(lambda q: jnp.sin(table[:, q]).sum(), queries)


@declines.add(TABLE, QUERIES, code="none")
def _single_cells(table, queries):
    return lax.map(lambda q: jnp.prod(table[q, q]), queries)


@declines.add(TABLE.reshape(64, 8, 32), QUERIES, code="none")
def _three_axes(table, queries):
    return lax.map(lambda q: jnp.prod(table[:, :, q], axis=2).sum(), queries)


@declines.add(TABLE, QUERIES, code="memory-budget", memory_budget=60_000)
def _no_room_for_a_copy(table, queries):
    return columns(table, queries)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    report = assert_fires(NAME, fn, args, "transposed", **options)
    gathers = [e for e in walk(report.after.jaxpr) if e.primitive.name == "gather"]
    assert gathers
    for e in gathers:
        assert e.invars[0].aval.shape == (32, 512), e


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_one_copy_of_a_table():
    """Two gathers share the transposed table."""
    f = _two_gathers_of_one_table
    report = assert_fires(NAME, f, (TABLE, QUERIES), oracle=True)
    assert fired(report, NAME)[0].args["count"] == 2
    copies = [
        e
        for e in report.after.jaxpr.eqns
        if e.primitive.name == "transpose" and e.invars[0].aval.shape == (512, 32)
    ]
    assert len(copies) == 1
