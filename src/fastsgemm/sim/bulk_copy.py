"""cp.async.bulk.tensor: one thread has a whole box of a tensor copied to shared memory.

The data are there at once, but nobody may read them before having waited for the memory barrier that counts the bytes:
see `fastsgemm.sim.memory_barriers`.
"""

from __future__ import annotations

import re

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.errors import MisalignedError
from fastsgemm.sim.family import Family, Step, operands, unknown
from fastsgemm.sim.memory import space_address
from fastsgemm.sim.ptx import Address, Instruction, TensorAddress
from fastsgemm.sim.slots import Slots
from fastsgemm.sim.tensor_map import CHUNK, SWIZZLE, chunks, swizzled

_ALIGNMENT = 128  # bytes, of a box in shared memory


def _copy(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    target, source, barrier = operands(instruction, 3)
    if not isinstance(source, TensorAddress) or len(source.coordinates) != int(match[1]):
        raise unknown(instruction, f"its source is no tensor with {match[1]} coordinates")
    to = space_address(instruction, target, slots, "shared")
    counted_by = space_address(instruction, barrier, slots, "shared")
    handle = slots.reading(source.base, "u64")
    coordinates = [slots.reading(coordinate, "s32") for coordinate in source.coordinates]

    def step(batch: Batch) -> None:
        handles = batch.gather(batch.registers[handle])
        corners = np.stack([batch.gather(batch.registers[slot].view(np.int32)) for slot in coordinates], axis=1)
        rows = batch.gather(batch.row)
        places, barriers = to(batch), counted_by(batch)
        for nth in range(len(rows)):
            place, corner = int(places[nth]), tuple(int(c) for c in corners[nth])
            if place % _ALIGNMENT:
                batch.fail(MisalignedError, instruction, nth, f"copies a box to {place}, no multiple of {_ALIGNMENT}")
            tensor, base, item = batch.memory.tensor(batch, instruction, nth, int(handles[nth]))
            offset, inside = chunks(tensor, item, corner)
            address = place + CHUNK * np.arange(len(offset))
            where = swizzled(address) if tensor.swizzle == SWIZZLE else address
            data = np.zeros((len(offset), CHUNK), np.uint8)
            if inside.any():
                found, owner = batch.memory.load(
                    batch, instruction, (base + offset[inside]).astype(np.uint64), np.uint8, CHUNK
                )
                data[inside] = found.T
                batch.counters.copied_box(index, int(owner[0]), CHUNK * int(np.count_nonzero(inside)))
            batch.mbarriers.copy(batch, instruction, nth, place, CHUNK * len(offset), int(barriers[nth]))
            batch.shared.put(batch, instruction, nth, int(rows[nth]), where, data)

    return step


def _prefetch(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    (source,) = operands(instruction, 1)
    if not isinstance(source, Address):
        raise unknown(instruction)
    handle = slots.reading(source.base, "u64")

    def step(batch: Batch) -> None:
        for nth, value in enumerate(batch.gather(batch.registers[handle])):
            batch.memory.tensor(batch, instruction, nth, int(value))

    return step


_DESTINATION = r"\.shared::cluster\.global(?:\.tile)?\.mbarrier::complete_tx::bytes"
FAMILIES = (
    Family(re.compile(r"cp\.async\.bulk\.tensor\.([1-5])d" + _DESTINATION), _copy),
    Family(re.compile(r"prefetch\.tensormap"), _prefetch),
)
