"""Multiply inside of jax.jit, with gradients and batches, and replace the products of a program by a switch."""

import sys

from fastsgemm import sgemm

try:
    import jax
except ImportError as error:
    print(f"skipped: this needs JAX ({error})")
    sys.exit()
import fastsgemm.jax

A = jax.random.normal(jax.random.key(0), (100, 80))
B = jax.random.normal(jax.random.key(1), (80, 60))


@jax.jit
def loss(A, B, alpha):
    return (sgemm(A, B, alpha) ** 2).sum()  # alpha is traced, too


def with_jax(A, B, alpha):
    return ((alpha * jax.numpy.matmul(A, B, precision="highest")) ** 2).sum()


gradients = jax.grad(loss, (0, 1, 2))(A, B, 0.5)
for mine, other in zip(gradients, jax.grad(with_jax, (0, 1, 2))(A, B, 0.5), strict=True):
    assert jax.numpy.allclose(mine, other, rtol=1e-4, atol=1e-2)

batch = jax.numpy.stack([A, 2 * A, -A])
C = jax.jit(jax.vmap(sgemm, (0, None)))(batch, B)  # one launch, of 300 rows
assert C.shape == (3, 100, 60)

# On a GPU, the program's own products in FP32; elsewhere there is nothing to replace.
with fastsgemm.jax.enabled() as switch:
    jax.jit(with_jax)(A, B, 0.5)
print(switch.report())
