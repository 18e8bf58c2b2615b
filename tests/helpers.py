"""What the tests share: comparing `optimize(f)` with `jax.jit(f)`, counting loops."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rewriter import optimize

ULPS = 16
GRADIENT_ULPS = 64
ROOT = Path(__file__).resolve().parent.parent


class Cases(list):
    """Programs for one parametrised test: `@cases.add(*args, **options)`."""

    def add(self, *args, marks=(), **options):
        """Register a function with its arguments and `assert_equivalent` options."""

        def register(fn):
            name = fn.__name__.strip("_")
            self.append(pytest.param(fn, args, options, id=name, marks=marks))
            return fn

        return register


def random(*shape, seed=0, dtype=np.float32, scale=1.0) -> np.ndarray:
    """Return reproducible normal numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def assert_equivalent(
    fn: Callable,
    *args: Any,
    numerics: str = "reassociate",
    grad: bool = False,
    oracle: bool | Callable = True,
    jit: bool = False,
    vmap: Any = None,
    each: bool = False,
    ulps: float = ULPS,
    **options: Any,
) -> None:
    """Compare `optimize(fn)` with `jax.jit(fn)` and with a float64 evaluation.

    Tree, shapes, dtypes, weak types, integers, and the places of NaN and inf must be
    the same; floats must not be further from float64 than twice the original, or a
    few ulps of the largest entry (`each`: of each entry). `oracle` may be a function
    to evaluate instead of `fn`. `vmap` takes `in_axes`; those axes are stacked here.
    """

    def rewrite(f):
        return optimize(f, numerics=numerics, **options)

    exact = (fn if oracle is True else oracle) if oracle else None
    check = {"each": each, "ulps": ulps}
    fast = rewrite(fn)
    with no_warnings():
        compare(fast, fn, exact, args, **check)
        if jit:
            compare(jax.jit(lambda *a: fast(*a)), fn, exact, args, **check)
        if vmap is not None:
            _compare_under_vmap(fast, fn, exact, args, vmap, **check)
        if grad:
            _compare_gradients(rewrite, fn, exact, args, **check)


def _compare_under_vmap(fast, fn, exact, args, axes, **check):
    """Compare over two rows: the arguments, and the same with floats halved."""
    rows = [
        jax.tree.map(lambda v: jnp.stack([v, _halved(v)]), a) if ax == 0 else a
        for a, ax in zip(args, axes, strict=True)
    ]
    mapped = [f and jax.vmap(f, in_axes=axes) for f in (fast, fn, exact)]
    compare(*mapped, rows, **check)


def _compare_gradients(rewrite, fn, exact, args, **check):
    """Compare `grad(optimize(f))` and `optimize(grad(f))` with `grad(f)`."""
    numbers = tuple(i for i, a in enumerate(args) if _all_floats(a))
    assert numbers, "no float argument to differentiate"
    slope = jax.grad(_weighted(fn), numbers)
    true = exact and jax.grad(_weighted(exact), numbers)
    check["ulps"] = max(check["ulps"], GRADIENT_ULPS)
    compare(jax.grad(_weighted(rewrite(fn)), numbers), slope, true, args, **check)
    compare(rewrite(slope), slope, true, args, **check)


def _halved(value):
    value = jnp.asarray(value)
    return value / 2 if jnp.issubdtype(value.dtype, jnp.inexact) else value


def _all_floats(tree) -> bool:
    leaves = jax.tree.leaves(tree)
    dtypes = [jnp.result_type(leaf) for leaf in leaves]
    return bool(leaves) and all(jnp.issubdtype(d, jnp.floating) for d in dtypes)


def _weighted(fn: Callable) -> Callable:
    """Return a scalar function: the float outputs, each entry with its own weight."""

    def loss(*args):
        total = 0.0
        for leaf in jax.tree.leaves(fn(*args)):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                weight = jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape)
                total = total + jnp.sum(leaf * weight.astype(leaf.dtype))
        return total

    return loss


def compare(fast, slow, exact, args, *, each=False, ulps=ULPS) -> None:
    """Compare one call of `fast` with `jax.jit(slow)`; `exact` is run in float64."""
    got = fast(*args)
    want = jax.jit(slow)(*args)
    true = None if exact is None else in_float64(exact, args)
    assert_same(got, want, true, each=each, ulps=ulps)


