"""`decisions`: a decision that is said to be sure holds for all values in the ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import decisions, intervals
from rewriter import jax_compat as jc
from rewriter.inline import inline
from tests.helpers import random

M = 12
W = jnp.asarray(random(M))
SIGN = jnp.sign(W)
EVEN = jnp.where(jnp.arange(M) % 2 == 0, 1.0, -1.0)


class Step:
    """What follows the distances of one row."""

    def __init__(self, fn, size=M, is_sorted=True):
        closed = jax.make_jaxpr(fn)(jnp.ones(size))
        self.fn, self.jaxpr, self.consts = jax.jit(fn), closed.jaxpr, closed.consts
        self.eqns, self.names, self.extra = inline(closed.jaxpr.eqns, True)
        self.is_sorted = is_sorted
        self.start = closed.jaxpr.invars[0]
        self.known = intervals.classify(self.eqns, self.start)
        self.bounded = jax.jit(self._bounded)

    def _bounded(self, d, low, high):
        env = dict(zip(self.jaxpr.constvars, self.consts, strict=True))
        env |= dict(self.extra) | {self.start: d}
        ends = {self.start: intervals.Ends(low, high, self.is_sorted)}
        doubt = decisions.run(self.eqns, self.known, env, ends)
        outs = [
            v if isinstance(v, jc.Literal) else self.names.get(v, v)
            for v in self.jaxpr.outvars
        ]
        return doubt, [v.val if isinstance(v, jc.Literal) else env[v] for v in outs]

    def is_sure(self, d, low, high):
        """Whether no decision is in doubt."""
        d, low, high = (np.asarray(v, "f") for v in (d, low, high))
        return not self.bounded(d, low, high)[0]

    def decisions(self, d):
        """Return the integers and booleans that come out."""
        out = jax.tree.leaves(self.fn(np.asarray(d, "f")))
        return [np.asarray(x) for x in out if x.dtype.kind in "iub"]


DECIDED = {
    "argmin": jnp.argmin,
    "argmax": jnp.argmax,
    "top_k": lambda d: lax.top_k(-d, 3),
    "within": lambda d: jnp.sum(d < 0.5),
    "roots": lambda d: jnp.sum(jnp.sqrt(d) <= 0.7),
    "groups": lambda d: jnp.argmin(d.reshape(3, 4), axis=1),
    "columns": lambda d: jnp.argmax(d.reshape(3, 4), axis=0),
    "spread": lambda d: jnp.argmin(d[None] + W[:3, None], axis=1),
    "both_signs": lambda d: jnp.max(d * SIGN) > 0.5,
    "both_signs_least": lambda d: jnp.min(d * SIGN + 1.0) < 0.5,
    "reciprocal": lambda d: jnp.argmin(1 / (d - 0.5)),
    "reciprocals_above": lambda d: jnp.sum(1 / (d - 0.5) > 5.0),
    "student": lambda d: jnp.argmax(1 / (1 + d)),
    "inverse_root": lambda d: jnp.argmax(lax.rsqrt(d)),
    "kernel": lambda d: jnp.argmax(jnp.exp(-d)),
    "kernel_signs": lambda d: jnp.argmin(jnp.exp(-d) * W),
    "masked": lambda d: jnp.argmin(jnp.where(W > 0, d, jnp.inf)),
    "clipped": lambda d: jnp.argmin(jnp.where(d < 0.5, d, 2.0)),
    "flipped": lambda d: jnp.argmin(jnp.where(d < 0.5, -d, 2.0)),
    "least": lambda d: jnp.min(d) < 0.2,
    "floor": lambda d: jnp.sum(jnp.maximum(d, 0.5) <= 0.5),
    "several": lambda d: (jnp.argmin(d), jnp.sum(d < 0.4), jnp.max(d) > 2.0),
    "label": lambda d: W[jnp.argmin(d)] > 0,
    "any": lambda d: jnp.any(d < 0.05),
    "logarithm": lambda d: jnp.argmin(jnp.log(d) - W),
    "prices": lambda d: jnp.argmin(d * 2 + W),
    "against_the_least": lambda d: jnp.sum(d <= jnp.min(d)),
    "values_of_top_k": lambda d: jnp.sum(lax.top_k(-d, 4)[0] < -0.3),
    "kept_axis": lambda d: jnp.min(d, keepdims=True) < 0.2,
    "saturated": lambda d: jnp.argmax(jnp.tanh(3 * d)),
}


@pytest.mark.parametrize("name", DECIDED)
def test_sure_decisions_are_right(name):
    """Whatever the values within the ends are."""
    step, rng = Step(DECIDED[name]), np.random.default_rng(0)
    assert not step.known.reason
    sure = 0
    for _ in range(60):
        d = rng.random(M) * rng.choice([1, 3, 10])
        if rng.random() < 0.3:
            d = np.round(d * 4) / 4
        if rng.random() < 0.2:
            d[rng.integers(M)] = d[rng.integers(M)]
        error = d * rng.choice([0.3, 0.03, 1e-3, 1e-5]) * rng.random()
        low, high = np.maximum(d - error, 0).astype("f"), (d + error).astype("f")
        if not step.is_sure(d, low, high):
            continue
        sure += 1
        want = step.decisions(d)
        for k in range(20):
            part = rng.random(M) if k % 3 else rng.integers(0, 2, M)
            other = np.clip(low + (high - low) * part, low, high)
            for a, b in zip(step.decisions(other), want, strict=True):
                np.testing.assert_array_equal(a, b, f"{low} {other} {high}")
    assert sure or name == "against_the_least"


# (a step, distances, their ends, others within them that decide differently)
TURNING = {
    "reciprocal": (DECIDED["reciprocal"], [0.55, 0.45], [0.4, 0.45], [0.6, 0.45]),
    "largest_reciprocal": (
        lambda d: jnp.max(1 / (d - 0.5)) > 20.0,
        [0.55, 0.1],
        [0.4, 0.1],
        [0.6, 0.1],
    ),
    "ends_change_sides": (
        lambda d: jnp.max(d * EVEN[:2] + jnp.asarray([0.0, 10.0])) > 1.4,
        [1.2, 9.0],
        [1.0, 8.5],
        [2.0, 9.5],
    ),
    "tie": (jnp.argmin, [1.0, 1.0], [0.9, 0.9], [1.1, 1.1]),
    "touching": (jnp.argmin, [1.0, 1.2], [0.9, 1.1], [1.1, 1.3]),
    "threshold": (lambda d: d < 1.0, [0.9, 2.0], [0.8, 1.9], [1.0, 2.1]),
    "nan": (jnp.argmin, [np.nan, 1.0], [np.nan, 0.9], [np.nan, 1.1]),
    "second_group": (
        lambda d: jnp.argmin(d.reshape(2, 2), axis=1),
        [1.0, 5.0, 3.0, 3.1],
        [1.0, 5.0, 2.9, 3.0],
        [1.0, 5.0, 3.1, 3.2],
    ),
    "last_of_top_k": (
        lambda d: lax.top_k(-d, 2)[1],
        [1.0, 2.0, 2.1],
        [1.0, 1.9, 2.0],
        [1.0, 2.1, 2.2],
    ),
    "order_in_top_k": (
        lambda d: lax.top_k(-d, 2)[1],
        [1.0, 1.1, 9.0],
        [0.9, 1.0, 9.0],
        [1.1, 1.2, 9.0],
    ),
}


@pytest.mark.parametrize("name", TURNING)
def test_what_may_turn_is_in_doubt(name):
    fn, d, low, high = TURNING[name]
    step = Step(fn, len(d))
    assert not step.known.reason
    assert not step.is_sure(d, low, high)


CERTAIN = {
    "apart": (jnp.argmin, [1.0, 2.0], 0.1),
    "groups": (
        lambda d: jnp.argmin(d.reshape(2, 2), axis=1),
        [1.0, 5.0, 3.0, 9.0],
        0.1,
    ),
    "below": (lambda d: d < 1.0, [0.5, 3.0], 0.1),
    "one_side_of_zero": (lambda d: jnp.argmin(1 / (d - 9)), [1.0, 5.0], 0.1),
    "nothing_at_zero": (lambda d: jnp.argmax(1 / d), [0.0, 5.0], 0.0),
    "infinity": (lambda d: jnp.argmin(jnp.where(d < 2, jnp.inf, d)), [1.0, 5.0], 0.1),
    "exponential": (lambda d: jnp.argmax(jnp.exp(-d)), [1.0, 5.0, 700.0], 0.1),
    "logarithm_of_zero": (lambda d: jnp.argmin(jnp.log(d)), [0.0, 5.0], 0.0),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_what_is_certain_is_not_in_doubt(name):
    """Not all rows may be sent through the original step."""
    fn, d, error = CERTAIN[name]
    d = np.float32(d)
    assert Step(fn, len(d)).is_sure(d, np.maximum(d - error, 0), d + error)


@pytest.mark.parametrize("name", ["tanh", "erf", "exp", "expm1", "cbrt", "rsqrt"])
def test_functions_that_are_not_quite_monotone(name):
    """XLA's rise and fall by some roundings; the ends allow for it."""
    fn = {"erf": lax.erf, "rsqrt": lambda d: -lax.rsqrt(d)}.get(name)
    fn = fn or getattr(jnp, name)
    step = Step(lambda d: jnp.argmin(fn(d)), 2)
    first = np.float32([1e-3, 0.05, 0.3, 1, 3]).view(np.int32)
    x = (first[:, None] + np.arange(20_000, dtype=np.int32)).view(np.float32)
    pairs = np.stack([x[:, :-1], x[:, 1:]], -1).reshape(-1, 2)
    sure = ~np.asarray(jax.vmap(step.bounded)(pairs, pairs, pairs)[0])
    value = np.asarray(jax.jit(fn)(pairs))
    assert not np.any(sure & (value[:, 1] < value[:, 0]))


