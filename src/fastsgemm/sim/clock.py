"""What barriers put in order: a time for each warp, which is the number of barriers that it has passed.

An access is noted with its thread and the time of the thread's warp. It is in order for a thread of the same warp
once the warp has passed a barrier since, and for a thread of the same block once the block has. Nothing puts two
blocks in order before the launch has ended: the simulated device has neither atomics nor fences of the whole device.
"""

from __future__ import annotations

import numpy as np

from fastsgemm.sim.batch import WARP, Array

THREAD, OF_WARP, OF_BLOCK, OF_GRID = range(4)  # how far apart the threads of a group are


class Clock:
    """The times of the warps of a batch.

    Threads are numbered through the whole grid, each block filled up to whole warps.

    Parameters
    ----------
    first_block, blocks : int
        Which blocks of the grid.
    width : int
        Threads of a block, filled up.
    """

    def __init__(self, first_block: int, blocks: int, width: int) -> None:
        self._width = width
        self._first_warp = first_block * width // WARP
        self._now = np.zeros((blocks, width // WARP), np.int32)
        self._last_barrier = np.zeros_like(self._now)  # what was before this time is in order for the whole block

    def barrier(self, blocks: Array | None) -> None:
        """Pass a barrier in these blocks (None: in all)."""
        where = slice(None) if blocks is None else blocks
        self._now[where] += 1
        self._last_barrier[where] = self._now[where]

    def warp_barrier(self, warps: Array) -> None:
        """Pass a barrier of each of these warps; `warps` has a bool for every one of the batch."""
        self._now.reshape(-1)[warps] += 1

    def now(self, thread: Array) -> Array:
        """Return the times of threads of this batch."""
        return np.asarray(self._now.reshape(-1)[thread // WARP - self._first_warp])

    def ordered(self, other: Array, when: Array, group: Array, thread: Array) -> Array:
        """Return where an earlier access is in order for a thread that makes one now.

        Parameters
        ----------
        other : array of int
            The thread that made the earlier access, or the last of those that did. Of any block.
        when : array of int
            The time of that.
        group : array of int
            `THREAD` if no other thread made it too, else how far apart those are.
        thread : array of int
            Who makes an access now.
        """
        group = np.maximum(group, distance(other, thread, self._width))
        warp = np.where(group == OF_GRID, thread, other) // WARP - self._first_warp
        in_block = (group < OF_GRID) & (when < self._last_barrier.reshape(-1)[warp])
        in_warp = (group < OF_BLOCK) & (when < self._now.reshape(-1)[warp])
        return np.asarray((group == THREAD) | in_block | in_warp)


def distance(a: Array, b: Array, width: int) -> Array:
    """Return `THREAD` where a thread is itself, `OF_WARP` where both are of one warp, and so on."""
    far = (a != b).astype(np.int8)
    far += a // WARP != b // WARP
    far += a // width != b // width
    return np.asarray(far)
