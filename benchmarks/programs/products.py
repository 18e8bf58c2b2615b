"""Products written as loops: sums of products, forms, nests, chains, solves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


def form(matrix: Array, rows: Array) -> Array:
    """Return x A x for each row."""
    return lax.map(lambda x: x @ matrix @ x, rows)


def form_of_outer(matrix: Array, rows: Array) -> Array:
    """Return the sum of A times the outer product of each row with itself."""
    return lax.map(lambda x: jnp.sum(matrix * x[:, None] * x[None, :]), rows)


def form_by_hand(matrix: Array, rows: Array) -> Array:
    """Multiply all rows, then multiply and add."""
    return jnp.sum((rows @ matrix) * rows, axis=1)


def bilinear(matrix: Array, rows: Array, others: Array) -> Array:
    """Return x A y for each pair of rows."""
    return lax.map(lambda xy: xy[0] @ (matrix @ xy[1]), (rows, others))


def bilinear_by_hand(matrix: Array, rows: Array, others: Array) -> Array:
    """Multiply all rows of one side first."""
    return jnp.sum((rows @ matrix) * others, axis=1)


def multiply_sum(weights: Array, rows: Array) -> Array:
    """Write a matrix-vector product as multiply and sum."""
    return lax.map(lambda x: jnp.sum(weights * x, axis=1), rows)


def multiply_sum_nested(weights: Array, rows: Array) -> Array:
    """Nest two maps, one entry of the product a step."""
    return lax.map(lambda x: lax.map(lambda w: jnp.sum(w * x), weights), rows)


def product_by_hand(weights: Array, rows: Array) -> Array:
    """Multiply all rows at once."""
    return rows @ weights.T


def gram(rows: Array) -> Array:
    """Fill a table with the dot products of all pairs."""
    count = len(rows)

    def fill_row(i: Array, table: Array) -> Array:
        def fill(j: Array, table: Array) -> Array:
            return table.at[i, j].set(jnp.dot(rows[i], rows[j]))

        return lax.fori_loop(0, count, fill, table)

    return lax.fori_loop(0, count, fill_row, jnp.zeros((count, count)))


def gram_by_hand(rows: Array) -> Array:
    """Multiply by the transpose."""
    return rows @ rows.T


def triple_loop(left: Array, right: Array) -> Array:
    """Multiply two matrices as a textbook does."""
    count = len(left)

    def entry(i: Array, j: Array) -> Array:
        def add(k: Array, total: Array) -> Array:
            return total + left[i, k] * right[k, j]

        return lax.fori_loop(0, count, add, jnp.zeros((), left.dtype))

    def fill_row(i: Array, table: Array) -> Array:
        def fill(j: Array, table: Array) -> Array:
            return table.at[i, j].set(entry(i, j))

        return lax.fori_loop(0, count, fill, table)

    return lax.fori_loop(0, count, fill_row, jnp.zeros((count, count)))


def matrix_product(left: Array, right: Array) -> Array:
    """Multiply two matrices."""
    return left @ right


def chain(first: Array, second: Array, rows: Array) -> Array:
    """Multiply two constant matrices anew for each row."""
    return lax.map(lambda v: (first @ second) @ v, rows)


def chain_by_hand(first: Array, second: Array, rows: Array) -> Array:
    """Multiply the two matrices once."""
    return rows @ (first @ second).T


def changing_chain(firsts: Array, second: Array, vector: Array) -> Array:
    """Multiply in the dear order, with another matrix for each step."""
    return lax.map(lambda first: (first @ second) @ vector, firsts)


def changing_chain_by_hand(firsts: Array, second: Array, vector: Array) -> Array:
    """Multiply in the cheap order."""
    return firsts @ (second @ vector)


def solves(matrix: Array, rows: Array) -> Array:
    """Solve with one matrix for each right-hand side."""
    return lax.map(lambda b: jnp.linalg.solve(matrix, b), rows)


def solves_by_hand(matrix: Array, rows: Array) -> Array:
    """Solve for all right-hand sides at once."""
    return jnp.linalg.solve(matrix, rows.T).T


def mahalanobis(factor: Array, rows: Array, mean: Array) -> Array:
    """Return |(x - mean) L|^2 for each row."""
    return lax.map(lambda x: jnp.sum(((x - mean) @ factor) ** 2), rows)


def mahalanobis_by_hand(factor: Array, rows: Array, mean: Array) -> Array:
    """Multiply all rows at once."""
    return jnp.sum(((rows - mean) @ factor) ** 2, axis=1)


def mahalanobis_form(precision: Array, rows: Array, mean: Array) -> Array:
    """Return (x - mean) S (x - mean) for each row."""
    return lax.map(lambda x: (x - mean) @ precision @ (x - mean), rows)


def mahalanobis_form_by_hand(precision: Array, rows: Array, mean: Array) -> Array:
    """Multiply all rows, then multiply and add."""
    centred = rows - mean
    return jnp.sum((centred @ precision) * centred, axis=1)


def einsum(weights: Array, rows: Array) -> Array:
    """Contract a tensor of three axes with each row."""
    return lax.map(lambda x: jnp.einsum("ijk,j->ik", weights, x), rows)


def einsum_by_hand(weights: Array, rows: Array) -> Array:
    """Contract with all rows at once."""
    first, middle, last = weights.shape
    flat = weights.transpose(1, 0, 2).reshape(middle, first * last)
    return (rows @ flat).reshape(-1, first, last)


def gravity(places: Array, masses: Array) -> Array:
    """Return the accelerations of n bodies."""

    def row(place: Array) -> Array:
        apart = places - place
        squared = jnp.sum(apart * apart, axis=1) + 1e-2
        pull = masses / (squared * jnp.sqrt(squared))
        return jnp.sum(pull[:, None] * apart, axis=0)

    return lax.map(row, places)


def gravity_by_hand(places: Array, masses: Array) -> Array:
    """Keep the coordinates apart, so that all sums run along long rows."""
    x, y, z = (column[None] - column[:, None] for column in places.T)
    squared = x * x + y * y + z * z + 1e-2
    pull = masses / (squared * jnp.sqrt(squared))
    return jnp.stack([jnp.sum(pull * apart, axis=1) for apart in (x, y, z)], axis=1)
