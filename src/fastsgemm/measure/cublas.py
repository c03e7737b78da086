"""The FP32 product of cuBLAS through PyTorch or CuPy, for comparison only; `sgemm` never uses it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastsgemm.measure.operands import Lent

_MAJORS = (13, 12, 11)  # of CUDA


@dataclass(frozen=True)
class Baseline:
    """A product of cuBLAS that is ready to run."""

    name: str  # for example `cuBLAS through PyTorch 2.9.0`
    work: Callable[[], object]  # launches C = A @ B on the legacy default stream
    error: Callable[[], float]  # returns the error of C: ||C - AB||_F / ||AB||_F with A @ B in float64


def product(a: Lent, b: Lent, c: Lent) -> Baseline | None:
    """Return cuBLAS's C = A @ B on these arrays, or None if neither PyTorch nor CuPy can use the device.

    The arrays are matrices, or batches with three dimensions.

    This turns TF32 off for the whole process. An environment variable can override that, so check the result.
    """
    return _through_torch(a, b, c) or _through_cupy(a, b, c)


def loaded(name: str) -> ctypes.CDLL | None:
    """Return the library ``cublas`` or ``cublasLt`` that this process has loaded, for PyTorch, CuPy or JAX, or None."""
    for major in _MAJORS:
        with suppress(OSError, AttributeError):  # AttributeError: only Linux has RTLD_NOLOAD
            return ctypes.CDLL(f"lib{name}.so.{major}", mode=os.RTLD_NOLOAD)
    return None


def version() -> str | None:
    """Return the version of the cuBLAS that this process has loaded, such as ``13.1.0``; None without one."""
    library = loaded("cublasLt")
    if library is None:
        return None
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    number = library.cublasLtGetVersion()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _through_torch(a: Lent, b: Lent, c: Lent) -> Baseline | None:
    try:
        import torch
        from torch.utils.dlpack import from_dlpack
    except (ImportError, OSError):  # OSError: PyTorch lacks a library
        return None
    if not torch.cuda.is_available():
        return None
    torch.set_float32_matmul_precision("highest")
    x, y, z = map(from_dlpack, (a, b, c))
    multiply = torch.mm if z.dim() == 2 else torch.bmm

    @cache
    def exact() -> Any:
        return x.double() @ y.double()

    def error() -> float:
        return float((z.double() - exact()).norm() / exact().norm())

    return Baseline(f"cuBLAS through PyTorch {torch.__version__}", lambda: multiply(x, y, out=z), error)


def _through_cupy(a: Lent, b: Lent, c: Lent) -> Baseline | None:
    try:
        import cupy
    except (ImportError, OSError):
        return None
    x, y, z = map(cupy.from_dlpack, (a, b, c))  # CuPy leaves TF32 off unless CUPY_TF32=1

    @cache
    def exact() -> Any:
        return x.astype(cupy.float64) @ y.astype(cupy.float64)

    def error() -> float:
        return float(cupy.linalg.norm(z.astype(cupy.float64) - exact()) / cupy.linalg.norm(exact()))

    return Baseline(f"cuBLAS through CuPy {cupy.__version__}", lambda: cupy.matmul(x, y, out=z), error)
