"""Two phases around JAX's own transformations (DESIGN.md, *Two phases*).

`optimize(f)` is a `jax.jit` around an inner jit whose name carries a tag. Early
passes run while the inner function is traced; the tagged jit then goes through
`grad`, `vmap`, `shard_map` by JAX's own rules; late passes run when it is lowered.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from rewriter import jax_compat as jc
from rewriter.inline import TAG
from rewriter.pass_base import Context, Options, Phase, Sink
from rewriter.pass_manager import Rewriter, new_program
from rewriter.remarks import Remark

_options: dict[str, Options] = {}
_installed: bool | None = None


def tag(name: str, options: Options) -> str:
    """Return the name of an inner jit that carries these options."""
    key = "" if options == Options() else format(abs(hash(_stable(options))), "x")[:8]
    suffix = f"{TAG}{key}__"
    _options[suffix] = options
    return name + suffix


def _stable(options: Options) -> int:
    import zlib

    return zlib.crc32(
        repr(
            (
                options.numerics,
                options.memory_budget,
                sorted(options.disable),
                sorted(options.require),
            )
        ).encode()
    )


def options_of(name: str) -> Options | None:
    """Return the options that a tagged name carries, or None."""
    start = name.find(TAG)
    if start < 0:
        return None
    end = name.find("__", start + len(TAG))
    return _options.get(name[start : end + 2])


def passes() -> tuple[Any, ...]:
    """Return the pipeline (imported where first used: `passes` imports `rewriter`)."""
    from passes import DEFAULT_PIPELINE

    return DEFAULT_PIPELINE


def early(closed: Any, options: Options, sink: Sink | None = None) -> Any:
    """Run the early passes on a traced function."""
    new_program()
    return _phase(closed, options, Phase.EARLY, "any", sink)


def late(closed: Any, options: Options, platform: str, sink: Sink | None = None) -> Any:
    """Run the late passes on the program that will be compiled."""
    return _phase(closed, options, Phase.LATE, platform, sink)


def _phase(
    closed: Any, options: Options, phase: Phase, platform: str, sink: Sink | None
) -> Any:
    ctx = Context(options, phase, platform, sink or Sink())
    try:
        with jc.same_x64(closed):
            start = closed if jc.has_refs(closed) else jc.dce(closed)
            new = Rewriter(passes(), ctx).run(start)
            return new if new is start else jc.dce(new)
    except Exception as error:
        import os

        if os.environ.get("REWRITER_RAISE"):
            raise
        warnings.warn(
            f"rewriter: {phase.value} passes raised {type(error).__name__}: {error}; "
            "the original runs",
            RuntimeWarning,
            stacklevel=2,
        )
        return closed


@jc.cache_by_identity(maxsize=1024)
def _late_cached(closed: Any, options: Options, platform: str) -> Any:
    if not options.require:
        return late(closed, options, platform)
    sink = _Required()
    new = late(closed, options, platform, sink)
    for remark in sink.kept:
        warnings.warn(
            f"rewriter: required {', '.join(sorted(options.require))}, but {remark}",
            RuntimeWarning,
            stacklevel=2,
        )
    return new


class _Required(Sink):
    """Remembers the loops that were left alone."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[str, Remark]] = {}

    @property
    def kept(self) -> list[Remark]:
        """The reasons of the loops that nothing was done to."""
        return [r for outcome, r in self._last.values() if outcome == "kept"]

    def verdict(self, eqn: Any, outcome: str, remark: Remark) -> None:
        """Take what became of a loop; a second look may still do better."""
        key = id(eqn.source_info.traceback)
        if outcome != "kept" or key not in self._last:
            self._last[key] = (outcome, remark)


def _at_lowering(name: str, closed: Any, platform: str) -> Any:
    options = options_of(name) if TAG in name else None
    return closed if options is None else _late_cached(closed, options, platform)


def install() -> bool:
    """Install the lowering hook once; warn where this JAX has none."""
    global _installed
    if _installed is None:
        _installed = jc.install_lowering(_at_lowering)
        if not _installed:
            warnings.warn(
                "rewriter: this JAX has no lowering hook; late passes run when the "
                "function is traced, before grad and vmap",
                RuntimeWarning,
                stacklevel=3,
            )
    return _installed


def traced_with_early(
    f: Callable[..., Any], options: Options, default_platform: Callable[[], str]
) -> Callable[..., Any]:
    """Return `f` with the early passes applied whenever it is traced."""
    from rewriter.trace import trace_function

    def run(*args: Any, **kwargs: Any) -> Any:
        traced = trace_function(f, args, kwargs)
        program = early(traced.closed, options)
        if not install():
            program = late(program, options, default_platform())
        return traced.unflatten(jc.evaluate(program, *traced.flat))

    return run
