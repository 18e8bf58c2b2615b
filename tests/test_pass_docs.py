"""Every pass is documented, named after its file, and each remark can be produced."""

import contextlib
import functools
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from passes import DEFAULT_PIPELINE
from rewriter import optimize
from rewriter.pass_base import Pass
from tests.fuzz import eager_rewriting
from tests.helpers import random

HEADINGS = (
    "What it does",
    "Why it pays",
    "Legality",
    "Numerics",
    "Before and after",
    "References",
)
CODES = sorted(code for p in DEFAULT_PIPELINE for code in type(p).codes)
N = 24
W, X = jnp.asarray(random(64, 64)), jnp.asarray(random(N, 64))
INDEX = jnp.arange(N)


@pytest.mark.parametrize("p", DEFAULT_PIPELINE, ids=lambda p: p.name)
def test_docstring(p):
    """All headings, in order, and an example that is run."""
    text = importlib.import_module(type(p).__module__).__doc__
    places = [text.find(h + ":") for h in HEADINGS]
    places[4] = text.find(HEADINGS[4])  # "Before and after (run as a test):"
    assert min(places) >= 0, dict(zip(HEADINGS, places, strict=True))
    assert places == sorted(places)
    assert ">>> " in text
    assert text.partition("\n")[0].endswith(".")


@pytest.mark.parametrize("p", DEFAULT_PIPELINE, ids=lambda p: p.name)
def test_name(p):
    stem = Path(importlib.import_module(type(p).__module__).__file__).stem
    assert p.name == stem.replace("_", "-")
    assert p.numerics in ("strict", "reassociate", "fast")
    assert _level(p)


def _level(p):
    text = importlib.import_module(type(p).__module__).__doc__
    return p.numerics in text.partition("Numerics:")[2]


@pytest.mark.parametrize("p", DEFAULT_PIPELINE, ids=lambda p: p.name)
def test_codes(p):
    """Codes are lower case with hyphens, under the name of the pass."""
    assert type(p).codes
    assert any(c.kind == "passed" for c in type(p).codes.values())
    for code, remark in type(p).codes.items():
        owner, _, reason = code.partition("/")
        assert owner == p.name
        assert reason == reason.lower().replace("_", "-").strip("-")
        assert remark.template


def test_one_of_each():
    names = [p.name for p in DEFAULT_PIPELINE]
    assert len(set(names)) == len(names)
    assert all(isinstance(p, Pass) for p in DEFAULT_PIPELINE)
    files = Path(importlib.import_module("passes").__file__).parent.glob("[!_]*.py")
    assert {f.stem.replace("_", "-") for f in files} == set(names)


# ------------------------------------------------------------ a program per code


def _while(cond, body, *start):
    return lambda: lax.while_loop(cond, body, start)


def _fill(at, value=lambda b, i: jnp.tanh(W @ X[i]), stop=N):
    def f():
        body = lambda i, b: b.at[at(i)].set(value(b, i))  # noqa: E731
        return lax.fori_loop(1, stop, body, jnp.ones((N, 64)))

    return f


def _solve(steps):
    def f(u):
        m = 2 * jnp.eye(8) + u[:8, :8]

        def step(x, r):
            return (jnp.linalg.solve(m, jnp.tanh(x) + r),) * 2

        return lax.scan(step, u[0, :8], u[:steps, :8])[1]

    return f, random(max(steps, 8), 64)


def _columns(table, queries):
    return lax.map(lambda q: jnp.prod(table[:, q], axis=1).sum(), queries)


def _rows(w, x):
    return lax.map(lambda r: jnp.tanh(w @ r)[:2], x)


def _recurrence(w, x):
    step = lambda h, r: (jnp.tanh(w @ h + w @ r), h[:2])  # noqa: E731
    return lax.scan(step, x[0], x)


def _gather_few(x):
    return lax.fori_loop(0, 1000, lambda i, h: jnp.tanh(h + x[i % 4]), x[0])


def _same(w, x):
    hidden = jax.jit(lambda w: w)
    body = lambda c: (c[0] + 1, hidden(c[1]), c[2] + c[1] @ x[c[0]])  # noqa: E731
    return lax.while_loop(lambda c: c[0] < N, body, (0, w, x[0]))


def _known(x):
    step = lambda c, i: (jnp.sin(c), (2 * i, c))  # noqa: E731
    return lax.scan(step, x[0], jnp.arange(N))


def _dear(x):
    one = lambda v: lax.while_loop(lambda v: v.sum() > 1, lambda v: v / 2, v)  # noqa: E731
    return lax.map(one, x)


def _cheap(x):
    return lax.map(lambda r: r + 1.0, x)


def _symbolic():
    from jax import export

    return jax.ShapeDtypeStruct(export.symbolic_shape("n, 64"), jnp.float32)


