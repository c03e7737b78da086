"""Multiply JAX arrays. They are immutable, so the result is always a new array."""

import sys

from fastsgemm import sgemm

try:
    import jax
except ImportError as error:
    print(f"skipped: this needs JAX ({error})")
    sys.exit()

A = jax.random.normal(jax.random.key(0), (100, 80))
B = jax.random.normal(jax.random.key(1), (80, 60))
C = sgemm(A, B)
D = sgemm(A, B, beta=1.0, C=C)  # reads C and returns A B + C

assert isinstance(C, jax.Array)
assert jax.numpy.allclose(C, jax.numpy.matmul(A, B, precision="highest"), atol=1e-4)
assert jax.numpy.allclose(D, 2 * C, atol=1e-4)
print("a product of JAX arrays:", C.shape)
