"""Decoding: from an instruction to the function that executes it.

An opcode that only computes is in `alu.TABLE`. Every other one belongs to a `Family`: a pattern of opcodes, and the
function that decodes them. Each module lists its own families. A new kind of instruction is a new family.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
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
    family, match = _family_of(instruction.opcode)
    if family is None or match is None:
        raise unknown(instruction)
    return family.decode(instruction, index, slots, match)


@cache
def _family_of(opcode: str) -> tuple[Family | None, re.Match[str] | None]:
    matches = ((family, family.pattern.fullmatch(opcode)) for family in FAMILIES)
    return next((found for found in matches if found[1]), (None, None))


def _computation(instruction: Instruction, slots: Slots) -> Step:
    operation = alu.TABLE[instruction.opcode]
    target, *given = operands(instruction, 1 + len(operation.sources))
    slot, stored = slots.register(target), slots.stored(target)
    sources = [slots.reading(operand, t) for operand, t in zip(given, operation.sources, strict=True)]
    types = [DTYPES[t] for t in operation.sources]
    compute = operation.compute
    if instruction.opcode.startswith("cvt.") and len(sources) == 1:  # it takes the low bits of a wider register
        compute, types = _narrowed(compute, types[0], slots.initial[sources[0]].dtype)
    has = [slots.initial[source].dtype.type for source in sources]
    if not all(map(_same_width, (*has, stored), (*types, DTYPES[operation.result]))):
        raise unknown(instruction, "a register of it has another width")
    reads = tuple(zip(sources, types, strict=True))

    def step(batch: Batch) -> None:
        registers = batch.registers
        value = compute(*[registers[source].view(t) for source, t in reads])
        batch.put(slot, value.view(stored))

    return step


def _narrowed(compute: Callable[[Array], Array], wanted: Any, has: Any) -> tuple[Callable[[Array], Array], list[Any]]:
    """Return a conversion of the low bits of registers, and what it reads: as it is where these are no wider."""
    wide, narrow = np.dtype(has), np.dtype(wanted)
    if wide.kind not in "iu" or narrow.kind not in "iu" or narrow.itemsize >= wide.itemsize:
        return compute, [wanted]
    return lambda a: compute(a.astype(wanted)), [has]


@cache
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
