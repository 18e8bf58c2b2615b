"""A compiler for the loops people write in JAX: `@optimize` and its reports."""

from rewriter.benchmark import Timing
from rewriter.explain import explain
from rewriter.graph import keep
from rewriter.optimize import optimize
from rewriter.pass_base import instrument
from rewriter.remarks import Remark
from rewriter.report import Program, Report, Verdict

__version__ = "0.1.0"
__all__ = [
    "Program",
    "Remark",
    "Report",
    "Timing",
    "Verdict",
    "explain",
    "instrument",
    "keep",
    "optimize",
]
