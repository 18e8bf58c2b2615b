"""Loops that come with JAX, and textbook programs written with nothing else."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.ode import odeint
from jax.scipy.linalg import cho_solve
from jax.scipy.optimize import minimize
from jax.scipy.sparse.linalg import bicgstab, cg
from jax.scipy.stats import multivariate_normal, norm

from tests.helpers import random
from tests.libraries.support import check

W = random(3, 3, scale=0.5)
X = random(9, 3, seed=1)
KEY = jax.random.key(0)
SPREAD = jnp.eye(3) + random(3, 3, scale=0.1) @ random(3, 3, scale=0.1).T


def test_odeint():
    def solve(w, y0):
        field = lambda y, t, w: jnp.tanh(w @ y) - y * (1 + 0.1 * t)  # noqa: E731
        return odeint(field, y0, jnp.linspace(0.0, 1.0, 5), w)

    check(solve, W, X[0], vmap=True, ulps=2**14)


def test_runge_kutta():
    def solve(w, y0):
        h = 0.1
        field = lambda t, y: jnp.tanh(w @ y) - y * (1 + 0.1 * t)  # noqa: E731

        def step(y, t):
            k1 = field(t, y)
            k2 = field(t + h / 2, y + h / 2 * k1)
            k3 = field(t + h / 2, y + h / 2 * k2)
            k4 = field(t + h, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return y, y

        return lax.scan(step, y0, jnp.arange(10) * h)[1]

    check(solve, W, X[0], jit=True, vmap=True)


def test_random_walk_metropolis():
    def sample(mean, spread, key):
        density = lambda x: multivariate_normal.logpdf(x, mean, spread)  # noqa: E731

        def step(state, key):
            x, value = state
            k1, k2 = jax.random.split(key)
            trial = x + 0.5 * jax.random.normal(k1, x.shape)
            new = density(trial)
            accept = jnp.log(jax.random.uniform(k2)) < new - value
            x, value = jnp.where(accept, trial, x), jnp.where(accept, new, value)
            return (x, value), (x, accept)

        keys = jax.random.split(key, 12)
        return lax.scan(step, (mean + 1, density(mean + 1)), keys)[1]

    check(sample, X[0], SPREAD, KEY, jit=True, vmap=True)


def test_hamiltonian_monte_carlo():
    def sample(start, w, key):
        energy = lambda x: jnp.sum(jnp.cosh(w @ x)) / 2  # noqa: E731
        slope = jax.grad(energy)

        def leap(state, _):
            x, p = state
            p = p - 0.05 * slope(x)
            x = x + 0.1 * p
            return (x, p - 0.05 * slope(x)), None

        def step(x, key):
            k1, k2 = jax.random.split(key)
            p = jax.random.normal(k1, x.shape)
            (y, q), _ = lax.scan(leap, (x, p), None, length=4)
            change = energy(x) + p @ p / 2 - energy(y) - q @ q / 2
            x = lax.cond(jnp.log(jax.random.uniform(k2)) < change, lambda: y, lambda: x)
            return x, x

        return lax.scan(step, start, jax.random.split(key, 5))[1]

    check(sample, X[0], W, KEY)


def test_particle_filter():
    """Weights, a systematic resampling by `searchsorted`, and moves, per step."""

    def density(scale, ys, key):
        def step(state, row):
            x, total = state
            y, key = row
            k1, k2 = jax.random.split(key)
            logits = norm.logpdf(y, x, scale)
            total = total + jax.nn.logsumexp(logits) - jnp.log(len(x))
            places = (jnp.arange(len(x)) + jax.random.uniform(k1)) / len(x)
            at = jnp.searchsorted(jnp.cumsum(jax.nn.softmax(logits)), places)
            x = x[jnp.minimum(at, len(x) - 1)] * 0.9
            return (x + jax.random.normal(k2, x.shape), total), x.mean()

        rows = (ys, jax.random.split(key, len(ys)))
        return lax.scan(step, (jnp.zeros(8), jnp.float32(0)), rows)

    check(density, jnp.float32(0.8), X[:, 0], KEY)


def test_kalman_filter():
    def density(params, ys):
        a, q, c, r = params

        def step(state, y):
            m, p, total = state
            m, p = a @ m, a @ p @ a.T + q @ q.T
            s = c @ p @ c.T + r @ r.T + jnp.eye(2)
            gain = cho_solve((jnp.linalg.cholesky(s), True), c @ p).T
            total = total + multivariate_normal.logpdf(y, c @ m, s)
            m, p = m + gain @ (y - c @ m), p - gain @ c @ p
            return (m, p, total), m

        return lax.scan(step, (jnp.zeros(3), jnp.eye(3), jnp.float32(0)), ys)

    params = (W, random(3, 3, seed=2) / 2, random(2, 3, seed=3), random(2, 2, seed=4))
    check(density, params, X[:, :2], jit=True, ulps=2**12)


def test_gaussian_process_over_folds():
    """Leave one out by a map: a Cholesky factor per fold."""

    def density(params, x, y):
        def fold(i):
            keep = jnp.arange(len(x)) != i
            gap = x[:, None] - x[None]
            k = jnp.exp(params[0] - jnp.sum(gap**2, -1) / jnp.exp(params[1]))
            k = jnp.where(keep[:, None] & keep, k, 0) + jnp.eye(len(x))
            solved = cho_solve((jnp.linalg.cholesky(k), True), jnp.where(keep, y, 0))
            row = jnp.exp(params[0] - jnp.sum((x - x[i]) ** 2, -1))
            return norm.logpdf(y[i], row @ solved)

        return lax.map(fold, jnp.arange(len(x)))

    check(density, jnp.array([0.2, 0.4]), X, X[:, 0], jit=True, vmap=True)


def test_krylov_solvers():
    def solve(a, b):
        a = a @ a.T + jnp.eye(3)
        return cg(a, b, maxiter=4)[0], bicgstab(a, b, maxiter=3)[0]

    check(solve, W, X[0], ulps=2**14)


def test_minimize():
    def solve(start, w):
        banana = lambda x: jnp.sum((w @ x - 1) ** 2) + jnp.sum(x**4)  # noqa: E731
        return minimize(banana, start, method="BFGS", options={"maxiter": 4}).x

    check(solve, X[0], W, grad=False, ulps=2**14)


def test_transformer_decoding_with_a_cache():
    """Greedy decoding: a cache written row by row, attention over what is there."""

    def decode(params, first):
        q, k, v, table = params

        def step(state, i):
            token, keys, values = state
            x = table[token]
            keys = lax.dynamic_update_slice(keys, (x @ k)[None], (i, 0))
            values = lax.dynamic_update_slice(values, (x @ v)[None], (i, 0))
            scores = jnp.where(jnp.arange(8) <= i, keys @ (x @ q), -jnp.inf)
            logits = table @ (x + jax.nn.softmax(scores) @ values)
            token = jnp.argmax(logits).astype(jnp.int32)
            return (token, keys, values), (token, logits)

        start = (first, jnp.zeros((8, 3)), jnp.zeros((8, 3)))
        return lax.scan(step, start, jnp.arange(8))[1]

    params = (W, random(3, 3, seed=5), random(3, 3, seed=6), random(7, 3, seed=7))
    check(decode, params, jnp.int32(2), jit=True)
