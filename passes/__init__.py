"""The pipeline: every optimisation, in the order in which they run."""

from passes.buffer_write import BufferWrite
from passes.countable_while import CountableWhile
from passes.indexed_read import IndexedRead
from passes.induction_variable import InductionVariable
from passes.invariant_carry import InvariantCarry
from passes.invariant_solve import InvariantSolve
from passes.known_output import KnownOutput
from passes.loop_distribution import LoopDistribution
from passes.pairwise_distance import PairwiseDistance
from passes.table_layout import TableLayout
from passes.table_recurrence import TableRecurrence

DEFAULT_PIPELINE = (
    CountableWhile(),  # first: everything else works on scans
    InvariantCarry(),  # constants before counters: a step may be a carry
    InductionVariable(),  # counters before indices are evaluated
    KnownOutput(),  # before reads: backward loops read these indices
    IndexedRead(),  # reads before writes: a row read may free a buffer
    BufferWrite(),  # arrays that are only filled
    TableRecurrence(),  # arrays filled from their own last rows
    TableLayout(),  # late: a copy of a table, against the memory budget
    InvariantSolve(),  # before distribution, which then sees a product
    PairwiseDistance(),  # before distribution, which would batch the differences
    LoopDistribution(),  # last: emits what the others have recognised
)
