"""What others offer between FP32 and TF32, on torch tensors: each function returns a call that computes A @ B, or None.

A peer that this machine does not have, or that refuses the device, is left out of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Work = Callable[[], Any]
_BM, _BN, _BK, _GROUP_M = 128, 128, 32, 8  # of the Triton kernel


def cublas(torch: Any, a: Any, b: Any, out: Any, tf32: bool) -> Work:
    """Return cuBLAS's product, through PyTorch, with or without TF32."""

    def work() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            return torch.mm(a, b, out=out)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return work


def triton(a: Any, b: Any, out: Any, precision: str) -> Work | None:
    """Return the product of a plain Triton kernel whose ``tl.dot`` has this input precision."""
    try:
        import triton
        import triton_product
    except ImportError:
        return None
    M, K = a.shape
    N = b.shape[1]
    grid = (triton.cdiv(M, _BM) * triton.cdiv(N, _BN),)

    def work() -> Any:
        triton_product.product[grid](
            a, b, out, M, N, K, *a.stride(), *b.stride(), *out.stride(),
            BM=_BM, BN=_BN, BK=_BK, GROUP_M=_GROUP_M, PRECISION=precision, num_warps=8, num_stages=3,
        )  # fmt: skip
        return out

    return _working(work)


def jax(a: Any, b: Any, algorithm: str) -> Work | None:
    """Return XLA's product with one of its emulation algorithms; the work ends when the result is there."""
    try:
        import jax
        import jax.dlpack
        import jax.numpy as jnp
    except ImportError:
        return None
    preset = getattr(jax.lax.DotAlgorithmPreset, algorithm, None)
    if preset is None or jax.default_backend() != "gpu":
        return None
    A, B = (jax.dlpack.from_dlpack(x.contiguous()) for x in (a, b))
    product = jax.jit(lambda x, y: jnp.dot(x, y, precision=preset))

    def work() -> Any:
        return product(A, B).block_until_ready()

    return _working(work)


def _working(work: Work) -> Work | None:
    try:
        work()
    except Exception as error:  # a peer may refuse in any way
        print(f"left out: {type(error).__name__}: {str(error)[:200]}")
        return None
    return work
