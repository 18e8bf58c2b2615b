"""What the tests of users' libraries share: `check`, one program under everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rewriter import Report, optimize
from tests.helpers import assert_same

ULPS = 512


def check(
    fn: Callable[..., Any],
    params: Any,
    *data: Any,
    grad: bool = True,
    jit: bool = False,
    vmap: bool = False,
    ulps: float = ULPS,
) -> Report:
    """Compare `optimize(fn)(params, *data)` and its gradients with those of `fn`.

    Values within `ulps` of the largest entry of a leaf; trees, shapes, dtypes and
    integers the same; no pass that failed. `grad` is by `params`, both
    of `optimize(fn)` and inside it; `vmap` maps over two copies of `params`, one of
    them scaled. Returns the report of `fn`.
    """
    want = jax.jit(fn)(params, *data)
    fast = optimize(fn)
    assert_same(fast(params, *data), want, ulps=ulps)
    if jit:
        got = jax.jit(lambda p, *d: fast(p, *d))(params, *data)
        assert_same(got, want, ulps=ulps)
    if vmap:
        _check_vmap(fast, fn, params, data, ulps)
    if grad:
        _check_gradients(fast, fn, params, data, ulps)
    return _report(fn, params, data)


def _check_vmap(
    fast: Callable[..., Any],
    fn: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    ulps: float,
) -> None:
    two = jax.tree.map(lambda p: jnp.stack([p, p * 7 / 8]).astype(p.dtype), params)
    axes = (0, *(None for _ in data))
    got = jax.vmap(fast, axes)(two, *data)
    assert_same(got, jax.jit(jax.vmap(fn, axes))(two, *data), ulps=ulps)


def _check_gradients(
    fast: Callable[..., Any],
    fn: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    ulps: float,
) -> None:
    slope = jax.grad(scalar(fn))
    want = jax.jit(slope)(params, *data)
    assert_same(jax.grad(scalar(fast))(params, *data), want, ulps=ulps)
    assert_same(optimize(slope)(params, *data), want, ulps=ulps)
    _report(slope, params, data)


def _report(fn: Callable[..., Any], params: Any, data: tuple[Any, ...]) -> Report:
    report = optimize(fn).explain(params, *data)
    assert report.verdicts, "the program has no loop"
    failures = [r.message for r in report.remarks if r.kind == "failed"]
    assert not failures, failures
    return report


def scalar(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function to differentiate: the float outputs, each with its weight."""

    def loss(*args: Any) -> Any:
        total = jnp.float32(0)
        for leaf in jax.tree.leaves(fn(*args)):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                weight = jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape)
                total = total + jnp.sum(leaf * weight.astype(leaf.dtype))
        return total

    return loss