REFUSED = {
    "equal": lambda d: jnp.sum(d == 1.0),
    "rounded": lambda d: jnp.sum(jnp.floor(d)),
    "integers": lambda d: d.astype(int),
    "sorted": jnp.sort,
    "mean": lambda d: jnp.sum(d < jnp.mean(d)),
    "product": lambda d: jnp.argmin(d * d[0]),
    "tangent": lambda d: jnp.argmax(jnp.tan(d)),
    "top_k_of_groups": lambda d: lax.top_k(d.reshape(3, 4), 2),
    "summed": lambda d: jnp.argmin(d.reshape(3, 4).sum(1)),
    "cumulative": lambda d: jnp.sum(jnp.cumsum(d) < 1),
    "branch": lambda d: lax.cond(d[0] < 1, jnp.sin, jnp.cos, d),
    "sign": jnp.sign,
    "remainder": lambda d: d % 1.0,
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    known = Step(REFUSED[name]).known
    assert known.reason
    assert not known.uncertain


def test_sums_are_followed_without_bounds():
    step = Step(lambda d: (jnp.sum(jnp.exp(-d)), jnp.exp(-d) @ W, jnp.argmin(d)))
    assert not step.known.reason
    outs = step.jaxpr.outvars
    assert [v in step.known.smooth for v in outs] == [True, True, False]
    assert len(step.known.deciding) == 1
