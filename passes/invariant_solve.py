"""Solves with a matrix that no step changes become products with its inverse.

What it does: in a loop that solves against the same factors at every step (an implicit
integrator), the chain of permutation and triangular solves is one linear map of the
right-hand side. The map's matrix is computed once, by solving for the unit vectors, and
each step multiplies by it.

Why it pays: XLA lifts the factorisation out of the loop but not the two library calls a
step; a matrix-vector product takes a tenth of them, and can be hoisted further.

Legality: the matrix is a loop constant, the right-hand side one vector, and the trip is
longer than the vector. An inverse loses accuracy with the condition number, so it is
used only where the factors' condition numbers multiply to at most 1e4; otherwise the
loop as written runs, chosen when the program runs.

Numerics: reassociate.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(a, x, u):
...     def step(x, u):
...         x = jnp.linalg.solve(jnp.eye(8) + a, jnp.tanh(x) + u)
...         return x, x
...     return jax.lax.scan(step, x, u)[1]
>>> report = explain(f)(jnp.ones((8, 8)), jnp.ones(8), jnp.ones((1000, 8)))
>>> for line in report.after.outline().splitlines()[-5:]:
...     print(line)
cond:
  scan 1000 fallback, 1 carried:
    add*4 eq gather iota*2 lt lu select_n tanh triangular_solve*2
  scan 1000, 1 carried:
    add dot_general tanh

References: Higham, *Accuracy and Stability of Numerical Algorithms*, ch. 14.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.emit import emit_loop, mark_loop
from rewriter.graph import Loop, Source, reads, substitute, variant_values
from rewriter.orient import evaluate
from rewriter.pass_base import Context, Emission, LoopPass, Phase, Plan
from rewriter.recurrence import uses
from rewriter.remarks import Remark, missed, passed

_STRUCTURAL = frozenset(
    {
        "reshape",
        "squeeze",
        "expand_dims",
        "broadcast_in_dim",
        "transpose",
        "gather",
        "copy",
        "triangular_solve",
    }
)


@dataclass(frozen=True)
class Chain:
    """A linear map from variable `start` to variable `end`, by its equations."""

    start: Any
    end: Any
    eqns: tuple[Any, ...]


@dataclass(frozen=True)
class Inverse(Plan):
    """The chains of a loop, and the equations that make their matrices."""

    loop: Loop | None = None
    chains: tuple[Chain, ...] = ()
    invariant: tuple[Any, ...] = ()


@dataclass(frozen=True)
class InvariantSolve(LoopPass):
    """The pass."""

    name: ClassVar = "invariant-solve"
    phase: ClassVar = Phase.LATE
    numerics: ClassVar = "reassociate"
    max_size: int = 256
    max_condition: float = 1e4

    FOUND = passed(
        "inverse",
        "{count} solve(s) against a matrix that no step changes: multiplied by "
        "its inverse where the condition number allows",
    )
    NONE = missed("none", "no step solves against a matrix that stays the same")
    SHORT = missed(
        "short-trip", "{steps} steps do not pay for an inverse of {size} columns"
    )

    def match(self, loop: Loop, ctx: Context) -> Inverse | Remark:
        """Find chains of triangular solves against loop constants."""
        if not any(e.primitive.name == "triangular_solve" for e in loop.eqns):
            return self.NONE.at(loop.location)
        seeds = {c.var for c in (*loop.carries, *loop.counters)}
        variant = variant_values(loop.eqns, seeds | {v for v, _ in loop.xs})
        count = uses(loop)
        chains: list[Chain] = []
        taken: set[int] = set()
        for i, eqn in enumerate(loop.eqns):
            if eqn.primitive.name == "triangular_solve" and i not in taken:
                chain = _chain(loop, i, variant, count, taken)
                if (
                    chain is not None
                    and chain.start.aval.size <= self.max_size
                    and (chain.start.aval.size == eqn.invars[0].aval.shape[-1])
                ):
                    chains.append(chain)
        if not chains:
            return self.NONE.at(loop.location)
        size = max(c.start.aval.size for c in chains)
        if loop.length < 4 * size:
            return self.SHORT.at(loop.location, steps=loop.length, size=size)
        fixed = tuple(
            e
            for e in loop.eqns
            if not e.effects and not any(v in variant for v in e.outvars)
        )
        return Inverse(
            self.FOUND.at(loop.location, count=len(chains)),
            "",
            loop,
            tuple(chains),
            fixed,
        )

    def rewrite(self, plan: Inverse) -> Emission:
        """Emit both loops and choose by the condition number."""
        loop = plan.loop
        assert loop is not None
        limit = self.max_condition

        def emit(args: Any) -> list[Any]:
            env = {v: s.get(args) for v, s in loop.consts}
            evaluate(plan.invariant, env, set())
            condition = jnp.ones((), plan.chains[0].end.aval.dtype)
            matrices = []
            for chain in plan.chains:
                matrices.append(_matrix(chain, env))
                for eqn in chain.eqns:
                    if eqn.primitive.name == "triangular_solve":
                        condition = condition * _condition(eqn, env)
            fast, slow = _multiplying(loop, plan.chains), mark_loop(loop)
            used = [r is not None for r in loop.results]

            def kept(values: list[Any]) -> list[Any]:
                return [v for v, u in zip(values, used, strict=True) if u]

            out = iter(
                lax.cond(
                    condition <= limit,
                    lambda a, m: kept(emit_loop(fast, [*a, *m])),
                    lambda a, m: kept(emit_loop(slow, a)),
                    list(args),
                    matrices,
                )
            )
            return [next(out) if u else None for u in used]

        return emit


def _chain(
    loop: Loop, first: int, variant: set[Any], count: Counter[Any], taken: set[int]
) -> Chain | None:
    """Grow a chain of linear operations around one solve, both ways."""
    made = loop.made_by()
    if _variable(loop.eqns[first], variant) is None:
        return None
    members = [first]
    while True:
        source = _variable(loop.eqns[members[0]], variant)
        before = made.get(source)
        if (
            before is None
            or count[source] != 1
            or (_variable(loop.eqns[before], variant) is None)
        ):
            break
        members.insert(0, before)
    while True:
        out = loop.eqns[members[-1]].outvars[0]
        after = [i for i, e in enumerate(loop.eqns) if out in reads(e)]
        if (
            count[out] != 1
            or len(after) != 1
            or (_variable(loop.eqns[after[0]], variant) is not out)
        ):
            break
        members.append(after[0])
    taken.update(members)
    start = _variable(loop.eqns[members[0]], variant)
    return Chain(
        start, loop.eqns[members[-1]].outvars[0], tuple(loop.eqns[i] for i in members)
    )


def _variable(eqn: Any, variant: set[Any]) -> Any:
    """Return the one changing operand of a linear operation, None if it is not one."""
    if eqn.primitive.name not in _STRUCTURAL:
        return None
    position = 1 if eqn.primitive.name == "triangular_solve" else 0
    changing = [v for v in reads(eqn) if v in variant]
    return changing[0] if changing == [eqn.invars[position]] else None


def _matrix(chain: Chain, env: dict[Any, Any]) -> Any:
    """Return the map's matrix: the images of the unit vectors, one per row."""
    shape, dtype = chain.start.aval.shape, chain.start.aval.dtype
    units = jnp.eye(chain.start.aval.size, dtype=dtype).reshape(-1, *shape)

    def image(unit: Any) -> Any:
        local = {**env, chain.start: unit}
        evaluate(chain.eqns, local, set())
        return local[chain.end].reshape(-1)

    return jax.vmap(image)(units)


