"""Clusters: the first half of their barrier, and reads of another block's shared memory.

The second half of the barrier, which waits, ends a stretch; see `fastsgemm.sim.schedule`. The 32-bit address of a place
in another block's shared memory is the place in the own block's with the rank plus one in the highest byte.
"""

from __future__ import annotations

import re

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.family import Family, Step, operands, unknown
from fastsgemm.sim.memory import space_address
from fastsgemm.sim.ptx import Instruction
from fastsgemm.sim.shared_memory import RANK_SHIFT
from fastsgemm.sim.slots import DTYPES, Slots
from fastsgemm.sim.traffic import by_warp, wavefronts


def _arrive(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    operands(instruction, 0)

    def step(batch: Batch) -> None:
        batch.cluster_arrived[batch.current_mask] = True

    return step


def _map(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    target, place, rank = operands(instruction, 3)
    slot, stored = slots.register(target), slots.stored(target)
    own, block = slots.reading(place, "u32"), slots.reading(rank, "u32")

    def step(batch: Batch) -> None:
        address, number = batch.registers[own].view(np.uint32), batch.registers[block].view(np.uint32)
        if (batch.gather(number) >= batch.cluster).any():
            raise unknown(instruction, f"a cluster has {batch.cluster} blocks here")
        batch.put(slot, (address | number + np.uint32(1) << np.uint32(RANK_SHIFT)).view(stored))

    return step


def _load(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    target, source = operands(instruction, 2)
    slot, stored = slots.register(target), slots.stored(target)
    address_of = space_address(instruction, source, slots, "shared")
    dtype = np.dtype(DTYPES[match[1]])

    def step(batch: Batch) -> None:
        address = address_of(batch)
        batch.scatter(slot, batch.shared.load_of_cluster(batch, instruction, address, dtype).view(stored))
        passes = wavefronts(by_warp(batch, address), dtype.itemsize, loading=True)
        batch.counters.accessed_shared(index, batch, passes, dtype.itemsize)

    return step


FAMILIES = (
    Family(re.compile(r"barrier\.cluster\.arrive(?:\.release)?(?:\.aligned)?"), _arrive),
    Family(re.compile(r"mapa\.shared::cluster\.u32"), _map),
    Family(re.compile(r"ld\.shared::cluster\.([busf]32)"), _load),
)
