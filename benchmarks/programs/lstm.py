"""A hierarchical bidirectional LSTM: as users write it, and the best form by hand.

Parameters of a layer: for each gate i, f, g, o an input matrix (D, H), a recurrent
matrix (H, H) and a bias (H,). Inputs (T, batch, D). A level is a forward and a backward
layer, whose outputs are joined; a model is a list of levels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
Gate = tuple[Array, Array, Array]
Layer = dict[str, Gate]
Levels = Sequence[tuple[Layer, Layer]]
Run = Callable[[Layer, Array, bool], Array]
State = tuple[Array, Array]
GATES = "ifgo"


def parameters(rng: np.random.Generator, features: int, hidden: int) -> Any:
    """Draw the parameters of two levels."""

    def uniform(*shape: int) -> np.ndarray:
        bound = hidden**-0.5
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    def layer(width: int) -> dict[str, tuple[np.ndarray, ...]]:
        shapes = (width, hidden), (hidden, hidden), (hidden,)
        return {gate: tuple(uniform(*shape) for shape in shapes) for gate in GATES}

    return [(layer(width), layer(width)) for width in (features, 2 * hidden)]


def _cell(z: dict[str, Array], cell: Array) -> State:
    cell = jax.nn.sigmoid(z["f"]) * cell + jax.nn.sigmoid(z["i"]) * jnp.tanh(z["g"])
    return jax.nn.sigmoid(z["o"]) * jnp.tanh(cell), cell


def _start(layer: Layer, inputs: Array) -> State:
    zeros = jnp.zeros((inputs.shape[1], layer["i"][1].shape[0]), inputs.dtype)
    return zeros, zeros


def layer(p: Layer, inputs: Array, reverse: bool = False) -> Array:
    """Run a layer, every gate a sum of two products in the loop."""

    def step(state: State, x: Array) -> tuple[State, Array]:
        z = {k: x @ w + state[0] @ u + b for k, (w, u, b) in p.items()}
        state = _cell(z, state[1])
        return state, state[0]

    return lax.scan(step, _start(p, inputs), inputs, reverse=reverse)[1]


# ---- by hand: input products before the loop, weight gradients after it


def _recurrence(p: Layer, zs: dict[str, Array], start: State, reverse: bool) -> Array:
    """Run what is left in the loop; its weights get no gradient here."""
    recurrent = {k: lax.stop_gradient(u) for k, (_, u, _) in p.items()}

    def step(state: State, z: dict[str, Array]) -> tuple[State, Array]:
        z = {k: z[k] + state[0] @ recurrent[k] for k in z}
        state = _cell(z, state[1])
        return state, state[0]

    return lax.scan(step, start, zs, reverse=reverse)[1]


def _forward(p: Layer, inputs: Array, reverse: bool) -> tuple[Array, Any]:
    zs = {k: inputs @ w + b for k, (w, _, b) in p.items()}
    start = _start(p, inputs)
    hs, pull = jax.vjp(lambda zs: _recurrence(p, zs, start, reverse), zs)
    return hs, (p, inputs, hs, pull)


def _backward(reverse: bool, kept: Any, given: Array) -> tuple[Layer, Array]:
    p, inputs, hs, pull = kept
    (dzs,) = pull(given)
    zero = jnp.zeros_like(hs[:1])
    before = jnp.concatenate([hs[1:], zero] if reverse else [zero, hs[:-1]])

    def flat(array: Array) -> Array:
        return array.reshape(-1, array.shape[-1])

    gradient = {
        k: (flat(inputs).T @ flat(dz), flat(before).T @ flat(dz), flat(dz).sum(0))
        for k, dz in dzs.items()
    }
    terms = [dz @ p[k][0].T for k, dz in dzs.items()]
    return gradient, functools.reduce(jnp.add, terms)


layer_by_hand = jax.custom_vjp(
    lambda p, inputs, reverse=False: _forward(p, inputs, reverse)[0],
    nondiff_argnums=(2,),
)
layer_by_hand.defvjp(_forward, _backward)


# ---- the model and its training step


def model(run: Run) -> Callable[[Levels, Array], Array]:
    """Return the model whose layers ``run`` runs."""

    def forward(levels: Levels, inputs: Array) -> Array:
        for ahead, back in levels:
            both = run(ahead, inputs, False), run(back, inputs, True)
            inputs = jnp.concatenate(both, axis=-1)
        return inputs

    return forward


def loss(run: Run) -> Callable[[Levels, Array], Array]:
    """Return the mean of the squared outputs."""
    return lambda levels, inputs: jnp.mean(model(run)(levels, inputs) ** 2)


forward = model(layer)
forward_by_hand = model(layer_by_hand)
training = jax.value_and_grad(loss(layer))
training_by_hand = jax.value_and_grad(loss(layer_by_hand))
