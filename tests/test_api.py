"""The public face: the decorator, reports, switches, benchmark."""

import inspect
import json
import threading
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import networkx as nx
import pytest
from jax import lax

import rewriter
from passes import DEFAULT_PIPELINE
from rewriter import Report, explain, keep, optimize
from tests.helpers import assert_same, loops_left, random, run_python

X = random(64, 16)
W = random(16, 16, seed=1)
OUTCOMES = {"batched", "blocked", "distributed", "sectioned", "vectorized"}
OUTCOMES |= {"fused", "sparse", "unrolled", "kept"}
KINDS = {"passed", "missed", "failed", "analysis"}


def mixed(w, x):
    """Three loops: a map, a recurrence, and a nest."""
    rows = lax.map(lambda r: jax.nn.softmax(w @ jnp.tanh(w @ r)), x)
    last, states = lax.scan(lambda h, r: (jnp.tanh(h @ w / 8 + r),) * 2, x[0], x)
    pairs = lax.map(lambda p: lax.map(lambda q: jnp.sum((p - q) ** 2), x), x)
    return rows.sum(0), last, states, pairs


def _lines(*words):
    """Return the places of this file's lines of `mixed` with the given words."""
    source, first = inspect.getsourcelines(mixed)
    return [
        f"test_api.py:{first + i}"
        for i, line in enumerate(source)
        if any(word in line for word in words)
    ]


@pytest.fixture(scope="module")
def report():
    """One report, for the tests that only read it."""
    return optimize(mixed).explain(W, X)


def test_decorator_without_and_with_arguments():
    """Both spellings give a jitted function that keeps name and docstring."""

    @optimize
    def one(x):
        """Double."""
        return lax.map(lambda r: r * 2, x)

    @optimize(numerics="strict", memory_budget="1MB", static_argnames="k")
    def two(x, k):
        return lax.map(lambda r: r * k, x)

    assert_same(one(X), jnp.asarray(X * 2))
    assert_same(two(X, k=3), jnp.asarray(X * 3))
    assert_same(optimize(one)(X), jnp.asarray(X * 2))
    assert one.__name__ == "one"
    assert one.__doc__ == "Double."
    assert list(inspect.signature(two).parameters) == ["x", "k"]


def test_is_a_jitted_function():
    """It is of the type of `jax.jit`, with its methods and two more."""
    f = optimize(mixed)
    plain = jax.jit(mixed)
    assert type(f) is type(plain)
    for name in ("explain", "benchmark", "lower", "trace", "eval_shape", "clear_cache"):
        assert callable(getattr(f, name)), name
    assert f.eval_shape(W, X)[0].shape == (16,)
    assert f.trace(W, X).lower().compile() is not None
    assert_same(f.lower(W, X).compile()(W, X), plain(W, X), ulps=64)


def test_on_methods_and_partials():
    """A method, a partial and a callable object are functions too."""

    class Model:
        def __init__(self):
            self.w = W

        @optimize(static_argnums=0)
        def rows(self, x):
            return lax.map(lambda r: jnp.tanh(self.w @ r), x)

        def __call__(self, x):
            return lax.map(lambda r: jnp.tanh(self.w @ r), x)

    model = Model()
    want = jax.jit(model.__call__)(X)
    assert_same(model.rows(X), want, ulps=64)
    assert_same(optimize(model)(X), want, ulps=64)
    part = jax.tree_util.Partial(lambda w, x: lax.map(lambda r: jnp.tanh(w @ r), x), W)
    assert_same(optimize(part)(X), want, ulps=64)


def test_public_names():
    """`__all__` lists the names of the public face, all of them documented."""
    needed = {"optimize", "explain", "keep", "Report", "Remark", "Verdict", "Timing"}
    assert needed <= set(rewriter.__all__)
    for name in rewriter.__all__:
        assert getattr(rewriter, name).__doc__, name


