"""State space models of Dynamax: filters, smoothers, hidden Markov models."""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers import random
from tests.libraries.support import check

pytest.importorskip("dynamax")
linear = pytest.importorskip("dynamax.linear_gaussian_ssm")
nonlinear = pytest.importorskip("dynamax.nonlinear_gaussian_ssm")
hidden = pytest.importorskip("dynamax.hidden_markov_model")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

YS = random(8, 2)
INPUTS = random(8, 1, seed=1)


def _kalman():
    model = linear.LinearGaussianSSM(state_dim=3, emission_dim=2, input_dim=1)
    params, _ = model.initialize(jax.random.key(0))
    return model, params


@pytest.mark.parametrize("name", ["filter", "smoother"])
def test_kalman(name):
    model, params = _kalman()
    check(getattr(model, name), params, YS, INPUTS, ulps=2**12)


def test_kalman_marginal_log_prob():
    model, params = _kalman()
    check(model.marginal_log_prob, params, YS, INPUTS, jit=True, vmap=True)


def test_kalman_batch_of_sequences():
    model, params = _kalman()

    def density(params, ys, inputs):
        return jax.vmap(model.marginal_log_prob, (None, 0, 0))(params, ys, inputs)

    check(density, params, random(3, 8, 2), random(3, 8, 1))


@pytest.mark.parametrize("method", ["extended", "unscented"])
def test_pendulum(method):
    def model(scale, ys):
        params = nonlinear.ParamsNLGSSM(
            initial_mean=jnp.array([0.5, 0.0]),
            initial_covariance=jnp.eye(2) * 0.1,
            dynamics_function=lambda x: jnp.stack(
                [x[0] + 0.1 * x[1], x[1] - 0.98 * jnp.sin(x[0])]
            ),
            dynamics_covariance=jnp.eye(2) * scale[0],
            emission_function=lambda x: jnp.sin(x[:1]),
            emission_covariance=jnp.eye(1) * scale[1],
        )
        if method == "extended":
            return nonlinear.extended_kalman_filter(params, ys).marginal_loglik
        return nonlinear.unscented_kalman_filter(
            params, ys, nonlinear.UKFHyperParams()
        ).marginal_loglik

    check(model, jnp.array([0.1, 0.3]), YS[:, :1], ulps=2**12)


def _mixture():
    model = hidden.GaussianHMM(num_states=3, emission_dim=2)
    params, _ = model.initialize(jax.random.key(1))
    return model, params


def test_hidden_markov_marginal_log_prob():
    model, params = _mixture()
    check(model.marginal_log_prob, params, YS, jit=True, vmap=True)


@pytest.mark.parametrize("name", ["filter", "smoother", "two_filter"])
def test_hidden_markov_posterior(name):
    model, params = _mixture()

    def posterior(params, ys):
        if name == "two_filter":
            likelihoods = model._inference_args(params, ys, None)
            return hidden.hmm_two_filter_smoother(*likelihoods)
        return getattr(model, name)(params, ys)

    check(posterior, params, YS)


def test_most_likely_states():
    model, params = _mixture()
    check(model.most_likely_states, params, YS, grad=False)


def test_samples():
    model, params = _mixture()
    check(lambda p, key: model.sample(p, key, 6), params, jax.random.key(2), grad=False)


def test_expectation_maximisation():
    model, params = _mixture()
    _, properties = model.initialize(jax.random.key(1))

    def fit(params, batch):
        start = model.initialize_m_step_state(params, properties)

        def step(state, _):
            params, extra = state
            stats, density = jax.vmap(lambda ys: model.e_step(params, ys))(batch)
            state = model.m_step(params, properties, stats, extra)
            return state, density.sum()

        (params, _), densities = jax.lax.scan(step, (params, start), None, length=3)
        return params, densities

    check(fit, params, random(4, 8, 2), grad=False, ulps=2**12)
