"""Constants of the cost model, per backend.

Those of the CPU were measured with `python -m benchmarks constants` on two cores of an
AMD EPYC 9004; those of the GPU come from public figures (a launch takes about 3 us,
memory 2 TB/s, float32 30 TFLOP/s) and wait for a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Constants of a backend. Times in ns, sizes in bytes."""

    name: str
    small_step: float  # one step of a loop that XLA compiles as one function
    step: float  # one step of any other loop
    kernel: float  # one kernel inside such a step
    vector_call: float  # one matrix-vector product inside a step
    short_dot: int  # multiplications of the shortest that costs a whole call
    matrix_call: float  # one matrix-matrix product inside a step
    row_call: float  # one row of a batched product
    library_call: float  # one LAPACK call inside a step
    draw_call: float  # one RNG draw inside a step
    flop_vector: float  # per flop, matrix-vector inside a step
    flop_matrix: float  # per flop, matrix-matrix inside a step
    flop_large: float  # the same from 64 rows and columns on
    flop_batch: float  # per flop, rows against one shared matrix
    flop_own: float  # per flop, every row with its own matrices
    byte_loop: float  # per byte of a matrix too big for cache
    byte_own: float  # per byte of a row's own matrix, batched
    element: float  # per element of a cheap operation inside a step
    element_long: float  # the same in rows that fill vector units by themselves
    element_batched: float
    latency: float  # of a cheap operation that the next one waits for
    draw: float  # per element of a draw, in units of `element`
    byte_stored: float  # write and read back what crosses
    byte_copied: float  # from and to a section
    byte_fresh: float  # first touch of memory that the system just gave
    recycled: int  # bytes up to which an allocation is memory used before
    cache: int  # bytes a block of rows should stay within
    short_row: int  # elements up to which elementwise rows gain from being batched
    tiny_axis: float  # a batched reduction over a last axis below 8, over another
    stage: float  # entering one batched stage
    fork: float  # splitting a purely elementwise stage over the cores
    reduced: float  # per element, summing rows of vectors
    byte_strided: float  # of reading or writing columns as rows
    prefix: float  # per element, an associative scan of pairs
    small_elements: int  # largest value in a loop compiled as one function

    def fresh_pages(self, size: int) -> float:
        """Return ns a byte of touching an allocation of `size` bytes."""
        return self.byte_fresh if size > self.recycled else 0.0


CPU = Machine(
    name="cpu",
    small_step=4.0,
    step=60.0,
    kernel=110.0,
    vector_call=150.0,
    short_dot=2500,
    matrix_call=450.0,
    row_call=12.0,
    library_call=900.0,
    draw_call=200.0,
    flop_vector=0.025,
    flop_matrix=0.022,
    flop_large=0.0155,
    flop_batch=0.0085,
    flop_own=0.018,
    byte_loop=0.03,
    byte_own=0.07,
    element=0.25,
    element_long=0.12,
    element_batched=0.12,
    latency=1.5,
    draw=60.0,
    byte_stored=0.06,
    byte_copied=0.2,
    byte_fresh=0.45,
    recycled=32 << 20,
    cache=12 << 20,
    short_row=256,
    tiny_axis=16.0,
    stage=2000.0,
    fork=40000.0,
    reduced=0.75,
    byte_strided=0.25,
    prefix=12.0,
    small_elements=64,
)
GPU = Machine(
    name="gpu",
    small_step=6000.0,
    step=6000.0,
    kernel=3000.0,
    vector_call=5000.0,
    short_dot=1,
    matrix_call=5000.0,
    row_call=0.1,
    library_call=30000.0,
    draw_call=5000.0,
    flop_vector=0.001,
    flop_matrix=0.0002,
    flop_large=0.0001,
    flop_batch=0.00005,
    flop_own=0.0002,
    byte_loop=0.0006,
    byte_own=0.0006,
    element=0.002,
    element_long=0.002,
    element_batched=0.002,
    latency=20.0,
    draw=10.0,
    byte_stored=0.001,
    byte_copied=0.001,
    byte_fresh=0.0,
    recycled=1 << 40,
    cache=64 << 20,
    short_row=1 << 30,
    tiny_axis=1.0,
    stage=20000.0,
    fork=0.0,
    reduced=0.002,
    byte_strided=0.002,
    prefix=0.02,
    small_elements=64,
)


def machine(platform: str) -> Machine:
    """Return the constants of a platform; every accelerator counts as a GPU."""
    return CPU if platform == "cpu" else GPU
