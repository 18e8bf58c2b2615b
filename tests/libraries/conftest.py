"""Quick compilation; internal errors of the rewriter surface in these tests."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def quick_compilation():
    """Leave out XLA's dear optimisations; what the rewriter does is the same."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(autouse=True)
def raise_internal_errors(monkeypatch):
    """Let errors inside the rewriter through, rather than run the original."""
    monkeypatch.setenv("REWRITER_RAISE", "1")
