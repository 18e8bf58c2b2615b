"""Quick compilation: these tests compile hundreds of tiny programs once each."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def quick_compilation():
    """Leave out XLA's dear optimisations; what the rewriter does is the same."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
