"""Multiply NumPy arrays, then update C in place. Runs anywhere: on the first GPU, or by NumPy without one."""

import numpy as np

from fastsgemm import sgemm

generator = np.random.default_rng(0)
A = generator.standard_normal((100, 80), dtype=np.float32)
B = generator.standard_normal((80, 60), dtype=np.float32)

C = sgemm(A, B)
print("error", np.abs(C - A.astype(np.float64) @ B).max())
assert np.allclose(C, A @ B, atol=1e-4)

# C <- 2 A B - C, written into the same memory. A.T and slices are read where they lie.
again = sgemm(A, B, alpha=2.0, beta=-1.0, C=C)
assert again is C
assert np.allclose(C, A @ B, atol=1e-4)
assert np.allclose(sgemm(B.T, A.T), (A @ B).T, atol=1e-4)
