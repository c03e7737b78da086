"""Global memory: the operands of a launch, and nothing else.

Each operand is a strided matrix with an address range of its own, so far from the others that no wrong index leads
from one to another. A map with one byte per element says which bytes belong to an element of which operand, so that a
gap between the rows of a view is known to be outside. `fastsgemm.sim.accesses` stores the accesses to what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastsgemm.sim.accesses import Accesses
from fastsgemm.sim.errors import (
    ForbiddenAccessError,
    GlobalAccessError,
    KernelFault,
    LaunchError,
    MisalignedError,
    RaceError,
    UnwrittenOutputError,
)
from fastsgemm.sim.lanes import Array, Lanes, first_lane
from fastsgemm.sim.ptx import Instruction
from fastsgemm.sim.updates import update_in_turn

SPACING = 1 << 40  # bytes from one operand's address to the next one's: more than 64 GB, as far as float4 and int reach
NULL = 1 << 20  # addresses below this are reported as null pointers plus an offset
ALIGNMENT = 512  # bytes, of an allocation
READ, WRITE = 1, 2  # in the map: the allowed accesses; the bits above are the number of the operand
NUMBER_SHIFT = 2
MOST_OPERANDS = 255 >> NUMBER_SHIFT  # what an entry of the map can name


@dataclass(frozen=True)
class Region:
    """An operand of a launch.

    Attributes
    ----------
    array : ndarray
        A matrix or vector with any strides; the launch updates it if it may be written.
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
    owner, base = array, array.base
    while base is not None:  # the base of what `as_strided` returns is no array, but has one
        owner = base if isinstance(base, np.ndarray) else owner
        base = getattr(base, "base", None)
    return int(array.ctypes.data - owner.ctypes.data) % ALIGNMENT


