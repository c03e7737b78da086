"""Instructions through which the lanes of a warp exchange values: shuffles and votes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.clock import WARP
from fastsgemm.sim.errors import BarrierError
from fastsgemm.sim.family import Family, Step, operands, unknown
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.ptx import Constant, Instruction
from fastsgemm.sim.slots import Slots

_WHOLE_WARP = np.uint32(0xFFFFFFFF)
_LAST_LANE = np.uint32(WARP - 1)


def missing_lanes(batch: Batch, mask: Array) -> Array:
    """Return the lanes that have not returned and are not in a mask that has others of their warp."""
    lanes = mask.reshape(-1, WARP)
    missing: Array = lanes.any(axis=1, keepdims=True) & batch.alive.reshape(-1, WARP) & ~lanes
    return missing.reshape(-1)


def check_whole_warps(batch: Batch, instruction: Instruction) -> None:
    """Check that each warp that executes an instruction does so with all lanes that have not returned.

    Nor may a lane have returned while the others waited for it.

    Raises
    ------
    BarrierError
        A lane is missing; the message names the first one.
    """
    missing = missing_lanes(batch, batch.current_mask) | (batch.awaited & ~batch.current_mask)
    if missing.any():
        lane = int(np.argmax(missing))
        raise BarrierError(
            f"divergent warp: {batch.name_of(lane)} does not take part with the rest of its warp at "
            f"{instruction.place}: {instruction.text}"
        )


def by_warp(batch: Batch, slot: int, dtype: Any) -> Array:
    """Return a register of all lanes as a (warps, 32) table."""
    return batch.whole(batch.registers[slot].view(dtype)).reshape(-1, WARP)


def _check_members(batch: Batch, instruction: Instruction, members: Array) -> None:
    if (batch.gather(members) != _WHOLE_WARP).any():
        raise unknown(instruction, "only exchanges of the whole warp are known")
    check_whole_warps(batch, instruction)


def _shuffle(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    target, *more = operands(instruction, 5, 6)
    valid = slots.predicate(more.pop(0)) if len(more) == 5 else None
    value, lane, clamp, members = (slots.reading(operand, "b32") for operand in more)
    slot, stored = slots.register(target), slots.stored(target)

    def step(batch: Batch) -> None:
        _check_members(batch, instruction, batch.registers[members].view(np.uint32))
        if (batch.read(clamp, np.uint32) != _LAST_LANE).any():
            raise unknown(instruction, "only shuffles over all 32 lanes are known")
        there = by_warp(batch, lane, np.uint32) & _LAST_LANE
        if match[1] == "bfly":
            there = there ^ np.arange(WARP, dtype=np.uint32)
        result = np.take_along_axis(by_warp(batch, value, np.uint32), there.astype(np.int64), axis=1)
        batch.put(slot, result.reshape(-1).view(stored))
        if valid is not None:
            batch.put(valid, np.ones(1, np.bool_))

    return step


def _vote(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    target, source, members_operand = operands(instruction, 3)
    condition, members = slots.reading(source, "pred"), slots.reading(members_operand, "b32")
    slot = slots.register(target) if match[1] == "ballot" else slots.predicate(target)
    stored = slots.stored(target)

    def step(batch: Batch) -> None:
        _check_members(batch, instruction, batch.registers[members].view(np.uint32))
        votes = by_warp(batch, condition, np.bool_)
        living = batch.alive.reshape(-1, WARP)
        if match[1] == "ballot":
            bits = (votes & living) << np.arange(WARP, dtype=np.uint32)
            result = np.bitwise_or.reduce(bits.astype(np.uint32), axis=1).view(stored)
        elif match[1] == "any":
            result = (votes & living).any(axis=1)
        else:
            result = (votes | ~living).all(axis=1)
        batch.put(slot, np.repeat(result, WARP))

    return step


def _warp_barrier(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    (mask,) = operands(instruction, 1)
    if instruction.guard or mask not in (Constant(-1), Constant(0xFFFFFFFF)):
        raise unknown(instruction, "only a barrier of the whole warp is known")

    def step(batch: Batch) -> None:
        check_whole_warps(batch, instruction)
        batch.shared.warp_barrier(batch)
        batch.clock.warp_barrier(np.asarray(batch.current_mask.reshape(-1, WARP).any(axis=1)))

    return step


FAMILIES = (
    Family(re.compile(r"shfl\.sync\.(bfly|idx)\.b32"), _shuffle),
    Family(re.compile(r"vote\.sync\.(any|all)\.pred"), _vote),
    Family(re.compile(r"vote\.sync\.(ballot)\.b32"), _vote),
    Family(re.compile(r"bar\.warp\.sync"), _warp_barrier),
)
