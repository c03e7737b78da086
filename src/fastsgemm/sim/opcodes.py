"""Decoding: from an instruction to the function that executes it.

An opcode that only computes is in `alu.TABLE`. Every other one belongs to a `Family`: a pattern of opcodes, and the
function that decodes them. Each module lists its own families. A new kind of instruction is a new family.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastsgemm.sim import (
    alu,
    atomics,
    bulk_copy,
    cluster,
    control,
    mbarrier,
    memory,
    tensor_core,
    vectors,
    warp,
    wgmma,
)
from fastsgemm.sim.batch import Batch
from fastsgemm.sim.errors import PtxError
from fastsgemm.sim.family import Family, Step, operands, unknown
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.ptx import Guard, Instruction
from fastsgemm.sim.slots import DTYPES, Slots

FAMILIES: tuple[Family, ...] = (
    *control.FAMILIES,
    *memory.FAMILIES,
    *atomics.FAMILIES,
    *warp.FAMILIES,
    *cluster.FAMILIES,
    *tensor_core.FAMILIES,
    *mbarrier.FAMILIES,
    *bulk_copy.FAMILIES,
    *wgmma.FAMILIES,
)


def decode(instruction: Instruction, index: int, slots: Slots) -> Step:
    """Return the function that executes the instruction of this index, its guard included.

    Raises
    ------
    UnknownInstructionError
        There is no such instruction, or an operand of it is not known.
    """
    try:
        if vectors.packs(instruction):
            step = vectors.decode(instruction, slots)
        elif instruction.opcode in alu.TABLE:
            step = _computation(instruction, slots)
        else:
            step = _of_family(instruction, index, slots)
    except PtxError as error:
        raise unknown(instruction, str(error)) from error
    return _guarded(step, instruction.guard, index, slots) if instruction.guard else step


def _of_family(instruction: Instruction, index: int, slots: Slots) -> Step:
    for family in FAMILIES:
        match = family.pattern.fullmatch(instruction.opcode)
        if match is not None:
            return family.decode(instruction, index, slots, match)
    raise unknown(instruction)


def _computation(instruction: Instruction, slots: Slots) -> Step:
    operation = alu.TABLE[instruction.opcode]
    target, *given = operands(instruction, 1 + len(operation.sources))
    slot, stored = slots.register(target), slots.stored(target)
    sources = [slots.reading(operand, t) for operand, t in zip(given, operation.sources, strict=True)]
    types = [DTYPES[t] for t in operation.sources]
    compute, result = operation.compute, DTYPES[operation.result]
    if instruction.opcode.startswith("cvt.") and len(sources) == 1:  # it takes the low bits of a wider register
        compute, types = _narrowed(compute, types[0], slots.initial[sources[0]].dtype)
    pairs = [(slots.initial[s].dtype, t) for s, t in zip(sources, types, strict=True)]
    if not all(_same_width(has, wanted) for has, wanted in [*pairs, (stored, result)]):
        raise unknown(instruction, "a register of it has another width")

    def step(batch: Batch) -> None:
        registers = batch.registers
        value = compute(*[registers[s].view(t) for s, t in zip(sources, types, strict=True)])
        batch.put(slot, value.view(stored))

    return step


def _narrowed(compute: Callable[[Array], Array], wanted: Any, has: Any) -> tuple[Callable[[Array], Array], list[Any]]:
    """Return a conversion of the low bits of registers, and what it reads: as it is where these are no wider."""
    wide, narrow = np.dtype(has), np.dtype(wanted)
    if wide.kind not in "iu" or narrow.kind not in "iu" or narrow.itemsize >= wide.itemsize:
        return compute, [wanted]
    return lambda a: compute(a.astype(wanted)), [has]


def _same_width(one: Any, other: Any) -> bool:
    one, other = np.dtype(one), np.dtype(other)
    return bool(one.itemsize == other.itemsize and (one == np.bool_) == (other == np.bool_))


def _guarded(step: Step, guard: Guard, index: int, slots: Slots) -> Step:
    condition = slots.predicate(guard.register)

    def guarded(batch: Batch) -> None:
        allowed = batch.registers[condition]
        mask = batch.current_mask & (~allowed if guard.negated else allowed)
        refused = batch.active_lanes - int(np.count_nonzero(mask))
        batch.counters.guarded(index, refused)
        if refused == 0:
            step(batch)
        else:
            batch.only(mask, step)

    return guarded
