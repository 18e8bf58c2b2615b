"""Distances and kernels between points: loops over rows, and the best forms by hand.

The forms by hand are for speed: those with a matrix product, |x|^2 + |y|^2 - 2 x.y, do
not guard against cancellation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Epilogue = Callable[[Array], Array]
_MOST_ROWS = 250  # a block of squared distances should stay in cache


def block_of(count: int, most: int = _MOST_ROWS) -> int:
    """Return the largest divisor of ``count`` up to ``most``."""
    return max(b for b in range(1, min(count, most) + 1) if count % b == 0)


def in_blocks(
    function: Callable[[Array], Array], rows: Array, most: int = _MOST_ROWS
) -> Array:
    """Apply ``function`` to blocks of ``rows`` and join what comes out."""
    blocks = rows.reshape(-1, block_of(len(rows), most), *rows.shape[1:])
    out = lax.map(function, blocks)
    return out.reshape(len(rows), *out.shape[2:])


# ---- the distance matrix, in the ways that it is written


def scanned(points: Array) -> Array:
    """Scan over rows."""

    def row(carry: None, point: Array) -> tuple[None, Array]:
        return carry, jnp.sqrt(jnp.sum((points - point) ** 2, axis=1))

    return lax.scan(row, None, points)[1]


def mapped_norm(points: Array) -> Array:
    """Map a norm over rows."""
    return lax.map(lambda p: jnp.linalg.norm(points - p, axis=1), points)


def filled(points: Array) -> Array:
    """Fill a table row by row."""
    count = len(points)

    def fill(i: Array, table: Array) -> Array:
        row = jnp.sqrt(jnp.sum((points - points[i]) ** 2, axis=1))
        return table.at[i].set(row)

    return lax.fori_loop(0, count, fill, jnp.zeros((count, count)))


def mapped_pairs(points: Array) -> Array:
    """Nest two maps, one pair a step."""
    return lax.map(
        lambda p: lax.map(lambda q: jnp.sqrt(jnp.sum((p - q) ** 2)), points), points
    )


def mapped_vmap(points: Array) -> Array:
    """Map over rows, vmap inside."""
    return lax.map(
        lambda p: jax.vmap(lambda q: jnp.sqrt(jnp.sum((p - q) ** 2)))(points), points
    )


def filled_pairs(points: Array) -> Array:
    """Fill a table entry by entry."""
    count = len(points)

    def fill_row(i: Array, table: Array) -> Array:
        def fill(j: Array, table: Array) -> Array:
            squared = jnp.sum((points[i] - points[j]) ** 2)
            return table.at[i, j].set(jnp.sqrt(squared))

        return lax.fori_loop(0, count, fill, table)

    return lax.fori_loop(0, count, fill_row, jnp.zeros((count, count)))


def filled_triangle(points: Array) -> Array:
    """Fill the lower triangle entry by entry, and mirror it."""
    count = len(points)

    def fill_row(i: Array, table: Array) -> Array:
        def fill(j: Array, table: Array) -> Array:
            distance = jnp.sqrt(jnp.sum((points[i] - points[j]) ** 2))
            return table.at[i, j].set(distance).at[j, i].set(distance)

        return lax.fori_loop(0, i, fill, table)

    return lax.fori_loop(0, count, fill_row, jnp.zeros((count, count)))


def two_sets(points: Array, others: Array) -> Array:
    """Map over one set, distances to another."""
    return lax.map(lambda p: jnp.sqrt(jnp.sum((others - p) ** 2, axis=1)), points)


def weighted(points: Array, weights: Array) -> Array:
    """Map a weighted distance over rows."""
    return lax.map(
        lambda p: jnp.sqrt(jnp.sum(weights * (points - p) ** 2, axis=1)), points
    )


def by_product(
    points: Array, others: Array | None = None, epilogue: Epilogue = jnp.sqrt
) -> Array:
    """Return the distances by a matrix product for each block of rows."""
    others = points if others is None else others
    norms = jnp.sum(others * others, axis=1)

    def rows(block: Array) -> Array:
        ours = jnp.sum(block * block, axis=1)[:, None]
        return epilogue(jnp.maximum(ours + norms - 2 * block @ others.T, 0))

    return in_blocks(rows, points)


def weighted_by_product(points: Array, weights: Array) -> Array:
    """Put the weights into the points."""
    return by_product(points * jnp.sqrt(weights))


def by_features(
    points: Array,
    term: Callable[[Array, Array], Array],
    merge: Callable[[Array, Array], Array] = jnp.add,
    epilogue: Epilogue = lambda total: total,
) -> Array:
    """Add up one feature at a time, for ten rows: no product, but long vectors."""
    columns = points.T

    def rows(block: Array) -> Array:
        total = term(columns[0], block[:, :1])
        for k in range(1, len(columns)):
            total = merge(total, term(columns[k], block[:, k : k + 1]))
        return epilogue(total)

    return in_blocks(rows, points, 10)


def few_features(points: Array) -> Array:
    """Return distances of points with few features."""
    return by_features(points, lambda x, p: (x - p) ** 2, epilogue=jnp.sqrt)


# ---- what is made of the squared distances


def squares(points: Array, point: Array) -> Array:
    """Return the squared distances of one point to all."""
    return jnp.sum((points - point) ** 2, axis=1)


def neighbours(points: Array, count: int = 10) -> Array:
    """Return the indices of the nearest points of each point."""
    return lax.map(lambda p: lax.top_k(-squares(points, p), count)[1], points)


def neighbours_by_hand(points: Array, count: int = 10, groups: int = 50) -> Array:
    """Choose the best residue classes of columns first, then the best in these."""
    width = len(points) // groups

    def nearest(squared: Array) -> Array:
        some = len(squared)
        grouped = squared.reshape(some, groups, width)
        best = lax.top_k(-jnp.min(grouped, axis=1), count)[1]
        kept = jnp.take_along_axis(grouped, best[:, None], axis=2).reshape(some, -1)
        columns = jnp.arange(groups)[None, :, None] * width + best[:, None]
        chosen = lax.top_k(-kept, count)[1]
        return jnp.take_along_axis(columns.reshape(some, -1), chosen, axis=1)

    return by_product(points, epilogue=nearest)


def assignment(points: Array, centres: Array) -> Array:
    """Return the nearest centre of each point (k-means)."""
    return lax.map(lambda p: jnp.argmin(squares(centres, p)), points)


def assignment_by_hand(points: Array, centres: Array) -> Array:
    """Leave out |x|^2, which is the same for all centres."""
    norms = jnp.sum(centres * centres, axis=1)
    return in_blocks(
        lambda block: jnp.argmin(norms - 2 * block @ centres.T, axis=1), points, 1000
    )


def assignment_after(points: Array, centres: Array) -> Array:
    """Store all distances, then look for the nearest."""
    rows = lax.map(lambda p: squares(centres, p), points)
    return jnp.argmin(rows, axis=1)


def energy_gradient(points: Array) -> Array:
    """Return the gradient of a sum over all pairs."""
    return jax.grad(_energy)(points)


def energy_gradient_by_hand(points: Array) -> Array:
    """Make the differences again in the backward loop, under a checkpoint."""
    return jax.grad(lambda x: _energy(x, jax.checkpoint))(points)


def _energy(points: Array, wrap: Callable[..., Any] = lambda row: row) -> Array:
    row = wrap(lambda p, x: jnp.exp(-squares(x, p)))
    return jnp.sum(lax.map(lambda p: row(p, points), points))


def nearest(points: Array, others: Array) -> Array:
    """Return the squared distance to the nearest of another set."""
    return lax.map(lambda p: jnp.min(squares(others, p)), points)


def nearest_by_hand(points: Array, others: Array) -> Array:
    """Return the smallest of each row of a product."""
    return by_product(points, others, lambda squared: jnp.min(squared, axis=1))


def kernel(points: Array) -> Array:
    """Return the rows of an RBF kernel."""
    return lax.map(lambda p: jnp.exp(-0.01 * squares(points, p)), points)


def kernel_by_hand(points: Array) -> Array:
    """Return the RBF kernel by a product."""
    return by_product(points, epilogue=lambda squared: jnp.exp(-0.01 * squared))


def kernel_product(points: Array, vector: Array) -> Array:
    """Multiply an RBF kernel by a vector, without storing the kernel."""
    return lax.map(lambda p: jnp.exp(-0.01 * squares(points, p)) @ vector, points)


def kernel_product_by_hand(points: Array, vector: Array) -> Array:
    """Multiply blocks of the RBF kernel by a vector."""
    return by_product(
        points, epilogue=lambda squared: jnp.exp(-0.01 * squared) @ vector
    )


def close_pairs(points: Array) -> Array:
    """Count the pairs closer than 2."""
    return lax.fori_loop(
        0,
        len(points),
        lambda i, count: count + jnp.sum(squares(points, points[i]) < 4.0),
        0,
    )


def close_pairs_by_hand(points: Array) -> Array:
    """Count in the rows of a product."""
    return jnp.sum(by_product(points, epilogue=lambda s: jnp.sum(s < 4.0, axis=1)))


# ---- other distances


def manhattan(points: Array) -> Array:
    """Return the L1 distances by rows."""
    return lax.map(lambda p: jnp.sum(jnp.abs(points - p), axis=1), points)


def manhattan_by_hand(points: Array) -> Array:
    """Return the L1 distances by features."""
    return by_features(points, lambda x, p: jnp.abs(x - p))


def chebyshev(points: Array) -> Array:
    """Return the largest difference by rows."""
    return lax.map(lambda p: jnp.max(jnp.abs(points - p), axis=1), points)


def chebyshev_by_hand(points: Array) -> Array:
    """Return the largest difference by features."""
    return by_features(points, lambda x, p: jnp.abs(x - p), jnp.maximum)


def canberra(points: Array) -> Array:
    """Return the Canberra distances by rows."""

    def row(p: Array) -> Array:
        terms = jnp.abs(points - p) / (jnp.abs(points) + jnp.abs(p))
        return jnp.sum(terms, axis=1)

    return lax.map(row, points)


def canberra_by_hand(points: Array) -> Array:
    """Return the Canberra distances by features."""
    return by_features(points, lambda x, p: jnp.abs(x - p) / (jnp.abs(x) + jnp.abs(p)))


def cosine(points: Array) -> Array:
    """Return the cosine similarities by rows."""

    def row(p: Array) -> Array:
        norms = jnp.linalg.norm(points, axis=1) * jnp.linalg.norm(p)
        return jnp.sum(points * p, axis=1) / norms

    return lax.map(row, points)


def cosine_by_hand(points: Array) -> Array:
    """Multiply unit vectors."""
    units = points / jnp.linalg.norm(points, axis=1, keepdims=True)
    return in_blocks(lambda block: block @ units.T, units, 500)
