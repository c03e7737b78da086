"""cp.async: copies from global to shared memory that land when their thread has waited for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastsgemm.sim.batch import Array, Batch
from fastsgemm.sim.shared_memory import SharedMemory


@dataclass
class _Flight:
    """The copies that one instruction started: an entry for each lane that executed it."""

    lanes: Array
    rows: Array  # where they go; see `SharedMemory.start_copy`
    data: Array  # (lanes, bytes)
    group: Array  # the lane's groups committed before: the number of the group that this copy is in

    def split(self, done: Array) -> tuple[_Flight, _Flight]:
        return self._only(done), self._only(~done)

    def _only(self, which: Array) -> _Flight:
        return _Flight(self.lanes[which], self.rows[which], self.data[which], self.group[which])


class Copies:
    """The asynchronous copies of a batch that are in flight, in each thread's own groups."""

    def __init__(self, lanes: int) -> None:
        self._committed = np.zeros(lanes, np.int64)
        self._flights: list[_Flight] = []

    def start(self, batch: Batch, rows: Array, data: Array) -> None:
        """Take up the copies of the lanes that execute."""
        lanes = np.flatnonzero(batch.current_mask)
        self._flights.append(_Flight(lanes, rows, data, self._committed[lanes]))

    def commit(self, batch: Batch) -> None:
        """Close the current group of the lanes that execute."""
        self._committed[batch.current_mask] += 1

    def wait(self, batch: Batch, shared: SharedMemory, pending: int) -> None:
        """Let land all but the last `pending` groups of the lanes that execute."""
        self._land(batch, shared, self._committed - pending)

    def wait_all(self, batch: Batch, shared: SharedMemory) -> None:
        """Let land everything of the lanes that execute, committed or not."""
        self._land(batch, shared, self._committed + 1)

    def _land(self, batch: Batch, shared: SharedMemory, before: Array) -> None:
        remaining = []
        for flight in self._flights:
            done = batch.current_mask[flight.lanes] & (flight.group < before[flight.lanes])
            landing, flying = flight.split(done)
            if len(landing.lanes):
                shared.finish_copy(landing.rows, landing.data, batch.thread[landing.lanes])
            if len(flying.lanes):
                remaining.append(flying)
        self._flights = remaining
