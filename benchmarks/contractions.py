"""Loops that hide a contraction: distances, neighbours, kernels, forms, products."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contest import Make, Workload, normal, run_table
from benchmarks.programs import distances as d
from benchmarks.programs import products as p

Form = Callable[..., Any]


def _positive_last(make: Make) -> Make:
    """Make the last input positive."""
    return lambda: (*make()[:-1], jnp.abs(make()[-1]))


def _dominant(size: int, *shapes: tuple[int, ...]) -> Make:
    """Make a well-conditioned square matrix first."""

    def make() -> tuple[Any, ...]:
        square, *others = normal((size, size), *shapes)()
        return (square + jax.device_put(16 * np.eye(size, dtype="float32")), *others)

    return make


def _matrices(quick: bool) -> list[Workload]:
    """Return the ways to write the distance matrix."""
    whole, half, pairs = (1000, 500, 200) if quick else (10000, 5000, 1000)

    def square(name: str, n: int, original: Form, features: int = 40) -> Workload:
        make = normal((n, features))
        return Workload(name, f"{n} x {features}", original, d.by_product, make)

    narrow = Workload(
        "distances, few features",
        f"{half} x 3",
        d.scanned,
        d.few_features,
        normal((half, 3)),
    )
    two = (half, 40), (half * 8 // 5, 40)
    double = Workload(
        "distances, float64",
        f"{half} x 40",
        d.scanned,
        d.by_product,
        normal((half, 40), dtype="float64"),
        wide=True,
    )
    return [
        square("distances, scan", whole, d.scanned),
        square("distances, map of norm", whole, d.mapped_norm),
        square("distances, fori_loop and set", whole, d.filled),
        square("distances, map of map", 3 * pairs, d.mapped_pairs),
        square("distances, vmap in map", half, d.mapped_vmap),
        square("distances, pairs set", pairs, d.filled_pairs),
        square("distances, triangle set", pairs, d.filled_triangle),
        Workload(
            "distances, two sets",
            f"{two[0][0]} x {two[1][0]} x 40",
            d.two_sets,
            d.by_product,
            normal(*two),
        ),
        narrow,
        square("distances, many features", half * 4 // 5, d.scanned, 784),
        double,
        Workload(
            "distances, weighted",
            f"{half} x 40",
            d.weighted,
            d.weighted_by_product,
            _positive_last(normal((half, 40), (40,))),
        ),
    ]


def _uses(quick: bool) -> list[Workload]:
    """Return what is made of distances, and other distances."""
    many, most = (2000, 4000) if quick else (20000, 100000)
    some, few = (800, 400) if quick else (8000, 5000)
    rows = normal((some, 40))

    def means(features: int, centres: int) -> Workload:
        return Workload(
            f"k-means assignment, {centres} centres",
            f"{most} x {features}",
            d.assignment,
            d.assignment_by_hand,
            normal((most, features), (centres, features)),
        )

    def other(name: str, n: int, original: Form, by_hand: Form) -> Workload:
        return Workload(name, f"{n} x 40", original, by_hand, normal((n, 40)))

    return [
        Workload(
            "k nearest neighbours",
            f"{many} x 16, k = 10",
            d.neighbours,
            d.neighbours_by_hand,
            normal((many, 16)),
        ),
        means(32, 64),
        means(16, 256),
        Workload(
            "nearest of another set",
            f"{some} x {some // 4} x 16",
            d.nearest,
            d.nearest_by_hand,
            normal((some, 16), (some // 4, 16)),
        ),
        Workload("RBF kernel", f"{some} x 40", d.kernel, d.kernel_by_hand, rows),
        Workload(
            "RBF kernel times vector",
            f"{some} x 40",
            d.kernel_product,
            d.kernel_product_by_hand,
            normal((some, 40), (some,)),
        ),
        Workload(
            "pairs within a radius",
            f"{some} x 16",
            d.close_pairs,
            d.close_pairs_by_hand,
            normal((some, 16)),
        ),
        Workload(
            "all distances, then the nearest of 1000",
            f"{some} x 16",
            d.assignment_after,
            d.assignment_by_hand,
            normal((some, 16), (1000, 16)),
        ),
        Workload(
            "gradient of a sum over pairs",
            f"{few // 4} x 40",
            d.energy_gradient,
            d.energy_gradient_by_hand,
            normal((few // 4, 40), scale=0.3),
        ),
        other("L1 distances", few, d.manhattan, d.manhattan_by_hand),
        other("Chebyshev distances", few, d.chebyshev, d.chebyshev_by_hand),
        other("Canberra distances", few, d.canberra, d.canberra_by_hand),
        other("cosine similarities", some, d.cosine, d.cosine_by_hand),
    ]


def _products(quick: bool) -> list[Workload]:
    """Return products that are written as loops."""
    few, some, many = (500, 1000, 2000) if quick else (2000, 20000, 50000)
    pairs, edge = (200, 60) if quick else (1000, 200)
    square, wide = (64, 64), (256, 64)

    def one(
        name: str, size: str, original: Form, by_hand: Form, *shapes: tuple[int, ...]
    ) -> Workload:
        return Workload(name, size, original, by_hand, normal(*shapes))

    def per_row(
        name: str, n: int, original: Form, by_hand: Form, weights: tuple[int, ...]
    ) -> Workload:
        size = f"{n} x {weights[-1]}"
        return one(name, size, original, by_hand, weights, (n, weights[-1]))

    scaled = _dominant(32, (some, 32), (32,))
    return [
        per_row("quadratic form", many, p.form, p.form_by_hand, square),
        per_row(
            "quadratic form of outer", some, p.form_of_outer, p.form_by_hand, square
        ),
        one(
            "bilinear form",
            f"{many} x 64",
            p.bilinear,
            p.bilinear_by_hand,
            square,
            (many, 64),
            (many, 64),
        ),
        per_row("multiply and sum", many, p.multiply_sum, p.product_by_hand, wide),
        per_row(
            "multiply and sum, nested",
            2 * few,
            p.multiply_sum_nested,
            p.product_by_hand,
            wide,
        ),
        one(
            "Gram matrix, pairs set",
            f"{pairs} x 64",
            p.gram,
            p.gram_by_hand,
            (pairs, 64),
        ),
        one(
            "matrix product, triple loop",
            f"{edge} x {edge} x {edge}",
            p.triple_loop,
            p.matrix_product,
            (edge, edge),
            (edge, edge),
        ),
        one(
            "chain (A B) v",
            f"{few} x 128",
            p.chain,
            p.chain_by_hand,
            (128, 128),
            (128, 128),
            (few, 128),
        ),
        one(
            "chain (A_t B) v",
            f"{few} x 64 x 64",
            p.changing_chain,
            p.changing_chain_by_hand,
            (few, 64, 64),
            (64, 64),
            (64,),
        ),
        Workload(
            "solve, one matrix",
            f"{few} x 64",
            p.solves,
            p.solves_by_hand,
            _dominant(64, (few, 64)),
        ),
        Workload(
            "Mahalanobis, factor",
            f"{some} x 32",
            p.mahalanobis,
            p.mahalanobis_by_hand,
            scaled,
        ),
        Workload(
            "Mahalanobis, form",
            f"{some} x 32",
            p.mahalanobis_form,
            p.mahalanobis_form_by_hand,
            scaled,
        ),
        one(
            "einsum ijk,j->ik",
            f"{few} x (32, 48, 40)",
            p.einsum,
            p.einsum_by_hand,
            (32, 48, 40),
            (few, 48),
        ),
        Workload(
            "n-body accelerations",
            f"{pairs} x 3",
            p.gravity,
            p.gravity_by_hand,
            _positive_last(normal((pairs, 3), (pairs,))),
        ),
    ]


def workloads(quick: bool) -> list[Workload]:
    """Return all programs with their sizes."""
    return [*_matrices(quick), *_uses(quick), *_products(quick)]


def run(options: argparse.Namespace) -> int:
    """Print the table and write the JSON."""
    return run_table("contractions", __name__, workloads, options)