class GlobalMemory:
    """The operands of one launch, in one buffer."""

    def __init__(self, operands: Mapping[str, Region], grain: int = 4) -> None:
        if len(operands) > MOST_OPERANDS:
            raise LaunchError(f"a launch has at most {MOST_OPERANDS} operands, got {len(operands)}")
        for name, region in operands.items():
            _check(name, region)
        self.names = list(operands)  # in the order of the operands' numbers
        self._regions = list(operands.values())
        # Bytes of the narrowest access.
        self.grain = min([grain, *(region.array.itemsize for region in self._regions)])
        self._starts: list[int] = []  # addresses of the first elements
        self._lows: list[int] = []  # addresses of the first bytes
        self._extents: list[int] = []  # bytes from there on
        self._offsets: list[int] = []  # where those bytes lie in the buffer
        end = 0
        for number, region in enumerate(self._regions):
            low, high = _extent(region.array)
            start = (number + 1) * SPACING + misalignment(region.array)
            offset = -(-end // ALIGNMENT) * ALIGNMENT + (start + low) % ALIGNMENT
            self._starts.append(start)
            self._lows.append(start + low)
            self._extents.append(high - low)
            self._offsets.append(offset)
            end = offset + high - low
        self.size = -(-end // 16) * 16
        self._bytes = np.zeros(self.size, np.uint8)
        self._map = np.zeros(self.size // self.grain, np.uint8)
        self._accesses = Accesses(self.size // self.grain, self.describe)
        for number, region in enumerate(self._regions):
            self._place(number, region)

    def address(self, name: str) -> int:
        """Return the address of the first element of an operand."""
        if name not in self.names:
            raise LaunchError(f"no operand is called {name!r}; there are {self.names}")
        return self._starts[self.names.index(name)]

    def load(
        self, lanes: Lanes, at: Instruction, address: Array, dtype: Any, count: int, read_only: bool = False
    ) -> tuple[Array, Array]:
        """Return `count` neighbouring elements at each address, as (count, lanes), and the operands' numbers.

        The addresses are those of the lanes that execute; an error names the instruction `at`. The read-only path
        (``ld.global.nc``) is for data that nobody writes while the kernel runs.

        Raises
        ------
        KernelFault
            The access is not allowed, or races with another one.
        """
        size = np.dtype(dtype).itemsize * count
        rows, flags = self._check(lanes, at, address, size, READ)
        if read_only:
            self._check_read_only(lanes, at, address, flags)
        if (flags & WRITE).any():
            self._accesses.read(lanes, at, address, self._units(rows, size))
        data = self._bytes.view(dtype).reshape(-1, count)[rows]
        return data.T.copy(), flags >> NUMBER_SHIFT

    def load_bulk(
        self, lanes: Lanes, at: Instruction, nth: int, address: Array, size: int, to_l2: bool = False
    ) -> tuple[Array, int]:
        """Return what a bulk copy by the nth lane that executes reads, as (addresses, bytes), and the operand's number.

        It reads `size` bytes at each address, more than 0. A copy that goes no further than L2 need not wait for the
        launch before.

        Raises
        ------
        KernelFault
            The access is not allowed, or the launch may write what is copied.
        """
        if lanes.unwaited is not None and not to_l2 and lanes.gather(lanes.unwaited)[nth]:
            self._refuse_early(lanes, at, nth, int(address[0]))
        position, inside = self._positions(address, size)
        units = position[:, None] // self.grain + np.arange(size // self.grain)
        if inside is not None and not inside.all():
            self._refuse(lanes, at, nth, int(address[int(np.argmin(inside))]), size, GlobalAccessError)
        flags = self._map[units]
        refused = np.any(flags & READ == 0, axis=1)
        if refused.any():
            which = first_lane(refused)
            error = ForbiddenAccessError if flags[which].all() else GlobalAccessError
            self._refuse(lanes, at, nth, int(address[which]), size, error)
        written = np.any(flags & WRITE, axis=1)
        if written.any():
            where = self.describe(int(address[first_lane(written)]))
            lanes.fail(RaceError, at, nth, f"copies {size} bytes at {where}, which this launch may write")
        data = self._bytes.reshape(-1, self.grain)[units]
        return data.reshape(len(address), size), int(flags[0, 0]) >> NUMBER_SHIFT

    def store(self, lanes: Lanes, at: Instruction, address: Array, values: list[Array]) -> Array:
        """Write neighbouring elements at each address; return the operands' numbers."""
        dtype, count = values[0].dtype, len(values)
        size = dtype.itemsize * count
        rows, flags = self._check(lanes, at, address, size, WRITE)
        units = self._units(rows, size)

        def holds() -> Array:
            there = self._bytes.reshape(-1, size)[rows]
            equal = there == np.stack(values, axis=1).view(np.uint8)
            return np.asarray(equal.reshape(*units.shape, -1).all(axis=2))

        self._accesses.write(lanes, at, address, units, holds)
        view = self._bytes.view(dtype).reshape(-1, count)
        for j, value in enumerate(values):
            view[rows, j] = value
        self._accesses.check_written(lanes, at, address, units, holds)
        return flags >> NUMBER_SHIFT

    def update(
        self, lanes: Lanes, at: Instruction, address: Array, values: Array, compute: Callable[[Array, Array], Array]
    ) -> tuple[Array, Array]:
        """Replace the element at each address by a function of it and a value, atomically.

        Return the elements as they were before, and the operands' numbers.
        """
        rows, flags = self._check(lanes, at, address, values.itemsize, READ)
        self._check(lanes, at, address, values.itemsize, WRITE)
        self._accesses.update(lanes, at, address, self._units(rows, values.itemsize))
        return update_in_turn(self._bytes.view(values.dtype), rows, values, compute), flags >> NUMBER_SHIFT

    def start_copy(self, address: Array, size: int) -> Array | None:
        """Note that asynchronous copies read at each address, which `load` has checked, until `finish_copy`.

        Returns
        -------
        array, shape (addresses, units), or None
            The units of memory that are read; None if nothing of it may be written in this launch.
        """
        if not any(region.read and region.write for region in self._regions):
            return None
        position, _ = self._positions(address, size)
        units = position[:, None] // self.grain + np.arange(-(-size // self.grain))
        if not (self._map[units[:, 0]] & WRITE).any():
            return None
        self._accesses.start_copy(units)
        return units

    def finish_copy(self, lanes: Lanes, thread: Array, units: Array) -> None:
        """Record that copies have read these units for their threads."""
        self._accesses.finish_copy(lanes, thread, units)

    def finish(self) -> None:
        """Copy what was written back to the arrays.

        Raises
        ------
        UnwrittenOutputError
            An element of an operand that must be complete was never written.
        """
        for number, (name, region) in enumerate(zip(self.names, self._regions, strict=True)):
            if not (region.write and region.complete):
                continue
            grains = range(0, region.array.itemsize, self.grain)
            written = np.all([self._over(self._accesses.written, number, self.grain, at) for at in grains], axis=0)
            if not written.all():
                first = tuple(int(i) for i in np.argwhere(~written)[0])
                missing = int(written.size - np.count_nonzero(written))
                raise UnwrittenOutputError(
                    f"{missing} of the {written.size} elements of {name} were never written, the first is {first}"
                )
        for number, region in enumerate(self._regions):
            if region.write:
                dtype = region.array.dtype
                region.array[...] = self._over(self._bytes.view(dtype), number, dtype.itemsize)

    def _place(self, number: int, region: Region) -> None:
        array = region.array
        flags = number + 1 << NUMBER_SHIFT | READ * region.read | WRITE * region.write
        for at in range(0, array.itemsize, self.grain):
            self._over(self._map, number, self.grain, at)[...] = flags
        self._over(self._bytes.view(array.dtype), number, array.itemsize)[...] = array

    def _over(self, flat: Array, number: int, unit: int, at: int = 0) -> Array:
        """Return a view of `flat`, which has one entry per `unit` bytes, with the shape and strides of an operand.

        Its entries are those of the bytes `at` of each element.
        """
        array = self._regions[number].array
        strides = tuple(stride // unit * flat.itemsize for stride in array.strides)
        first = (self._offsets[number] + self._starts[number] - self._lows[number] + at) // unit
        return np.ndarray(array.shape, flat.dtype, flat, first * flat.itemsize, strides)

    def _positions(self, address: Array, size: int) -> tuple[Array, Array | None]:
        """Return the offset of each access in the buffer, and a mask of the accesses inside it (None: all are)."""
        number = int(address[0]) + SPACING // 2 >> SPACING.bit_length() - 1
        if 1 <= number <= len(self.names):  # the usual case: all accesses are to one operand
            offset = address - np.uint64(self._lows[number - 1])
            if int(offset.max()) + size <= self._extents[number - 1]:
                return offset.astype(np.int64) + self._offsets[number - 1], None
        position = np.zeros(len(address), np.int64)
        inside = np.zeros(len(address), np.bool_)
        for low, extent, first in zip(self._lows, self._extents, self._offsets, strict=True):
            offset = address - np.uint64(low)
            mine = offset <= np.uint64(extent - size) if extent >= size else np.zeros(1, np.bool_)
            position = np.where(mine, offset.astype(np.int64) + first, position)
            inside = inside | mine
        return position, inside

    def _units(self, rows: Array, size: int) -> Array:
        """Return the units that each access covers, as (lanes, units of an access)."""
        if size < self.grain:
            return (rows * size // self.grain)[:, None]
        per = size // self.grain
        return rows[:, None] * per + np.arange(per)

    def _check(self, lanes: Lanes, at: Instruction, address: Array, size: int, wanted: int) -> tuple[Array, Array]:
        """Return the index of each access in units of its size, and its entry in the map."""
        if lanes.unwaited is not None and (early := lanes.gather(lanes.unwaited)).any():
            nth = int(np.argmax(early))
            self._refuse_early(lanes, at, nth, int(address[nth]))
        if (address % np.uint64(size)).any():
            nth = first_lane(address % np.uint64(size))
            what = f"accesses {size} bytes at {self.describe(int(address[nth]))}, which is not a multiple of {size}"
            lanes.fail(MisalignedError, at, nth, what)
        position, inside = self._positions(address, size)
        unit = max(size, self.grain)
        if not self.size:  # nothing to look up
            self._refuse(lanes, at, 0, int(address[0]), size, GlobalAccessError)
        flags = self._map.reshape(-1, unit // self.grain)[position // unit]
        if inside is not None:
            flags = np.where(inside[:, None], flags, np.uint8(0))
        if not (flags & wanted).all():
            nth = first_lane((flags & wanted) == 0)
            known = flags[nth].all()
            error = ForbiddenAccessError if known else GlobalAccessError
            self._refuse(lanes, at, nth, int(address[nth]), size, error)
        return position // size, flags[:, 0]

    def _refuse_early(self, lanes: Lanes, at: Instruction, nth: int, address: int) -> None:
        what = f"accesses {self.describe(address)} and has not waited for the launch before"
        lanes.fail(RaceError, at, nth, what)

    def _check_read_only(self, lanes: Lanes, at: Instruction, address: Array, flags: Array) -> None:
        """Check that nobody may write, while the kernel runs, what is read by the read-only path.

        The compiler may move such a read to any place, also before the wait of an early launch.
        """
        written = (flags & WRITE).astype(np.bool_)
        if lanes.early or written.any():
            nth = 0 if lanes.early else int(np.argmax(written))
            who = "the launch before may still write" if lanes.early else "this launch may write"
            what = f"reads {self.describe(int(address[nth]))} by the read-only path, which {who}"
            lanes.fail(RaceError, at, nth, what)

    def _refuse(
        self, lanes: Lanes, at: Instruction, nth: int, address: int, size: int, error: type[KernelFault]
    ) -> None:
        allowed = "may not be accessed so: read= and write= of its Region say how it may"
        reason = allowed if error is ForbiddenAccessError else "belongs to no operand"
        verb = "writes" if at.opcode.startswith("st") else "reads"
        lanes.fail(error, at, nth, f"{verb} {size} bytes at {self.describe(address)}, which {reason}")

    def describe(self, address: int) -> str:
        """Return an address for messages, relative to the operand whose range is nearest."""
        if address < NULL:
            return f"{address:#x} (a null pointer + {address} bytes)"
        if not self.names:
            return f"{address:#x}"
        distances = []
        for name, start, low, extent in zip(self.names, self._starts, self._lows, self._extents, strict=True):
            distances.append((max(low - address, address - low - extent, 0), name, address - start))
        _, name, offset = min(distances)
        return f"{address:#x} ({name} {'+' if offset >= 0 else '-'} {abs(offset)} bytes)"


def _check(name: str, region: Region) -> None:
    array = getattr(region, "array", None)
    if not isinstance(array, np.ndarray):
        raise LaunchError(f"operand {name} must be a Region of a NumPy array, got {region!r:.80}")
    item = array.itemsize
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
