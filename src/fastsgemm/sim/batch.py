"""A batch: some blocks of a launch that run in lockstep, and all that their instructions act on."""

from __future__ import annotations

import numpy as np

from fastsgemm.sim.async_copy import Copies
from fastsgemm.sim.counters import Counters
from fastsgemm.sim.global_memory import GlobalMemory
from fastsgemm.sim.lanes import Array, Lanes
from fastsgemm.sim.memory_barriers import MemoryBarriers
from fastsgemm.sim.products import Products
from fastsgemm.sim.shared_memory import SharedMemory


class Batch(Lanes):
    """Some blocks of a launch."""

    def __init__(
        self,
        first_block: int,
        blocks: int,
        threads: int,
        registers: list[Array],
        cluster: int,
        parameters: Array,
        memory: GlobalMemory,
        counters: Counters,
        shared_bytes: int,
        shared_grain: int,
    ) -> None:
        super().__init__(first_block, blocks, threads, registers, cluster)
        self.parameters = parameters  # the bytes of the parameter space, and of the constants behind it
        self.memory = memory  # of the whole launch
        self.counters = counters  # of the whole launch
        self.mbarriers = MemoryBarriers(self, shared_bytes)
        self.shared = SharedMemory(blocks, shared_bytes, shared_grain, self.mbarriers, cluster)
        self.cluster_arrived = np.zeros(self.count, np.bool_)  # at the barrier, and have not yet waited
        self.products = Products(self.count)  # the wgmma in flight
        self.copies = Copies(self.count, self.shared, memory)  # the cp.async in flight

    def finish(self) -> None:
        """Check, when all blocks have ended, that nothing is left under way.

        Raises
        ------
        KernelFault
            An asynchronous copy, a product, or a read of another block's shared memory is.
        """
        self.copies.finish(self)
        self.mbarriers.finish(self)
        self.products.finish(self)
        self.shared.finish()