def test_explain_an_undecorated_function(report):
    """`explain(f)(x)` is `optimize(f).explain(x)`; it does not run the program."""
    other = explain(mixed)(W, X)
    assert isinstance(other, Report)
    assert [v.outcome for v in other.verdicts] == [v.outcome for v in report.verdicts]
    ran = []
    quiet = explain(lambda x: jax.debug.callback(ran.append, x) or x, numerics="strict")
    quiet(X)
    jax.effects_barrier()
    assert not ran
    shapes = jax.eval_shape(lambda: (jnp.asarray(W), jnp.asarray(X)))
    assert len(explain(mixed)(*shapes).verdicts) == len(report.verdicts)


def test_one_verdict_for_each_loop(report):
    """Nested loops too, each at its line, with a trip count and a reason."""
    assert len(report.verdicts) == 4
    for v in report.verdicts:
        assert v.outcome in OUTCOMES
        assert v.primitive == "scan"
        assert v.trip_count == 64
        assert "/" in v.code
        assert v.message
    assert sorted({str(v.location) for v in report.verdicts}) == sorted(
        _lines("lax.map", "lax.scan")
    )
    by_place = {str(v.location): v for v in report.verdicts}
    assert by_place[_lines("lax.scan")[0]].outcome == "kept"
    assert by_place[_lines("softmax")[0]].outcome in {"batched", "blocked"}


@pytest.mark.parametrize(
    ("loop", "primitive", "trip"),
    [
        (lambda x: lax.fori_loop(0, 9, lambda i, c: jnp.tanh(c) + i, x), None, 9),
        (lambda x: lax.while_loop(lambda c: c[0] < 2, jnp.tanh, x), "while", None),
        (lambda x: lax.scan(lambda c, _: (c * 2, c), x, length=5), "scan", 5),
    ],
    ids=["fori", "while", "scan"],
)
def test_verdict_of_each_loop_form(loop, primitive, trip):
    """The primitive is the one of the user's program."""
    (verdict,) = explain(loop)(X[:, 0]).verdicts
    assert verdict.primitive in {primitive or verdict.primitive}
    assert verdict.trip_count == trip


def test_remarks(report):
    """Kinds and codes are of the known sorts; a missed one says where."""
    names = {p.name for p in DEFAULT_PIPELINE}
    assert report.remarks
    for r in report.remarks:
        assert r.kind in KINDS
        assert r.code.split("/")[0] in names | {"pass-manager"}, r
        assert r.message
        assert isinstance(r.args, Mapping)
        assert "test_api.py:" in str(r.location)
    codes = {r.code for r in report.remarks}
    assert {v.code for v in report.verdicts} <= codes


def test_text(report):
    """The text names each loop's line and fits 100 columns."""
    text = str(report)
    assert text == report.to_text()
    for place in _lines("lax.map", "lax.scan"):
        assert place in text
    assert max(map(len, text.splitlines())) <= 100
    for v in report.verdicts:
        assert v.outcome in text


def test_json(report):
    """The JSON holds the verdicts and remarks."""
    data = json.loads(report.to_json())
    assert len(data["verdicts"]) == 4
    assert [v["outcome"] for v in data["verdicts"]] == [
        v.outcome for v in report.verdicts
    ]
    assert len(data["remarks"]) == len(report.remarks)


def test_programs(report):
    """Before and after are graphs with their loops marked."""
    before, after = report.before, report.after
    assert len(before.loops) == 4
    assert {p.trip_count for p in before.loops} == {64}
    assert not any(p.emitted for p in before.loops)
    assert [str(p.location) for p in after.loops if not p.emitted]
    assert len([p for p in after.loops if not p.emitted]) < 4
    assert before.count("dot_general") == 3
    assert before.count("tanh") == 2
    assert before.count("scan") == 4
    assert hasattr(before.jaxpr, "eqns") or hasattr(before.jaxpr, "jaxpr")


