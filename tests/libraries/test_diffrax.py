"""Differential equations: Diffrax, `odeint`, and steppers written by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental.ode import odeint

from rewriter import optimize
from tests.helpers import assert_same, random
from tests.libraries.support import check

dfx = pytest.importorskip("diffrax")

W = random(3, 3, scale=0.5)
Y0 = random(3, seed=1)


def field(t, y, w):
    """A small neural vector field."""
    return jnp.tanh(w @ y) - y * (1 + 0.1 * t)


def _adaptive():
    return dfx.PIDController(rtol=1e-3, atol=1e-3)


SOLVES = {
    "euler": (dfx.Euler, dfx.ConstantStepSize, dfx.RecursiveCheckpointAdjoint),
    "tsit5-direct": (dfx.Tsit5, dfx.ConstantStepSize, dfx.DirectAdjoint),
    "dopri5-backsolve": (dfx.Dopri5, dfx.ConstantStepSize, dfx.BacksolveAdjoint),
    "implicit": (dfx.Kvaerno3, _adaptive, dfx.DirectAdjoint),
    "adaptive": (dfx.Tsit5, _adaptive, dfx.RecursiveCheckpointAdjoint),
}


@pytest.mark.parametrize("name", SOLVES)
def test_diffeqsolve(name):
    solver, controller, adjoint = SOLVES[name]

    def solve(w, y0):
        ends = name == "dopri5-backsolve"
        return dfx.diffeqsolve(
            dfx.ODETerm(field),
            solver(),
            t0=0.0,
            t1=1.0,
            dt0=0.2,
            y0=y0,
            args=w,
            saveat=dfx.SaveAt(t1=True)
            if ends
            else dfx.SaveAt(ts=jnp.linspace(0, 1, 4)),
            stepsize_controller=controller(),
            adjoint=adjoint(),
            max_steps=16,
        ).ys

    check(solve, W, Y0, jit=name == "euler", ulps=2**12)


def test_stochastic_differential_equation():
    def solve(w, y0, key):
        noise = dfx.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(3,), key=key)
        terms = dfx.MultiTerm(
            dfx.ODETerm(field),
            dfx.ControlTerm(lambda t, y, w: jnp.diag(0.1 + 0 * y), noise),
        )
        saved = dfx.SaveAt(steps=True)
        return dfx.diffeqsolve(
            terms, dfx.Euler(), 0.0, 1.0, 0.25, y0, w, saveat=saved, max_steps=8
        ).ys

    check(solve, W, Y0, jax.random.key(0))


def test_field_that_is_optimized_itself():
    """The decorated function is called inside a solver's while loop."""

    def make(decorate):
        @decorate
        def rows(t, y, w):
            return lax.map(lambda row: jnp.tanh(row @ w), y) - y

        def solve(w, y0):
            return dfx.diffeqsolve(
                dfx.ODETerm(rows),
                dfx.Heun(),
                0.0,
                1.0,
                0.25,
                y0,
                w,
                max_steps=8,
                adjoint=dfx.DirectAdjoint(),
            ).ys

        return solve

    want = jax.jit(make(lambda f: f))(W, random(4, 3))
    assert_same(jax.jit(make(optimize))(W, random(4, 3)), want)
    check(make(optimize), W, random(4, 3))


@pytest.mark.parametrize("loss", ["end", "path"])
def test_odeint(loss):
    times = jnp.linspace(0.0, 1.0, 5)

    def solve(w, y0):
        ys = odeint(lambda y, t, w: field(t, y, w), y0, times, w)
        return ys if loss == "path" else ys[-1]

    check(solve, W, Y0, vmap=loss == "path", ulps=2**14)


def test_runge_kutta_by_hand():
    def solve(w, y0):
        h = 0.1

        def step(y, t):
            k1 = field(t, y, w)
            k2 = field(t + h / 2, y + h / 2 * k1, w)
            k3 = field(t + h / 2, y + h / 2 * k2, w)
            k4 = field(t + h, y + h * k3, w)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return y, y

        return lax.scan(step, y0, jnp.arange(10) * h)[1]

    check(solve, W, Y0, jit=True, vmap=True)
