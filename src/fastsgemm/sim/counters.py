"""Counts of what a launch did, for every instruction."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from fastsgemm.sim.lanes import Array, Lanes
from fastsgemm.sim.traffic import SECTOR, by_warp, sectors


@dataclass
class GlobalTraffic:
    """Global accesses of one kind.

    Attributes
    ----------
    requests : int
        Instructions issued by warps.
    sectors : int
        32-byte sectors that they touched, each counted once a request.
    bytes : int
        Bytes that the threads moved.
    """

    requests: int = 0
    sectors: int = 0
    bytes: int = 0

    @property
    def sectors_per_request(self) -> float:
        """Sectors a request; 0 without requests."""
        return self.sectors / self.requests if self.requests else 0.0

    def add(self, other: GlobalTraffic) -> None:
        """Count another's accesses too."""
        self.requests += other.requests
        self.sectors += other.sectors
        self.bytes += other.bytes


@dataclass
class SharedTraffic:
    """Shared-memory accesses of one kind.

    Attributes
    ----------
    requests : int
        Instructions issued by warps.
    wavefronts : int
        Passes over the banks that they took.
    words : int
        32-bit words a lane that are used: a 128-bit request counts four, unless the compiler notes that it needs
        only some of them.
    """

    requests: int = 0
    wavefronts: int = 0
    words: int = 0

    @property
    def wavefronts_per_request(self) -> float:
        """Wavefronts a request; 0 without requests."""
        return self.wavefronts / self.requests if self.requests else 0.0

    def add(self, other: SharedTraffic) -> None:
        """Count another's accesses too."""
        self.requests += other.requests
        self.wavefronts += other.wavefronts
        self.words += other.words


class Counters:
    """Counts of a launch."""

    def __init__(self, instructions: int) -> None:
        self.warps = np.zeros(instructions, np.int64)  # how often each instruction was issued to a warp
        self.lanes = np.zeros(instructions, np.int64)  # and how often a thread executed it
        self.divergent = np.zeros(instructions, np.int64)  # how often each branch split a warp
        self.global_: dict[tuple[int, int], GlobalTraffic] = defaultdict(GlobalTraffic)  # by instruction and operand
        self.shared: dict[int, SharedTraffic] = defaultdict(SharedTraffic)  # by instruction

    def executed(self, lanes: Lanes, start: int, stop: int) -> None:
        """Count the instructions from `start` to before `stop`, once for the lanes that execute."""
        self.warps[start:stop] += lanes.active_warps
        self.lanes[start:stop] += lanes.active_lanes

    def guarded(self, index: int, refused: int) -> None:
        """Subtract the lanes that the guard of an instruction excluded."""
        self.lanes[index] -= refused

    def accessed_global(self, index: int, lanes: Lanes, address: Array, owner: Array, size: int) -> None:
        """Count a global access by the lanes that execute."""
        table = by_warp(lanes, address)
        if (owner == owner[0]).all():
            self._add_global(index, int(owner[0]), table, size, len(owner))
            return
        owners = by_warp(lanes, owner)
        for number in np.unique(owner):
            mine = np.where(owners == number, table, -1)
            self._add_global(index, int(number), mine, size, int(np.count_nonzero(owner == number)))

    def accessed_shared(self, index: int, lanes: Lanes, wavefronts: int, used: int) -> None:
        """Count a shared access by the lanes that execute, of which so many bytes matter."""
        count = self.shared[index]
        count.requests += lanes.active_warps
        count.wavefronts += wavefronts
        count.words += lanes.active_warps * max(1, used // 4)

    def copied_in_bulk(self, index: int, operand: int, size: int) -> None:
        """Count a bulk copy that read this many bytes of an operand."""
        count = self.global_[index, operand]
        count.requests += 1
        count.sectors += size // SECTOR
        count.bytes += size

    def _add_global(self, index: int, operand: int, table: Array, size: int, lanes: int) -> None:
        count = self.global_[index, operand]
        count.requests += int(np.count_nonzero((table >= 0).any(axis=1)))
        count.sectors += sectors(table)
        count.bytes += size * lanes
