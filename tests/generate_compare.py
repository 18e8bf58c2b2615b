"""Comparison of an optimised program with the original and with a float64 run.

The contract: the same tree, types and NaN or inf positions; integers, booleans and keys
exact; floats within rounding, or at most about twice as far from a float64 run as the
original.  What changes when the inputs change in the last bits is called sensitive.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core  # noqa: TID251

from tests.generate import Program, count_loops, sub_jaxprs

Function = Callable[..., Any]
ROUNDINGS = 24  # of the largest element of an output, by which floats may differ freely
SENSITIVE = 8  # times the effect of changed last bits, by which floats may differ


class DifferenceError(AssertionError):
    """The optimised program differs from the original."""


@contextmanager
def no_failures() -> Iterator[None]:
    """Raise where the rewriter warns that something inside it failed."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    for warning in seen:
        if str(warning.message).startswith("rewriter"):
            raise DifferenceError(f"warning: {warning.message}")


def check(
    program: Program, optimize: Function, *, grad: bool = False, vmap: bool = False
) -> str:
    """Compare results or gradients, or raise a DifferenceError.

    Returns "same", "close" (in the contract), "sensitive" (to the last bits of the
    inputs) or "miscompiled" (XLA's result for the original is wrong).
    """
    if grad and not program.differentiable:
        return "same"
    make: Callable[[Function], Function] = lambda f: f  # noqa: E731
    if grad:
        make = partial(gradient, at=program.differentiable)
    elif vmap:
        program, make = several(program), jax.vmap
    original = jax.jit(make(program.fn))
    optimised = optimize(program.fn)
    optimised = jax.jit(make(optimised)) if grad or vmap else optimised
    expected = original(*program.args)
    with no_failures():
        actual = optimised(*program.args)
    same_types(expected, actual)
    wrong = distant_leaves(leaves(expected), leaves(actual))
    if not wrong:
        return "same"
    reference = float64_run(make(program.fn), program.args)
    wrong = [
        at
        for at in wrong
        if not as_close(leaves(expected)[at], leaves(actual)[at], leaves(reference)[at])
    ]
    if not wrong:
        return "close"
    changed = [leaves(original(*args)) for args in nearby(program.args)]
    wrong = [
        at
        for at in wrong
        if not explained(
            leaves(expected)[at], leaves(actual)[at], [other[at] for other in changed]
        )
    ]
    if not wrong:
        return "sensitive"
    if not distant_leaves(leaves(second_opinion(original, program)), leaves(actual)):
        return "miscompiled"
    at = wrong[0]
    path = jax.tree_util.tree_flatten_with_path(expected)[0][at][0]
    what = "gradient" if grad else "result"
    where = jax.tree_util.keystr(path) or "value"
    difference = shown(leaves(expected)[at], leaves(actual)[at])
    raise DifferenceError(f"{what} {where}: {difference}")


def second_opinion(original: Function, program: Program) -> Any:
    """Run the original compiled without two of XLA's passes.

    Jaxlib 0.10.2's are wrong for nested dynamic slices that are out of range and for
    a while_loop that ends at once and whose body returns a constant of the loop.
    """
    options = {"xla_disable_hlo_passes": "algsimp,simplify-while-loops"}
    compiled = original.lower(*program.args).compile(compiler_options=options)
    return compiled(*program.args)


def several(program: Program) -> Program:
    """Return the program with two rows of every argument, for vmap."""
    rng = np.random.default_rng(0)
    args = [
        np.stack([x, rng.permutation(x.ravel()).reshape(x.shape)]) for x in program.args
    ]
    return replace(program, args=tuple(args))


def gradient(fn: Function, at: Sequence[int]) -> Function:
    """Return the gradient function of a weighted sum of the float outputs."""

    def total(*args: Any) -> jax.Array:
        result = jnp.zeros(())
        for x in map(jnp.asarray, jax.tree.leaves(fn(*args))):
            if jnp.issubdtype(x.dtype, jnp.floating):
                weights = jnp.linspace(0.5, 1.5, x.size)
                result += jnp.sum(x.ravel() * weights)
        return result

    return jax.grad(total, argnums=tuple(at))


def same_types(expected: Any, actual: Any) -> None:
    """Raise where tree, shape, dtype or weak type differ."""
    if jax.tree.structure(expected) != jax.tree.structure(actual):
        raise DifferenceError(
            f"tree {jax.tree.structure(expected)} became {jax.tree.structure(actual)}"
        )
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True)
    for at, (one, two) in enumerate(pairs):
        before = (one.shape, one.dtype, one.aval.weak_type)
        after = (two.shape, two.dtype, two.aval.weak_type)
        if before != after:
            raise DifferenceError(f"output {at}: type {before} became {after}")


def leaves(tree: Any) -> list[np.ndarray]:
    """Return the outputs as NumPy arrays, keys by their data."""
    return [
        np.asarray(
            jax.random.key_data(x)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            else x
        )
        for x in jax.tree.leaves(tree)
    ]


