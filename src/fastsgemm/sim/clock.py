"""The order that barriers make. The time of a warp is the number of barriers that it has passed.

An access is noted with its thread and the time of the thread's warp. It is in order for a thread of the same warp
once the warp has passed a barrier since, for a thread of the same block once the block has, and for a thread of the
same cluster once the cluster has. Nothing puts two other blocks in order before the launch has ended: atomics order
nothing, and the simulated device has no fences of the whole device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

WARP = 32  # threads

Array = NDArray[Any]

THREAD, OF_WARP, OF_BLOCK, OF_CLUSTER, OF_GRID = range(5)  # how far apart the threads of a group are


class Clock:
    """The times of the warps of a batch: of some blocks of the grid, from `first_block` on.

    Threads are numbered through the whole grid, each block filled up to whole warps: to `width` threads. `cluster` is
    the number of blocks in a cluster, 1 without clusters.
    """

    def __init__(self, first_block: int, blocks: int, width: int, cluster: int = 1) -> None:
        self._cluster = cluster * width
        self._width = width
        self._first_warp = first_block * width // WARP
        self._now = np.zeros((blocks, width // WARP), np.int32)
        self._last_barrier = np.zeros_like(self._now)  # what was before this time is in order for the whole block
        self._last_cluster_barrier = np.zeros_like(self._now)

    def barrier(self, blocks: Array | None) -> None:
        """Pass a barrier in these blocks (None: in all)."""
        where = slice(None) if blocks is None else blocks
        self._now[where] += 1
        self._last_barrier[where] = self._now[where]

    def cluster_barrier(self, blocks: Array) -> None:
        """Pass a barrier of the clusters of these blocks."""
        self.barrier(blocks)
        self._last_cluster_barrier[blocks] = self._now[blocks]

    def warp_barrier(self, warps: Array) -> None:
        """Pass a barrier of each of these warps; `warps` has a bool for every one of the batch."""
        self._now.reshape(-1)[warps] += 1

    def now(self, thread: Array) -> Array:
        """Return the times of threads of this batch."""
        return np.asarray(self._now.reshape(-1)[thread // WARP - self._first_warp])

    def ordered(self, other: Array, when: Array, group: Array, thread: Array) -> Array:
        """Return where an earlier access is in order for a thread that makes one now.

        `other` is the thread that made the earlier access, or the last of those that did, of any block, and `when` the
        time of that. `group` is `THREAD` if no other thread made it too, else it says how far apart those are.
        """
        group = np.maximum(group, self.distance(other, thread))
        warp = np.where(group == OF_GRID, thread, other) // WARP - self._first_warp
        in_cluster = (group < OF_GRID) & (when < self._last_cluster_barrier.reshape(-1)[warp])
        in_block = (group < OF_CLUSTER) & (when < self._last_barrier.reshape(-1)[warp])
        in_warp = (group < OF_BLOCK) & (when < self._now.reshape(-1)[warp])
        return np.asarray((group == THREAD) | in_cluster | in_block | in_warp)

    def distance(self, a: Array, b: Array) -> Array:
        """Return `THREAD` where a thread is itself, `OF_WARP` where both are of one warp, and so on."""
        far = (a != b).astype(np.int8)
        for size in (WARP, self._width, self._cluster):
            far += a // size != b // size
        return np.asarray(far)
