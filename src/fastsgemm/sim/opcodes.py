"""Decoding: from an instruction to the function that executes it.

An opcode that only computes is in `alu.TABLE`. Every other one belongs to a `Family`: a pattern of opcodes, and the
function that decodes them. Each module lists its own families. A new kind of instruction is a new family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

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
from fastsgemm.sim.ptx import Guard, Instruction, Operand
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
_FMA = "fma.rn.f32"
_MOST_AT_ONCE = 1 << 14  # floats of a table of registers, which then stays in the cache


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
            step = _computing(_computation(instruction, slots))
        else:
            step = _of_family(instruction, index, slots)
    except PtxError as error:
        raise unknown(instruction, str(error)) from error
    return _guarded(step, instruction.guard, index, slots) if instruction.guard else step


def independent(instructions: Sequence[Instruction], start: int, stop: int) -> int:
    """Return where the FMAs end that begin at `start` and do not depend on each other."""
    written = set[Operand]()
    for index in range(start, stop):
        instruction = instructions[index]
        if instruction.opcode != _FMA or instruction.guard or not written.isdisjoint(instruction.operands):
            return index
        written.add(instruction.operands[0])
    return stop


def decode_at_once(instructions: Sequence[Instruction], slots: Slots) -> Step:
    """Return the function that executes FMAs that do not depend on each other: many cost little more than one."""
    computations = []
    for instruction in instructions:
        try:
            computations.append(_computation(instruction, slots))
        except PtxError as error:
            raise unknown(instruction, str(error)) from error
    compute = computations[0].compute
    columns = list(zip(*(zip(each.sources, each.views, strict=True) for each in computations), strict=True))
    targets = [(each.slot, each.result_view) for each in computations]

    def step(batch: Batch) -> None:
        rows = max(1, _MOST_AT_ONCE // batch.count)
        for first in range(0, len(targets), rows):
            part = slice(first, first + rows)
            values = compute(*[_stacked(batch, column[part]) for column in columns])
            for (slot, t), value in zip(targets[part], values, strict=True):
                batch.put(slot, value if t is None else value.view(t))

    return step


def _stacked(batch: Batch, reads: Sequence[tuple[int, Any]]) -> Array:
    """Return registers as a table with a row for each."""
    registers = batch.registers
    values = [registers[source] if t is None else registers[source].view(t) for source, t in reads]
    return np.concatenate([batch.whole(value) for value in values]).reshape(-1, batch.count)


def _of_family(instruction: Instruction, index: int, slots: Slots) -> Step:
    family, match = _family_of(instruction.opcode)
    if family is None or match is None:
        raise unknown(instruction)
    return family.decode(instruction, index, slots, match)


@cache
def _family_of(opcode: str) -> tuple[Family | None, re.Match[str] | None]:
    matches = ((family, family.pattern.fullmatch(opcode)) for family in FAMILIES)
    return next((found for found in matches if found[1]), (None, None))


class _Computation(NamedTuple):
    """What an instruction of `alu.TABLE` reads, computes and writes. A view of None leaves the register's own type."""

    compute: Callable[..., Array]
    sources: tuple[int, ...]  # slots
    views: tuple[Any, ...]  # of the sources
    slot: int  # of the result
    result_view: Any


def _computation(instruction: Instruction, slots: Slots) -> _Computation:
    operation = alu.TABLE[instruction.opcode]
    target, *given = operands(instruction, 1 + len(operation.sources))
    slot = slots.register(target)
    sources = tuple([slots.reading(operand, t) for operand, t in zip(given, operation.sources, strict=True)])
    kinds: list[Any] = [slots.initial[each].dtype.type for each in (slot, *sources)]
    stored, *has = kinds
    types = [DTYPES[t] for t in operation.sources]
    compute, result = operation.compute, DTYPES[operation.result]
    if instruction.opcode.startswith("cvt.") and len(sources) == 1:  # it takes the low bits of a wider register
        compute, types = _narrowed(compute, types[0], has[0])
    return _Computation(compute, sources, tuple(map(_view, has, types)), slot, _view(result, stored))


def _computing(computation: _Computation) -> Step:
    compute, sources, views, slot, result_view = computation
    reads = tuple(zip(sources, views, strict=True))

    def step(batch: Batch) -> None:
        registers = batch.registers
        value = compute(*[registers[source] if t is None else registers[source].view(t) for source, t in reads])
        batch.put(slot, value if result_view is None else value.view(result_view))

    return step


def _narrowed(compute: Callable[[Array], Array], wanted: Any, has: Any) -> tuple[Callable[[Array], Array], list[Any]]:
    """Return a conversion of the low bits of registers, and what it reads: as it is where these are no wider."""
    wide, narrow = np.dtype(has), np.dtype(wanted)
    if wide.kind not in "iu" or narrow.kind not in "iu" or narrow.itemsize >= wide.itemsize:
        return compute, [wanted]
    return lambda a: compute(a.astype(wanted)), [has]


@cache
def _view(has: Any, wanted: Any) -> Any:
    """Return what to see a value as whose type is another one of the same width; None if it has the wanted type."""
    one, other = np.dtype(has), np.dtype(wanted)
    if one.itemsize != other.itemsize or (one == np.bool_) != (other == np.bool_):
        raise PtxError("a register of it has another width")
    return None if has is wanted else wanted


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