def distant_leaves(
    expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]
) -> list[int]:
    """Return the positions of outputs that differ by more than rounding."""
    return [
        at
        for at, (one, two) in enumerate(zip(expected, actual, strict=True))
        if not near(one, two)
    ]


def near(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether two outputs are equal, for floats up to some roundings."""
    if one.dtype.kind != "f":
        return np.array_equal(one, two)
    if not same_specials(one, two):
        return False
    return distance(one, two) <= ROUNDINGS * rounding(one)


def same_specials(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether NaN and infinities are at the same positions."""
    finite = np.isfinite(one)
    return np.array_equal(finite, np.isfinite(two)) and np.array_equal(
        one[~finite], two[~finite], equal_nan=True
    )


def distance(one: np.ndarray, two: np.ndarray) -> float:
    """Return the largest difference among elements that are finite in both."""
    both = np.isfinite(one) & np.isfinite(two)
    difference = one[both].astype(float) - two[both].astype(float)
    return float(np.max(np.abs(difference), initial=0.0))


def rounding(x: np.ndarray) -> float:
    """Return one rounding of the largest finite element, or of one."""
    largest = np.max(np.abs(x[np.isfinite(x)].astype(float)), initial=1.0)
    return float(jnp.finfo(x.dtype).eps * largest)


def float64_run(fn: Function, args: Sequence[np.ndarray]) -> Any:
    """Run the original in float64."""
    wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in args]
    with jax.enable_x64(True):
        return jax.jit(fn)(*wide)


def as_close(expected: np.ndarray, actual: np.ndarray, reference: np.ndarray) -> bool:
    """Whether the result is about as close to float64 as the original is."""
    if expected.dtype.kind != "f" or not same_specials(expected, actual):
        return False
    allowed = 2 * distance(expected, reference) + ROUNDINGS * rounding(expected)
    return distance(actual, reference) <= allowed


def nearby(args: Sequence[np.ndarray], count: int = 6) -> list[list[np.ndarray]]:
    """Return arguments whose floats are changed in the last bits."""
    rng = np.random.default_rng(0)

    def changed(x: np.ndarray) -> np.ndarray:
        if x.dtype.kind != "f":
            return x
        factor = 1 + 2 * jnp.finfo(x.dtype).eps * rng.uniform(-1, 1, x.shape)
        return np.asarray(x * factor, x.dtype)

    return [[changed(x) for x in args] for _ in range(count)]


def explained(
    expected: np.ndarray, actual: np.ndarray, others: Sequence[np.ndarray]
) -> bool:
    """Whether changed last bits of the inputs explain the difference."""
    if expected.dtype.kind != "f" or not same_specials(expected, actual):
        wrong = ~np.equal(expected, actual)
        if expected.dtype.kind == "f":
            wrong &= ~(np.isnan(expected) & np.isnan(actual))
        moved = [~np.equal(expected, other) for other in others]
        return not np.any(wrong & ~np.any(moved, axis=0))
    spread = max(distance(expected, other) for other in others)
    return distance(expected, actual) <= SENSITIVE * spread


def shown(expected: np.ndarray, actual: np.ndarray) -> str:
    """Return text that shows where two outputs differ."""
    wrong = ~np.equal(expected, actual)
    if expected.dtype.kind == "f":
        wrong &= ~(np.isnan(expected) & np.isnan(actual))
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{expected.dtype.name}{list(expected.shape)} differs in {int(wrong.sum())} "
        f"elements by up to {distance(expected, actual):.3g}, first at {first}: "
        f"{expected[first]} became {actual[first]}"
    )


# What the report says.


def check_report(program: Program, optimize: Function) -> None:
    """Check the verdicts and that a second run changes nothing."""
    report = optimize(program.fn).explain(*program.args)
    failed = [remark for remark in report.remarks if remark.kind == "failed"]
    if failed:
        raise DifferenceError(f"failed: {failed[0].code}: {failed[0].message}")
    if len(report.verdicts) != program.loops:
        raise DifferenceError(f"{len(report.verdicts)} verdicts, {program.loops} loops")
    again = optimize(jaxpr_function(report.after.jaxpr)).explain(
        *jax.tree.leaves(program.args)
    )
    before, after = (size(one.jaxpr) for one in (again.before, again.after))
    if before != after:
        raise DifferenceError(
            f"a second run turned {before} (equations, loops) to {after}"
        )


def jaxpr_function(jaxpr: Any) -> Function:
    """Return a function that evaluates a jaxpr."""
    if not hasattr(jaxpr, "consts"):
        jaxpr = jex_core.ClosedJaxpr(jaxpr, ())
    return jex_core.jaxpr_as_fun(jaxpr)


def size(jaxpr: Any) -> tuple[int, int]:
    """Return the numbers of equations and of loops, nested ones included."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return count_equations(jaxpr), count_loops(jaxpr)


def count_equations(jaxpr: Any) -> int:
    """Count the equations of a jaxpr, nested ones included."""
    return sum(
        1 + sum(count_equations(inner) for inner in sub_jaxprs(eqn.params))
        for eqn in jaxpr.eqns
    )
