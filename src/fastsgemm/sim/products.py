"""The products that warpgroups have in flight (wgmma): which registers and which shared memory they still use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        self._committed = np.zeros(count, np.int64)
        self._rows: dict[int, int] = {}  # of the tables, by slot
        self._group = np.zeros((0, count), np.int64)  # the group of the product that has a lane's register, 0 for none
        self._touched = np.zeros((0, count), np.int64)  # when another instruction last used a lane's register
        self._fenced = np.zeros(count, np.int64)  # when a lane last executed a fence
        self._now = 0
        self._reads: list[_Read] = []

    def touch(self, lanes: Lanes, at: Instruction, slots: Sequence[int]) -> None:
        """Note that an instruction other than wgmma uses registers.

        Raises
        ------
        UnfinishedProductError
            A product in flight has one of them.
        """
        where = self._where(slots, lanes)
        self._check(lanes, at, self._group[where] > 0, "uses the registers of a product in flight")
        self._touched[where] = self._now

    def move(self, lanes: Lanes, at: Instruction, source: int, target: int) -> None:
        """Note that a register is copied to another one, which then stands for it: ptxas makes them one."""
        from_, to = self._where([source], lanes), self._where([target], lanes)
        lost = (self._group[to] > 0) & (self._group[from_] == 0)
        self._check(lanes, at, lost, "overwrites the registers of a product in flight")
        for kept in (self._group, self._touched):
            kept[to] = kept[from_]

    def fence(self, lanes: Lanes) -> None:
        """Let products use registers that other instructions have used before."""
        self._now += 1
        self._fenced[lanes.current_mask] = self._now

    def start(self, lanes: Lanes, at: Instruction, slots: Sequence[int]) -> None:
        """Give registers to a product.

        Raises
        ------
        UnfinishedProductError
            No fence has come since another instruction used one of them.
        """
        where = self._where(slots, lanes)
        unfenced = (self._group[where] == 0) & (self._touched[where] >= lanes.gather(self._fenced))
        what = "starts a product with registers that were used since the last wgmma.fence"
        self._check(lanes, at, unfenced, what)
        self._group[where] = lanes.gather(self._committed) + 1

    def read(self, barriers: MemoryBarriers, row: int, warps: Array, units: Array, lane: int) -> None:
        """Note what a product reads of the shared memory of a block."""
        barriers.start_reading(row, units)
        self._reads.append(_Read(row, warps, units, lane, int(self._committed[lane]) + 1))

    def commit(self, lanes: Lanes) -> None:
        """Close the current group of the lanes that execute."""
        self._committed[lanes.current_mask] += 1

    def wait(self, lanes: Lanes, barriers: MemoryBarriers, pending: int) -> None:
        """Let all groups but the last `pending` of the lanes that execute be done."""
        done = np.where(lanes.current_mask, self._committed - pending, 0)
        self._group[(self._group > 0) & (self._group <= done)] = 0
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

    def _where(self, slots: Sequence[int], lanes: Lanes) -> Any:
        """Return an index of the tables: for these registers, in the lanes that execute."""
        rows = [self._rows.setdefault(slot, len(self._rows)) for slot in slots]
        missing = len(self._rows) - len(self._group)
        if missing > 0:
            more = ((0, max(missing, len(self._group))), (0, 0))
            self._group, self._touched = np.pad(self._group, more), np.pad(self._touched, more)
        return rows if lanes.mask is None else (np.array(rows)[:, None], lanes.executing)

    def _check(self, lanes: Lanes, at: Instruction, bad: Array, what: str) -> None:
        """Raise `UnfinishedProductError` for the first register that is bad in a lane; `bad` is (slots, lanes)."""
        if bad.any():
            first = int(np.argmax(bad.any(axis=1)))
            lanes.fail(UnfinishedProductError, at, int(np.argmax(bad[first])), what)