def _condition(eqn: Any, env: dict[Any, Any]) -> Any:
    """Return the condition number of a triangular factor, in the maximum norm."""
    a, p = env[eqn.invars[0]], eqn.params
    t = jnp.tril(a) if p["lower"] else jnp.triu(a)
    eye = jnp.eye(a.shape[-1], dtype=a.dtype)
    if p["unit_diagonal"]:
        t = t * (1 - eye) + eye
    inverse = lax.linalg.triangular_solve(t, eye, left_side=True, lower=p["lower"])
    norm = lambda m: jnp.max(jnp.sum(jnp.abs(m), axis=-1))  # noqa: E731
    return norm(t) * norm(inverse)


def _multiplying(loop: Loop, chains: tuple[Chain, ...]) -> Loop:
    """Return the loop with each chain as a product; matrices follow its operands."""
    base = len(loop.eqn.invars)
    gone = {id(e) for c in chains for e in c.eqns[:-1]}
    last = {id(c.eqns[-1]): k for k, c in enumerate(chains)}
    consts, eqns, mapping = list(loop.consts), [], {}
    for eqn in loop.eqns:
        if id(eqn) in gone:
            continue
        if id(eqn) not in last:
            eqns.append(eqn)
            continue
        k = last[id(eqn)]
        chain = chains[k]
        n, m = chain.start.aval.size, chain.end.aval.size
        matrix = jc.fresh_var(chain.end.aval.update(shape=(n, m), weak_type=False))
        consts.append((matrix, Source.of(base + k)))
        added, (out,) = jc.traced_equations(
            lambda v, w, end=chain.end: jnp.dot(
                v.reshape(-1), w, precision="highest"
            ).reshape(end.aval.shape),
            [chain.start, matrix],
            eqn,
        )
        eqns += added
        mapping[chain.end] = out
    return substitute(loop.replace(eqns=tuple(eqns), consts=tuple(consts)), mapping)
