"""Operands for measurements: arrays on the host; memory on a device, as `sgemm` and cuBLAS see it."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from fastsgemm import device
from fastsgemm.call.arrays import DeviceArray, View
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import ShapeError
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Meta
from fastsgemm.problem import DType, Problem, format_problem

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_DRAWN = 1 << 22  # random numbers, repeated to fill the operands
_CGROUP = Path("/sys/fs/cgroup")


class Memory:
    """Memory of A, B and C, filled with random numbers, which grows to the largest problem."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._arrays: list[Any] = [None, None, None]
        self._dtypes: list[DType | None] = [None, None, None]  # of the numbers in each array

    def close(self) -> None:
        """Free the memory."""
        for array in self._arrays:
            if array is not None:
                array.close()

    def holding(self, problem: Problem) -> list[DeviceArray]:
        """Return the memory of A, B and C, large enough for a problem and with numbers of its types."""
        for index, operand in enumerate(variants.dense(problem)):
            size = math.prod(operand.shape)
            if self._arrays[index] is None or self._arrays[index].shape[1] < size:
                self._allocate(size, index)
            if self._dtypes[index] != operand.dtype:
                _fill(self._arrays[index], _as_bfloat16(self._numbers) if operand.dtype else self._numbers)
                self._dtypes[index] = operand.dtype
        return list(self._arrays)

    def _allocate(self, size: int, index: int) -> None:
        old, self._arrays[index] = self._arrays[index], None  # there may be no room for a larger one
        if old is not None:
            old.close()
        self._arrays[index], self._dtypes[index] = DeviceArray((1, size), self._gpu, LEGACY_STREAM), None

    @cached_property
    def _numbers(self) -> np.ndarray:
        return np.random.default_rng(0).standard_normal(_DRAWN, np.float32)


def _fill(array: DeviceArray, numbers: np.ndarray) -> None:
    from cuda.bindings import driver

    total = 4 * array.shape[1]
    filled = min(total, numbers.nbytes)
    array.upload(numbers[: filled // 4])
    while filled < total:  # each copy doubles the part that is filled
        chunk = min(filled, total - filled)
        result = driver.cuMemcpyDtoDAsync(array.pointer + filled, array.pointer, chunk, array.handle)
        device.check_driver("filling an operand", result)
        filled += chunk


def _as_bfloat16(numbers: np.ndarray) -> np.ndarray:
    """Return float32 numbers truncated to bfloat16, two in the bytes of each element."""
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.float32)


def views(problem: Problem, arrays: Sequence[DeviceArray]) -> tuple[View, View, View]:
    """Return the operands of a problem as dense views at the start of these arrays."""
    a, b, c = (
        (array.pointer, replace(array.view[1], shape=dense.shape, strides=dense.strides, dtype=dense.dtype))
        for array, dense in zip(_owners(problem, arrays), variants.dense(problem), strict=True)
    )
    return a, b, c


def lent(problem: Problem, arrays: Sequence[DeviceArray]) -> tuple[Lent, Lent, Lent]:
    """Return the operands as `views` does, for other libraries."""
    pairs = zip(_owners(problem, arrays), views(problem, arrays), strict=True)
    a, b, c = (Lent(array, meta) for array, (_, meta) in pairs)
    return a, b, c


def _owners(problem: Problem, arrays: Sequence[DeviceArray]) -> Sequence[DeviceArray]:
    """Return the memory of A, B and C; for a symmetric result, B is A transposed."""
    return (arrays[0], arrays[0], arrays[2]) if problem.symmetric else arrays


class Lent:
    """A device array exported through DLPack with the shape and strides of an operand."""

    def __init__(self, array: DeviceArray, meta: Meta) -> None:
        self._array, self._meta = array, meta

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        # Everything here is on the legacy default stream.
        return self._array.export(self._meta.shape, self._meta.strides, **options)


def host_operands(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A and B in the problem's layout, filled with reproducible normal numbers, and an empty C.

    Raises
    ------
    ShapeError
        The problem is a batch.
    """
    if problem.batch > 1:
        raise ShapeError(f"the ladder compares rungs on one product, got the batch {format_problem(problem)}")
    generator = np.random.default_rng(0)
    a, b = (
        generator.standard_normal(shape[::-1] if column_major else shape, np.float32)
        for shape, column_major in (
            ((problem.M, problem.K), problem.layout[0] == "T"),
            ((problem.K, problem.N), problem.layout[1] == "T"),
        )
    )
    c = np.empty((problem.M, problem.N), np.float32)
    return (a.T if problem.layout[0] == "T" else a), (b.T if problem.layout[1] == "T" else b), c


def refuse_too_large(problem: Problem, copies: float) -> None:
    """Raise `ShapeError` if the host has no memory for `copies` float32 copies of A, B and C."""
    M, N, K = problem.M, problem.N, problem.K
    needed, free = 4 * copies * (M * K + K * N + M * N), _available()
    if needed > free:
        raise ShapeError(
            f"{format_problem(problem)} needs about {needed / 2**30:.3g} GiB of this machine's memory, "
            f"{free / 2**30:.3g} GiB are available; choose a smaller size"
        )


def _available() -> float:
    """Return the bytes of host memory that this process can still allocate; infinity if unknown."""
    free = float("inf")
    with contextlib.suppress(OSError):
        line = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
        free = 1024.0 * int(line[1]) if line else free
    with contextlib.suppress(OSError, ValueError):  # the limit of a container; "max" means none
        limit, used = (int((_CGROUP / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        free = min(free, limit - used)
    return free
