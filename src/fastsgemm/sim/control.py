"""The instructions that neither compute nor touch memory: traps, fences, and those that do nothing here."""

from __future__ import annotations

import re
from typing import NoReturn

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.errors import KernelFault, TrapError, UnreachableCodeError
from fastsgemm.sim.family import Family, Step
from fastsgemm.sim.ptx import Instruction
from fastsgemm.sim.slots import Slots

END_OF_CODE = "end-of-code"  # no instruction of PTX: stands where the text of a kernel ends without `ret`


def _nothing(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    def step(batch: Batch) -> None:
        pass

    return step


def _wait_for_launch_before(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    return lambda batch: batch.wait_for_launch_before()


def _trap(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    return _fault(instruction, TrapError, "executes a trap")


def _end_of_code(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    return _fault(instruction, UnreachableCodeError, "runs past the end of the kernel, which the compiler ruled out")


def _fault(instruction: Instruction, error: type[KernelFault], what: str) -> Step:
    def step(batch: Batch) -> NoReturn:
        batch.fail(error, instruction, 0, what)

    return step


FAMILIES = (
    # Lanes in lockstep see every write at once.
    Family(re.compile(r"membar\.cta|fence\.(acq_rel|sc)\.cta"), _nothing),
    # A launch runs when the one before it has ended; but an early one must wait before it accesses global memory.
    Family(re.compile(r"griddepcontrol\.launch_dependents"), _nothing),
    Family(re.compile(r"griddepcontrol\.wait"), _wait_for_launch_before),
    # Memory barriers and what bulk copies bring are seen by all at once.
    Family(re.compile(r"fence\.mbarrier_init\.release\.cluster|fence\.proxy\.async(\.shared::cta)?"), _nothing),
    Family(re.compile(r"trap|brkpt"), _trap),
    Family(re.compile(END_OF_CODE), _end_of_code),
)
