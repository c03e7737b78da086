"""The products that warpgroups have in flight (wgmma): which registers and which shared memory they still use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastsgemm.sim.errors import UnfinishedProductError
from fastsgemm.sim.lanes import Array, Lanes
from fastsgemm.sim.memory_barriers import MemoryBarriers
from fastsgemm.sim.ptx import Instruction


@dataclass(frozen=True)
class _Read:
    """What one product reads of shared memory: units of a block, for four warps of it."""

    row: int
    warps: Array
    units: Array
    lane: int  # the first of the warpgroup
    group: int  # the number of the warpgroup's group that the product is in


class Products:
    """The products of a batch that are in flight, in each warpgroup's own groups.

    Groups are numbered from 1 by the commits of each lane.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._committed = np.zeros(count, np.int64)
        self._group: dict[int, Array] = {}  # by slot: the group of the product that has a lane's register, 0 for none
        self._touched: dict[int, Array] = {}  # by slot: when another instruction last used a lane's register
        self._fenced = np.zeros(count, np.int64)  # when a lane last executed a fence
        self._now = 0
        self._reads: list[_Read] = []

    def touch(self, lanes: Lanes, at: Instruction, slots: tuple[int, ...]) -> None:
        """Note that an instruction other than wgmma uses registers.

        Raises
        ------
        UnfinishedProductError
            A product in flight has one of them.
        """
        mask = lanes.current_mask
        for slot in slots:
            flying = self._of(self._group, slot)[mask] > 0
            if flying.any():
                what = "uses the registers of a product in flight"
                lanes.fail(UnfinishedProductError, at, int(np.argmax(flying)), what)
            self._of(self._touched, slot)[mask] = self._now

    def move(self, lanes: Lanes, at: Instruction, source: int, target: int) -> None:
        """Note that a register is copied to another one, which then stands for it: ptxas makes them one."""
        mask = lanes.current_mask
        lost = (self._of(self._group, target)[mask] > 0) & (self._of(self._group, source)[mask] == 0)
        if lost.any():
            what = "overwrites the registers of a product in flight"
            lanes.fail(UnfinishedProductError, at, int(np.argmax(lost)), what)
        for kept in (self._group, self._touched):
            self._of(kept, target)[mask] = self._of(kept, source)[mask]

    def fence(self, lanes: Lanes) -> None:
        """Let products use registers that other instructions have used before."""
        self._now += 1
        self._fenced[lanes.current_mask] = self._now

    def start(self, lanes: Lanes, at: Instruction, slots: list[int]) -> None:
        """Give registers to a product.

        Raises
        ------
        UnfinishedProductError
            No fence has come since another instruction used one of them.
        """
        mask = lanes.current_mask
        for slot in slots:
            group = self._of(self._group, slot)
            unfenced = (group[mask] == 0) & (self._of(self._touched, slot)[mask] >= self._fenced[mask])
            if unfenced.any():
                what = "starts a product with registers that were used since the last wgmma.fence"
                lanes.fail(UnfinishedProductError, at, int(np.argmax(unfenced)), what)
            group[mask] = self._committed[mask] + 1

    def read(self, barriers: MemoryBarriers, row: int, warps: Array, units: Array, lane: int) -> None:
        """Note what a product reads of the shared memory of a block."""
        barriers.start_reading(row, units)
        self._reads.append(_Read(row, warps, units, lane, int(self._committed[lane]) + 1))

    def commit(self, lanes: Lanes) -> None:
        """Close the current group of the lanes that execute."""
        self._committed[lanes.current_mask] += 1

    def wait(self, lanes: Lanes, barriers: MemoryBarriers, pending: int) -> None:
        """Let all groups but the last `pending` of the lanes that execute be done."""
        mask = lanes.current_mask
        done = np.where(mask, self._committed - pending, 0)
        for group in self._group.values():
            group[(group > 0) & (group <= done)] = 0
        left = []
        for read in self._reads:
            if read.group <= done[read.lane]:
                barriers.finish_reading(read.row, read.warps, read.units)
            else:
                left.append(read)
        self._reads = left

    def finish(self, lanes: Lanes) -> None:
        """Check that no product is in flight when the blocks end.

        Raises
        ------
        UnfinishedProductError
            One is.
        """
        if self._reads:
            raise UnfinishedProductError(f"{lanes.name_of(self._reads[0].lane)} ends while its product is in flight")

    def _of(self, kept: dict[int, Array], slot: int) -> Array:
        if slot not in kept:
            kept[slot] = np.zeros(self._count, np.int64)
        return kept[slot]
