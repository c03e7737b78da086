"""A kernel decoded once: straight stretches of functions, with what happens at the end of each."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from fastsgemm.sim import mbarrier, memory, opcodes, warp, wgmma
from fastsgemm.sim.batch import Batch
from fastsgemm.sim.control import END_OF_CODE
from fastsgemm.sim.errors import PtxError
from fastsgemm.sim.family import Step, operands, unknown
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.ptx import Constant, Instruction, Kernel, Register, Symbol
from fastsgemm.sim.slots import Slots

_BARRIERS = ("bar.sync", "barrier.sync", "barrier.sync.aligned")
_REDUCING_BARRIER = re.compile(r"bar(?:rier)?\.(?:cta\.)?red\.(or|and)\.pred")
_CLUSTER_BARRIER = re.compile(r"barrier\.cluster\.wait(?:\.acquire)?(?:\.aligned)?")
_BRANCHES = ("bra", "bra.uni")
_RETURNS = ("ret", "exit")
_CALLS = ("call", "call.uni")
_CALL = re.compile(r"(?:@!?\S+ )?call(?:\.uni)? (?:\([^)]*\), )?([^\s,;]+)")
_ONLY_BARRIER_0 = "only the whole block's barrier 0 is known"


class End(enum.Enum):
    """What happens at the end of a stretch."""

    FALL = "fall through"
    BRANCH = "branch"
    BARRIER = "barrier"
    CLUSTER_BARRIER = "barrier of the cluster"
    MEMORY_BARRIER = "wait for a memory barrier"
    RETURN = "return"


@dataclass(frozen=True)
class Stretch:
    """A basic block."""

    start: int  # its instructions
    stop: int
    steps: tuple[Step, ...]  # its instructions, without the one that ends it
    end: End
    last: Instruction | None = None  # the instruction that ends it, if one does
    condition: int | None = None  # slot of the predicate of the last instruction; None if it is executed always
    negated: bool = False
    target: int = 0  # the stretch that a branch goes to
    on_release: Step | None = None  # what lanes do when they leave the barrier
    poll: Callable[[Batch], Array] | None = None  # returns which lanes need no longer wait for a memory barrier
    together: bool = False  # whether it has an instruction for which the lanes of a warp wait for each other


@dataclass(frozen=True)
class Program:
    """A kernel ready to run."""

    kernel: Kernel
    slots: Slots
    stretches: tuple[Stretch, ...]  # in the order of the text
    shared_grain: int  # bytes of the narrowest access to shared memory
    global_grain: int


def decode(kernel: Kernel) -> Program:
    """Decode every instruction of a kernel.

    Raises
    ------
    UnknownInstructionError
        An instruction is not simulated; the message names it and its source line.
    PtxError
        An instruction has the wrong operands.
    """
    _refuse_not_simulated(kernel)
    kernel = _closed(kernel)
    _check_roundings(kernel)
    slots = Slots(kernel)
    starts = _starts(kernel)
    watched = wgmma.accumulators(kernel)
    number_of = {start: number for number, start in enumerate(starts)}
    ends = [*starts[1:], len(kernel.instructions)]
    stretches = tuple(
        _stretch(kernel, slots, watched, start, stop, number_of) for start, stop in zip(starts, ends, strict=True)
    )
    grains = [memory.narrowest(kernel.instructions, space) for space in ("shared", "global")]
    return Program(kernel, slots, stretches, *grains)


def _refuse_not_simulated(kernel: Kernel) -> None:
    """Raise `UnknownInstructionError` for what no instruction alone says: the calls first, for which the others are."""
    for instruction in kernel.instructions:
        if instruction.opcode in _CALLS and (called := _CALL.match(instruction.text)):
            what = "printf is" if called[1] == "vprintf" else "function calls are"
            raise unknown(instruction, f"{what} not simulated")
    for instruction in kernel.instructions:
        if ".local" in instruction.opcode:
            why = "local memory is not simulated; arrays whose indices the compiler does not know are there"
            raise unknown(instruction, why)


def _closed(kernel: Kernel) -> Kernel:
    """Return a kernel whose last instruction leaves it, by a fault where the text does not say how."""
    last = kernel.instructions[-1] if kernel.instructions else None
    goes_on = last is None or last.guard is not None or last.opcode not in _BRANCHES + _RETURNS
    if not goes_on and len(kernel.instructions) not in kernel.labels.values():
        return kernel
    where, caller = (last.where, last.caller) if last else (None, None)
    end = Instruction(END_OF_CODE, (), None, where, caller, "the end of the code")
    return replace(kernel, instructions=[*kernel.instructions, end])


@cache
def _is_of_warps(opcode: str) -> bool:
    return any(family.pattern.fullmatch(opcode) for family in warp.FAMILIES)


@cache
def _ends_stretch(opcode: str) -> bool:
    waits = (_REDUCING_BARRIER, _CLUSTER_BARRIER, mbarrier.WAIT)
    return opcode in _BARRIERS + _BRANCHES + _RETURNS or any(wait.fullmatch(opcode) for wait in waits)


def _starts(kernel: Kernel) -> list[int]:
    after = (index + 1 for index, instruction in enumerate(kernel.instructions) if _ends_stretch(instruction.opcode))
    return sorted({0, *kernel.labels.values(), *after} - {len(kernel.instructions)})


def _check_roundings(kernel: Kernel) -> None:
    """Check that ptxas makes no FMA of two instructions, which it may if neither names its rounding.

    Raises
    ------
    UnknownInstructionError
        A product without a rounding is added without one.
    """
    products = {one.operands[0] for one in kernel.instructions if one.opcode == "mul.f32"}
    for instruction in kernel.instructions:
        if instruction.opcode in ("add.f32", "sub.f32") and products & {*instruction.operands[1:]}:
            raise unknown(instruction, "ptxas may make one FMA of it and the product that it adds; use __fmul_rn")


def _stretch(
    kernel: Kernel, slots: Slots, watched: frozenset[Register], start: int, stop: int, number_of: dict[int, int]
) -> Stretch:
    def decoded(end: int) -> tuple[Step, ...]:
        return tuple(_steps(kernel.instructions, slots, watched, start, end))

    last = kernel.instructions[stop - 1]
    together = any(_is_of_warps(instruction.opcode) for instruction in kernel.instructions[start:stop])
    if not _ends_stretch(last.opcode):
        return Stretch(start, stop, decoded(stop), End.FALL, together=together)
    ended = partial(Stretch, start, stop, decoded(stop - 1), last=last, together=together)
    condition = slots.predicate(last.guard.register) if last.guard else None
    negated = last.guard.negated if last.guard else False
    if last.opcode in _RETURNS:
        return ended(End.RETURN, condition=condition, negated=negated)
    if last.opcode in _BRANCHES:
        (label,) = operands(last, 1)
        if not (isinstance(label, Symbol) and label.name in kernel.labels):
            raise PtxError(f"kernel {kernel.name} has no label for {last.text!r}")
        target = number_of[kernel.labels[label.name]]
        return ended(End.BRANCH, condition=condition, negated=negated, target=target)
    if condition is not None:
        raise unknown(last, "a barrier for some lanes of a warp is not known")
    if _CLUSTER_BARRIER.fullmatch(last.opcode):
        return ended(End.CLUSTER_BARRIER)
    if mbarrier.WAIT.fullmatch(last.opcode):
        return ended(End.MEMORY_BARRIER, poll=mbarrier.decode_wait(last, slots))
    reducing = _REDUCING_BARRIER.fullmatch(last.opcode)
    if reducing is not None:
        return ended(End.BARRIER, on_release=_reduction(last, slots, reducing[1]))
    if last.operands not in ((Constant(0),), ()):
        raise unknown(last, _ONLY_BARRIER_0)
    return ended(End.BARRIER)


def _steps(
    instructions: list[Instruction], slots: Slots, watched: frozenset[Register], start: int, stop: int
) -> Iterator[Step]:
    index = start
    while index < stop:
        end = index if watched else opcodes.independent(instructions, index, stop)
        if end > index + 1:
            yield opcodes.decode_at_once(instructions[index:end], slots)
            index = end
        else:
            one = instructions[index]
            yield wgmma.watch(opcodes.decode(one, index, slots), one, watched, slots)
            index += 1


def _reduction(instruction: Instruction, slots: Slots, word: str) -> Step:
    """Return what lanes do after a barrier that tells each thread whether any, or every, thread's predicate was set."""
    target, barrier, source = operands(instruction, 3)
    if barrier != Constant(0):
        raise unknown(instruction, _ONLY_BARRIER_0)
    slot, condition = slots.predicate(target), slots.reading(source, "pred")
    combine = np.any if word == "or" else np.all

    def step(batch: Batch) -> None:
        votes = batch.whole(batch.registers[condition]).reshape(batch.blocks, -1)
        batch.put(slot, np.repeat(combine(votes[:, : batch.threads], axis=1), batch.width))

    return step
