"""Effects, callbacks, random numbers, refs and `custom_vmap` in loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from rewriter import optimize
from tests.helpers import (
    Cases,
    assert_equivalent,
    assert_same,
    no_warnings,
    random,
)

X = random(6, 4)
MIB = 1 << 20


def _recorded(f, *args, wrap=optimize):
    """Return what `f(log)` gives and the log, in order."""
    log = []
    with no_warnings():
        out = jax.block_until_ready(wrap(f(log))(*args))
    jax.effects_barrier()
    return out, log


def _note(log, *names, ordered):
    def note(v, *rest):
        log.append((*names, *(np.asarray(r).tolist() for r in (v, *rest))))

    return lambda *values: io_callback(note, None, *values, ordered=ordered)


def _one_loop(log):
    note = _note(log, "row", ordered=True)

    def f(x):
        def step(c, r):
            note(r[0])
            return c + r, jnp.tanh(r @ x.T)

        return lax.scan(step, x[0] * 0, x)

    return f


def _two_loops(log):
    first, second = (_note(log, n, ordered=True) for n in ("first", "second"))

    def f(x):
        lax.map(lambda r: first(r[0]), x)
        y = lax.map(lambda r: (second(r[1]), r * 2)[1], x[::-1])
        first(y[0, 0])
        return y

    return f


def _two_in_one_step(log):
    first, second = (_note(log, n, ordered=True) for n in ("first", "second"))

    def f(x):
        def row(i):
            first(i)
            y = jnp.sin(x[i]) @ x.T
            second(i, y.shape[0])
            return y

        return lax.map(row, jnp.arange(6))

    return f


def _inside_cond_and_nest(log):
    note = _note(log, "even", ordered=True)

    def f(x):
        def row(i):
            def inner(j, c):
                lax.cond((i + j) % 2 == 0, lambda: note(i, j), lambda: None)
                return c + x[i, j]

            return lax.fori_loop(0, 3, inner, 0.0)

        return lax.map(row, jnp.arange(4))

    return f


def _in_a_while(log):
    note = _note(log, "k", ordered=True)

    def f(x):
        def body(c):
            note(c[0])
            return c[0] + 2, c[1] + x[c[0]]

        return lax.while_loop(lambda c: c[0] < 5, body, (0, x[0]))

    return f


@pytest.mark.parametrize(
    "f", [_one_loop, _two_loops, _two_in_one_step, _inside_cond_and_nest, _in_a_while]
)
def test_ordered_callbacks_keep_their_order(f):
    """Batching or distributing the loop would reorder, merge or drop the calls."""
    got, log = _recorded(f, X)
    want, reference = _recorded(f, X, wrap=jax.jit)
    assert log == reference
    assert len(log) > 0
    assert_same(got, want)


def test_unordered_callbacks_are_called_once_a_row():
    """An unordered callback sees one row at a time, each of them once."""

    def f(log):
        note = _note(log, ordered=False)
        return lambda x: lax.map(lambda r: (note(r), r @ r)[1], x)

    _, log = _recorded(f, X)
    assert sorted(log) == sorted((r.tolist(),) for r in X)


@pytest.mark.parametrize("ordered", [False, True])
def test_prints_are_counted(capsys, ordered):
    """`debug.print` prints once a step."""

    def f(x):
        def step(c, r):
            jax.debug.print("row {}", c, ordered=ordered)
            return c + 1, r * 2

        return lax.scan(step, 0, x)[1]

    assert_same(optimize(f)(X), jnp.asarray(X * 2))
    jax.effects_barrier()
    lines = capsys.readouterr().out.splitlines()
    expect = [f"row {i}" for i in range(6)]
    assert (lines if ordered else sorted(lines)) == expect


@pytest.mark.parametrize(
    "method",
    [None, "sequential", "sequential_unrolled", "expand_dims", "broadcast_all"],
)
def test_pure_callback_only_by_its_vmap_method(method):
    """A host function that takes one row is never handed a block of rows."""
    shapes = set()

    def host(v, w):
        shapes.add((np.shape(v), np.shape(w)))
        return np.asarray(v) * 2 + np.asarray(w)

    def f(x, w):
        def row(r):
            out = jax.ShapeDtypeStruct(r.shape, r.dtype)
            y = jax.pure_callback(host, out, r, w, vmap_method=method)
            return jnp.tanh(y) @ w

        return lax.map(row, x)

    with no_warnings():
        assert_same(optimize(f)(X, X[0]), jax.jit(f)(X, X[0]))
    if method in (None, "sequential", "sequential_unrolled"):
        assert shapes == {((4,), (4,))}


# Random numbers. Tempting: one draw for all rows.
draws = Cases()


def _batch_of_draws(key):
    def row(k):
        return jax.random.normal(k, (3,)), jax.random.randint(k, (2,), 0, 100)

    return lax.map(row, jax.random.split(key, 5))


def _chain_of_keys(key):
    def step(key, _):
        key, use = jax.random.split(key)
        return key, jax.random.uniform(use, (2,))

    return lax.scan(step, key, length=5)


def _folded_keys(key):
    def body(i, b):
        keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, (4,))
        return b.at[i].set(jnp.where(keep, b[i] * 2, 0.0))

    return lax.fori_loop(0, 6, body, jnp.ones((6, 4)))


def _one_key_for_all_rows(key):
    return lax.map(lambda i: jax.random.normal(key, (3,)) + i, jnp.arange(4.0))


def _walk(key):
    def step(c, k):
        h = c + jax.random.normal(k, (3,))
        return h, h

    return lax.scan(step, jnp.zeros(3), jax.random.split(key, 5))


def _shuffles(key):
    keys = jax.random.split(key, 4)
    return lax.map(lambda k: jax.random.permutation(k, 7), keys)


def _plain_bits(key):
    del key
    states = jnp.arange(24, dtype=jnp.uint32).reshape(6, 4)

    def row(state):
        return lax.rng_bit_generator(state, (3,), dtype=jnp.uint32)

    return lax.map(row, states)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize(
    "fn",
    [
        _batch_of_draws,
        _chain_of_keys,
        _folded_keys,
        _one_key_for_all_rows,
        _walk,
        _shuffles,
        _plain_bits,
    ],
)
def test_same_keys_same_draws(fn, impl):
    """`rbg` keys draw other numbers when they are batched."""
    assert_equivalent(fn, jax.random.key(7, impl=impl), oracle=False)


def test_raw_keys():
    """Keys may be plain uint32 arrays too."""
    assert_equivalent(_batch_of_draws, jax.random.PRNGKey(3), oracle=False)


@custom_vmap
def _own_rule(x):
    return jnp.sin(x)


@_own_rule.def_vmap
def _rule(size, batched, x):
    del size
    return jnp.sin(x) + 100.0, batched[0]


def test_custom_vmap_rule_is_not_taken():
    """A loop calls the function itself; its `vmap` rule may give something else."""

    def f(x):
        def step(c, r):
            h = _own_rule(r) @ r
            return c + h, (h, lax.map(_own_rule, r))

        return lax.scan(step, 0.0, x), lax.map(lambda r: _own_rule(r) * 2, x)

    assert_equivalent(f, X)
    batch = jnp.stack([X, X])
    assert_same(jax.vmap(optimize(f))(batch), jax.vmap(f)(batch))


refs = Cases()


@refs.add(X)
def _accumulate_in_a_ref(x):
    ref = jax.new_ref(jnp.zeros(4))

    def row(r):
        ref[...] = ref[...] * 0.5 + r
        return ref[...] * 2

    return lax.map(row, x), ref[...]


@refs.add(X)
def _rows_of_a_ref(x):
    ref = jax.new_ref(x)

    def body(i, c):
        ref[i] = ref[5 - i] + 1
        return c + ref[i]

    return lax.fori_loop(0, 6, body, x[0] * 0), ref[...]


@refs.add(X)
def _ref_made_in_each_step(x):
    def row(r):
        ref = jax.new_ref(r)
        ref[0] = r[1]
        ref[1] += ref[0]
        return ref[...]

    return lax.map(row, x)


@pytest.mark.parametrize(("fn", "args", "options"), refs)
def test_refs(fn, args, options):
    """Reads and writes of a ref keep their order."""
    assert_equivalent(fn, *args, **options)
