"""Decisions on uncertain values: ends followed through a step, winners made exact.

Decisions are taken by the ends themselves, so that a row of many values is passed over
once for a count, twice for the best of it. What wins is evaluated again from exacter
values of the few that count, as candidates are re-ranked in FAISS (Johnson, Douze and
Jegou 2019). A row in which bounds overlap is in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter import winners
from rewriter.graph import variant_values
from rewriter.intervals import (
    COMPARE,
    Decisions,
    Ends,
    among,
    ends_among,
    ends_of,
    is_choice,
    may_be_zero,
)
from rewriter.orient import evaluate

At = Callable[[Any], tuple[Any, Ends]]  # the start's value at an index, and its ends


def run(
    eqns: Sequence[Any],
    known: Decisions,
    env: dict[Any, Any],
    ends: dict[Any, Ends],
    at: At | None = None,
) -> Any:
    """Evaluate one row in `env` and return whether a decision was uncertain.

    `ends` maps bounded values to a pair of values between which they lie; `at` gives
    the start's elements more exactly, to be used for those that win.
    """
    doubt = jnp.zeros((), bool)
    step = _Row(known, env, ends, at or _as_it_is(known.start, env, ends))
    variant = variant_values(eqns, set(known.uncertain))
    done = {id(e) for e in known.counts.values()}
    for eqn in eqns:
        if id(eqn) in done:
            continue
        if any(not isinstance(v, jc.Literal) and v not in env for v in eqn.invars):
            continue  # on the way to a count
        if id(eqn) in known.counts:
            doubt |= step.count(eqn, known.counts[id(eqn)])
        elif id(eqn) in known.deciding or step.may_choose(eqn):
            doubt |= step.decide(eqn, variant)
        else:
            evaluate([eqn], env, variant)
            if eqn.outvars[0] in known.bounded:
                pairs = step.pairs(eqn)
                ends[eqn.outvars[0]] = ends_of(eqn, pairs)
                by = eqn.invars[-1] if eqn.primitive.name == "div" else None
                if by is not None and among(by, known.bounded):
                    doubt |= may_be_zero(pairs[1])
    return doubt


def _as_it_is(start: Any, env: dict[Any, Any], ends: dict[Any, Ends]) -> At:
    return lambda index: (env[start][index], ends[start].at(index))


@dataclass(frozen=True)
class _Row:
    """The values and ends of one row on the way through its step."""

    known: Decisions
    env: dict[Any, Any]
    ends: dict[Any, Ends]
    at: At

    def read(self, v: Any) -> Any:
        return v.val if isinstance(v, jc.Literal) else self.env[v]

    def pairs(self, eqn: Any) -> list[Ends]:
        """Return the ends of an equation's operands."""
        return ends_among(eqn, [self.read(v) for v in eqn.invars], self.ends)

    def may_choose(self, eqn: Any) -> bool:
        """Whether an equation takes values that can be evaluated again."""
        return is_choice(eqn) and self.is_pointwise(eqn.invars[0])

    def is_pointwise(self, v: Any) -> bool:
        """Whether a value is made of each element of the start by itself."""
        chain = {self.known.start, *(e.outvars[0] for e in self.known.pointwise)}
        return among(v, chain)

    def count(self, eqn: Any, total: Any) -> Any:
        """Count what a comparison says, and return whether it could say otherwise."""
        first, second = self._both(eqn)
        number, doubt = winners.count(first & second, first != second)
        self.env[total.outvars[0]] = number.astype(total.outvars[0].aval.dtype)
        return doubt

    def _both(self, eqn: Any) -> tuple[Any, Any]:
        (a, b, _), (c, d, _) = (p.ordered() for p in self.pairs(eqn))
        return jc.rebind(eqn, [a, d])[0], jc.rebind(eqn, [b, c])[0]

    def decide(self, eqn: Any, variant: set[Any]) -> Any:
        """Decide, and return whether it could be decided otherwise within the ends."""
        name = eqn.primitive.name
        if name in COMPARE:
            evaluate([eqn], self.env, variant)
            first, second = self._both(eqn)
            return jnp.any(first != second)
        pair = self.ends[eqn.invars[0]].ordered()
        if name in ("argmax", "top_k", "reduce_max"):
            pair = pair.negated()
        low, high, _ = pair
        if name == "top_k":
            return self._top(eqn, low)
        (axis,) = eqn.params["axes"]
        least = jnp.min(high, axis=axis)
        # a selection also keeps XLA from broadcasting it to an array of the whole size
        least = jnp.where(least < jnp.inf, least, jnp.nan)
        index, doubt = winners.only(~(low > jnp.expand_dims(least, axis)), axis)
        out = eqn.outvars[0]
        if name in ("argmin", "argmax"):
            self.env[out] = index.astype(out.aval.dtype)
        else:
            self.env[out], self.ends[out] = self.again(eqn.invars[0], index)
        return jnp.any(doubt)

    def again(self, var: Any, index: Any) -> tuple[Any, Ends]:
        """Evaluate elements of a pointwise value from exacter elements of the start."""
        if not self.is_pointwise(var):
            return self.read(var)[index], self.ends[var].at(index)
        start = self.known.start
        value, pair = self.at(index)
        env, ends = {start: value}, {start: pair}

        def read(v: Any) -> Any:
            if not isinstance(v, jc.Literal) and v in env:
                return env[v]
            value = jnp.asarray(self.read(v), jc.dtype_of(v))
            return jnp.broadcast_to(value[index] if value.ndim else value, index.shape)

        for eqn in self.known.pointwise:
            if var in env:
                break
            values = [read(v) for v in eqn.invars]
            env[eqn.outvars[0]] = jc.rebind(eqn, values)[0]
            ends[eqn.outvars[0]] = ends_of(eqn, ends_among(eqn, values, ends))
        return env[var], ends[var]

    def _top(self, eqn: Any, low: Any) -> Any:
        """Take the best k by their lower ends, evaluate them again, and sort them."""
        k = eqn.outvars[0].aval.shape[0]
        best = winners.best(-low, min(k + 1, low.shape[0]))[1]
        chosen, others = best[:k], best[k:]
        values, pair = self.again(eqn.invars[0], chosen)
        values, order = lax.top_k(values, k)
        lows, highs, _ = sorted_pair = pair.ordered().at(order)
        self.env[eqn.outvars[0]] = values
        self.env[eqn.outvars[1]] = chosen[order].astype(eqn.outvars[1].aval.dtype)
        self.ends[eqn.outvars[0]] = sorted_pair
        crossing = jnp.any(~(lows[:-1] > highs[1:]))
        return crossing | jnp.any(~(low[others] > -jnp.min(lows)))
