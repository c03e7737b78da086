"""The operands of what is measured: arrays on the host; memory on a device, as `sgemm` and cuBLAS see it."""

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
from fastsgemm.problem import DType, Problem, spell

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_DRAWN = 1 << 22  # random numbers, repeated to fill the operands
_CGROUP = Path("/sys/fs/cgroup")


class Memory:
    """Memory of A, B and C, which grows to the largest problem. It is filled with random numbers."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._arrays: list[Any] = [None, None, None]
        self._holds: list[DType | None] = [None, None, None]  # the type of the numbers that it was filled with

    def close(self) -> None:
        """Free it."""
        for array in self._arrays:
            if array is not None:
                array.close()

    def holding(self, problem: Problem) -> list[DeviceArray]:
        """Return the memory of A, B and C, with room for a problem and numbers of its types."""
        for place, each in enumerate(variants.dense(problem)):
            size = math.prod(each.shape)
            if self._arrays[place] is None or self._arrays[place].shape[1] < size:
                self._allocate(size, place)
            if self._holds[place] != each.dtype:
                _fill(self._arrays[place], _as_bfloat16(self._numbers) if each.dtype else self._numbers)
                self._holds[place] = each.dtype
        return list(self._arrays)

    def _allocate(self, size: int, place: int) -> None:
        old, self._arrays[place] = self._arrays[place], None  # there may be no room for a larger one
        if old is not None:
            old.close()
        self._arrays[place], self._holds[place] = DeviceArray((1, size), self._gpu, LEGACY_STREAM), None

    @cached_property
    def _numbers(self) -> np.ndarray:
        return np.random.default_rng(0).standard_normal(_DRAWN, np.float32)


def _fill(array: DeviceArray, numbers: np.ndarray) -> None:
    from cuda.bindings import driver

    total = 4 * array.shape[1]
    done = min(total, numbers.nbytes)
    array.upload(numbers[: done // 4])
    while done < total:  # each copy doubles the part that is filled
        more = min(done, total - done)
        answer = driver.cuMemcpyDtoDAsync(array.pointer + done, array.pointer, more, array.handle)
        device.succeed("filling an operand", answer)
        done += more


def _as_bfloat16(numbers: np.ndarray) -> np.ndarray:
    """Return float32 numbers as bfloat16, cut off: two of them in the bytes of each element."""
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.float32)


def views(problem: Problem, arrays: Sequence[DeviceArray]) -> tuple[View, View, View]:
    """Return the operands of a problem as dense arrays that begin where these arrays begin."""
    a, b, c = (
        (array.pointer, replace(array.view[1], shape=dense.shape, strides=dense.strides, dtype=dense.dtype))
        for array, dense in zip(_owners(problem, arrays), variants.dense(problem), strict=True)
    )
    return a, b, c


def lent(problem: Problem, arrays: Sequence[DeviceArray]) -> tuple[Lent, Lent, Lent]:
    """Return the same operands for other libraries."""
    pairs = zip(_owners(problem, arrays), views(problem, arrays), strict=True)
    a, b, c = (Lent(array, meta) for array, (_, meta) in pairs)
    return a, b, c


def _owners(problem: Problem, arrays: Sequence[DeviceArray]) -> Sequence[DeviceArray]:
    """Return the memory of A, B and C: of a symmetric result, B is A transposed."""
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
    """Return A and B, stored as the layout says and filled with the same normal numbers every time, and an empty C.

    Raises
    ------
    ShapeError
        The problem is a batch.
    """
    if problem.batch > 1:
        raise ShapeError(f"the ladder compares rungs on one product, got the batch {spell(problem)}")
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
            f"{spell(problem)} needs about {needed / 2**30:.3g} GiB of this machine's memory, "
            f"{free / 2**30:.3g} GiB are available; choose a smaller size"
        )


def _available() -> float:
    """Return the bytes of host memory that this process can still allocate; infinity if Linux does not say."""
    free = float("inf")
    with contextlib.suppress(OSError):
        line = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
        free = 1024.0 * int(line[1]) if line else free
    with contextlib.suppress(OSError, ValueError):  # the limit of a container; "max" means none
        limit, used = (int((_CGROUP / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        free = min(free, limit - used)
    return free
