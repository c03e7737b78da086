"""The scheduler of a batch: which lanes execute which stretch next.

A stretch is a basic block. Every lane waits at the start of some stretch. The scheduler runs the first of these
stretches in the order of the text, with all lanes that wait there. So lanes that diverged meet again where the later
stretch begins. A stretch with an exchange within warps is put off while other lanes of these warps can run. Lanes at a
barrier wait until no other lane can run; then all threads of their block must be there. Lanes that wait for a memory
barrier are polled whenever no other lane can run.
"""

from __future__ import annotations

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.clock import WARP
from fastsgemm.sim.errors import BarrierError, EndlessWaitError, InstructionLimitError
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.program import End, Program, Stretch
from fastsgemm.sim.warp import missing_lanes


def run(batch: Batch, program: Program, limit: int) -> None:
    """Run every lane of a batch to its end, each warp for at most `limit` instructions.

    Raises
    ------
    KernelFault
        See `fastsgemm.sim.errors`.
    """
    _Scheduler(batch, program, limit).run()
    batch.finish()


_NOBODY = np.zeros(1, np.bool_)


class _Scheduler:
    def __init__(self, batch: Batch, program: Program, limit: int) -> None:
        self.batch = batch
        self.program = program
        self.limit = limit
        self.executed = np.zeros(batch.warps, np.int64)
        self.ready: dict[int, Array] = {0: batch.alive.copy()}
        self.waiting: dict[int, Array] = {}  # by the stretch that the barrier ends
        self.polling: dict[int, Array] = {}  # the same for memory barriers
        self.awaited: dict[int, Array] = {}  # by the stretch that was put off for these lanes

    def run(self) -> None:
        batch, stretches = self.batch, self.program.stretches
        while self.ready or self.waiting or self.polling:
            if not self.ready and not self._poll():
                self._release()
            number = self._next()
            mask = self.ready.pop(number)
            stretch = stretches[number]
            batch.select(mask)
            batch.awaited = self.awaited.pop(number, _NOBODY)
            for step in stretch.steps:
                step(batch)
            batch.counters.executed(batch, stretch.start, stretch.stop)
            self._count(stretch)
            self._leave(number, stretch, mask)

    def _next(self) -> int:
        """Return the stretch to run: the first that need not wait for lanes that can run elsewhere."""
        if len(self.ready) > 1:
            for number in sorted(self.ready):
                if not self.program.stretches[number].together:
                    return number
                missing = missing_lanes(self.batch, self.ready[number])
                if not missing.any():
                    return number
                self.awaited[number] = self.awaited.get(number, _NOBODY) | missing
        return min(self.ready)

    def _count(self, stretch: Stretch) -> None:
        """Count the instructions of the executing warps, and stop the launch if one exceeds the limit."""
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
        if stretch.end is End.MEMORY_BARRIER:
            self.polling[number] = self.polling.get(number, np.False_) | mask
            return
        if stretch.end in (End.BARRIER, End.CLUSTER_BARRIER):
            alone = not self.ready and not self.waiting and stretch.end is End.BARRIER
            if alone and self.batch.active_lanes == self._threads:
                self._pass_barrier(None)
                self._go_on(number, mask)
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
        """Return the lanes that execute the last instruction, and those that its predicate excludes."""
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

    def _go_on(self, number: int, mask: Array) -> None:
        """Let lanes leave the barrier at the end of a stretch."""
        on_release = self.program.stretches[number].on_release
        if on_release is not None:
            self.batch.select(mask)
            on_release(self.batch)
        self._go(number + 1, mask)

    def _poll(self) -> bool:
        """Release the lanes whose phase of a memory barrier has ended; return whether there are any."""
        polling, self.polling = self.polling, {}
        for number, mask in polling.items():
            poll = self.program.stretches[number].poll
            assert poll is not None
            self.batch.select(mask)
            done = poll(self.batch)
            if done.any():
                self._go(number + 1, done)
            if (mask & ~done).any():
                self.polling[number] = mask & ~done
        return bool(self.ready)

    def _release(self) -> None:
        """Release the blocks at a barrier; all threads of each must wait at the same one.

        Barriers of a cluster are released when no block waits at a barrier of its own.
        """
        stretches = self.program.stretches
        of_blocks = [n for n in self.waiting if stretches[n].end is End.BARRIER]
        size = 1 if of_blocks else self.batch.cluster  # blocks that must have arrived together
        released = {number: self.waiting[number] for number in of_blocks or self.waiting}
        if not released:
            self._fail_endless()
        for number, mask in released.items():
            arrived = self._by_block(mask).reshape(-1, size * self.batch.threads)
            torn = arrived.any(axis=1) & ~arrived.all(axis=1)
            if torn.any():
                self._fail(number, int(np.flatnonzero(torn)[0]), arrived)
        blocks = np.zeros(self.batch.blocks, np.bool_)
        for number, mask in released.items():
            del self.waiting[number]
            blocks |= self._by_block(mask).any(axis=1)
            self._go_on(number, mask)
        self._pass_barrier(blocks) if of_blocks else self._pass_cluster_barrier(released, blocks)

    def _by_block(self, mask: Array) -> Array:
        return mask.reshape(self.batch.blocks, self.batch.width)[:, : self.batch.threads]

    def _pass_barrier(self, blocks: Array | None) -> None:
        self.batch.shared.barrier(blocks)
        self.batch.clock.barrier(blocks)
        self.batch.mbarriers.block_barrier(blocks)

    def _pass_cluster_barrier(self, released: dict[int, Array], blocks: Array) -> None:
        batch = self.batch
        for number, mask in released.items():
            if not batch.cluster_arrived[mask].all():
                last = self.program.stretches[number].last
                assert last is not None
                raise BarrierError(f"a thread waits at {last.place} for its cluster and has not arrived: {last.text}")
            batch.cluster_arrived[mask] = False
        batch.shared.cluster_barrier(blocks)
        batch.clock.cluster_barrier(blocks)

    def _fail_endless(self) -> None:
        """Report lanes that wait for a memory barrier when no lane is left to complete its phase."""
        number, mask = min(self.polling.items())
        last = self.program.stretches[number].last
        assert last is not None
        self.batch.select(mask)
        self.batch.fail(EndlessWaitError, last, 0, "waits for a phase of a memory barrier that never ends")

    def _fail(self, number: int, row: int, arrived: Array) -> None:
        batch, barrier = self.batch, self.program.stretches[number].last
        assert barrier is not None
        size = arrived.shape[1] // batch.threads  # blocks of a row
        block, thread = divmod(int(np.argmin(arrived[row])), batch.threads)
        missing = (row * size + block) * batch.width + thread
        where = "has returned"
        for other, mask in self.waiting.items():
            last = self.program.stretches[other].last
            if mask[missing] and last is not None:
                where = f"waits at another barrier, {last.place}"
        for mask in self.polling.values():
            if mask[missing]:
                where = "waits for a memory barrier"
        group = "block" if size == 1 else "cluster"
        raise BarrierError(
            f"divergent barrier: {batch.name_of(missing)} does not reach the barrier at {barrier.place} where "
            f"{int(np.count_nonzero(arrived[row]))} of {arrived.shape[1]} threads of its {group} wait: it {where}"
        )
