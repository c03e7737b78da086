"""Measures products: a stopwatch, cuBLAS to compare with, the ladder of rungs, and sets of problems."""
