"""Cost model: what a step costs in a loop and batched, in nanoseconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rewriter import jax_compat as jc
from rewriter.graph import carry_fixpoint, reads, variant_values
from rewriter.machine import Machine
from rewriter.operations import (
    CONTROL,
    DRAWS,
    FREE,
    IN_LINE,
    INDEXED,
    LIBRARY,
    NOT_CALLS,
    TINY_DOT,
    WEIGHT,
)
from rewriter.orient import is_grouped
from rewriter.rowwise import form_of


def nbytes(atom: Any) -> int:
    """Return the size of a value in bytes (0 for keys and tokens of no size)."""
    aval = atom.aval
    shape = getattr(aval, "shape", ())
    itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 8) or 8
    return int(math.prod(shape)) * itemsize


def elements(atom: Any) -> int:
    """Return the number of elements of a value."""
    return int(math.prod(getattr(atom.aval, "shape", ())))


def dot_shape(eqn: Any) -> tuple[int, int, int, int]:
    """Return batch, rows, columns and contracted length of a dot."""
    (lc, _), (lb, _) = eqn.params["dimension_numbers"]
    left, right = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    batch = math.prod(left[i] for i in lb)
    k = math.prod(left[i] for i in lc)
    m = math.prod(left) // max(1, batch * k)
    n = math.prod(right) // max(1, batch * k)
    return batch, m, n, k


@dataclass(frozen=True)
class Model:
    """Prices the equations of a body on one machine."""

    machine: Machine

    def loop(self, eqn: Any) -> float:
        """Return ns of one equation inside a loop step."""
        m, name = self.machine, eqn.primitive.name
        size = sum(elements(v) for v in eqn.outvars)
        if name == "dot_general":
            return self._loop_dot(eqn)
        if name in LIBRARY:
            return (0.0 if name in IN_LINE else m.library_call) + self._library(eqn)
        if name in CONTROL:
            return self.control(eqn)
        inner = [jc.open_jaxpr(j) for j in jc.sub_jaxprs(eqn)]
        if inner and name not in NOT_CALLS:
            return sum(self.loop(e) for e in inner[0].eqns)
        if name in FREE:
            return 0.02 * m.element * size
        if name.startswith("reduce_") or name in ("argmax", "argmin"):
            size = elements(eqn.invars[0])
        if name in DRAWS:
            return (m.draw_call if size > 4 else 20.0) + m.draw * m.element * size
        return self.weight(eqn) * self._rate(eqn, size) * size

    def _rate(self, eqn: Any, size: int) -> float:
        """Return ns per element of elementwise work in a step."""
        long = size >= self.machine.short_row // 2 and self.weight(eqn) <= 2
        return self.machine.element_long if long else self.machine.element

    def is_paying(self, eqn: Any) -> bool:
        """Whether an equation is a kind that gains by being batched beside a loop.

        Elementwise work next to a residual scan only moves from one fused loop to
        another; dots, library calls, draws and inner loops change their form.
        """
        return (
            eqn.primitive.name in DRAWS
            or is_kernel(eqn)
            or any(
                self.is_paying(e)
                for j in jc.sub_jaxprs(eqn)
                for e in jc.open_jaxpr(j).eqns
            )
        )

    def beside(self, eqn: Any) -> float:
        """Return what elementwise work costs beside a residual scan, over inside it.

        A function such as `tanh` goes along with what is moved: in the scan it may be
        fused with the load of its row, or with a write, and is then not vectorised.
        """
        return 0.9 if self.weight(eqn) > 2 else 1.0

    def stages(self, count: int, length: int, forked: float) -> float:
        """Return ns per step of entering `count` batched stages.

        `forked` is what they compute per step where it is split over the cores; small
        work is not.
        """
        m = self.machine
        fixed = m.stage * count + min(m.fork, forked * length)
        return fixed / max(1, length)

    def loading(self, size: int) -> float:
        """Return ns of loading a row of `size` bytes one step ahead."""
        return 2 * self.machine.kernel + size * self.machine.byte_copied

    def weight(self, eqn: Any) -> float:
        """Return the relative price of one element of an operation."""
        return WEIGHT.get(eqn.primitive.name, 1)

    def _library(self, eqn: Any) -> float:
        if eqn.primitive.name in ("top_k", "approx_top_k"):
            return 12.0 * self.machine.element * elements(eqn.invars[0])
        work = sum(nbytes(v) for v in eqn.invars) / 4
        return work * _library_power(eqn) * self.machine.flop_vector

    def _loop_dot(self, eqn: Any) -> float:
        m = self.machine
        batch, rows, cols, k = dot_shape(eqn)
        multiplies = batch * rows * cols * k
        if multiplies <= TINY_DOT:
            return m.element * multiplies
        flops = 2.0 * multiplies
        if min(rows, cols) >= 4:
            rate = m.flop_large if min(rows, cols) >= 64 else m.flop_matrix
            return m.matrix_call + flops * rate
        matrix = max(nbytes(v) for v in eqn.invars)
        streamed = matrix * m.byte_loop if matrix > 1 << 18 else 0.0
        call = m.vector_call * min(1.0, multiplies / m.short_dot)
        return call + max(flops * m.flop_vector, streamed)

    def batch(self, eqn: Any, variant: frozenset[Any] | set[Any]) -> float:
        """Return ns per step of one equation when all steps run at once."""
        m, name = self.machine, eqn.primitive.name
        changing = [v for v in reads(eqn) if v in variant]
        if not changing and not eqn.effects:
            return 0.0
        form = form_of(eqn)
        if form is not None:
            return m.row_call + form.row_ns
        if name == "dot_general":
            return self._batched_dot(eqn, variant)
        if name == "conv_general_dilated":
            return self.loop(eqn)
        if name in LIBRARY:
            call = {True: 0.0, False: 0.25 * m.library_call}[name in IN_LINE]
            return call + (0.4 if is_grouped(eqn) else 1.1) * self._library(eqn)
        flags = [not isinstance(v, jc.Literal) and v in variant for v in eqn.invars]
        if name in CONTROL:
            return self.control(eqn, flags)
        inner = [jc.open_jaxpr(j) for j in jc.sub_jaxprs(eqn)]
        if inner and name not in NOT_CALLS:
            return self.batched_body(inner[0], flags)
        if name in DRAWS:
            size = sum(elements(v) for v in eqn.outvars)
            if elements(eqn.invars[0]) >= 16 and name.startswith("random_"):
                # many keys at once keep the vector units busy by themselves
                return m.draw_call + 0.9 * m.draw * m.element * size
            return 0.4 * m.draw * m.element_batched * size + m.row_call
        if name in INDEXED:  # a slice in the loop, a gather of elements batched
            size = sum(elements(v) for v in eqn.outvars)
            return m.row_call + 6 * m.element * size
        if name in ("argmax", "argmin", "concatenate", "pad", "rev", "reverse"):
            return 1.2 * self.loop(eqn)
        return self._batched_elementwise(eqn)

    def _batched_elementwise(self, eqn: Any) -> float:
        """Return ns per row of elementwise work or a reduction.

        Short rows gain from being one long loop; a long row keeps a vector unit busy
        by itself, and a reduction over an axis of a few elements defeats it if batched.
        """
        m = self.machine
        source = eqn.invars[0] if eqn.invars else eqn.outvars[0]
        reduces = eqn.primitive.name.startswith("reduce_") and "axes" in eqn.params
        size = elements(source) if reduces else sum(elements(v) for v in eqn.outvars)
        short = min(size, m.short_row)
        rate = self._rate(eqn, size)
        cost = self.loop(eqn) / (rate * max(1, size))
        if reduces and _over_tiny_axis(source.aval.shape, eqn.params["axes"]):
            cost *= m.tiny_axis
        return cost * (short * min(rate, m.element_batched) + (size - short) * rate)

    def stacking(self, rows: Sequence[Any], length: int) -> float:
        """Return ns per step of a scan that stacks some rows."""
        m, sizes = self.machine, [nbytes(v) for v in rows]
        return sum(n * (m.byte_copied + m.fresh_pages(n * length)) for n in sizes)

    def contraction(self, eqn: Any) -> float:
        """Return ns per step of a dot that is summed over all steps at once."""
        return self.machine.row_call + 2.0 * math.prod(dot_shape(eqn)) * (
            self.machine.flop_batch
        )

    def _batched_dot(self, eqn: Any, variant: frozenset[Any] | set[Any]) -> float:
        m = self.machine
        batch, rows, cols, k = dot_shape(eqn)
        flops = 2.0 * batch * rows * cols * k
        shared = any(
            not isinstance(v, jc.Literal) and v not in variant for v in eqn.invars
        )
        if shared and batch == 1:
            return m.row_call + flops * m.flop_batch
        if min(rows, cols) >= 4:
            slow = 10.0 if k <= 4 or flops < 512 else 1.0
            own = m.flop_own if flops < 1e6 else 1.5 * m.flop_matrix
            return 5 * m.row_call * slow + flops * own
        return m.row_call + max(
            flops * m.flop_own, m.byte_own * max(nbytes(v) for v in eqn.invars)
        )

    def control(self, eqn: Any, flags: Sequence[bool] | None = None) -> float:
        """Return ns of a control-flow equation: in the loop, or batched.

        `flags` tell which operands change from row to row; None means in the loop.
        """

        def price(body: Any, inputs: Sequence[bool]) -> float:
            return self.body(body) if flags is None else self.batched_body(body, inputs)

        name, p = eqn.primitive.name, eqn.params
        inputs = list(flags or ())
        if name == "cond":
            parts = [price(jc.open_jaxpr(b), inputs[1:]) for b in p["branches"]]
            return sum(parts) / (len(parts) if flags is None else 1)
        if name == "scan":
            scan = jc.scan_params(eqn)
            body = jc.open_jaxpr(scan.body)
            if flags is not None:
                inputs = carry_fixpoint(body, inputs, scan.num_consts, scan.num_carry)
            overhead = 0.0 if flags is not None else self.overhead(body.eqns)
            return scan.length * (price(body, inputs) + overhead)
        body = jc.open_jaxpr(p["body_jaxpr"])
        if flags is not None:
            inputs = inputs[p["cond_nconsts"] :]
            inputs = carry_fixpoint(
                body, inputs, p["body_nconsts"], len(inputs) - p["body_nconsts"]
            )
        overhead = 0.0 if flags is not None else self.machine.small_step
        return 10.0 * (price(body, inputs) + overhead)

    def body(self, jaxpr: Any) -> float:
        """Return ns of one run of a jaxpr inside a loop step."""
        return sum(self.loop(e) for e in jaxpr.eqns)

    def batched_body(self, jaxpr: Any, flags: Sequence[bool]) -> float:
        """Return ns per row of a jaxpr when all rows run at once.

        `flags` tell which inputs change from row to row.
        """
        seeds = {v for v, f in zip(jaxpr.invars, flags, strict=False) if f}
        variant = variant_values(jaxpr.eqns, seeds)
        return sum(self.batch(e, variant) for e in jaxpr.eqns)

    def in_block(self, jaxpr: Any, flags: Sequence[bool], rows: int) -> float:
        """Return ns per row of a jaxpr for a block of rows, on one core."""
        m = self.machine
        seeds = {v for v, f in zip(jaxpr.invars, flags, strict=False) if f}
        variant, total = variant_values(jaxpr.eqns, seeds), 0.0
        for eqn in jaxpr.eqns:
            ns = self.batch(eqn, variant)
            if eqn.primitive.name == "dot_general":
                one_core = 2.0 * math.prod(dot_shape(eqn)) * m.flop_matrix
                ns = max(ns, (m.matrix_call / rows + one_core) if ns else 0.0)
            elif ns and not is_kernel(eqn):
                ns = max(ns, self.loop(eqn))
            total += ns
        return total

    def overhead(self, eqns: Iterable[Any]) -> float:
        """Return ns per step that the loop itself costs."""
        m, eqns = self.machine, list(eqns)
        kernels = sum(is_kernel(e) for e in eqns)
        largest = max((elements(v) for e in eqns for v in e.outvars), default=0)
        if kernels == 0 and largest <= m.small_elements:
            return m.small_step
        kernels += sum(
            e.primitive.name.startswith(("reduce_", "arg", "cum"))
            and elements(e.invars[0]) > m.small_elements
            for e in eqns
        )
        return m.step + m.kernel * min(kernels, 8)


def _over_tiny_axis(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether a reduction runs along a short last axis of a larger array."""
    last = len(shape) - 1
    return last > 0 and last in axes and shape[-1] < 8


def is_kernel(eqn: Any) -> bool:
    """Whether an equation can not be fused into its neighbours on a CPU."""
    name = eqn.primitive.name
    if name == "dot_general":
        return math.prod(dot_shape(eqn)) > TINY_DOT
    return (
        name in LIBRARY
        or name in CONTROL
        or form_of(eqn) is not None
        or any(is_kernel(e) for j in jc.sub_jaxprs(eqn) for e in jc.open_jaxpr(j).eqns)
    )


def _library_power(eqn: Any) -> float:
    """Flops per element of a library call: n for a factorisation, log n for a sort."""
    shape = getattr(eqn.invars[0].aval, "shape", ())
    n = shape[-1] if shape else 1
    if eqn.primitive.name in IN_LINE or eqn.primitive.name == "fft":
        return 800.0 * math.log2(max(2, n))
    return float(n)
