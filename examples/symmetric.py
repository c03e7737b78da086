"""Compute A A^T for about half the work. The result is symmetric to the last bit; nothing has to be declared."""

import numpy as np

from fastsgemm import blas, sgemm

A = np.random.default_rng(1).standard_normal((300, 200)).astype(np.float32)

C = sgemm(A, A.T)  # B is A transposed, in the same memory
assert np.array_equal(C, C.T)
assert np.allclose(C, A @ A.T, atol=1e-3)

# A product of polynomials of one symmetric matrix is symmetric, which the caller knows.
S = C / np.linalg.norm(C)
P = sgemm(S, S @ S, symmetric=True)
assert np.array_equal(P, P.T)

lower = blas.ssyrk(1.0, A, lower=1)  # one triangle, as SciPy has it
assert np.allclose(lower, np.tril(C), atol=1e-3)
print("symmetric:", C.shape)
