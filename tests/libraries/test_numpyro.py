"""Probabilistic programs with loops in NumPyro: densities, SVI, MCMC."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.scipy.special import logsumexp

from rewriter import optimize
from tests.helpers import assert_same, random
from tests.libraries.support import check

numpyro = pytest.importorskip("numpyro")
control_flow = pytest.importorskip("numpyro.contrib.control_flow")
dist = pytest.importorskip("numpyro.distributions")
infer = pytest.importorskip("numpyro.infer")

YS = random(9)
KEY = jax.random.key(0)


def autoregressive(ys):
    """An AR(2) model, the scan of NumPyro's time series tutorial."""
    a = numpyro.sample("a", dist.Normal(0, 1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))

    def step(carry, y):
        one, two = carry
        mean = a[0] * one + a[1] * two
        y = numpyro.sample("y", dist.Normal(mean, sigma), obs=y)
        return (y, one), mean

    _, means = control_flow.scan(step, (ys[1], ys[0]), ys[2:])
    numpyro.deterministic("means", means)


def hidden_states(ys, n=3):
    """A hidden Markov model whose states are summed out."""
    ones = jnp.ones((n, n))
    move = numpyro.sample("move", dist.Dirichlet(ones).to_event(1))
    place = numpyro.sample("place", dist.Normal(0, 2).expand([n]).to_event(1))

    def step(x, y):
        x = numpyro.sample(
            "x", dist.Categorical(move[x]), infer={"enumerate": "parallel"}
        )
        numpyro.sample("y", dist.Normal(place[x], 1), obs=y)
        return x, None

    control_flow.scan(step, 0, ys)


def local_level(ys):
    """A random walk with a latent innovation per step, by reparametrisation."""
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    centred = {"level": infer.reparam.LocScaleReparam(0)}

    def step(level, y):
        with numpyro.handlers.reparam(config=centred):
            level = numpyro.sample("level", dist.Normal(level, tau))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=y)
        return level, level

    control_flow.scan(step, jnp.float32(0), ys)


def _potential(model):
    """Return a model's potential energy and where to take it."""
    info = infer.util.initialize_model(
        KEY, model, model_args=(YS,), validate_grad=False
    )
    return info.potential_fn, info.param_info.z


@pytest.mark.parametrize("model", [autoregressive, local_level])
def test_potential_energy(model):
    check(*_potential(model), jit=True, vmap=True)


def test_log_density_of_a_hidden_markov_model():
    pytest.importorskip("funsor")
    check(*_potential(hidden_states))


def test_log_density_of_a_supervised_hidden_markov_model():
    def model(states, ys):
        move = numpyro.sample("move", dist.Dirichlet(jnp.ones((3, 3))).to_event(1))
        place = numpyro.sample("place", dist.Normal(0, 2).expand([3]).to_event(1))

        def step(before, now):
            x = numpyro.sample("x", dist.Categorical(move[before]), obs=now[0])
            numpyro.sample("y", dist.Normal(place[x], 1), obs=now[1])
            return x, None

        control_flow.scan(step, 0, (states, ys))

    def density(values, states, ys):
        return infer.util.log_density(model, (states, ys), {}, values)[0]

    states = jnp.array([0, 1, 1, 2, 0, 2, 1, 0, 2])
    values = {"move": jnp.full((3, 3), 1 / 3), "place": jnp.array([-1.0, 0.0, 1.0])}
    check(density, values, states, YS, vmap=True)


def test_forward_algorithm_in_a_factor():
    """The forward pass of NumPyro's HMM example, its gradient by NUTS."""

    def forward(logits, place, ys):
        def step(alpha, y):
            alpha = logsumexp(alpha[:, None] + jax.nn.log_softmax(logits), axis=0)
            return alpha + dist.Normal(place, 1).log_prob(y), None

        return logsumexp(lax.scan(step, jnp.zeros(3), ys)[0])

    def model(forward, ys):
        logits = numpyro.sample("logits", dist.Normal(0, 1).expand([3, 3]).to_event(2))
        place = numpyro.sample("place", dist.Normal(0, 2).expand([3]).to_event(1))
        numpyro.factor("forward", forward(logits, place, ys))

    check(lambda p, ys: forward(*p, ys), (random(3, 3), random(3)), YS, vmap=True)

    def samples(forward):
        kernel = infer.NUTS(model, max_tree_depth=3, step_size=0.05)
        mcmc = infer.MCMC(kernel, num_warmup=2, num_samples=3, progress_bar=False)
        mcmc.run(KEY, forward, YS)
        return mcmc.get_samples()

    assert_same(samples(optimize(forward)), samples(forward), ulps=2**14)


def test_variational_inference():
    """`lax.scan` over updates of SVI, the gradient of an ELBO inside."""
    guide = infer.autoguide.AutoNormal(autoregressive)
    svi = infer.SVI(autoregressive, guide, numpyro.optim.Adam(0.05), infer.Trace_ELBO())
    start = svi.init(KEY, YS)

    def fit(state, ys):
        return lax.scan(lambda s, _: svi.update(s, ys), state, None, length=6)[1]

    check(fit, start, YS, grad=False)


def test_predictive_samples():
    """Draws of a fitted model: random bits inside a scan inside a map."""
    posterior = {"a": random(4, 2, scale=0.3), "sigma": abs(random(4))}

    def model(length):
        return autoregressive_prior(length)

    def draw(posterior, key):
        return infer.Predictive(model, posterior, parallel=False)(key, 6)["y"]

    check(draw, posterior, KEY)


def autoregressive_prior(length):
    """The generating model: nothing observed."""
    a = numpyro.sample("a", dist.Normal(0, 1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))

    def step(carry, _):
        y = numpyro.sample("y", dist.Normal(a[0] * carry[0] + a[1] * carry[1], sigma))
        return (y, carry[0]), y

    control_flow.scan(step, (jnp.float32(0), jnp.float32(0)), None, length=length)
