"""Running softmax: log-sum-exp kept by a running maximum, computed at once.

What it does: `n = max(m, r); s = s * exp(m - n) + exp(r - n); m = n`, with any number
of weighted sums `o = o * exp(m - n) + exp(r - n) * v` beside it, takes the maximum of
all steps first and sums the exponentials once. A carried `logaddexp(c, r)` becomes one
`logsumexp`.

Why it pays: each step of the loop waits for two exponentials; weighted sums become a
matrix product.

Legality: rows and weights do not depend on a carry, nobody else reads the state. NaN
and infinite rows come out as the loop gives them.

Numerics: reassociate; the exponents are those of the final maximum, so no sum is
rescaled.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def attention(q, K, V):
...     def step(c, kv):
...         m, s, o = c
...         k, v = kv
...         r = q @ k
...         n = jnp.maximum(m, r)
...         a, p = jnp.exp(m - n), jnp.exp(r - n)
...         return (n, s * a + p, o * a + p * v), None
...     zero = jnp.zeros(V.shape[1])
...     m, s, o = jax.lax.scan(step, (-jnp.inf, 0.0, zero), (K, V))[0]
...     return o / s
>>> rows = jnp.ones((1000, 64))
>>> report = explain(attention)(rows[0], rows, rows)
>>> len(report.after.loops)
0

References: Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.cost import nbytes
from rewriter.graph import Carry, Loop, Outputs, fresh_key, replace_final
from rewriter.orient import keeping_nan
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.patterns import Bind, Body, Bound, Op, depends_on, is_private, merged
from rewriter.remarks import Remark, missed, passed

_DELTA = Op("sub", Bind("c"), Bind("r"))
_LOGADDEXP = Op(
    "select_n",
    Op("ne", _DELTA, _DELTA),
    Op(
        "add",
        Op("max", Bind("c"), Bind("r")),
        Op("log1p", Op("exp", Op("neg", Op("abs", _DELTA)))),
    ),
    Op("add", Bind("c"), Bind("r")),
)
_SCALE = Op("exp", Op("sub", Bind("m"), Bind("n")))
_SHARE = Op("exp", Op("sub", Bind("r"), Bind("n")))


@dataclass(frozen=True)
class Softmax:
    """A running maximum with its sums: carry and weight (None for the plain sum)."""

    row: Any
    top: Carry | None  # None: one carry keeps the log of the sum
    sums: tuple[tuple[Carry, Any], ...]


@dataclass(frozen=True)
class Found(Plan):
    """The groups of a loop."""

    loop: Loop | None = None
    groups: tuple[Softmax, ...] = ()


@dataclass(frozen=True)
class RunningSoftmax(LoopPass):
    """The pass."""

    name: ClassVar = "running-softmax"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "reassociate"
    worth_emitting: ClassVar = False

    FOUND = passed("at-once", "{carries}: exponentials summed below the final maximum")
    NONE = missed("none", "no carry is a running log-sum-exp")
    MEMORY = missed("memory-budget", "the rows behind {carry} are over the budget")

    def match(self, loop: Loop, ctx: Context) -> Found | Remark:
        """Find running maxima with sums, and carried logarithms of sums."""
        if not isinstance(loop.length, int) or loop.length < 2:
            return self.NONE.at(loop.location)
        loop = merged(loop)
        body, groups = Body(loop.eqns), []
        for carry in loop.carries:
            found = _group(loop, carry, body) or _logarithm(loop, carry, body)
            if found is None:
                continue
            given = {v for v, _ in loop.xs}
            rows = [found.row, *(w for _, w in found.sums if w is not None)]
            held = sum(nbytes(v) for v in rows if v not in given) * loop.length
            if held > ctx.options.memory_budget:
                return self.MEMORY.at(loop.location, carry=loop.name(carry.var))
            groups.append(found)
        if not groups:
            return self.NONE.at(loop.location)
        carries = [c for g in groups for c in ((g.top, *(s for s, _ in g.sums)))]
        names = ", ".join(loop.name(c.var) for c in carries if c is not None)
        return Found(
            self.FOUND.at(loop.location, carries=names), "", loop, tuple(groups)
        )

    def rewrite(self, plan: Found) -> Loop:
        """Stack rows and weights and sum after the loop."""
        loop = plan.loop
        assert loop is not None
        for group in plan.groups:
            loop = _summed(loop, group)
        return loop


def _is_row(loop: Loop, row: Any, like: Any) -> bool:
    if isinstance(row, jc.Literal) or row.aval.dtype != like.aval.dtype:
        return False
    return not depends_on(loop.eqns, row, {c.var for c in loop.carries})


def _floats(carry: Carry) -> bool:
    aval = carry.var.aval
    return (
        jc.is_array_aval(aval)
        and jnp.issubdtype(aval.dtype, jnp.floating)
        and aval.dtype.itemsize >= 4
        and not isinstance(carry.out, jc.Literal)
    )


def _logarithm(loop: Loop, carry: Carry, body: Body) -> Softmax | None:
    """Return the group of one carry that is a `logaddexp`."""
    if not _floats(carry):
        return None
    bound = body.match(_LOGADDEXP, carry.out, {"c": carry.var})
    if bound is None:
        turned = {"r": carry.var}
        bound = body.match(_LOGADDEXP, carry.out, turned)
        row = None if bound is None else bound["c"]
    else:
        row = bound["r"]
    if row is None or not _is_row(loop, row, carry.var):
        return None
    if row.aval.shape != carry.var.aval.shape or not is_private(loop, [carry]):
        return None
    return Softmax(row, None, ((carry, None),))


def _group(loop: Loop, top: Carry, body: Body) -> Softmax | None:
    """Return the group whose running maximum a carry is."""
    if not _floats(top):
        return None
    bound = body.match(Op("max", Bind("m"), Bind("r")), top.out, {"m": top.var})
    if bound is None or not _is_row(loop, bound["r"], top.var):
        return None
    if bound["r"].aval.shape != top.var.aval.shape:
        return None
    bound["n"] = top.out
    sums = []
    for carry in loop.carries:
        if carry is top or not _floats(carry):
            continue
        weight = _sum(loop, carry, body, bound, top)
        if weight is not None:
            sums.append((carry, weight[0]))
    if not sums or not is_private(loop, [top, *(c for c, _ in sums)]):
        return None
    return Softmax(bound["r"], top, tuple(sums))


def _sum(
    loop: Loop, carry: Carry, body: Body, bound: Bound, top: Carry
) -> tuple[Any] | None:
    """Return the weight of a rescaled sum, or None if a carry is none."""
    kept = Op("mul", Bind("s"), _SCALE)
    given = {**bound, "s": carry.var}
    shape, own = carry.var.aval.shape, top.var.aval.shape
    if shape[: len(own)] != own or carry.var.aval.dtype != top.var.aval.dtype:
        return None
    if shape == own and body.match(Op("add", kept, _SHARE), carry.out, given):
        return (None,)
    weighted = Op("add", kept, Op("mul", _SHARE, Bind("v")))
    found = body.match(weighted, carry.out, given)
    if found is None or not _is_row(loop, found["v"], carry.var):
        return None
    weight = found["v"].aval.shape
    if len(weight) != len(shape):
        return None
    if any(n not in (1, m) for n, m in zip(weight, shape, strict=True)):
        return None
    return (found["v"],)


def _summed(loop: Loop, group: Softmax) -> Loop:
    """Return the loop with rows and weights as outputs."""
    weights = [w for _, w in group.sums if w is not None]
    first = fresh_key(loop)
    keys = tuple(range(first, first + 1 + len(weights)))
    back, top = loop.reverse, group.top

    def parts(out: Outputs) -> tuple[Any, Any, Any]:
        """Return the final maximum, the scale of the initial sums, and the shares."""
        assert top is not None
        rows = out.stacks[keys[0]]
        start = jnp.asarray(top.init.get(out.args)).astype(rows.dtype)
        highest = keeping_nan(jnp.max(rows, axis=0), rows, (0,))
        final = jnp.maximum(start, highest)
        earliest = rows[-1] if back else rows[0]
        none = jnp.isneginf(start) & jnp.isneginf(earliest)  # inf - inf in the loop
        scale = jnp.where(none, jnp.nan, jnp.exp(start - final))
        return final, scale, jnp.exp(rows - final)

    def total(out: Outputs, carry: Carry, key: int | None) -> Any:
        _, scale, share = parts(out)
        start = jnp.asarray(carry.init.get(out.args)).astype(share.dtype)
        if key is None:
            return start * scale + jnp.sum(share, axis=0)
        values = out.stacks[key]
        wide = (*share.shape, *[1] * (values.ndim - share.ndim))
        scale = scale.reshape(wide[1:])
        if all(n == 1 for n in values.shape[1 : share.ndim]):  # a product of matrices
            flat = values.reshape(values.shape[0], *values.shape[share.ndim :])
            summed = jnp.tensordot(share, flat, (0, 0), precision=lax.Precision.HIGHEST)
            return start * scale + summed
        return start * scale + jnp.sum(share.reshape(wide) * values, axis=0)

    def logarithm(out: Outputs, carry: Carry) -> Any:
        rows = out.stacks[keys[0]]
        start = jnp.asarray(carry.init.get(out.args)).astype(rows.dtype)
        return jnp.logaddexp(start, jax.nn.logsumexp(rows, axis=0))

    results = loop.results
    rest = iter(keys[1:])
    for carry, weight in group.sums:
        key = None if weight is None else next(rest)
        if top is None:
            get: Any = lambda out, carry=carry: logarithm(out, carry)  # noqa: E731
        else:
            get = lambda out, carry=carry, key=key: total(out, carry, key)  # noqa: E731
        results = replace_final(
            loop.replace(results=results), carry.var, get, keys[0], keys[1:]
        )
    gone = {c.var for c, _ in group.sums}
    if top is not None:
        results = replace_final(
            loop.replace(results=results), top.var, lambda out: parts(out)[0], keys[0]
        )
        gone.add(top.var)
    return loop.replace(
        ys=(*loop.ys, *zip(keys, (group.row, *weights), strict=True)),
        carries=tuple(c for c in loop.carries if c.var not in gone),
        results=results,
    )
