"""cp.async.bulk: one thread has a stretch of global memory copied to shared memory, or only brought to L2.

The data are there at once, but nobody may read them before having waited for the memory barrier that counts the bytes:
see `fastsgemm.sim.memory_barriers`.
"""

from __future__ import annotations

import re

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.errors import MisalignedError
from fastsgemm.sim.family import Family, Step, operands
from fastsgemm.sim.memory import space_address
from fastsgemm.sim.ptx import Instruction
from fastsgemm.sim.slots import Slots

_ALIGNMENT = 16  # bytes, of both addresses and of the size


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
            data, owner = batch.memory.load_bulk(batch, instruction, nth, sources, int(size))
            batch.counters.copied_in_bulk(index, owner, int(size))
            batch.mbarriers.copy(batch, instruction, nth, int(place), int(size), int(barriers[nth]))
            batch.shared.put(batch, instruction, nth, int(row), int(place), data)

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
            batch.memory.load_bulk(batch, instruction, nth, sources, int(size), to_l2=True)

    return step


def _check(batch: Batch, instruction: Instruction, nth: int, size: int, source: int, place: int = 0) -> None:
    if not size or any(number % _ALIGNMENT for number in (place, source, size)):
        what = f"copies {size} bytes from {batch.memory.describe(source)} to {place}"
        batch.fail(MisalignedError, instruction, nth, f"{what}, which must all be multiples of {_ALIGNMENT}")


FAMILIES = (
    Family(re.compile(r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes"), _copy),
    Family(re.compile(r"cp\.async\.bulk\.prefetch\.L2\.global"), _prefetch),
)
