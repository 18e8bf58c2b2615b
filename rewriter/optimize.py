"""`@optimize`: the composition root."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax

from rewriter import phases
from rewriter.memory import parse_bytes
from rewriter.pass_base import NUMERICS, Options

DEFAULT_MEMORY_BUDGET = "256MB"


def optimize(
    f: Callable[..., Any] | None = None,
    *,
    numerics: str = "reassociate",
    memory_budget: int | str = DEFAULT_MEMORY_BUDGET,
    disable: str | Iterable[str] = (),
    require: str | Iterable[str] | None = None,
    **jit_options: Any,
) -> Any:
    """Compile a function whose loops are rewritten into batched operations.

    Use as `@optimize` or `@optimize(...)`. The result is what `jax.jit` returns, with
    `explain(*args)` and `benchmark(*args)` set on it.

    Args:
        f: a function of arrays and pytrees, as for `jax.jit`.
        numerics: `"strict"` (no reassociation), `"reassociate"` (default: results at
            least as close to a float64 evaluation) or `"fast"`.
        memory_budget: bytes that rewriting may hold beyond the original, a number or
            text such as `"512MB"`.
        disable: names of passes that must not run.
        require: `"vectorize"`, or names of passes: a loop that they leave alone gets
            a warning.
        **jit_options: passed to `jax.jit` (`static_argnums`, `donate_argnums`, ...).

    Raises:
        TypeError: if `f` is not callable or an argument has the wrong type.
        ValueError: if an argument is none of the allowed values.
    """
    options = make_options(numerics, memory_budget, disable, require)
    if f is None:
        return functools.partial(_decorate, options=options, jit_options=jit_options)
    return _decorate(f, options=options, jit_options=jit_options)


def make_options(
    numerics: str,
    memory_budget: int | str,
    disable: str | Iterable[str],
    require: str | Iterable[str] | None,
) -> Options:
    """Check the arguments of `optimize` and return them as `Options`.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is none of the allowed values.
    """
    if not isinstance(numerics, str):
        raise TypeError(
            f"numerics: expected one of {', '.join(NUMERICS)}, "
            f"got {type(numerics).__name__}"
        )
    if numerics not in NUMERICS:
        raise ValueError(
            f"numerics: expected one of {', '.join(map(repr, NUMERICS))}, "
            f"got {numerics!r}"
        )
    names = frozenset(p.name for p in phases.passes())
    return Options(
        numerics,
        parse_bytes(memory_budget),
        _names("disable", disable, names),
        _names("require", require or (), names | {"vectorize"}),
    )


def _names(
    what: str, value: str | Iterable[str], allowed: frozenset[str]
) -> frozenset[str]:
    items = (value,) if isinstance(value, str) else value
    try:
        chosen = frozenset(items)
    except TypeError:
        raise TypeError(
            f"{what}: expected pass names, got {type(value).__name__}"
        ) from None
    unknown = sorted(str(c) for c in chosen - allowed)
    if unknown:
        raise ValueError(
            f"{what}: unknown {', '.join(map(repr, unknown))}; "
            f"allowed are {', '.join(map(repr, sorted(allowed)))}"
        )
    return chosen


def _decorate(f: Any, *, options: Options, jit_options: dict[str, Any]) -> Any:
    if not callable(f):
        raise TypeError(f"f: expected a callable, got {type(f).__name__}")
    phases.install()
    jitted: Any = jax.jit(_with_early(f, options, jit_options), **jit_options)
    from rewriter.benchmark import benchmark
    from rewriter.explain import explain_call

    def explain(*args: Any, **kwargs: Any) -> Any:
        """Return the `Report` of this function at these arguments."""
        return explain_call(f, options, jit_options, args, kwargs)

    def timed(*args: Any, rounds: int = 15, **kwargs: Any) -> Any:
        """Time the original against the rewritten function; returns a `Timing`."""
        return benchmark(f, jitted, jit_options, args, kwargs, rounds)

    jitted.explain = explain
    jitted.benchmark = timed
    jitted.options = options
    return jitted


def _with_early(f: Any, options: Options, jit_options: dict[str, Any]) -> Any:
    """Return the function that the outer jit traces."""
    positions, keywords = static_arguments(f, jit_options)
    name = phases.tag(getattr(f, "__name__", type(f).__name__), options)

    @functools.wraps(f)
    def outer(*args: Any, **kwargs: Any) -> Any:
        fixed = {i: args[i] for i in positions if i < len(args)}
        fixed_kwargs = {k: v for k, v in kwargs.items() if k in keywords}
        traced_args = [a for i, a in enumerate(args) if i not in fixed]
        traced_kwargs = {k: v for k, v in kwargs.items() if k not in keywords}

        def call(*rest: Any, **kw: Any) -> Any:
            values = iter(rest)
            full = [fixed[i] if i in fixed else next(values) for i in range(len(args))]
            return f(*full, **kw, **fixed_kwargs)

        functools.update_wrapper(call, f, updated=())
        inner = phases.traced_with_early(call, options, jax.default_backend)
        inner.__name__ = inner.__qualname__ = name
        return jax.jit(inner)(*traced_args, **traced_kwargs)

    return outer


def static_arguments(
    f: Any, jit_options: dict[str, Any]
) -> tuple[frozenset[int], frozenset[str]]:
    """Return positions and names of static arguments, each completed by the other."""
    nums = jit_options.get("static_argnums")
    names = jit_options.get("static_argnames")
    positions = {nums} if isinstance(nums, int) else set(nums or ())
    keywords = {names} if isinstance(names, str) else set(names or ())
    try:
        parameters = inspect.signature(f).parameters
    except (ValueError, TypeError):
        return frozenset(positions), frozenset(keywords)
    order = list(parameters)
    positions = {i % len(order) if order else i for i in positions}
    by_keyword = {order[i] for i in positions if i < len(order)}
    by_position = {
        order.index(k)
        for k in keywords
        if k in parameters
        and parameters[k].kind is not inspect.Parameter.KEYWORD_ONLY
        and parameters[k].kind is not inspect.Parameter.VAR_KEYWORD
    }
    return frozenset(positions | by_position), frozenset(keywords | by_keyword)
