"""`contraction`: sums of products over the trip, in many spellings."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from rewriter.printer import walk
from tests.helpers import assert_equivalent, random

N = 60
A, B, S = random(N, 16, seed=1), random(N, 24, seed=2), random(N, seed=3)
P, Q = random(N, 16, 4, seed=4), random(N, 4, 24, seed=5)
SHAPE = (16, 24)


def accumulate(term, start=None, negative=False, reverse=False):
    """Return a loop that adds up `term(a, b, s)`."""

    def f(a, b, s):
        first = jnp.zeros(SHAPE, a.dtype) if start is None else start

        def step(c, r):
            t = term(*r)
            return (c - t if negative else c + t), None

        return lax.scan(step, first, (a, b, s), reverse=reverse)[0]

    return f


OUTER = {
    "outer": (lambda a, b, s: jnp.outer(a, b), "ti,tj->ij"),
    "broadcast": (lambda a, b, s: a[:, None] * b[None, :], "ti,tj->ij"),
    "broadcast_one_side": (lambda a, b, s: a[:, None] * b, "ti,tj->ij"),
    "swapped": (lambda a, b, s: b[None] * a[:, None], "ti,tj->ij"),
    "by_einsum": (lambda a, b, s: jnp.einsum("i,j->ij", a, b), "ti,tj->ij"),
    "transposed": (lambda a, b, s: jnp.outer(b, a).T, "ti,tj->ij"),
    "reshaped": (lambda a, b, s: a.reshape(16, 1) * b.reshape(1, 24), "ti,tj->ij"),
    "by_tensordot": (lambda a, b, s: jnp.tensordot(a, b, 0), "ti,tj->ij"),
    "as_matrices": (lambda a, b, s: a[:, None] @ b[None, :], "ti,tj->ij"),
    "scaled": (lambda a, b, s: s * jnp.outer(a, b), "ti,tj,t->ij"),
    "scaled_inside": (lambda a, b, s: jnp.outer(s * a, b), "ti,tj,t->ij"),
    "scaled_outside": (lambda a, b, s: a[:, None] * b[None] * s, "ti,tj,t->ij"),
    "scaled_twice": (lambda a, b, s: s * jnp.outer(a, b * s), "ti,tj,t,t->ij"),
    "elementwise_factor": (
        lambda a, b, s: jnp.outer(a * a, b),
        "ti,ti,tj->ij",
    ),
    "two_dots": (
        lambda a, b, s: a[:, None] * (b[None] * b[None]),
        "ti,tj,tj->ij",
    ),
}


@pytest.mark.parametrize("case", OUTER)
def test_outer_products(case):
    term, spelling = OUTER[case]
    f = accumulate(term)
    letters = spelling.split("->")[0].split(",")

    def by_einsum(a, b, s):
        operands = {"ti": a, "tj": b, "t": s}
        return jnp.einsum(spelling, *(operands[k] for k in letters))

    assert_equivalent(f, A, B, S, oracle=by_einsum)
    report = optimize(f).explain(A, B, S)
    assert report.after.loops == []
    assert report.after.count("dot_general") == 1, report.after.outline()
    sizes = [v.aval.size for e in walk(report.after.jaxpr) for v in e.outvars]
    assert max(sizes) < N * 16 * 24, "a term of every step is stored"


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_signs_and_starts(negative, reverse):
    start = jnp.asarray(random(*SHAPE, seed=9), jnp.float32)
    f = accumulate(OUTER["outer"][0], start, negative, reverse)
    assert_equivalent(f, A, B, S, oracle=False, ulps=64)
    assert optimize(f).explain(A, B, S).after.loops == []


def _total(term):
    def f(*xs):
        like = jnp.zeros_like(term(*(x[0] for x in xs)))
        return lax.scan(lambda c, r: (c + term(*r), None), like, xs)[0]

    return f


DOTS = {
    "matrix_product": (lambda p, q: p @ q, P, Q),
    "matrix_product_transposed": (lambda p, q: (p @ q).T, P, Q),
    "contracted_first": (lambda p, q: p.T @ q, P.transpose(0, 2, 1).copy(), Q),
}


@pytest.mark.parametrize("case", DOTS)
def test_dots(case):
    """A sum of matrix products is one product that contracts the trip too."""
    term, *args = DOTS[case]
    assert_equivalent(_total(term), *args)
    report = optimize(_total(term)).explain(*args)
    assert report.after.loops == [], report.verdicts[0].message
    assert report.after.count("dot_general") == 1


PLAIN = {
    "inner_product": (lambda a, b: a @ b, A, A[:, ::-1].copy()),
    "matrix_vector": (lambda p, a: a @ p, P, A),
    "batched": (lambda p, q: jnp.einsum("ik,ik->i", p, q), P, P * 2),
    "not_a_product": (lambda a, b: jnp.tanh(a[:, None] + b), A, B),
    "square_of_one": (lambda a, b: (a[:, None] * b) ** 2, A, B),
    "elementwise": (lambda a, b: a * b, A, A),
    "quotient": (lambda a, b: a[:, None] / (1 + b * b), A, B),
    "product_read_twice": (
        lambda a, b: (lambda t: t + jnp.sin(t))(jnp.outer(a, b)),
        A,
        B,
    ),
    "integers": (
        lambda a, b: jnp.outer((3 * a).astype(jnp.int32), (3 * b).astype(jnp.int32)),
        A,
        B,
    ),
    "size_one_axis": (lambda a, b: a[:1, None] * b, A, B),
    "masked": (lambda a, b: jnp.where(b > 0, jnp.outer(a, b), 0.0), A, B),
}


@pytest.mark.parametrize("case", PLAIN)
def test_other_sums(case):
    """Near misses: right, whatever becomes of them."""
    term, *args = PLAIN[case]
    assert_equivalent(_total(term), *args)


def test_gradient():
    f = _total(lambda a, b: jnp.outer(jnp.tanh(a), b))
    assert_equivalent(f, A, B, grad=True)


def test_special_values():
    """NaN and inf appear where the loop has them."""
    a, b = A.copy(), B.copy()
    a[3, 2], b[5, 7], a[9, 1] = np.nan, np.inf, -np.inf
    f = accumulate(OUTER["outer"][0])
    assert_equivalent(f, a, b, S, oracle=False, ulps=64)


FIXED = {
    "both": lambda a, b, u, m: m * u[0],
    "outer": lambda a, b, u, m: jnp.outer(u, u),
    "one": lambda a, b, u, m: jnp.outer(u, a),
    "other": lambda a, b, u, m: jnp.outer(b, u) * 2,
}


@pytest.mark.parametrize("case", FIXED)
def test_what_no_step_changes_counts_at_every_step(case):
    rng = np.random.default_rng(3)
    a, u = rng.random((50, 40), "f"), rng.random(40, "f")
    m = rng.random((40, 40), "f")

    def f(a, u, m):
        def step(c, x):
            return c + FIXED[case](x, x, u, m), jnp.tanh(m @ x)

        return lax.scan(step, jnp.zeros((40, 40)), a)

    assert_equivalent(f, a, u, m)
