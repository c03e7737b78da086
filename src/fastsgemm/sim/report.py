"""What a launch did, in the terms of a profiler."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fastsgemm.jit.compiler import Report as Resources
from fastsgemm.known_devices import Limits
from fastsgemm.sim import vectors
from fastsgemm.sim.counters import Counters, GlobalTraffic, SharedTraffic
from fastsgemm.sim.occupancy import Occupancy, occupancy
from fastsgemm.sim.ptx import Instruction, SourceLine

_BARRIER = re.compile(r"bar(rier)?\.(cta\.)?(sync|red)|barrier\.cluster\.wait")  # where a block waits


@dataclass
class Activity:
    """What some part of a kernel did: all of it, or one source line.

    Attributes
    ----------
    loads, stores : dict
        `GlobalTraffic` by operand. Atomics count as loads.
    shared_loads, shared_stores : SharedTraffic
        Atomics, and what asynchronous copies write, count as stores.
    instructions : int
        All that warps issued, without the ``mov`` that take two registers as a pair: none in machine code.
    fma_instructions : int
        Those of them that do FMAs.
    fmas : int
        FMAs that warps issued: two for an instruction such as ``fma.rn.f32x2``.
    thread_fmas : int
        FMAs that threads executed.
    barriers : float
        Barriers that blocks went through, those of their cluster among them; a fraction where warps have returned.
    divergent_branches : int
        Branches that split a warp.
    """

    loads: dict[str, GlobalTraffic] = field(default_factory=lambda: defaultdict(GlobalTraffic))
    stores: dict[str, GlobalTraffic] = field(default_factory=lambda: defaultdict(GlobalTraffic))
    shared_loads: SharedTraffic = field(default_factory=SharedTraffic)
    shared_stores: SharedTraffic = field(default_factory=SharedTraffic)
    instructions: int = 0
    fma_instructions: int = 0
    fmas: int = 0
    thread_fmas: int = 0
    barriers: float = 0
    divergent_branches: int = 0


@dataclass(frozen=True)
class Report:
    """A launch.

    Attributes
    ----------
    arch, kernel : str
    grid, block : int
        Blocks, and threads of a block.
    shared_bytes : int
        Shared memory of a block, static and dynamic.
    total : Activity
    lines : dict
        `Activity` by source line.
    registers, spilled : int
        Registers and spilled bytes of a thread. For them and for `occupancy`, ptxas compiles the kernel when the first
        of them is asked for, and `CompileError` is what it refuses.
    occupancy : Occupancy
    """

    arch: str
    kernel: str
    grid: int
    block: int
    shared_bytes: int
    total: Activity
    lines: dict[SourceLine, Activity]
    _limits: Limits = field(repr=False)
    _compile: Callable[[], Resources] = field(repr=False, compare=False)

    @cached_property
    def _resources(self) -> Resources:
        return self._compile()

    @property
    def registers(self) -> int:
        return self._resources.registers

    @property
    def spilled(self) -> int:
        return self._resources.spill_stores + self._resources.spill_loads

    @property
    def occupancy(self) -> Occupancy:
        return occupancy(self._limits, self.block, self.registers, self.shared_bytes)


def activities(
    instructions: Sequence[Instruction], operands: Sequence[str], counters: Counters, block_warps: int
) -> tuple[Activity, dict[SourceLine, Activity]]:
    """Return what a launch did in all, and in each source line."""
    total = Activity()
    lines: dict[SourceLine, Activity] = defaultdict(Activity)

    def places(instruction: Instruction) -> list[Activity]:
        return [total] if instruction.where is None else [total, lines[instruction.where]]

    for index, (instruction, warps) in enumerate(zip(instructions, counters.warps.tolist(), strict=True)):
        for activity in places(instruction):
            if warps:
                _add(activity, index, instruction, counters, warps, warps / block_warps)
    for (index, operand), count in counters.global_.items():
        for activity in places(instructions[index]):
            kind = activity.stores if instructions[index].opcode.startswith("st") else activity.loads
            kind[operands[operand - 1]].add(count)
    return total, dict(lines)


def _add(
    activity: Activity, index: int, instruction: Instruction, counters: Counters, warps: int, blocks: float
) -> None:
    if not (instruction.opcode == "mov.b64" and vectors.packs(instruction)):
        activity.instructions += warps
    activity.divergent_branches += int(counters.divergent[index])
    if instruction.opcode.startswith("fma."):
        fmas = 2 if instruction.opcode.endswith("x2") else 1
        activity.fma_instructions += warps
        activity.fmas += fmas * warps
        activity.thread_fmas += fmas * int(counters.lanes[index])
    if _BARRIER.match(instruction.opcode):
        activity.barriers += blocks
    if index in counters.shared:
        loading = instruction.opcode.startswith("ld")
        (activity.shared_loads if loading else activity.shared_stores).add(counters.shared[index])
