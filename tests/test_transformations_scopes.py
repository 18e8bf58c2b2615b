"""`optimize(f)` over devices, in scopes, exported, lowered, in threads."""

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rewriter import optimize
from tests.helpers import assert_same, random, run_python

W = random(4, 4, scale=0.3)
XS = random(6, 4, seed=1)
ULPS = 256
two_devices = pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")


def row_map(w, xs):
    """Sum over a map: every step is independent."""
    ys = lax.scan(lambda _, x: (None, jnp.tanh(x @ w)), None, xs)[1]
    return jnp.sum(ys**2)


def rnn(w, xs):
    """Sum over a recurrence."""

    def step(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h

    return jnp.sum(lax.scan(step, jnp.zeros_like(xs[0]), xs)[1] ** 2)


def _mesh(explicit=False):
    kinds = jax.sharding.AxisType
    kind = kinds.Explicit if explicit else kinds.Auto
    return jax.make_mesh((2,), ("d",), axis_types=(kind,))


@two_devices
def test_shard_map():
    """Inside and outside of `shard_map`, with a sum over the mesh, and gradients."""
    specs = {"mesh": _mesh(), "in_specs": (P(), P("d")), "out_specs": P()}

    def part(w, xs):
        return lax.psum(row_map(w, xs), "d")

    want = jax.jit(jax.value_and_grad(row_map))(W, XS)
    for f in (
        jax.shard_map(lambda w, xs: optimize(part)(w, xs), **specs),
        optimize(jax.shard_map(part, **specs)),
    ):
        assert_same(jax.value_and_grad(f)(W, XS), want, ulps=ULPS)
        assert_same(jax.jit(jax.value_and_grad(f))(W, XS), want, ulps=ULPS)


@two_devices
def test_shardings_of_jit():
    """`in_shardings` and `out_shardings`, around and as options of `optimize`."""
    mesh = _mesh()
    options = {
        "in_shardings": (NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))),
        "out_shardings": NamedSharding(mesh, P("d")),
    }
    want = jax.jit(jax.grad(row_map))(W, XS)
    for f in (
        jax.jit(jax.grad(optimize(row_map)), **options),
        optimize(jax.grad(row_map), **options),
    ):
        got = f(W, XS)
        assert got.sharding.is_equivalent_to(options["out_shardings"], 2)
        assert_same(got, want, ulps=ULPS)


@two_devices
def test_sharding_in_types():
    """Under an explicit mesh the types of the result carry its sharding."""
    mesh = _mesh(explicit=True)

    def f(w, x):
        return lax.map(lambda v: jnp.tanh(v @ w), x).sum()

    with jax.set_mesh(mesh):
        xs = jax.device_put(jnp.stack([XS, 2 * XS]), NamedSharding(mesh, P(None, "d")))
        for g in (lambda h: h, lambda h: jax.grad(h)):
            want = jax.jit(g(f))(W, xs)
            got = jax.jit(g(optimize(f)))(W, xs)
            assert_same(got, want, ulps=ULPS)
            assert got.sharding.is_equivalent_to(want.sharding, got.ndim)


def test_refs():
    """A ref made inside, and one given as an argument."""

    def inside(w, xs):
        r = jax.new_ref(jnp.zeros(()))
        r[...] += row_map(w, xs)
        return r[...]

    def given(r, w, xs):
        r[...] += row_map(w, xs)
        return xs.sum()

    def made_by_a_jit(w, xs):
        r = jax.new_ref(jnp.zeros(()))
        optimize(given)(r, w, xs)
        return r[...]

    want = jax.jit(row_map)(W, XS)
    r = jax.new_ref(jnp.zeros(()))
    optimize(given)(r, W, XS)
    for got in (optimize(inside)(W, XS), r[...], jax.jit(made_by_a_jit)(W, XS)):
        assert_same(got, want, ulps=ULPS)


def test_double_precision_scope():
    """Traced in an x64 scope, and lowered outside of it."""
    with jax.enable_x64(True):
        w, x = (jnp.asarray(a.astype(np.float64)) for a in (W, XS))
        want = jax.jit(jax.grad(rnn))(w, x)
        assert_same(jax.grad(optimize(rnn))(w, x), want, ulps=ULPS)
        traced = jax.jit(jax.grad(optimize(rnn))).trace(w, x)
    compiled = traced.lower().compile()
    with jax.enable_x64(True):
        got = compiled(w, x)
        assert got.dtype == jnp.float64
        assert_same(got, want, ulps=ULPS)


def test_shapes_jaxprs_and_ahead_of_time():
    """`eval_shape`, `make_jaxpr`, `lower` and `compile`."""
    assert jax.eval_shape(optimize(row_map), W, XS).shape == ()
    assert jax.make_jaxpr(jax.grad(optimize(row_map)))(W, XS).out_avals[0].shape == (
        4,
        4,
    )
    compiled = optimize(rnn).lower(W, XS).compile()
    assert_same(compiled(W, XS), jax.jit(rnn)(W, XS), ulps=ULPS)
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (W, XS)]
    assert optimize(rnn).lower(*shapes).out_info.shape == ()


