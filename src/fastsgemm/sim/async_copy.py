"""cp.async: copies from global to shared memory that land when their thread has waited for them.

A flight is what one instruction has set going: it knows where its data go and what of memory it still reads, and how to
land. Which flights land, and when, is for the way of waiting to say: `Copies` is that of cp.async, each thread's own
groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastsgemm.sim.batch import Array, Batch
from fastsgemm.sim.errors import UnfinishedCopyError
from fastsgemm.sim.ptx import Instruction


@dataclass
class Flight:
    """The copies that one instruction started: an entry for each lane that executed it.

    Attributes
    ----------
    instruction : Instruction
    lanes : array of int
    rows : array of int
        Where they go; see `SharedMemory.start_copy`.
    data : array of uint8, shape (lanes, bytes)
    source : array of int, shape (lanes, units), or None
        What they read that might be written meanwhile, -1 for none; see `GlobalMemory.start_copy`.
    group : array of int
        How many groups the lane had committed before: the number of the group that this copy is in.
    """

    instruction: Instruction
    lanes: Array
    rows: Array
    data: Array
    source: Array | None
    group: Array

    def split(self, done: Array) -> tuple[Flight, Flight]:
        """Return the copies where `done` is set, and the others."""
        return self._only(done), self._only(~done)

    def land(self, batch: Batch) -> None:
        """Let the data arrive: they are now written, and their source is read."""
        batch.shared.finish_copy(self.rows, self.data, batch.thread[self.lanes])
        if self.source is not None:
            lane, _ = np.nonzero(self.source >= 0)
            batch.memory.finish_copy(batch, batch.identity[self.lanes[lane]], self.source[self.source >= 0])

    def _only(self, which: Array) -> Flight:
        source = None if self.source is None else self.source[which]
        return Flight(
            self.instruction, self.lanes[which], self.rows[which], self.data[which], source, self.group[which]
        )


class Copies:
    """The asynchronous copies of a batch that are in flight, in each thread's own groups."""

    def __init__(self, lanes: int) -> None:
        self._committed = np.zeros(lanes, np.int64)
        self._flights: list[Flight] = []

    def start(self, batch: Batch, instruction: Instruction, rows: Array, data: Array, source: Array | None) -> None:
        """Take up the copies of the lanes that execute."""
        lanes = np.flatnonzero(batch.current_mask)
        self._flights.append(Flight(instruction, lanes, rows, data, source, self._committed[lanes]))

    def commit(self, batch: Batch) -> None:
        """Close the current group of the lanes that execute."""
        self._committed[batch.current_mask] += 1

    def wait(self, batch: Batch, pending: int) -> None:
        """Let land all but the last `pending` groups of the lanes that execute."""
        self._land(batch, self._committed - pending)

    def wait_all(self, batch: Batch) -> None:
        """Let land everything of the lanes that execute, committed or not."""
        self._land(batch, self._committed + 1)

    def finish(self, batch: Batch) -> None:
        """Check that every copy has landed when the kernel ends.

        Raises
        ------
        UnfinishedCopyError
            One has not.
        """
        if self._flights:
            first = self._flights[0]
            raise UnfinishedCopyError(
                f"{batch.name_of(int(first.lanes[0]))} ends while an asynchronous copy that it started is in flight, "
                f"at {first.instruction.place}: {first.instruction.text}"
            )

    def _land(self, batch: Batch, before: Array) -> None:
        remaining = []
        for flight in self._flights:
            done = batch.current_mask[flight.lanes] & (flight.group < before[flight.lanes])
            landing, flying = flight.split(done)
            if len(landing.lanes):
                landing.land(batch)
            if len(flying.lanes):
                remaining.append(flying)
        self._flights = remaining
