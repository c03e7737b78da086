"""A kernel decoded once: straight stretches of functions, with what happens at the end of each."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from fastsgemm.sim import alu, memory
from fastsgemm.sim.batch import WARP, Batch
from fastsgemm.sim.errors import BarrierError, UnknownInstructionError
from fastsgemm.sim.memory import Step
from fastsgemm.sim.ptx import Constant, Guard, Instruction, Kernel, Symbol
from fastsgemm.sim.slots import DTYPES, Slots

_BARRIERS = ("bar.sync", "barrier.sync", "barrier.sync.aligned")
_WARP_BARRIER, _WHOLE_WARP = "bar.warp.sync", (Constant(-1), Constant(0xFFFFFFFF))
_BRANCHES = ("bra", "bra.uni")
_RETURNS = ("ret", "exit")
# Lanes in lockstep see every write at once, and a launch begins when the one before it has ended.
_NOTHING = (
    "membar.cta",
    "fence.acq_rel.cta",
    "fence.sc.cta",
    "griddepcontrol.launch_dependents",
    "griddepcontrol.wait",
)


class End(enum.Enum):
    """What happens at the end of a stretch."""

    FALL = "fall through"
    BRANCH = "branch"
    BARRIER = "barrier"
    RETURN = "return"


@dataclass(frozen=True)
class Stretch:
    """A basic block.

    Attributes
    ----------
    start, stop : int
        Its instructions.
    steps : tuple of callable
        Its instructions but the one that ends it.
    end : End
    last : Instruction or None
        The instruction that ends it, if one does.
    condition : int or None
        Slot of the predicate that decides whether the last instruction happens; None where it always does.
    negated : bool
    target : int
        The stretch that a branch goes to.
    """

    start: int
    stop: int
    steps: tuple[Step, ...]
    end: End
    last: Instruction | None
    condition: int | None
    negated: bool
    target: int


@dataclass(frozen=True)
class Program:
    """A kernel ready to run.

    Attributes
    ----------
    kernel : Kernel
    slots : Slots
    stretches : tuple of Stretch
        In the order of the text.
    shared_grain : int
        Bytes of the narrowest shared access.
    """

    kernel: Kernel
    slots: Slots
    stretches: tuple[Stretch, ...]
    shared_grain: int


def decode(kernel: Kernel) -> Program:
    """Decode every instruction of a kernel.

    Raises
    ------
    UnknownInstructionError
        One of them is not known; the message names it and its source line.
    """
    slots = Slots(kernel)
    starts = _starts(kernel)
    number_of = {start: number for number, start in enumerate(starts)}
    ends = [*starts[1:], len(kernel.instructions)]
    stretches = tuple(_stretch(kernel, slots, start, stop, number_of) for start, stop in zip(starts, ends, strict=True))
    return Program(kernel, slots, stretches, memory.narrowest_shared(kernel.instructions))


def _ends_stretch(instruction: Instruction) -> bool:
    return instruction.opcode in _BARRIERS + _BRANCHES + _RETURNS


def _starts(kernel: Kernel) -> list[int]:
    after = (index + 1 for index, instruction in enumerate(kernel.instructions) if _ends_stretch(instruction))
    return sorted({0, *kernel.labels.values(), *after} - {len(kernel.instructions)})


def _stretch(kernel: Kernel, slots: Slots, start: int, stop: int, number_of: dict[int, int]) -> Stretch:
    last = kernel.instructions[stop - 1]
    if not _ends_stretch(last):
        steps = tuple(_step(kernel.instructions[i], i, slots) for i in range(start, stop))
        return Stretch(start, stop, steps, End.FALL, None, None, False, 0)
    steps = tuple(_step(kernel.instructions[i], i, slots) for i in range(start, stop - 1))
    condition = slots.register(last.guard.register) if last.guard else None
    negated = last.guard.negated if last.guard else False
    target, end = 0, End.RETURN
    if last.opcode in _BRANCHES:
        end = End.BRANCH
        (label,) = last.operands
        assert isinstance(label, Symbol)
        target = number_of[kernel.labels[label.name]]
    elif last.opcode in _BARRIERS:
        end = End.BARRIER
        if condition is not None or last.operands not in ((Constant(0),), ()):
            raise _unknown(last, "only the whole block's barrier 0 is known")
    return Stretch(start, stop, steps, end, last, condition, negated, target)


def _step(instruction: Instruction, index: int, slots: Slots) -> Step:
    if instruction.opcode in _NOTHING:
        return _nothing
    if instruction.opcode == _WARP_BARRIER:
        return _warp_barrier(instruction)
    step = memory.decode(instruction, index, slots) or _computation(instruction, slots)
    if step is None:
        raise _unknown(instruction, "the simulated device does not have it")
    return _guarded(step, instruction.guard, index, slots) if instruction.guard else step


def _unknown(instruction: Instruction, why: str) -> UnknownInstructionError:
    return UnknownInstructionError(
        f"instruction {instruction.opcode!r} at {instruction.place}: {why}: {instruction.text}"
    )


def _nothing(batch: Batch) -> None:
    pass


def _warp_barrier(instruction: Instruction) -> Step:
    if instruction.guard or instruction.operands[0] not in _WHOLE_WARP:
        raise _unknown(instruction, "only a barrier of the whole warp is known")

    def step(batch: Batch) -> None:
        executing = batch.current_mask.reshape(-1, WARP)
        missing = executing.any(axis=1, keepdims=True) & batch.alive.reshape(-1, WARP) & ~executing
        if missing.any():
            lane = int(np.argmax(missing))
            raise BarrierError(f"{batch.name_of(lane)} does not reach the barrier of its warp at {instruction.place}")
        batch.shared.warp_barrier(batch)

    return step


def _computation(instruction: Instruction, slots: Slots) -> Step | None:
    operation = alu.TABLE.get(instruction.opcode)
    target, *operands = instruction.operands
    if operation is None or len(operands) != len(operation.sources):
        return None
    slot, stored = slots.register(target), slots.stored(target)
    sources = [slots.reading(operand, t) for operand, t in zip(operands, operation.sources, strict=True)]
    types = [DTYPES[t] for t in operation.sources]
    compute, result = operation.compute, np.dtype(DTYPES[operation.result])
    if not all(_fits(slots, s, t) for s, t in zip(sources, types, strict=True)):
        return None

    def step(batch: Batch) -> None:
        registers = batch.registers
        value = compute(*[registers[s].view(t) for s, t in zip(sources, types, strict=True)])
        batch.put(slot, value.view(stored))

    return step if result.itemsize == np.dtype(stored).itemsize else None


def _fits(slots: Slots, slot: int, dtype: type) -> bool:
    return slots.initial[slot].itemsize == np.dtype(dtype).itemsize


def _guarded(step: Step, guard: Guard, index: int, slots: Slots) -> Step:
    condition = slots.register(guard.register)

    def guarded(batch: Batch) -> None:
        allowed = batch.registers[condition]
        before, whole = batch.mask, batch.current_mask
        mask = whole & (~allowed if guard.negated else allowed)
        refused = batch.active_lanes - int(np.count_nonzero(mask))
        batch.counters.guarded(index, refused)
        if refused == 0:
            step(batch)
        elif refused != batch.active_lanes:
            batch.select(mask)
            step(batch)
            batch.select(whole if before is None else before)

    return guarded