def test_export():
    """A rewritten program can be exported, with symbolic sizes too."""
    exported = jax.export.export(jax.jit(jax.grad(optimize(rnn))))(W, XS)
    assert_same(exported.call(W, XS), jax.jit(jax.grad(rnn))(W, XS), ulps=ULPS)
    (size,) = jax.export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((size, 4), jnp.float32)
    exported = jax.export.export(optimize(row_map))(W, shape)
    assert_same(exported.call(W, XS), jax.jit(row_map)(W, XS), ulps=ULPS)


@pytest.mark.parametrize(
    "scope",
    [
        lambda: jax.disable_jit(),
        lambda: jax.debug_nans(True),
        lambda: jax.checking_leaks(),
        lambda: _flag("jax_enable_checks", True),
    ],
    ids=["disable_jit", "debug_nans", "checking_leaks", "enable_checks"],
)
def test_debugging_scopes(scope):
    """The switches with which users debug work as before."""
    want = jax.jit(jax.value_and_grad(rnn))(W, XS)

    def f(w, xs):
        return rnn(w, xs) + row_map(w, xs) * 0

    with scope():
        assert_same(jax.value_and_grad(optimize(f))(W, XS), want, ulps=ULPS)


@contextlib.contextmanager
def _flag(name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


MODULE = """
import jax, jax.numpy as jnp
{imports}
def f(w, xs):
    ys = jax.lax.map(lambda x: jnp.tanh(x @ w), xs)
    return jax.jit(jnp.sin)(ys).sum()
w, xs = jnp.ones((4, 4)), jnp.ones((6, 4))
print(jax.jit(jax.grad(f)).lower(w, xs).as_text())
{last}
"""


def test_untagged_functions_are_untouched():
    """Importing the rewriter and using it elsewhere changes no other program."""
    use = "rewriter.optimize(lambda x: jax.lax.map(jnp.sin, x))(xs)"
    plain = run_python(MODULE.format(imports="", last=""))
    assert "stablehlo.while" in plain
    imports = "import rewriter\n" + use.replace("xs", "jnp.ones(5)")
    assert run_python(MODULE.format(imports=imports, last=use)) == plain


def test_threads():
    """Lowering in several threads at once."""

    def job(i):
        return jax.jit(jax.grad(optimize(lambda w, xs: rnn(w * i, xs))))(W, XS)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(job, range(4)))
    for i, got in enumerate(results):
        want = jax.jit(jax.grad(lambda w, xs, i=i: rnn(w * i, xs)))(W, XS)
        assert_same(got, want, ulps=ULPS)


def test_matmul_precision_is_kept():
    """The precision of the scope at tracing is that of the emitted dots."""
    with jax.default_matmul_precision("highest"):
        traced = jax.jit(jax.grad(optimize(row_map))).trace(W, XS)
    text = traced.lower().as_text()
    dots = re.findall(r"stablehlo.dot_general.*", text)
    assert dots
    assert all("HIGHEST" in d for d in dots)

    def f(w, xs):
        return lax.map(lambda x: jnp.dot(w, x, precision="highest"), xs)

    dots = re.findall(r"stablehlo.dot_general.*", optimize(f).lower(W, XS).as_text())
    assert dots
    assert all("HIGHEST" in d for d in dots)


def test_accumulation_type_is_kept():
    """A dot that asks for float32 results of bfloat16 rows keeps asking."""

    def f(w, xs):
        def row(x):
            return jnp.dot(w, x, preferred_element_type=jnp.float32)

        return lax.map(row, xs)

    args = [jnp.asarray(a, jnp.bfloat16) for a in (W, XS)]
    assert_same(optimize(f)(*args), jax.jit(f)(*args))
    assert "xbf16" in optimize(f).lower(*args).as_text()


def test_source_lines_and_scopes_are_kept():
    """Profiles of the compiled program name the user's lines and scopes."""

    def f(w, xs):
        with jax.named_scope("my_scope"):
            return row_map(w, xs)

    for g in (optimize(f), jax.jit(jax.grad(optimize(f)))):
        text = g.lower(W, XS).compile().as_text()
        assert "test_transformations_scopes.py" in text
        named = re.findall(r'op_name="([^"]*tanh[^"]*)"', text)
        assert named
        assert all("my_scope" in n for n in named), named
        debug = g.lower(W, XS).as_text(debug_info=True)
        line = row_map.__code__.co_firstlineno + 2
        assert re.search(rf'test_transformations_scopes.py":{line}\b', debug)


def test_unused_results_are_dropped():
    """When an outer program drops a result, its loop goes away."""

    def f(w, xs):
        return w.sum(), lax.scan(lambda c, x: (jnp.tanh(c @ w) + x, None), xs[0], xs)[0]

    text = jax.jit(lambda w, xs: optimize(f)(w, xs)[0]).lower(W, XS).compile().as_text()
    assert "while" not in text
