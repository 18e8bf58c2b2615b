"""Kinds of operations, as the cost model and the memory plan tell them apart."""

from __future__ import annotations

# relative price of one element, in units of a cheap one
WEIGHT = {
    "transpose": 0.2,
    "exp": 3,
    "exp2": 3,
    "log": 4,
    "log1p": 6,
    "expm1": 6,
    "tanh": 4,
    "logistic": 4,
    "sin": 8,
    "cos": 8,
    "tan": 15,
    "pow": 12,
    "sqrt": 2,
    "rsqrt": 2,
    "cbrt": 12,
    "div": 2,
    "rem": 8,
    "erf": 8,
    "erf_inv": 12,
    "erfc": 12,
    "lgamma": 40,
    "digamma": 40,
    "atan2": 20,
    "sinh": 10,
    "cosh": 10,
    "asin": 15,
    "acos": 15,
    "atan": 15,
    "asinh": 15,
    "acosh": 15,
    "atanh": 15,
    "igamma": 200,
    "argmax": 4,
    "argmin": 4,
    "cumsum": 16,
    "cumlogsumexp": 40,
    "cumprod": 16,
    "cummax": 16,
    "cummin": 16,
}
FREE = frozenset(
    {
        "reshape",
        "squeeze",
        "expand_dims",
        "broadcast_in_dim",
        "stop_gradient",
        "copy",
        "convert_element_type",
        "bitcast_convert_type",
        "random_wrap",
        "random_unwrap",
        "iota",
        "slice",
        "pvary",
    }
)
LIBRARY = frozenset(
    {
        "lu",
        "cholesky",
        "qr",
        "eigh",
        "svd",
        "eig",
        "triangular_solve",
        "sort",
        "top_k",
        "fft",
        "householder_product",
        "schur",
        "conv_general_dilated",
        "geqrf",
        "approx_top_k",
        "lu_pivots_to_permutation",
        "tridiagonal_solve",
        "custom_call",
        "tridiagonal",
        "geqp3",
        "ormqr",
    }
)
DRAWS = frozenset(
    {
        "random_bits",
        "threefry2x32",
        "random_split",
        "random_fold_in",
        "random_seed",
        "rng_bit_generator",
        "random_gamma",
    }
)
IN_LINE = frozenset({"sort", "top_k", "approx_top_k"})  # XLA's own code, no call
INDEXED = frozenset({"gather", "scatter", "dynamic_slice", "dynamic_update_slice"})
TINY_DOT = 128  # multiplications of a dot that XLA writes out
CONTROL = frozenset({"scan", "while", "cond"})
NOT_CALLS = frozenset(
    {
        "reduce",
        "scatter",
        "scatter-add",
        "scatter-mul",
        "scatter-min",
        "scatter-max",
        "scatter_add",
        "sort",
    }
)
