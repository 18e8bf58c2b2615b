"""Benchmarks of the rewriter: ``python -m benchmarks --help``."""
