"""Distrax, TinyGP, GPJax and BlackJAX: densities and samplers with loops."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.helpers import random
from tests.libraries.support import check

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
    pytest.mark.filterwarnings("ignore:X is not of type float64:UserWarning"),
    pytest.mark.filterwarnings("ignore:y is not of type float64:UserWarning"),
]

TIMES = jnp.linspace(0.0, 3.0, 9)
YS = random(9)


def _markov(distrax, params):
    start, move, place = params
    return distrax.HMM(
        distrax.Categorical(start),
        distrax.Categorical(move),
        distrax.Normal(place, jnp.float32(1)),
    )


MARKOV = (random(3), random(3, 3, seed=1), random(3, seed=2))


def test_distrax_forward_backward():
    distrax = pytest.importorskip("distrax")
    check(lambda p, ys: _markov(distrax, p).forward_backward(ys), MARKOV, YS)


def test_distrax_viterbi():
    distrax = pytest.importorskip("distrax")
    check(lambda p, ys: _markov(distrax, p).viterbi(ys), MARKOV, YS, grad=False)


def test_distrax_autoregressive_flow():
    """A bijector applied layer by layer, and its inverse dimension by dimension."""
    distrax = pytest.importorskip("distrax")

    def model(layers, x):
        def step(x, layer):
            w, b = layer
            bijector = distrax.ScalarAffine(b, log_scale=jnp.tanh(w))
            y, det = bijector.forward_and_log_det(x)
            return jnp.tanh(y) + y, det.sum()

        y, dets = lax.scan(step, x, layers)
        return distrax.Normal(0.0, 1.0).log_prob(y).sum() + dets.sum()

    check(model, (random(5, 4), random(5, 4, seed=1)), random(4), vmap=True)


@pytest.mark.parametrize("kernel", ["Matern32", "SHO", "sum"])
def test_tinygp_quasiseparable_kernels(kernel):
    """The linear time Gaussian process: Cholesky factor and solves are scans."""
    tinygp = pytest.importorskip("tinygp")
    kernels = tinygp.kernels.quasisep

    def density(params, times, ys):
        scale, sigma = jnp.exp(params)
        if kernel == "SHO":
            k = kernels.SHO(omega=scale, quality=2.0, sigma=sigma)
        else:
            k = kernels.Matern32(scale=scale, sigma=sigma)
        if kernel == "sum":
            k = k + kernels.Exp(scale=2 * scale)
        return tinygp.GaussianProcess(k, times, diag=0.1).log_probability(ys)

    params = jnp.array([0.3, 0.1])
    check(density, params, TIMES, YS, jit=True, vmap=True, ulps=2**12)


def test_tinygp_conditional_mean():
    tinygp = pytest.importorskip("tinygp")

    def predict(params, times, ys):
        k = tinygp.kernels.quasisep.Matern52(scale=jnp.exp(params[0]))
        gp = tinygp.GaussianProcess(k, times, diag=jnp.exp(params[1]))
        return gp.condition(ys).gp.loc

    check(predict, jnp.array([0.3, -2.0]), TIMES, YS, ulps=2**12)


def test_gaussian_process_trained_in_a_scan():
    """GPJax's marginal likelihood, descended by hand."""
    gpx = pytest.importorskip("gpjax")
    data = gpx.Dataset(X=TIMES[:, None], y=YS[:, None])

    def train(params, _):
        def energy(params):
            kernel = gpx.kernels.RBF(
                lengthscale=jnp.exp(params[0]), variance=jnp.exp(params[1])
            )
            prior = gpx.gps.Prior(kernel, gpx.mean_functions.Zero())
            likelihood = gpx.likelihoods.Gaussian()
            return -gpx.objectives.conjugate_mll(prior * likelihood, data)

        def step(params, _):
            value, slope = jax.value_and_grad(energy)(params)
            return params - 0.01 * slope, value

        return lax.scan(step, params, None, length=4)

    check(train, jnp.array([0.1, 0.2]), None, grad=False, ulps=2**14)


@pytest.mark.parametrize("sampler", ["rmh", "hmc", "mala", "nuts", "elliptical_slice"])
def test_blackjax_inference_loop(sampler):
    """The scan of BlackJAX's documentation around a kernel."""
    blackjax = pytest.importorskip("blackjax")
    density = lambda x: -jnp.sum(x**4 + x**2) / 2  # noqa: E731
    kernels = {
        "rmh": lambda: blackjax.additive_step_random_walk(
            density, blackjax.mcmc.random_walk.normal(jnp.full(2, 0.5))
        ),
        "hmc": lambda: blackjax.hmc(density, 0.1, jnp.ones(2), 3),
        "mala": lambda: blackjax.mala(density, 0.1),
        "nuts": lambda: blackjax.nuts(density, 0.2, jnp.ones(2), max_num_doublings=3),
        "elliptical_slice": lambda: blackjax.elliptical_slice(
            density, mean=jnp.zeros(2), cov=jnp.eye(2)
        ),
    }

    def run(start, key):
        kernel = kernels[sampler]()

        def step(state, key):
            state, info = kernel.step(key, state)
            return state, (state.position, info)

        keys = jax.random.split(key, 5)
        return lax.scan(step, kernel.init(start), keys)[1][0]

    check(run, jnp.array([0.5, -0.2]), jax.random.key(0), grad=False, ulps=2**12)
