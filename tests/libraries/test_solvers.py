"""Iterative solvers: JAXopt, OTT, Optimistix and Haiku's loops."""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers import random
from tests.libraries.support import check

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

X = random(12, 3)
Y = random(12, seed=1)
W = random(3, seed=2)


def ridge(w, penalty, x, y):
    """Regularised least squares."""
    return jnp.mean((x @ w - y) ** 2) / 2 + penalty * jnp.sum(w**2) / 2


JAXOPT = {
    "GradientDescent": {"maxiter": 5, "implicit_diff": True},
    "GradientDescent-unrolled": {"maxiter": 5, "implicit_diff": False, "jit": True},
    "LBFGS": {"maxiter": 3},
    "NonlinearCG": {"maxiter": 3},
}


@pytest.mark.parametrize("name", JAXOPT)
def test_jaxopt(name):
    jaxopt = pytest.importorskip("jaxopt")

    def solve(penalty, w, x, y):
        make = getattr(jaxopt, name.removesuffix("-unrolled"))
        return make(ridge, **JAXOPT[name]).run(w, penalty, x, y).params

    descent = name.startswith("GradientDescent")
    check(solve, jnp.float32(0.3), W, X, Y, grad=descent, ulps=2**12)


def test_jaxopt_lasso():
    jaxopt = pytest.importorskip("jaxopt")

    def solve(penalty, w, x, y):
        loss = jaxopt.objective.least_squares
        solver = jaxopt.ProximalGradient(loss, jaxopt.prox.prox_lasso, maxiter=5)
        return solver.run(w, penalty, (x, y)).params

    check(solve, jnp.float32(0.1), W, X, Y, ulps=2**12)


def test_jaxopt_fixed_point():
    jaxopt = pytest.importorskip("jaxopt")

    def solve(a, x):
        step = lambda x, a: jnp.tanh(a @ x) / 2 + 0.1  # noqa: E731
        return jaxopt.AndersonAcceleration(step, maxiter=6, history_size=2).run(x, a)[0]

    check(solve, random(3, 3), W, ulps=2**14)


@pytest.mark.parametrize("lse", [True, False])
def test_ott_sinkhorn(lse):
    ott = pytest.importorskip("ott")
    pytest.importorskip("ott.geometry.pointcloud")
    pytest.importorskip("ott.solvers.linear")

    def cost(x, y):
        geometry = ott.geometry.pointcloud.PointCloud(x, y, epsilon=0.5)
        solved = ott.solvers.linear.solve(geometry, lse_mode=lse, max_iterations=20)
        return solved.reg_ot_cost

    check(cost, random(6, 2), random(5, 2, seed=1), ulps=2**12)


def test_optimistix_least_squares():
    optx = pytest.importorskip("optimistix")

    def solve(y, x):
        residual = lambda w, xy: jnp.tanh(xy[0] @ w) - xy[1]  # noqa: E731
        solver = optx.LevenbergMarquardt(rtol=1e-3, atol=1e-3)
        solved = optx.least_squares(
            residual, solver, jnp.zeros(3), args=(x, y), max_steps=12, throw=False
        )
        return solved.value

    check(solve, Y / 4, X, ulps=2**14)


def test_haiku_dynamic_unroll():
    hk = pytest.importorskip("haiku")

    def network(xs):
        core = hk.DeepRNN([hk.LSTM(4), jax.nn.relu, hk.GRU(3), hk.Linear(2)])
        return hk.dynamic_unroll(core, xs, core.initial_state(2), unroll=2)

    model = hk.without_apply_rng(hk.transform(network))
    xs = random(6, 2, 3)
    check(model.apply, model.init(jax.random.key(0), xs), xs)


def test_haiku_layer_stack():
    hk = pytest.importorskip("haiku")

    def network(x):
        @hk.experimental.layer_stack(4, with_per_layer_inputs=True)
        def layers(x, bias):
            return jnp.tanh(hk.Linear(3)(x)) + x + bias, jnp.sum(x)

        return layers(x, jnp.arange(4.0))

    model = hk.without_apply_rng(hk.transform(network))
    check(model.apply, model.init(jax.random.key(0), X), X)
