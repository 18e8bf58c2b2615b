"""`graph`, `inline`, `printer` and `remarks`: views of programs and their words."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import Remark, explain, optimize
from rewriter import jax_compat as jc
from rewriter.emit import emit_loop
from rewriter.graph import loop_of, prune, variant_values
from rewriter.inline import inline
from rewriter.printer import loops, outline, walk
from rewriter.remarks import Location, analysis, failed, missed, passed
from tests.helpers import random
from tests.rewriter.bodies import body_of, scan_of

X = random(10, 3)


def evaluated(fn, *args, custom=False):
    """Inline a program and evaluate what comes out."""
    closed = jax.make_jaxpr(fn)(*args)
    eqns, subst, consts = inline(closed.jaxpr.eqns, custom)
    env = dict(zip(closed.jaxpr.invars, args, strict=True))
    env.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env.update(consts)

    def read(v):
        v = v if isinstance(v, jc.Literal) else subst.get(v, v)
        return v.val if isinstance(v, jc.Literal) else env[v]

    for e in eqns:
        ins = [v.val if isinstance(v, jc.Literal) else env[v] for v in e.invars]
        env.update(zip(e.outvars, jc.rebind(e, ins), strict=True))
    return [e.primitive.name for e in eqns], [read(v) for v in closed.jaxpr.outvars]


TABLE = np.arange(100.0, dtype=np.float32)
inner = jax.jit(lambda a, b: (a * b, a))
twice = jax.jit(lambda a: inner(a, inner(a, a)[0])[0])
PROGRAMS = {
    "nested": lambda x: twice(x) + inner(x, x)[1],
    "same_call_twice": lambda x: inner(inner(x, x)[0], x)[0],
    "identity": lambda x: jax.jit(lambda a: a)(x),
    "unused_result": lambda x: inner(x, x)[1],
    "literal_result": lambda x: jax.jit(lambda a: (a, 1.0))(x)[1] + x,
    "constant": lambda x: jax.jit(lambda a: a[0, 0] + TABLE)(x),
    "swapped": lambda x: jax.jit(lambda a, b: (b, a))(x, x + 1)[0],
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_inline(case):
    fn = PROGRAMS[case]
    names, (got,) = evaluated(fn, X)
    assert not set(names) & jc.JIT_NAMES
    np.testing.assert_allclose(got, fn(X), rtol=1e-6)


def test_inlined_variables_are_fresh():
    """A call made twice defines its variables twice."""
    closed = jax.make_jaxpr(PROGRAMS["same_call_twice"])(X)
    eqns, _, _ = inline(closed.jaxpr.eqns)
    made = [v for e in eqns for v in e.outvars]
    assert len(made) == len(set(made)) == 2


def test_inline_custom_rules_only_late():
    """`custom_jvp` is opened once differentiation is over."""
    names, _ = evaluated(jax.nn.relu, X)
    assert "custom_jvp_call" in names
    names, (got,) = evaluated(jax.nn.relu, X, custom=True)
    assert "custom_jvp_call" not in names
    np.testing.assert_array_equal(got, np.maximum(X, 0))


def test_not_inlined():
    """A jit that donates is more than a group of equations."""
    donating = jax.jit(lambda a: a * 2, donate_argnums=0)
    names, _ = evaluated(lambda x: donating(x + 1), X)
    assert set(names) & jc.JIT_NAMES


# ------------------------------------------------------------ loops by role


def rich(w, x):
    """Consts, carries that are used or not, xs, ys, a counter."""

    def step(c, r):
        i, h, unused, same = c
        h = jnp.tanh(w @ h + r[0] * i)
        return (i + 2, h, unused + 1, same), (h, r[1], 3.0, jnp.sin(r[0]))

    start = (jnp.int32(5), x[0], jnp.float32(0), x[1])
    (_, h, _, same), (a, b, c, _) = lax.scan(step, start, (x, x * 2))
    return h, same, a, b, c


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_and_back(roles, reverse):
    """A loop by role, emitted again, is the loop."""

    def f(w, x):
        def step(c, r):
            i, h = c
            h = jnp.tanh(w @ h + r * i)
            return (i + 2, h), (h, i)

        return lax.scan(step, (jnp.int32(5), x[0]), x, reverse=reverse)

    w = random(3, 3)
    eqn, _ = scan_of(f, w, X)
    loop = body_of(f, w, X, roles=roles)
    assert bool(loop.counters) == roles
    closed = jax.make_jaxpr(f)(w, X)
    env = dict(zip(closed.jaxpr.invars, (w, X), strict=True))
    for e in closed.jaxpr.eqns:
        ins = [v.val if isinstance(v, jc.Literal) else env[v] for v in e.invars]
        if e.primitive.name == "scan":
            out = emit_loop(loop, ins)
        else:
            out = jc.rebind(e, ins)
        env.update(zip(e.outvars, out, strict=True))
    got = [env[v] for v in closed.jaxpr.outvars]
    for g, want in zip(got, jax.tree.leaves(f(w, X)), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-5, atol=1e-6)
    assert eqn.primitive.name == "scan"


def test_prune():
    """What no result needs is dropped: carries, equations, inputs."""
    eqn, scope = scan_of(lambda x: rich(jnp.eye(3), x)[0], X)
    whole = loop_of(eqn, scope)
    pruned = prune(whole)
    assert len(whole.ys) == 0
    assert len(pruned.carries) == 2
    assert "sin" not in [e.primitive.name for e in pruned.eqns]
    assert prune(pruned) is pruned


def test_variant_values():
    closed = jax.make_jaxpr(lambda a, b: (jnp.sin(a), jnp.cos(b), a * b))(1.0, 2.0)
    found = variant_values(closed.jaxpr.eqns, {closed.jaxpr.invars[1]})
    assert [v in found for v in closed.jaxpr.outvars] == [False, True, True]


# ------------------------------------------------------------ text


def nested(w, x):
    def row(r):
        def body(c):
            return c[0] * 0.5, c[1] + 1

        h = lax.scan(lambda h, _: (jnp.tanh(w @ h), None), r, None, 7)[0]
        h = lax.cond(h[0] > 0, jnp.sin, jnp.cos, h)
        return lax.while_loop(lambda c: jnp.sum(c[0]) > 1, body, (h, 0))

    return lax.map(jax.jit(row), x)


def test_outline():
    """Jits are looked through, cheap structure is left out, counts are written."""
    text = outline(jax.make_jaxpr(nested)(random(3, 3), X))
    lines = text.splitlines()
    assert lines[0] == "scan 10:"
    assert "  scan 7, 1 carried:" in lines
    assert "    dot_general tanh" in lines
    assert "  cond:" in lines
    assert "    sin" in lines
    assert "    cos" in lines
    assert "  while:" in lines
    assert "broadcast" not in text
    assert "jit" not in text


def test_outline_counts():
    text = outline(jax.make_jaxpr(lambda x: jnp.sin(x) + jnp.sin(x + 1))(1.0))
    assert text == "add*2 sin*2"
    assert outline(jax.make_jaxpr(lambda x: x)(1.0)) == ""


def test_outline_names_emitted_loops():
    def f(u, x):
        return lax.scan(lambda h, r: (jnp.tanh(u @ h + u @ r),) * 2, x[0], x)

    report = explain(f)(random(64, 64), random(500, 64))
    assert "scan 500 residual, 1 carried:" in report.after.outline()
    (info,) = report.after.loops
    assert info.emitted
    assert info.trip_count == 500


def test_loops_and_walk():
    """Outer before inner, with depth, place and trip count."""
    closed = jax.make_jaxpr(nested)(random(3, 3), X)
    found = [(i.primitive, i.trip_count, i.depth) for i in loops(closed)]
    assert found == [("scan", 10, 0), ("scan", 7, 1), ("while", None, 1)]
    assert all(i.location.file.endswith("test_graph.py") for i in loops(closed))
    assert not any(i.emitted for i in loops(closed))
    names = [e.primitive.name for e in walk(closed)]
    assert names.count("scan") == 2
    assert names.count("tanh") == 1


# ------------------------------------------------------------ remarks


def test_remark():
    """A declared code, filled in at a place."""
    code = missed("too-few", "{n} of {total} rows", "add {n} more").owned_by("my-pass")
    assert code.code == "my-pass/too-few"
    remark = code.at(Location("/some/where/file.py", 12, "f"), n=3, total=5)
    assert isinstance(remark, Remark)
    assert remark.message == "3 of 5 rows"
    assert remark.suggestion == "add 3 more"
    assert remark.args["n"] == 3
    assert str(remark) == "file.py:12: missed: 3 of 5 rows [my-pass/too-few]"
    with pytest.raises(TypeError):
        remark.args["n"] = 4
    with pytest.raises(KeyError):
        code.at(Location("f", 1), n=3)


def test_remark_as_json():
    """Arguments that are not plain values become text."""
    code = passed("done", "{what} at {where}").owned_by("p")
    where = Location("a/b.py", 7)
    remark = code.at(where, what=2, where=where)
    values = json.loads(json.dumps(remark.to_dict()))
    assert values["args"] == {"what": 2, "where": "b.py:7"}
    assert values["kind"] == "passed"
    assert values["file"], values["line"] == ("a/b.py", 7)


def test_kinds():
    kinds = [declare("r", "t").kind for declare in (passed, missed, failed, analysis)]
    assert kinds == ["passed", "missed", "failed", "analysis"]
    assert str(Location("<unknown>", 0)) == "<unknown>"


def test_remarks_name_the_user():
    """Every remark of a program stands at one of its lines."""
    report = optimize(rich).explain(random(3, 3), X)
    assert report.remarks
    assert {r.location.file for r in report.remarks} == {__file__}
    assert all(r.location.line > 0 for r in report.remarks)
