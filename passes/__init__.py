"""The pipeline: every optimisation, in the order in which they run."""

from passes.loop_distribution import LoopDistribution

DEFAULT_PIPELINE = (
    LoopDistribution(),
)
