"""Running moments: Welford's mean and variance become the two-pass form.

What it does: `mean += (x - mean) / n`, with or without `m2 += (x - old) * (x - new)`,
is computed from all rows at once: the mean about the first row, then the squares about
the mean, merged with the initial state as Chan, Golub and LeVeque do.

Why it pays: each step of the loop waits for a division; two passes do not.

Legality: the rows do not depend on a carry, nobody else reads the state, and the count
starts at a known number (0 or more), stays below 2^24 and passes through no short type.
Never `E[x^2] - E[x]^2`.

Numerics: reassociate; the error is that of a two-pass sum, less than the loop's.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def moments(X):
...     def step(c, x):
...         n, mean, m2 = c
...         n, delta = n + 1, x - mean
...         mean = mean + delta / n
...         return (n, mean, m2 + delta * (x - mean)), None
...     z = jnp.zeros(X.shape[1])
...     return jax.lax.scan(step, (0.0, z, z), X)[0]
>>> report = explain(moments)(jnp.ones((1000, 32)))
>>> len(report.after.loops)
0

References: Welford 1962; Chan, Golub and LeVeque, *Algorithms for computing the sample
variance*, The American Statistician 1983.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.cost import nbytes
from rewriter.graph import Carry, Loop, Outputs, fresh_key, replace_final
from rewriter.indices import Affine
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.patterns import (
    Bind,
    Body,
    Op,
    depends_on,
    initial_literal,
    is_private,
    literal,
    merged,
)
from rewriter.remarks import Remark, missed, passed

_MOST = 2**24  # counts that float32 holds exactly


@dataclass(frozen=True)
class Moments:
    """A mean and what belongs to it."""

    row: Any
    mean: Carry
    squares: tuple[Carry, ...]
    count: Carry | None  # a carried float count
    start: float  # rows counted before the loop


@dataclass(frozen=True)
class Found(Plan):
    """The means of a loop."""

    loop: Loop | None = None
    groups: tuple[Moments, ...] = ()


@dataclass(frozen=True)
class RunningMoments(LoopPass):
    """The pass."""

    name: ClassVar = "running-moments"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "reassociate"
    worth_emitting: ClassVar = False

    FOUND = passed("two-pass", "{carries}: moments of all rows in two passes")
    NONE = missed("none", "no carry is a running mean")
    MEMORY = missed(
        "memory-budget", "the rows behind {carry} are over the budget all at once"
    )

    def match(self, loop: Loop, ctx: Context) -> Found | Remark:
        """Find running means and their sums of squares."""
        if not isinstance(loop.length, int) or not 2 <= loop.length < _MOST:
            return self.NONE.at(loop.location)
        loop = merged(loop)
        body = Body(loop.eqns)
        groups = []
        for carry in loop.carries:
            found = _moments(loop, carry, body)
            if found is None:
                continue
            made = not any(found.row is v for v, _ in loop.xs)
            held = nbytes(found.row) * loop.length if made else 0
            if held > ctx.options.memory_budget:
                return self.MEMORY.at(loop.location, carry=loop.name(carry.var))
            groups.append(found)
        if not groups:
            return self.NONE.at(loop.location)
        names = ", ".join(loop.name(g.mean.var) for g in groups)
        return Found(
            self.FOUND.at(loop.location, carries=names), "", loop, tuple(groups)
        )

    def rewrite(self, plan: Found) -> Loop:
        """Stack the rows and compute the moments after the loop."""
        loop = plan.loop
        assert loop is not None
        for group in plan.groups:
            loop = _two_pass(loop, group)
        return loop


def _moments(loop: Loop, mean: Carry, body: Body) -> Moments | None:
    """Return the group whose mean a carry is."""
    aval = mean.var.aval
    if not jc.is_array_aval(aval) or not jnp.issubdtype(aval.dtype, jnp.floating):
        return None
    if aval.dtype.itemsize < 4 or isinstance(mean.out, jc.Literal):
        return None
    delta = Op("sub", Bind("row"), Bind("mean"))
    pattern = Op("add", Bind("mean"), Op("div", delta, Bind("n")))
    bound = body.match(pattern, mean.out, {"mean": mean.var})
    if bound is None or bound["row"] is mean.var:
        return None
    row = bound["row"]
    if getattr(row, "aval", None) is None or row.aval.shape != aval.shape:
        return None
    if isinstance(row, jc.Literal) or row.aval.dtype != aval.dtype:
        return None
    start, count = _count(loop, body, bound["n"])
    if start is None or start < 0 or start + loop.length >= _MOST:
        return None
    squares = []
    bound["new"] = mean.out
    for carry in loop.carries:
        if carry is mean or isinstance(carry.out, jc.Literal):
            continue
        if carry.var.aval.shape != aval.shape or carry.var.aval.dtype != aval.dtype:
            continue
        after = Op("sub", Bind("row"), Bind("new"))
        both = Op("add", Bind("m2"), Op("mul", delta, after))
        if body.match(both, carry.out, {**bound, "m2": carry.var}) is not None:
            squares.append(carry)
    carries = {c.var for c in loop.carries}
    group = [mean, *squares, *([] if count is None else [count])]
    if depends_on(loop.eqns, row, carries) or not is_private(loop, group):
        return None
    return Moments(row, mean, tuple(squares), count, start)


def _count(loop: Loop, body: Body, n: Any) -> tuple[float | None, Carry | None]:
    """Return how many rows were counted before the loop, and a carried count."""
    n, extra, known = body.plain(n), 0.0, loop.known()
    while not isinstance(n, jc.Literal) and n not in known:
        if not _is_exact(n.aval.dtype):
            return None, None
        for carry in loop.carries:
            if body.plain(carry.out) is n and _counts(body, carry):
                start = initial_literal(loop, carry)
                return (None if start is None else start + extra), carry
        eqn = body.made.get(n)
        if eqn is not None and eqn.primitive.name == "convert_element_type":
            n = body.plain(eqn.invars[0])
            continue
        step = body.match(Op("add", Bind("c"), Bind("k")), n, {})
        pair = [] if step is None else [body.plain(step[name]) for name in "ck"]
        rest = [v for v in pair if literal(v) is None]
        numbers = [literal(v) or 0.0 for v in pair if literal(v) is not None]
        if len(rest) != 1 or sum(numbers) % 1:
            return None, None
        n, extra = rest[0], extra + sum(numbers)
    value = None if isinstance(n, jc.Literal) else known[n]
    if not isinstance(value, Affine) or value.base.ndim:
        return None, None
    step_by = -int(value.step) if loop.reverse else int(value.step)
    if step_by != 1:
        return None, None
    first = value.ends(loop.length)[int(loop.reverse)]
    return int(first) - 1.0 + extra, None


def _counts(body: Body, carry: Carry) -> bool:
    """Whether a carry is a scalar that grows by one."""
    step = body.match(Op("add", Bind("c"), 1.0), carry.out, {"c": carry.var})
    return step is not None and not carry.var.aval.shape


def _is_exact(dtype: Any) -> bool:
    """Whether a dtype holds all counts."""
    number = jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)
    return bool(number) and dtype.itemsize >= 4


def _measured(rows: Any, back: bool, has_squares: bool) -> tuple[Any, Any, Any]:
    """Return the rows' offsets, what they are off, and the mean of the offsets."""
    length = rows.shape[0]
    first, last = (rows[-1], rows[0]) if back else (rows[0], rows[-1])
    scale = 0.5 ** (length - 1).bit_length()  # exact; no partial sum overflows
    at_last = last * scale - first * scale  # the difference may overflow

    def whole() -> tuple[Any, Any]:
        total = jnp.sum(rows * scale - first * scale, axis=0)
        return total, ~jnp.isfinite(total)

    def in_parts() -> tuple[Any, Any]:
        earlier = rows[1:] if back else rows[:-1]
        total = jnp.sum(earlier * scale - first * scale, axis=0)
        lost = ~jnp.isfinite(total)  # an infinity: inf - inf in the step after
        return total + at_last, lost

    total, lost = lax.cond(jnp.all(jnp.isfinite(at_last)), whole, in_parts)
    near = first + total * (1 / (scale * length))
    near = jnp.where(lost, jnp.asarray(jnp.nan, rows.dtype), near)
    off = rows - near

    def corrected() -> Any:
        more = jnp.mean(rows - near, axis=0)
        return jnp.where(jnp.isfinite(more), more, 0)

    if not has_squares:
        return off, near, corrected()
    # far from zero, rounding the mean itself is the larger error
    spread = jnp.sqrt(jnp.sum(off * off, axis=0) / length)
    info = jnp.finfo(rows.dtype)
    least = float(info.tiny) ** 0.5 / float(info.eps)  # squares do not vanish
    size = jnp.abs(near)
    is_sure = (jnp.abs(near - first) + spread <= 4 * size) & (size > least)
    return (
        off,
        near,
        lax.cond(jnp.all(is_sure), lambda: jnp.zeros_like(near), corrected),
    )


