"""Running a batch: which lanes execute which stretch next.

Every lane is at the start of some stretch. Always the stretch that comes first in the text runs, with all the
lanes that are there; lanes that went different ways meet again where the later stretch begins. Lanes that come to
a barrier wait until no lane of the batch can run any more; then every block must be complete.
"""

from __future__ import annotations

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.clock import WARP
from fastsgemm.sim.errors import BarrierError, InstructionLimitError
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.program import End, Program, Stretch


def run(batch: Batch, program: Program, limit: int) -> None:
    """Run every lane of a batch to its end, each warp for at most `limit` instructions.

    Raises
    ------
    KernelFault
        See `fastsgemm.sim.errors`.
    """
    _Scheduler(batch, program, limit).run()
    batch.copies.finish(batch)


class _Scheduler:
    def __init__(self, batch: Batch, program: Program, limit: int) -> None:
        self.batch = batch
        self.program = program
        self.limit = limit
        self.executed = np.zeros(batch.warps, np.int64)
        self.ready: dict[int, Array] = {0: batch.alive.copy()}
        self.waiting: dict[int, Array] = {}  # by the stretch that the barrier ends

    def run(self) -> None:
        batch, stretches = self.batch, self.program.stretches
        while self.ready or self.waiting:
            if not self.ready:
                self._release()
            number = min(self.ready)
            mask = self.ready.pop(number)
            stretch = stretches[number]
            batch.select(mask)
            for step in stretch.steps:
                step(batch)
            batch.counters.executed(batch, stretch.start, stretch.stop)
            self._count(stretch)
            self._leave(number, stretch, mask)

    def _count(self, stretch: Stretch) -> None:
        """Count the instructions of the warps that execute, and stop those that have had too many."""
        warps = self.batch.executing_warps
        self.executed[... if warps is None else warps] += stretch.stop - stretch.start
        if self.executed.max() > self.limit:
            instruction = self.program.kernel.instructions[stretch.stop - 1]
            warp = int(np.argmax(self.executed))
            nth = int(np.count_nonzero(self.batch.current_mask[: warp * WARP]))
            what = (
                f"is still running when its warp has executed more than {self.limit} instructions, the launch's limit"
            )
            self.batch.fail(InstructionLimitError, instruction, nth, what)

    def _leave(self, number: int, stretch: Stretch, mask: Array) -> None:
        if stretch.end is End.BARRIER:
            if not self.ready and not self.waiting and self.batch.active_lanes == self._threads:
                self._pass_barrier(None)
                self._go(number + 1, mask)
            else:
                self.waiting[number] = self.waiting.get(number, np.False_) | mask
            return
        if stretch.end is End.FALL:
            self._go(number + 1, mask)
            return
        taken, passed = self._split(stretch, mask)
        if stretch.end is End.BRANCH:
            self._go(stretch.target, taken)
        elif taken is not None:
            self.batch.alive &= ~taken
            self.batch.alive_count = int(np.count_nonzero(self.batch.alive))
        self._go(number + 1, passed)

    @property
    def _threads(self) -> int:
        return self.batch.blocks * self.batch.threads

    def _go(self, number: int, mask: Array | None) -> None:
        if mask is not None:
            there = self.ready.get(number)
            self.ready[number] = mask if there is None else there | mask

    def _split(self, stretch: Stretch, mask: Array) -> tuple[Array | None, Array | None]:
        """Return the lanes that do what the last instruction says, and those that do not."""
        if stretch.condition is None:
            return mask, None
        condition = self.batch.registers[stretch.condition] != stretch.negated
        if condition.shape == (1,):
            return (mask, None) if condition[0] else (None, mask)
        taken = mask & condition
        count = int(np.count_nonzero(taken))
        if count == self.batch.active_lanes:
            return mask, None
        if count == 0:
            return None, mask
        passed = mask & ~condition
        both = taken.reshape(-1, WARP).any(axis=1) & passed.reshape(-1, WARP).any(axis=1)
        self.batch.counters.divergent[stretch.stop - 1] += int(np.count_nonzero(both))
        return taken, passed

    def _release(self) -> None:
        """Let the blocks go on that wait: each must wait with all its threads at one barrier."""
        batch = self.batch
        for number, mask in self.waiting.items():
            arrived = mask.reshape(batch.blocks, batch.width)[:, : batch.threads]
            torn = arrived.any(axis=1) & ~arrived.all(axis=1)
            if torn.any():
                self._fail(number, int(np.flatnonzero(torn)[0]), arrived)
        blocks = np.zeros(batch.blocks, np.bool_)
        for number, mask in self.waiting.items():
            blocks |= mask.reshape(batch.blocks, batch.width).any(axis=1)
            self._go(number + 1, mask)
        self.waiting = {}
        self._pass_barrier(blocks)

    def _pass_barrier(self, blocks: Array | None) -> None:
        self.batch.shared.barrier(blocks)
        self.batch.clock.barrier(blocks)

    def _fail(self, number: int, row: int, arrived: Array) -> None:
        batch, barrier = self.batch, self.program.stretches[number].last
        assert barrier is not None
        missing = row * batch.width + int(np.argmin(arrived[row]))
        where = "has returned"
        for other, mask in self.waiting.items():
            last = self.program.stretches[other].last
            if mask[missing] and last is not None:
                where = f"waits at another barrier, {last.place}"
        raise BarrierError(
            f"{batch.name_of(missing)} does not reach the barrier at {barrier.place} where "
            f"{int(np.count_nonzero(arrived[row]))} of {batch.threads} threads of its block wait: it {where}"
        )
