"""The pipeline: every optimisation, in the order in which they run."""

from passes.best_so_far import BestSoFar
from passes.branch_grouping import BranchGrouping
from passes.buffer_write import BufferWrite
from passes.chunked_state import ChunkedState
from passes.closed_sum import ClosedSum
from passes.conditional_accumulation import ConditionalAccumulation
from passes.consumer_fusion import ConsumerFusion
from passes.countable_while import CountableWhile
from passes.distance_rows import DistanceRows
from passes.dot_recognition import DotRecognition
from passes.feature_planes import FeaturePlanes
from passes.indexed_read import IndexedRead
from passes.induction_variable import InductionVariable
from passes.invariant_carry import InvariantCarry
from passes.invariant_solve import InvariantSolve
from passes.invariant_value import InvariantValue
from passes.known_output import KnownOutput
from passes.known_predicate import KnownPredicate
from passes.linear_recurrence import LinearRecurrence
from passes.loop_distribution import LoopDistribution
from passes.loop_unrolling import LoopUnrolling
from passes.masked_accumulation import MaskedAccumulation
from passes.pairwise_distance import PairwiseDistance
from passes.producer_fusion import ProducerFusion
from passes.residual_recomputation import ResidualRecomputation
from passes.row_checkpoint import RowCheckpoint
from passes.running_moments import RunningMoments
from passes.running_softmax import RunningSoftmax
from passes.sparse_accumulation import SparseAccumulation
from passes.table_layout import TableLayout
from passes.table_recurrence import TableRecurrence
from passes.triangular_fill import TriangularFill
from passes.triangular_loop import TriangularLoop

DEFAULT_PIPELINE = (
    ConsumerFusion(),  # late: what rows are for, before their loop is looked at
    ResidualRecomputation(),  # late: what a forward loop need not store
    CountableWhile(),  # first: everything else works on scans
    InvariantCarry(),  # constants before counters: a step may be a carry
    InductionVariable(),  # counters before indices are evaluated
    KnownPredicate(),  # a selection less may free a buffer
    KnownOutput(),  # before reads: backward loops read these indices
    IndexedRead(),  # reads before writes: a row read may free a buffer
    BufferWrite(),  # arrays that are only filled
    TriangularFill(),  # late: tables filled up to the outer counter
    TriangularLoop(),  # late: bounds that are outer counters
    SparseAccumulation(),  # late: rows in place, before the zeros become a constant
    ConditionalAccumulation(),  # late: sums inside of conds
    MaskedAccumulation(),  # late: sums under a condition
    ClosedSum(),  # late: sums that are formulas
    BestSoFar(),  # a search instead of carries
    RunningMoments(),  # two passes instead of a carried mean
    RunningSoftmax(),  # below the final maximum instead of the running one
    TableRecurrence(),  # arrays filled from their own last rows
    InvariantValue(),  # late: the passes below look for constants
    ProducerFusion(),  # late: rows made in the step, before costs are weighed
    TableLayout(),  # late: a copy of a table, against the memory budget
    DistanceRows(),  # late: distances that are reduced or decided on
    DotRecognition(),  # late: sums of products, before they are priced
    InvariantSolve(),  # before distribution, which then sees a product
    PairwiseDistance(),  # before distribution, which would batch the differences
    FeaturePlanes(),  # after distances, which may do without the differences
    ChunkedState(),  # late: states that products read
    LinearRecurrence(),  # late: before distribution, which keeps its loop
    BranchGrouping(),  # late: conds that distribution would keep in the loop
    RowCheckpoint(),  # early: what differentiation need not store
    LoopDistribution(),  # emits what the others have recognised
    LoopUnrolling(),  # last: a loop that nothing else improves
)