@pytest.mark.parametrize("which", ["before", "after"])
def test_graphs(report, which):
    """The networkx graph has a node for each equation; DOT is balanced text."""
    program = getattr(report, which)
    graph = program.to_networkx()
    assert isinstance(graph, nx.DiGraph)
    assert graph.number_of_nodes() >= 10
    dot = program.to_dot()
    assert dot.startswith("digraph")
    assert dot.count("{") == dot.count("}")
    assert "tanh" in dot


def test_keep():
    """Loops traced inside `keep()` are left alone, the others are not."""

    def f(w, x):
        with keep():
            a = lax.map(lambda r: jnp.tanh(w @ r), x)
        return a, lax.map(lambda r: jnp.tanh(w @ r) * 2, x)

    assert_same(optimize(f)(W, X), jax.jit(f)(W, X), ulps=64)
    kept, other = sorted(explain(f)(W, X).verdicts, key=lambda v: str(v.location))
    assert kept.outcome == "kept"
    assert "keep" in kept.code + kept.message
    assert other.outcome in {"batched", "blocked"}
    whole = explain(f, disable=[p.name for p in DEFAULT_PIPELINE])(W, X)
    assert {v.outcome for v in whole.verdicts} == {"kept"}


SWITCHES = """
import jax.numpy as jnp
from jax import lax
from rewriter import explain

def f(x):
    a = lax.map(lambda r: jnp.tanh(r @ x.T).sum(), x)
    return a, lax.map(lambda r: jnp.cos(r @ x.T).sum(), x)

report = explain(f)(jnp.ones((64, 8)))
print(sum(v.outcome != "kept" for v in report.verdicts))
print(sum(r.kind == "passed" for r in report.remarks))
"""


def test_environment_variables():
    """`REWRITER_DISABLE` switches passes off, `REWRITER_BISECT` stops after N."""
    names = ",".join(p.name for p in DEFAULT_PIPELINE)
    assert run_python(SWITCHES).split()[0] == "2"
    assert run_python(SWITCHES, REWRITER_DISABLE=names).split() == ["0", "0"]
    assert run_python(SWITCHES, REWRITER_BISECT="0").split() == ["0", "0"]
    changed = int(run_python(SWITCHES, REWRITER_BISECT="1").split()[0])
    assert changed <= 1


def test_benchmark():
    """The timing compares the two programs in time, accuracy and memory."""
    timing = optimize(mixed).benchmark(W, X, rounds=3)
    low, high = timing.interval
    assert low <= timing.speedup <= high
    for name in ("original_ms", "rewritten_ms"):
        assert getattr(timing, name) > 0
    for name in ("compile_original_s", "compile_rewritten_s"):
        assert getattr(timing, name) > 0
    for name in ("temp_bytes_original", "temp_bytes_rewritten"):
        assert getattr(timing, name) >= 0
    for name in ("max_difference", "error_original", "error_rewritten"):
        assert 0 <= getattr(timing, name) < 1e-3
    assert len(str(timing).splitlines()) > 3
    data = json.loads(timing.to_json())
    for name in ("original_ms", "rewritten_ms", "speedup", "interval"):
        assert name in data


def test_second_call_does_not_trace_again():
    """The function is traced once for each kind of argument."""
    traced = []

    @optimize
    def f(x):
        traced.append(x.shape)
        return lax.map(lambda r: jnp.tanh(r).sum(), x)

    f(X)
    first = len(traced)
    f(X + 1)
    f(X * 2)
    assert len(traced) == first
    f(X[:5])
    assert len(traced) == 2 * first
    outer = jax.jit(lambda x: f(x) * 2)
    outer(X)
    outer(X)
    assert len(traced) == 2 * first


def test_loops_are_gone():
    """The plainest map becomes one product."""
    assert loops_left(lambda w, x: lax.map(lambda r: w @ r, x), W, X) == 0


def test_threads():
    """Several threads may trace and lower at once."""
    want = jax.jit(mixed)(W, X)
    results = [None] * 4

    def work(i):
        results[i] = optimize(lambda w, x: mixed(w, x))(W, X)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for got in results:
        assert_same(got, want, ulps=64)
