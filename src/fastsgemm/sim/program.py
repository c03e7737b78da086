"""A kernel decoded once: straight stretches of functions, with what happens at the end of each."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from fastsgemm.sim import memory, opcodes
from fastsgemm.sim.control import END_OF_CODE
from fastsgemm.sim.errors import PtxError
from fastsgemm.sim.family import Step, operands, unknown
from fastsgemm.sim.ptx import Constant, Instruction, Kernel, Symbol
from fastsgemm.sim.slots import Slots

_BARRIERS = ("bar.sync", "barrier.sync", "barrier.sync.aligned")
_BRANCHES = ("bra", "bra.uni")
_RETURNS = ("ret", "exit")


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
    shared_grain, global_grain : int
        Bytes of the narrowest access to shared and to global memory.
    """

    kernel: Kernel
    slots: Slots
    stretches: tuple[Stretch, ...]
    shared_grain: int
    global_grain: int


def decode(kernel: Kernel) -> Program:
    """Decode every instruction of a kernel.

    Raises
    ------
    UnknownInstructionError
        One of them is not known; the message names it and its source line.
    PtxError
        One of them has operands that do not fit it.
    """
    kernel = _closed(kernel)
    slots = Slots(kernel)
    starts = _starts(kernel)
    number_of = {start: number for number, start in enumerate(starts)}
    ends = [*starts[1:], len(kernel.instructions)]
    stretches = tuple(_stretch(kernel, slots, start, stop, number_of) for start, stop in zip(starts, ends, strict=True))
    grains = [memory.narrowest(kernel.instructions, space) for space in ("shared", "global")]
    return Program(kernel, slots, stretches, *grains)


def _closed(kernel: Kernel) -> Kernel:
    """Return a kernel whose last instruction leaves it, by a fault where the text does not say how."""
    last = kernel.instructions[-1] if kernel.instructions else None
    goes_on = last is None or last.guard is not None or last.opcode not in _BRANCHES + _RETURNS
    if not goes_on and len(kernel.instructions) not in kernel.labels.values():
        return kernel
    where, caller = (last.where, last.caller) if last else (None, None)
    end = Instruction(END_OF_CODE, (), None, where, caller, "the end of the code")
    return replace(kernel, instructions=[*kernel.instructions, end])


def _ends_stretch(instruction: Instruction) -> bool:
    return instruction.opcode in _BARRIERS + _BRANCHES + _RETURNS


def _starts(kernel: Kernel) -> list[int]:
    after = (index + 1 for index, instruction in enumerate(kernel.instructions) if _ends_stretch(instruction))
    return sorted({0, *kernel.labels.values(), *after} - {len(kernel.instructions)})


def _stretch(kernel: Kernel, slots: Slots, start: int, stop: int, number_of: dict[int, int]) -> Stretch:
    last = kernel.instructions[stop - 1]
    if not _ends_stretch(last):
        steps = tuple(opcodes.decode(kernel.instructions[i], i, slots) for i in range(start, stop))
        return Stretch(start, stop, steps, End.FALL, None, None, False, 0)
    steps = tuple(opcodes.decode(kernel.instructions[i], i, slots) for i in range(start, stop - 1))
    condition = slots.predicate(last.guard.register) if last.guard else None
    negated = last.guard.negated if last.guard else False
    target, end = 0, End.RETURN
    if last.opcode in _BRANCHES:
        end = End.BRANCH
        (label,) = operands(last, 1)
        if not (isinstance(label, Symbol) and label.name in kernel.labels):
            raise PtxError(f"kernel {kernel.name} has no label for {last.text!r}")
        target = number_of[kernel.labels[label.name]]
    elif last.opcode in _BARRIERS:
        end = End.BARRIER
        if condition is not None or last.operands not in ((Constant(0),), ()):
            raise unknown(last, "only the whole block's barrier 0 is known")
    return Stretch(start, stop, steps, end, last, condition, negated, target)
