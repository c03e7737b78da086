"""Global memory: the operands of a launch, and nothing else.

Each operand is a strided matrix with an address range of its own. A map with one byte per element says which
bytes belong to an element of which operand, so that a gap between the rows of a view is known to be outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastsgemm.sim.batch import Array, Batch
from fastsgemm.sim.errors import (
    ForbiddenAccessError,
    GlobalAccessError,
    KernelFault,
    LaunchError,
    MisalignedError,
    UnwrittenOutputError,
)
from fastsgemm.sim.ptx import Instruction

START = 1 << 20  # the first address; null and its neighbours belong to nobody
ALIGNMENT = 512  # bytes, of an allocation
GAP = 4096  # bytes at least between two operands
READ, WRITE = 1, 2  # in the map: what may be done; the operand's number is in the bits above
NUMBER_SHIFT = 2


@dataclass(frozen=True)
class Region:
    """An operand of a launch.

    Attributes
    ----------
    array : ndarray
        A matrix or vector with any strides; updated by the launch where it may be written.
    read, write : bool
        What the kernel may do with it.
    complete : bool
        Whether every element must have been written when the launch ends.
    """

    array: NDArray[Any]
    read: bool = True
    write: bool = False
    complete: bool = False


def misalignment(array: NDArray[Any]) -> int:
    """Return where the first element of a view lies, in bytes modulo the alignment of an allocation.

    Counted from the start of the array that owns the memory, so that it does not change from run to run.
    """
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return int(array.ctypes.data - owner.ctypes.data) % ALIGNMENT


class GlobalMemory:
    """The operands of one launch, in one buffer.

    Attributes
    ----------
    names : list of str
        Of the operands, in the order of their numbers.
    """

    def __init__(self, operands: Mapping[str, Region]) -> None:
        self.names = list(operands)
        self._regions = list(operands.values())
        self.grain = min([region.array.itemsize for region in self._regions], default=4)
        self._starts: list[int] = []
        end = START
        for name, region in operands.items():
            _check(name, region)
            low, high = _extent(region.array)
            base = -(-(end + GAP - low) // ALIGNMENT) * ALIGNMENT + misalignment(region.array)
            self._starts.append(base)
            end = base + high
        self.size = -(-(end - START) // 16) * 16
        self._bytes = np.zeros(self.size, np.uint8)
        self._map = np.zeros(self.size // self.grain, np.uint8)
        self._written = np.zeros(self.size // self.grain, np.bool_)
        for number, region in enumerate(self._regions):
            self._place(number, region)

    def address(self, name: str) -> int:
        """Return the address of the first element of an operand."""
        if name not in self.names:
            raise LaunchError(f"no operand is called {name!r}; there are {self.names}")
        return self._starts[self.names.index(name)]

    def load(self, batch: Batch, at: Instruction, address: Array, dtype: Any, count: int) -> tuple[Array, Array]:
        """Return `count` neighbouring elements at each address, as (count, lanes), and the operands' numbers.

        Parameters
        ----------
        batch : Batch
        at : Instruction
            Named in the error if an access is not allowed.
        address : array of uint64
            Of the lanes that execute.
        dtype : dtype
        count : int
        """
        rows, owner = self._check(batch, at, address, np.dtype(dtype).itemsize * count, READ)
        data = self._bytes.view(dtype).reshape(-1, count)[rows]
        return data.T.copy(), owner

    def store(self, batch: Batch, at: Instruction, address: Array, values: list[Array]) -> Array:
        """Write neighbouring elements at each address; return the operands' numbers."""
        dtype, count = values[0].dtype, len(values)
        rows, owner = self._check(batch, at, address, dtype.itemsize * count, WRITE)
        view = self._bytes.view(dtype).reshape(-1, count)
        for j, value in enumerate(values):
            view[rows, j] = value
        per = max(1, dtype.itemsize * count // self.grain)
        units = rows if dtype.itemsize * count >= self.grain else rows * dtype.itemsize * count // self.grain
        self._written.reshape(-1, per)[units] = True
        return owner

    def finish(self) -> None:
        """Copy what was written back to the arrays.

        Raises
        ------
        UnwrittenOutputError
            An element of an operand that must be complete was never written.
        """
        for name, start, region in zip(self.names, self._starts, self._regions, strict=True):
            if not region.write:
                continue
            written = self._over(self._written, start, region.array, self.grain)
            if region.complete and not written.all():
                first = tuple(int(i) for i in np.argwhere(~written)[0])
                missing = int(written.size - np.count_nonzero(written))
                raise UnwrittenOutputError(
                    f"{missing} of the {written.size} elements of {name} were never written, the first is {first}"
                )
        for start, region in zip(self._starts, self._regions, strict=True):
            if region.write:
                dtype = region.array.dtype
                source = self._over(self._bytes.view(dtype), start, region.array, dtype.itemsize)
                region.array[...] = source

    def _place(self, number: int, region: Region) -> None:
        start, array = self._starts[number], region.array
        flags = number + 1 << NUMBER_SHIFT | READ * region.read | WRITE * region.write
        for grain in range(array.itemsize // self.grain):
            self._over(self._map, start + grain * self.grain, array, self.grain)[...] = flags
        self._over(self._bytes.view(array.dtype), start, array, array.itemsize)[...] = array

    def _over(self, flat: Array, start: int, array: Array, unit: int) -> Array:
        """Return the view of `flat`, which has an entry for every `unit` bytes, that lies as `array` does."""
        strides = tuple(stride // unit * flat.itemsize for stride in array.strides)
        first = (start - START) // unit
        return np.ndarray(array.shape, flat.dtype, flat, first * flat.itemsize, strides)

    def _check(self, batch: Batch, at: Instruction, address: Array, size: int, wanted: int) -> tuple[Array, Array]:
        """Return the index of each access in units of its size, and its operand's number."""
        offset = address - np.uint64(START)
        if (offset % np.uint64(size)).any():
            nth = int(np.flatnonzero(offset % np.uint64(size))[0])
            what = f"accesses {size} bytes at {self._describe(int(address[nth]))}, which is not a multiple of {size}"
            batch.fail(MisalignedError, at, nth, what)
        inside = offset < np.uint64(self.size)
        if not inside.all():
            self._refuse(batch, at, int(np.flatnonzero(~inside)[0]), address, size, GlobalAccessError)
        unit = max(size, self.grain)
        rows = (offset // np.uint64(unit)).astype(np.int64)
        owner = self._map.reshape(-1, unit // self.grain)[rows]
        if not (owner & wanted).all():
            nth = int(np.flatnonzero(~(owner & wanted).astype(np.bool_).all(axis=1))[0])
            known = owner[nth].all()
            self._refuse(batch, at, nth, address, size, ForbiddenAccessError if known else GlobalAccessError)
        if size < self.grain:
            rows = (offset // np.uint64(size)).astype(np.int64)
        return rows, owner[:, 0] >> NUMBER_SHIFT

    def _refuse(
        self, batch: Batch, at: Instruction, nth: int, address: Array, size: int, error: type[KernelFault]
    ) -> None:
        reason = "may not be accessed so" if error is ForbiddenAccessError else "belongs to no operand"
        verb = "writes" if at.opcode.startswith("st") else "reads"
        batch.fail(error, at, nth, f"{verb} {size} bytes at {self._describe(int(address[nth]))}, which {reason}")

    def _describe(self, address: int) -> str:
        """Return an address in words: relative to the operand whose range is nearest."""
        if not self.names:
            return f"{address:#x}"
        distances = []
        for name, start, region in zip(self.names, self._starts, self._regions, strict=True):
            low, high = _extent(region.array)
            distances.append((max(start + low - address, address - start - high, 0), name, address - start))
        _, name, offset = min(distances)
        return f"{address:#x} ({name} {'+' if offset >= 0 else '-'} {abs(offset)} bytes)"


def _check(name: str, region: Region) -> None:
    array, item = region.array, region.array.itemsize
    if item not in (1, 2, 4, 8) or any(stride % item for stride in array.strides) or misalignment(array) % item:
        raise LaunchError(
            f"operand {name} of {array.dtype} with strides {array.strides} does not lie as a device's can"
        )
    if region.write and not array.flags.writeable:
        raise LaunchError(f"operand {name} is to be written but is read-only")


def _extent(array: NDArray[Any]) -> tuple[int, int]:
    """Return the first and the one-past-last byte of an array, relative to its first element."""
    if array.size == 0:
        return 0, 0
    ends = [(extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True)]
    return sum(min(0, end) for end in ends), sum(max(0, end) for end in ends) + array.itemsize