def in_float64(fn: Callable, args) -> Any:
    """Evaluate `fn` in double precision; return NumPy leaves."""
    with jax.enable_x64(True):
        out = jax.jit(fn)(*jax.tree.map(_widened, tuple(args)))
        return jax.tree.map(_plain, out)


def _widened(leaf):
    if isinstance(leaf, (bool, int, float, complex)):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return jnp.asarray(np.asarray(leaf), jnp.complex128)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(np.asarray(leaf).astype(np.float64))
    return jnp.asarray(leaf)


def _plain(leaf) -> np.ndarray:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


def assert_same(got, want, true=None, *, each=False, ulps=ULPS) -> None:
    """Compare two results leaf by leaf; `true` is the same in float64, or None."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    paths = jax.tree_util.tree_leaves_with_path(got)
    truths = jax.tree.leaves(true) if true is not None else [None] * len(paths)
    for (path, a), b, t in zip(paths, jax.tree.leaves(want), truths, strict=True):
        where = jax.tree_util.keystr(path) or "result"
        _assert_same_type(a, b, where)
        _assert_same_leaf(_plain(a), _plain(b), t, each, ulps, where)


def _assert_same_type(a, b, where):
    assert a.shape == b.shape, f"{where}: shape {a.shape}, not {b.shape}"
    assert a.dtype == b.dtype, f"{where}: dtype {a.dtype}, not {b.dtype}"
    weak = (getattr(a, "weak_type", False), getattr(b, "weak_type", False))
    assert weak[0] == weak[1], f"{where}: weak type {weak[0]}, not {weak[1]}"


def _assert_same_leaf(got, want, true, each, ulps, where):
    if not jnp.issubdtype(got.dtype, jnp.inexact):
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    precision = float(jnp.finfo(got.dtype).eps)
    wide = np.complex128 if np.iscomplexobj(got) else np.float64
    got, want = got.astype(wide), want.astype(wide)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), f"{where}: NaN")
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want), f"{where}: inf")
    infinite = np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite], f"{where}: inf")
    finite = np.isfinite(want)
    got, want = got[finite], want[finite]
    true = want if true is None else np.asarray(true).astype(wide)[finite]
    if not got.size:
        return
    known = np.isfinite(true)  # float64 may be finite elsewhere than float32
    true = np.where(known, true, want)
    error, allowed, scale = np.abs(got - true), np.abs(want - true), np.abs(true)
    if not each:
        error, allowed, scale = error.max(), allowed.max(), scale.max()
    bound = np.maximum(2 * allowed, ulps * precision * scale)
    worst = np.max(error - bound)
    assert worst <= 0, (
        f"{where}: error {np.max(error):.3g}, original {np.max(allowed):.3g}, "
        f"bound {np.max(bound):.3g}"
    )


class no_warnings(warnings.catch_warnings):
    """Fail on any warning: the rewriter warns when one of its passes fails."""

    def __init__(self):
        """Record every warning."""
        super().__init__(record=True)

    def __enter__(self):
        """Start to record."""
        self.caught = super().__enter__()
        warnings.simplefilter("always")
        return self.caught

    def __exit__(self, *details):
        """Fail if something was recorded."""
        super().__exit__(*details)
        if details[0] is None:
            assert not self.caught, [str(w.message) for w in self.caught]


def lowered(fn: Callable, *args, **options) -> str:
    """Return the StableHLO text of `optimize(fn)`."""
    return optimize(fn, **options).lower(*args).as_text()


def loops_left(fn: Callable, *args, **options) -> int:
    """Count the loops in what XLA is given for `optimize(fn)`."""
    return lowered(fn, *args, **options).count("stablehlo.while")


def verdicts(fn: Callable, *args, **options) -> tuple:
    """Return the report's verdicts, one per loop."""
    return optimize(fn, **options).explain(*args).verdicts


def assert_kept(fn: Callable, *args, **options) -> None:
    """Check that each loop is reported as kept, with a code and a reason."""
    found = verdicts(fn, *args, **options)
    assert found, "no verdict"
    for v in found:
        assert v.outcome == "kept", (v.location, v.outcome, v.message)
        assert "/" in v.code, v
        assert v.message, v


def temp_bytes(jitted: Any, *args) -> int:
    """Return XLA's temporary bytes of a jitted function."""
    return jitted.lower(*args).compile().memory_analysis().temp_size_in_bytes


def run_python(code: str, timeout: float = 120, **environment: str) -> str:
    """Run a program in a child process and return its output."""
    env = dict(os.environ) | environment
    paths = [*sys.path, str(ROOT), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