LONG, QUERIES = random(2000, 64), np.zeros((600, 3), int)
TABLE = random(512, 32)
PROGRAMS = {
    "counted": (_while(lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1] / 2), 0, 1.0),),
    "until": (_while(lambda c: c[0] > 1, lambda c: (c[0] / 2,), 9.0),),
    "bound": (
        lambda n: lax.while_loop(lambda c: c < n, lambda c: c + 1, 0),
        9,
    ),
    "same": (_same, W, X),
    "known": (_known, X),
    "few": (_gather_few, jnp.asarray(random(4, 64))),
    "written": (_fill(lambda i: i),),
    "twice": (_fill(lambda i: i // 2),),
    "data": (lambda k: _fill(lambda i: k[i])(), INDEX),
    "before": (_fill(lambda i: i, lambda b, i: jnp.tanh(W @ b[i - 1])),),
    "far": (_fill(lambda i: i, lambda b, i: jnp.tanh(W @ b[0])),),
    "columns": (_columns, TABLE, QUERIES),
    "columns_no_room": (_columns, TABLE, QUERIES, {"memory_budget": 60_000}),
    "solve": _solve(64),
    "solve_short": _solve(5),
    "rows": (_rows, W, X),
    "one_row": (_rows, W, X[:1]),
    "blocks": (_rows, W, LONG, {"memory_budget": 20_000}),
    "symbolic": (_rows, W, _symbolic()),
    "recurrence": (_recurrence, W, random(500, 64)),
    "sections": (_recurrence, W, LONG, {"memory_budget": 100_000}),
    "opaque": (lambda x: lax.scan(lambda c, r: (jnp.sin(c + r),) * 2, x[0], x), X),
    "in_order": (_dear, X),
    "no_room": (_rows, W, X, {"memory_budget": 100}),
    "cheap": (_cheap, X[:, :1]),
}


def _distances(x, after=jnp.sqrt):
    return lax.map(lambda p: after(jnp.sum((x - p) ** 2, axis=1)), x)


PROGRAMS |= {
    "distances": (_distances, random(400, 32)),
    "few_distances": (_distances, random(40, 32)),
    "chunked": (lambda x: lax.map(lambda r: jnp.tanh(W @ r), x, batch_size=4), X),
    "nearest": (lambda x: _distances(x, jnp.argmin), random(400, 32)),
    "sorted": (lambda x: _distances(x, lambda d: jnp.sort(d)[3]), random(400, 32)),
    "few_nearest": (lambda x: _distances(x, jnp.argmin), random(40, 32)),
    "products": (lambda w: lax.map(lambda p: jnp.sum(w * p, 1), w), random(200, 32)),
    "features": (_distances, random(300, 3)),
    "features_no_room": (_distances, random(300, 3), {"memory_budget": 2_000}),
    "wide": (
        lambda x: lax.map(lambda p: jnp.abs(x - p).sum(1), x[:9]),
        random(300, 70),
    ),
}


# ------------------------------------------------------------ accumulations


def _folded(step, *start):
    return lambda x: lax.scan(lambda c, r: (step(c, r), None), start, x)[0]


def _masked(c, r):
    return (jnp.where(r[0] > 0, c[0] + jnp.tanh(W @ r), c[0]),)


def _counted(c, r):
    return (lax.cond(r[0] > 0, lambda n: n + 1, lambda n: n, c[0]),)


def _best(c, r):
    p = r[0] > c[0]
    return jnp.where(p, r[0], c[0]), jnp.where(p, r, c[1])


def _best_state(c, r):
    s = jnp.tanh(c[2] + r)
    p = s[0] > c[0]
    return jnp.where(p, s[0], c[0]), jnp.where(p, s, c[1]), s


def _welford(c, r):
    n, row = c[0] + 1, jnp.tanh(r)
    return n, c[1] + (row - c[1]) / n


def _softmax(c, r):
    row = jnp.tanh(r)
    m = jnp.maximum(c[0], row)
    return m, c[1] * jnp.exp(c[0] - m) + jnp.exp(row - m)


ZEROS, TIGHT = jnp.zeros(64), {"memory_budget": 5_000}
PROGRAMS |= {
    "masked": (_folded(_masked, ZEROS), X),
    "counted_rows": (_folded(_counted, 0), X),
    "best": (_folded(_best, -jnp.inf, ZEROS), X),
    "best_state": (_folded(_best_state, -jnp.inf, ZEROS, ZEROS), X),
    "best_no_room": (_folded(_best, -jnp.inf, ZEROS), X, TIGHT),
    "welford": (_folded(_welford, 0.0, ZEROS), X),
    "welford_no_room": (_folded(_welford, 0.0, ZEROS), X, TIGHT),
    "softmax": (_folded(_softmax, ZEROS, ZEROS), X),
    "softmax_no_room": (_folded(_softmax, ZEROS, ZEROS), X, TIGHT),
}


# ------------------------------------------------------------ loops that stay, nests


def _horner(p, x):
    return lax.scan(lambda y, c: (y * x + c, None), jnp.zeros_like(x), p)[0]


def _large_rows(u, a):
    step = lambda h, r: (r * h + 1, h.sum())  # noqa: E731
    return lax.scan(step, jnp.ones_like(a), u[:, :, None] * a)[1]


def _pairs(x, stop=lambda i: i):
    def row(i, e):
        near = lambda j, e: e + 1 / (1 + jnp.sum((x[i] - x[j]) ** 2))  # noqa: E731
        return lax.fori_loop(0, stop(i), near, e)

    return lax.fori_loop(0, len(x), row, 0.0)


def _returns(update):
    step = lambda g, r: (update(g, r), g)  # noqa: E731
    return lambda r: lax.scan(step, 0.0, r, reverse=True)[1]


_decay = _returns(lambda g, r: r + 0.99 * g)


def _energy(x):
    return jnp.sum(_distances(x, lambda d: jnp.exp(-d)))


PROGRAMS |= {"energy": (_energy, random(400, 32))}
PROGRAMS |= {"search": (lambda x: _distances(x).argmin(1), random(2000, 32))}
PROGRAMS |= {"forces": (jax.grad(_energy), random(400, 32))}


def _attention(q, k, v):
    def step(s, row):
        s = s + jnp.outer(row[1], row[2])
        return s, row[0] @ s

    return lax.scan(step, jnp.zeros((q.shape[1], v.shape[1])), (q, k, v))[1]


QKV = [random(2000, 128, seed=k) for k in range(3)]
PROGRAMS |= {
    "attention": (_attention, *QKV),
    "small_attention": (_attention, *(x[:, :4] for x in QKV)),
    "attention_no_room": (_attention, *QKV, {"memory_budget": 100_000}),
    "returns": (_decay, random(200_000)),
    "short_returns": (_decay, random(200)),
    "growing": (_returns(lambda g, r: r + 1.5 * g), random(200)),
    "returns_no_room": (_decay, random(200_000), {"memory_budget": 2_000}),
    "gated": (
        _returns(lambda g, r: r + jnp.cos(r) * g),
        random(500),
        {"eager": True},
    ),
}


def _mirrored(x):
    def row(i, t):
        near = lambda j, t: (  # noqa: E731
            t.at[i, j].set(x[i] @ x[j]).at[j, i].set(x[i] @ x[j])
        )
        return lax.fori_loop(0, i, near, t)

    return lax.fori_loop(0, len(x), row, jnp.eye(len(x)))


PROGRAMS |= {"mirrored": (_mirrored, random(60, 3))}
PROGRAMS |= {
    "horner": (_horner, random(64), random(5000)),
    "large_rows": (_large_rows, random(1000, 200), random(200, 16)),
    "pairs": (_pairs, random(60, 3)),
    "sparse_pairs": (lambda x: _pairs(x, lambda i: i * (i > 50)), random(60, 3)),
}


def _grouped(x, w, otherwise=lambda x: x):
    dear = lambda x: jnp.tanh(jnp.tanh(x @ w) @ w)  # noqa: E731
    return lax.map(lambda x: lax.cond(x[0] > 0, dear, otherwise, x), x)


def _conditional(x, w):
    def step(c, x):
        dear = lambda c: c + jnp.tanh(jnp.tanh(x @ w) @ w)  # noqa: E731
        return lax.cond(x[0] > 0, dear, lambda c: c, c), None

    return lax.scan(step, jnp.zeros(64), x)[0]


def _root(x):
    return lax.while_loop(lambda c: c[0] < 100, lambda c: c * 2, jnp.abs(x) + 1)


def _affine(a, w=None):
    def body(i, c):
        h, s = c
        return h if w is None else jnp.tanh(w @ h), s + a * i

    return lax.fori_loop(0, 1000, body, (jnp.ones(64), 0.0))


def _lookup(e, words):
    step = lambda h, i: (jnp.tanh(h + e[i]), None)  # noqa: E731
    return lax.scan(step, jnp.zeros(e.shape[1]), words)[0].sum()


ROWS = random(400, 64)
PROGRAMS |= {
    "branches": (_grouped, ROWS, W),
    "few branches": (_grouped, ROWS[:6], W),
    "while in a branch": (functools.partial(_grouped, otherwise=_root), ROWS, W),
    "sum in a branch": (_conditional, ROWS, W),
    "lookup": (jax.grad(_lookup), random(100, 8), jnp.arange(40)),
    "closed sum": (_affine, jnp.float32(1.5)),
    "sum beside products": (_affine, jnp.float32(1.5), W),
}


@functools.cache
def produced():
    """Run `explain` on all programs; return which of them gave each code."""
    found = {}
    for name, (fn, *args) in PROGRAMS.items():
        options = args.pop() if args and isinstance(args[-1], dict) else {}
        eager = options.pop("eager", False)
        with eager_rewriting() if eager else contextlib.nullcontext():
            report = optimize(fn, **options).explain(*args)
        for remark in report.remarks:
            found.setdefault(remark.code, set()).add(name)
    return found


@pytest.mark.parametrize("code", CODES)
def test_is_produced(code):
    """No remark is declared in vain."""
    assert code in produced(), f"no program of {len(PROGRAMS)} gives {code}"


def test_nothing_undeclared():
    """Every code comes from a pass of the pipeline or the manager."""
    owners = {code.partition("/")[0] for code in produced()}
    assert owners <= {p.name for p in DEFAULT_PIPELINE} | {"pass-manager"}
    assert not any(code == "pass-manager/exception" for code in produced())
