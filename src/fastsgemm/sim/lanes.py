"""The threads that run in lockstep, one lane per thread: which of them execute, and their registers.

A register is an array with one value per lane, or with shape ``(1,)`` if all lanes have the same value. The latter
costs as much as a scalar, and NumPy broadcasts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from fastsgemm.sim.clock import WARP, Clock
from fastsgemm.sim.errors import KernelFault
from fastsgemm.sim.ptx import Instruction

Array = NDArray[Any]


class Lanes:
    """The threads of consecutive blocks of a launch; the lanes of each block are padded to whole warps."""

    def __init__(self, first_block: int, blocks: int, threads: int, registers: list[Array], cluster: int = 1) -> None:
        self.first_block = first_block  # in the grid
        self.blocks = blocks
        self.cluster = cluster  # blocks of a cluster, which are next to each other here; 1 without clusters
        self.threads = threads
        self.width = -(-threads // WARP) * WARP  # lanes of a block
        self.count = blocks * self.width
        self.warps = self.count // WARP
        self.registers = registers  # by slot; see `fastsgemm.sim.slots`
        self.thread = np.tile(np.arange(self.width, dtype=np.int32), blocks)
        self.row = np.repeat(np.arange(blocks, dtype=np.int64), self.width)  # a lane's block in this batch
        first = first_block * self.width
        self.identity = np.arange(first, first + self.count, dtype=np.int32)  # of a thread in the whole grid
        self.alive = self.thread < threads  # the lanes whose thread exists and has not returned
        self.awaited = np.zeros(1, np.bool_)  # those that the executing lanes have waited for
        self.alive_count = blocks * threads
        self.mask: Array | None = None  # the lanes that execute the current instruction; None if all do
        self.executing_warps: Array | None = None  # which warps have lanes in `mask`; None if all do
        self.partial = False  # some lanes that are alive do not execute: results are merged into the old registers
        self.clock = Clock(first_block, blocks, self.width, cluster)  # which accesses the barriers have ordered
        self.early = False  # the launch may begin before the launch before it has ended
        self.unwaited: Array | None = None  # the lanes that have not waited for that yet; None if all have
        self.active_warps = self.warps
        self.active_lanes = self.alive_count

    def begin_early(self) -> None:
        """Begin before the launch before has ended: no lane has waited for it."""
        self.early, self.unwaited = True, self.alive.copy()

    def wait_for_launch_before(self) -> None:
        """Let the lanes that execute wait until the launch before has ended."""
        if self.unwaited is not None:
            self.unwaited = self.unwaited & ~self.current_mask
            if not self.unwaited.any():
                self.unwaited = None

    def select(self, mask: Array) -> None:
        """Let the lanes of `mask` execute from here on."""
        active = int(np.count_nonzero(mask))
        self.mask = None if active == self.count else mask
        self.partial = active != self.alive_count
        self.active_lanes = active
        self.active_warps = self.warps
        self.executing_warps = None
        if self.mask is not None:
            self.executing_warps = np.asarray(mask.reshape(-1, WARP).any(axis=1))
            self.active_warps = int(np.count_nonzero(self.executing_warps))

    def only(self, mask: Array, step: Callable[[Self], None]) -> None:
        """Execute a step only in the lanes of `mask`, a subset of those that execute now; do nothing if it is empty."""
        if not mask.any():
            return
        before, whole = self.mask, self.current_mask
        self.select(mask)
        step(self)
        self.select(whole if before is None else before)

    def put(self, slot: int, value: Array) -> None:
        """Write a register in the lanes that execute; `value` has an entry for every lane, or one for all."""
        if self.partial:
            value = np.where(self.current_mask, value, self.registers[slot])
        self.registers[slot] = value

    def scatter(self, slot: int, values: Array) -> None:
        """Write a register in the lanes that execute; `values` has an entry for each of those only."""
        if self.mask is not None:
            merged = np.empty(self.count, values.dtype)
            merged[:] = self.registers[slot]
            merged[self.mask] = values
            values = merged
        self.registers[slot] = values

    def whole(self, values: Array) -> Array:
        """Return values with an entry for every lane."""
        return values if len(values) == self.count else np.repeat(values, self.count)

    def gather(self, values: Array) -> Array:
        """Return the entries of the lanes that execute."""
        return self.whole(values) if self.mask is None else self.whole(values)[self.mask]

    def read(self, slot: int, dtype: Any) -> Array:
        """Return a register, seen as this type, in the lanes that execute."""
        return self.gather(self.registers[slot].view(dtype))

    @property
    def current_mask(self) -> Array:
        """The lanes that execute; unlike `mask` never None."""
        return np.ones(self.count, np.bool_) if self.mask is None else self.mask

    @property
    def executing(self) -> Array:
        """The numbers of the lanes that execute."""
        return np.flatnonzero(self.current_mask)

    def fail(self, error: type[KernelFault], instruction: Instruction, nth: int, what: str) -> NoReturn:
        """Raise `error` with the name of the `nth` lane among those that execute."""
        lane = int(self.executing[nth])
        raise error(f"{self.name_of(lane)} {what}, at {instruction.place}: {instruction.text}")

    def name_of(self, lane: int) -> str:
        """Return the name of a lane's thread for messages."""
        return self.name_of_thread(int(self.identity[lane]))

    def name_of_thread(self, identity: int) -> str:
        """Return the name of the thread with this entry of `identity`."""
        return f"thread {identity % self.width} of block {identity // self.width}"


def first_lane(bad: Array) -> int:
    """Return the first lane with an entry of `bad` set, which has a row for each lane that executes."""
    return int(np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))[0])
