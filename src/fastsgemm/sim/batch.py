"""A batch: some blocks of a launch that run in lockstep, and all that their instructions act on."""

from __future__ import annotations

from fastsgemm.sim.async_copy import Copies
from fastsgemm.sim.counters import Counters
from fastsgemm.sim.global_memory import GlobalMemory
from fastsgemm.sim.lanes import Array, Lanes
from fastsgemm.sim.shared_memory import SharedMemory


class Batch(Lanes):
    """Some blocks of a launch.

    Parameters
    ----------
    first_block, blocks, threads, registers, cluster
        See `Lanes`.
    memory : GlobalMemory
        Of the whole launch.
    counters : Counters
        Of the whole launch.
    shared_bytes, shared_grain : int
        Shared memory of a block, and its narrowest access, in bytes.

    Attributes
    ----------
    shared : SharedMemory
    copies : Copies
        The cp.async copies in flight.
    """

    def __init__(
        self,
        first_block: int,
        blocks: int,
        threads: int,
        registers: list[Array],
        cluster: int,
        memory: GlobalMemory,
        counters: Counters,
        shared_bytes: int,
        shared_grain: int,
    ) -> None:
        super().__init__(first_block, blocks, threads, registers, cluster)
        self.memory = memory
        self.counters = counters
        self.shared = SharedMemory(blocks, shared_bytes, shared_grain)
        self.copies = Copies(self.count, self.shared, memory)
