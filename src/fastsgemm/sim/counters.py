"""What a launch did, counted for every instruction."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from fastsgemm.sim.batch import Array, Batch
from fastsgemm.sim.traffic import by_warp, sectors, wavefronts


@dataclass
class GlobalCount:
    """Accesses to one operand by one instruction: warps' requests, sectors, bytes moved by all lanes."""

    requests: int = 0
    sectors: int = 0
    bytes: int = 0


@dataclass
class SharedCount:
    """Accesses to shared memory by one instruction: warps' requests, wavefronts, 32-bit words a lane times requests."""

    requests: int = 0
    wavefronts: int = 0
    words: int = 0


class Counters:
    """Counts of a launch.

    Attributes
    ----------
    warps, lanes : array
        How often each instruction was issued to a warp, and executed by a thread.
    divergent : array
        How often each branch split a warp.
    global_ : dict
        `GlobalCount` by instruction and operand number.
    shared : dict
        `SharedCount` by instruction.
    """

    def __init__(self, instructions: int) -> None:
        self.warps = np.zeros(instructions, np.int64)
        self.lanes = np.zeros(instructions, np.int64)
        self.divergent = np.zeros(instructions, np.int64)
        self.global_: dict[tuple[int, int], GlobalCount] = defaultdict(GlobalCount)
        self.shared: dict[int, SharedCount] = defaultdict(SharedCount)

    def executed(self, batch: Batch, start: int, stop: int) -> None:
        """Count the instructions from `start` to before `stop`, once for the lanes that execute."""
        self.warps[start:stop] += batch.active_warps
        self.lanes[start:stop] += batch.active_lanes

    def guarded(self, index: int, refused: int) -> None:
        """Take back the lanes that the guard of an instruction kept out."""
        self.lanes[index] -= refused

    def accessed_global(self, index: int, batch: Batch, address: Array, owner: Array, size: int) -> None:
        """Count a global access by the lanes that execute."""
        table = by_warp(batch, address)
        if (owner == owner[0]).all():
            self._add_global(index, int(owner[0]), table, size, len(owner))
            return
        owners = by_warp(batch, owner)
        for number in np.unique(owner):
            mine = np.where(owners == number, table, -1)
            self._add_global(index, int(number), mine, size, int(np.count_nonzero(owner == number)))

    def accessed_shared(self, index: int, batch: Batch, address: Array, size: int, loading: bool) -> None:
        """Count a shared access by the lanes that execute."""
        count = self.shared[index]
        count.requests += batch.active_warps
        count.wavefronts += wavefronts(by_warp(batch, address), size, loading)
        count.words += batch.active_warps * max(1, size // 4)

    def _add_global(self, index: int, operand: int, table: Array, size: int, lanes: int) -> None:
        count = self.global_[index, operand]
        count.requests += int(np.count_nonzero((table >= 0).any(axis=1)))
        count.sectors += sectors(table)
        count.bytes += size * lanes
