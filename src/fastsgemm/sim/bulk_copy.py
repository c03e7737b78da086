"""cp.async.bulk: one thread has a stretch of global memory, or a box of a matrix, copied to shared memory.

Or a stretch is only brought to L2.

The data are there at once, but nobody may read them before having waited for the memory barrier that counts the bytes:
see `fastsgemm.sim.memory_barriers`.
"""

from __future__ import annotations

import re
import struct

import numpy as np
from numpy.typing import NDArray

from fastsgemm.geometry import tensor_map
from fastsgemm.geometry.tensor_map import TensorMap
from fastsgemm.sim.batch import Batch
from fastsgemm.sim.errors import GlobalAccessError, MisalignedError, ParameterAccessError
from fastsgemm.sim.family import Family, Step, items, operands, unknown
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.memory import space_address
from fastsgemm.sim.ptx import BoxAddress, Instruction
from fastsgemm.sim.slots import Slots

_ALIGNMENT = 16  # bytes, of both addresses and of the size
_SWIZZLED_LINES = tensor_map.PERIOD // tensor_map.BOX_BYTES


def _copy(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    target, source, length, barrier = operands(instruction, 4)
    to = space_address(instruction, target, slots, "shared")
    source_of = space_address(instruction, source, slots, "global")
    counted_by = space_address(instruction, barrier, slots, "shared")
    size_slot = slots.reading(length, "u32")

    def step(batch: Batch) -> None:
        rows, sizes = batch.gather(batch.row), batch.read(size_slot, np.uint32)
        places, sources, barriers = to(batch), source_of(batch), counted_by(batch)
        for nth, (row, size, place, first) in enumerate(zip(rows, sizes, places, sources, strict=True)):
            _check(batch, instruction, nth, int(size), int(first), int(place))
            data, owner = batch.memory.load_bulk(batch, instruction, nth, sources[nth : nth + 1], int(size))
            batch.counters.copied_in_bulk(index, owner, int(size))
            batch.mbarriers.copy(batch, instruction, nth, int(place), int(size), int(barriers[nth]))
            batch.shared.put(batch, instruction, nth, int(row), int(place), data[0])

    return step


def _prefetch(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    """Check the stretch; the later copy is counted."""
    source, length = operands(instruction, 2)
    source_of = space_address(instruction, source, slots, "global")
    size_slot = slots.reading(length, "u32")

    def step(batch: Batch) -> None:
        sizes, sources = batch.read(size_slot, np.uint32), source_of(batch)
        for nth, (size, first) in enumerate(zip(sizes, sources, strict=True)):
            _check(batch, instruction, nth, int(size), int(first))
            batch.memory.load_bulk(batch, instruction, nth, sources[nth : nth + 1], int(size), to_l2=True)

    return step


def _copy_box(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    """Copy a box of a matrix whose map is a parameter of the kernel; see `fastsgemm.geometry.tensor_map`."""
    target, source, barrier = operands(instruction, 3)
    if not isinstance(source, BoxAddress):
        raise unknown(instruction, "its source is no box of a tensor")
    to = space_address(instruction, target, slots, "shared")
    counted_by = space_address(instruction, barrier, slots, "shared")
    map_of = slots.reading(source.map, "u64")
    coordinates = [slots.reading(each, "s32") for each in items(instruction, source.coordinates, 4)]

    def step(batch: Batch) -> None:
        maps = batch.gather(batch.registers[map_of])
        corners = np.stack([batch.read(slot, np.int32) for slot in coordinates], axis=1)
        rows, places, barriers = batch.gather(batch.row), to(batch), counted_by(batch)
        for nth, (row, place, first) in enumerate(zip(rows, places, maps, strict=True)):
            try:
                tensor = tensor_map.unpacked(bytes(batch.parameters[int(first) :][: tensor_map.BYTES]))
            except (ValueError, struct.error) as error:
                batch.fail(ParameterAccessError, instruction, nth, f"copies by a map at {int(first)}: {error}")
            if place % tensor_map.PERIOD:
                what = f"copies a box to {int(place)}, which must be a multiple of {tensor_map.PERIOD}"
                batch.fail(MisalignedError, instruction, nth, what)
            data = np.zeros((tensor.box, tensor_map.BOX_BYTES), np.uint8)
            address, size = _inside(tensor, *map(int, corners[nth]))
            if size <= 0 or not len(address):
                what = f"copies a box at {corners[nth].tolist()} of {tensor}, where nothing is"
                batch.fail(GlobalAccessError, instruction, nth, f"{what}: a device would access address 0")
            for begin, end in ((0, size - size % _ALIGNMENT), (size - size % _ALIGNMENT, size)):
                if begin < end:
                    found, owner = batch.memory.load_bulk(batch, instruction, nth, address + begin, end - begin)
                    data[: len(address), begin:end] = found
                    batch.counters.copied_in_bulk(index, owner, found.size)
            batch.mbarriers.copy(batch, instruction, nth, int(place), data.size, int(barriers[nth]))
            batch.shared.put(batch, instruction, nth, int(row), int(place), _swizzled(data))

    return step


def _inside(tensor: TensorMap, k: int, line: int, near: int, far: int) -> tuple[NDArray[np.uint64], int]:
    """Return where the lines of a box begin of which something is inside of the matrix, and how many bytes are."""
    item = tensor.dtype.item
    size = min(tensor_map.BOX_BYTES, (tensor.K - k) * item)
    lines = np.arange(line, min(line + tensor.box, tensor.lines), dtype=np.uint64)
    first = near * tensor_map.NEAR + far * tensor_map.FAR + k * item
    return lines * np.uint64(tensor.ld * item) + np.uint64(first), size


def _swizzled(data: Array) -> Array:
    """Return the bytes of a box in the 128-byte swizzle: the pieces of each line change places by its number."""
    pieces = data.reshape(len(data), -1, _ALIGNMENT)
    lines, places = np.ogrid[: len(data), : pieces.shape[1]]
    return np.asarray(pieces[lines, places ^ lines % _SWIZZLED_LINES].ravel())


def _check(batch: Batch, instruction: Instruction, nth: int, size: int, source: int, place: int = 0) -> None:
    if not size or any(number % _ALIGNMENT for number in (place, source, size)):
        what = f"copies {size} bytes from {batch.memory.describe(source)} to {place}"
        batch.fail(MisalignedError, instruction, nth, f"{what}, which must all be multiples of {_ALIGNMENT}")


_BULK = r"cp\.async\.bulk"
_TO_SHARED = r"\.mbarrier::complete_tx::bytes"

FAMILIES = (
    Family(re.compile(rf"{_BULK}\.shared::cluster\.global{_TO_SHARED}"), _copy),
    Family(re.compile(rf"{_BULK}\.tensor\.4d\.shared::cluster\.global\.tile{_TO_SHARED}"), _copy_box),
    Family(re.compile(rf"{_BULK}\.prefetch\.L2\.global"), _prefetch),
)
