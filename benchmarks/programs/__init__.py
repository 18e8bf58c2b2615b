"""Programs of the benchmarks: as users write them, and as an expert would by hand."""