def _two_pass(loop: Loop, group: Moments) -> Loop:
    """Return the loop with the group's rows as an output."""
    key, length = fresh_key(loop), loop.length
    init, start = group.mean.init, group.start
    seen: list[Any] = []  # the last outputs, and what was made of them

    def about(out: Outputs) -> tuple[Any, Any, Any]:
        if not seen or seen[0] is not out:
            rows = out.stacks[key]
            seen[:] = [out, _measured(rows, loop.reverse, bool(group.squares))]
        return seen[1]

    def merged(out: Outputs) -> tuple[Any, Any, Any]:
        """Return the mean of the rows, the initial mean, and zero or NaN."""
        _, near, more = about(out)
        before = jnp.asarray(init.get(out.args)).astype(near.dtype)
        return near + more, before, 0 * before

    def mean(out: Outputs) -> Any:
        found, before, none = merged(out)
        if start > length:
            return before + (found - before) * (length / (start + length)) + none
        moved = (before - found) * (start / (start + length)) if start else none
        return found + jnp.where(jnp.isfinite(found), moved, 0) + none

    def squares(out: Outputs, carry: Carry) -> Any:
        off, _, more = about(out)
        found, before, none = merged(out)
        excess = more * more * length
        excess = jnp.where(jnp.isfinite(excess), excess, 0)
        own = jnp.sum(off * off, axis=0) - excess + none
        if start:
            own += (found - before) ** 2 * (start * length / (start + length))
        return jnp.asarray(carry.init.get(out.args)).astype(off.dtype) + own

    results = replace_final(loop, group.mean.var, mean, key)
    for carry in group.squares:
        results = replace_final(
            loop.replace(results=results),
            carry.var,
            lambda out, carry=carry: squares(out, carry),
            key,
        )
    gone = {group.mean.var, *(c.var for c in group.squares)}
    if group.count is not None:
        count = group.count
        results = replace_final(
            loop.replace(results=results),
            count.var,
            lambda _: jnp.asarray(start + length, count.var.aval.dtype),
        )
        gone.add(count.var)
    return loop.replace(
        ys=(*loop.ys, (key, group.row)),
        carries=tuple(c for c in loop.carries if c.var not in gone),
        results=results,
    )
