"""The instructions that neither compute nor touch memory: barriers of a warp, traps, and those with nothing to do."""

from __future__ import annotations

import re
from typing import NoReturn

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.clock import WARP
from fastsgemm.sim.errors import BarrierError, KernelFault, TrapError, UnreachableCodeError
from fastsgemm.sim.family import Family, Step, operands, unknown
from fastsgemm.sim.ptx import Constant, Instruction
from fastsgemm.sim.slots import Slots

END_OF_CODE = "end-of-code"  # no instruction of PTX: stands where the text of a kernel ends without `ret`
_WHOLE_WARP = (Constant(-1), Constant(0xFFFFFFFF))


def _nothing(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    def step(batch: Batch) -> None:
        pass

    return step


def _warp_barrier(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    (mask,) = operands(instruction, 1)
    if instruction.guard or mask not in _WHOLE_WARP:
        raise unknown(instruction, "only a barrier of the whole warp is known")

    def step(batch: Batch) -> None:
        executing = batch.current_mask.reshape(-1, WARP)
        missing = executing.any(axis=1, keepdims=True) & batch.alive.reshape(-1, WARP) & ~executing
        if missing.any():
            lane = int(np.argmax(missing))
            raise BarrierError(f"{batch.name_of(lane)} does not reach the barrier of its warp at {instruction.place}")
        batch.shared.warp_barrier(batch)
        batch.clock.warp_barrier(np.asarray(executing.any(axis=1)))

    return step


def _trap(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    return _fault(instruction, TrapError, "executes a trap")


def _end_of_code(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    return _fault(instruction, UnreachableCodeError, "runs past the end of the kernel, which the compiler ruled out")


def _fault(instruction: Instruction, error: type[KernelFault], what: str) -> Step:
    def step(batch: Batch) -> NoReturn:
        batch.fail(error, instruction, 0, what)

    return step


FAMILIES = (
    # Lanes in lockstep see every write at once, and a launch begins when the one before it has ended.
    Family(re.compile(r"membar\.cta|fence\.(acq_rel|sc)\.cta|griddepcontrol\.(launch_dependents|wait)"), _nothing),
    Family(re.compile(r"bar\.warp\.sync"), _warp_barrier),
    Family(re.compile(r"trap|brkpt"), _trap),
    Family(re.compile(END_OF_CODE), _end_of_code),
)
