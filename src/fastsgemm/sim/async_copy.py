"""cp.async: copies from global to shared memory that land when their thread has waited for them.

A flight is what one instruction started: where its data go, what of global memory it still reads, and its group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastsgemm.sim.errors import UnfinishedCopyError
from fastsgemm.sim.global_memory import GlobalMemory
from fastsgemm.sim.lanes import Array, Lanes
from fastsgemm.sim.ptx import Instruction
from fastsgemm.sim.shared_memory import SharedMemory


@dataclass
class Flight:
    """The copies that one instruction started: an entry for each lane that executed it."""

    instruction: Instruction
    lanes: Array
    rows: Array  # where they go; see `SharedMemory.start_copy`
    data: Array  # bytes, as (lanes, bytes)
    # What they read that might be written meanwhile, as (lanes, units), -1 for none; see `GlobalMemory.start_copy`.
    source: Array | None
    group: Array  # how many groups the lane had committed before: the number of the group that this copy is in

    def split(self, done: Array) -> tuple[Flight, Flight]:
        """Return the copies where `done` is set, and the others."""
        return self._only(done), self._only(~done)

    def land(self, lanes: Lanes, shared: SharedMemory, memory: GlobalMemory) -> None:
        """Let the data arrive: they are now written, and their source is read."""
        shared.finish_copy(self.rows, self.data, lanes.thread[self.lanes])
        if self.source is not None:
            lane, _ = np.nonzero(self.source >= 0)
            memory.finish_copy(lanes, lanes.identity[self.lanes[lane]], self.source[self.source >= 0])

    def _only(self, which: Array) -> Flight:
        source = None if self.source is None else self.source[which]
        return Flight(
            self.instruction, self.lanes[which], self.rows[which], self.data[which], source, self.group[which]
        )


class Copies:
    """The cp.async copies that are in flight, in each thread's own groups."""

    def __init__(self, count: int, shared: SharedMemory, memory: GlobalMemory) -> None:
        self._shared = shared
        self._memory = memory
        self._committed = np.zeros(count, np.int64)
        self._flights: list[Flight] = []

    def start(self, lanes: Lanes, instruction: Instruction, rows: Array, data: Array, source: Array | None) -> None:
        """Start the copies of the lanes that execute."""
        copying = lanes.executing
        self._flights.append(Flight(instruction, copying, rows, data, source, self._committed[copying]))

    def commit(self, lanes: Lanes) -> None:
        """Close the current group of the lanes that execute."""
        self._committed[lanes.current_mask] += 1

    def wait(self, lanes: Lanes, pending: int) -> None:
        """Let land all but the last `pending` groups of the lanes that execute."""
        self._land(lanes, self._committed - pending)

    def wait_all(self, lanes: Lanes) -> None:
        """Let land everything of the lanes that execute, committed or not."""
        self._land(lanes, self._committed + 1)

    def finish(self, lanes: Lanes) -> None:
        """Check that every copy has landed when the kernel ends.

        Raises
        ------
        UnfinishedCopyError
            One has not.
        """
        if self._flights:
            first = self._flights[0]
            raise UnfinishedCopyError(
                f"{lanes.name_of(int(first.lanes[0]))} ends while an asynchronous copy that it started is in flight, "
                f"at {first.instruction.place}: {first.instruction.text}"
            )

    def _land(self, lanes: Lanes, before: Array) -> None:
        remaining = []
        for flight in self._flights:
            done = lanes.current_mask[flight.lanes] & (flight.group < before[flight.lanes])
            landing, flying = flight.split(done)
            if len(landing.lanes):
                landing.land(lanes, self._shared, self._memory)
            if len(flying.lanes):
                remaining.append(flying)
        self._flights = remaining
