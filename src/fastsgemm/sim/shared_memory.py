"""Shared memory of the blocks of a batch, and the accesses to it since the last barrier.

Besides the bytes, it stores for every unit of four bytes (fewer if the kernel has narrower accesses) whether it was
ever written, which thread wrote it and which read it since the last barrier, and whether an asynchronous copy to it is
in flight. A warp barrier replaces these threads by their warp, because it orders earlier accesses for the threads of
that warp and for no others. What memory barriers order, `MemoryBarriers` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastsgemm.config import MAX_THREADS
from fastsgemm.sim.clock import WARP
from fastsgemm.sim.errors import MisalignedError, RaceError, SharedAccessError, UnwrittenSharedError
from fastsgemm.sim.lanes import Array, Lanes, first_lane
from fastsgemm.sim.memory_barriers import MemoryBarriers
from fastsgemm.sim.ptx import Instruction
from fastsgemm.sim.updates import update_in_turn

# Who accessed a unit: 0 for nobody, a thread's number + 1, or one of these.
_MANY = -1  # threads of several warps
_FIRST_WARP = -2  # minus w: threads of warp w, which a warp barrier has ordered for that warp
_FIRST_LANES = _FIRST_WARP - MAX_THREADS // WARP  # minus w: several threads of warp w, which nothing has ordered
RANK_SHIFT = 24  # bit at which an address in a cluster's shared memory has the rank of the block, plus 1


class SharedMemory:
    """The shared memory of all blocks of a batch."""

    def __init__(self, blocks: int, size: int, grain: int, mbarriers: MemoryBarriers, cluster: int = 1) -> None:
        self._mbarriers = mbarriers
        self._cluster = cluster  # blocks of a cluster, which are next to each other
        self.size = size  # bytes of a block
        self.grain = grain  # bytes of the narrowest access, at most 4
        self.stride = -(-size // 16) * 16  # bytes from block to block
        units = blocks * self.stride // grain
        self._bytes = np.zeros(blocks * self.stride, np.uint8)
        self._known = np.zeros(units, np.bool_)
        self._in_flight = np.zeros(units, np.bool_)
        self._writer = np.zeros(units, np.int32)  # see `_MANY`
        self._reader = np.zeros(units, np.int32)
        self._updater: Array | None = None  # by atomics; made when there is one
        self._blocks = blocks
        # Since the last barrier of the cluster: written, and read by another block.
        self._fresh = np.zeros(units if cluster > 1 else 0, np.bool_)
        self._read_from_afar = np.zeros_like(self._fresh)

    def load(self, lanes: Lanes, at: Instruction, address: Array, dtype: Any, count: int) -> Array:
        """Return `count` neighbouring elements at each address, as (count, lanes that execute)."""
        size = np.dtype(dtype).itemsize * count
        rows = self._rows(lanes, at, address, size)
        units = self._units(rows, size)
        me = lanes.gather(lanes.thread)[:, None] + 1
        self._check_in_flight(lanes, at, address, units)
        self._check_known(lanes, at, address, units)
        self._check_updates(lanes, at, address, units, me, "reads")
        writer = self._writer[units]
        self._refuse(lanes, at, address, _others(writer, me), writer, "reads", "wrote")
        reader = self._reader[units]
        self._reader[units] = me
        last = self._reader[units]
        many = (last != me) | _others(reader, me)
        if many.any():
            unit, warp = units[many], np.broadcast_to((me - 1) // WARP, units.shape)[many]
            alone = (_warp(reader[many], warp) == warp) & (_warp(last[many], warp) == warp)
            self._reader[unit] = _FIRST_LANES - warp
            self._reader[unit[~alone]] = _MANY
        data: Array = self._bytes.view(dtype).reshape(-1, count)[rows]
        return data.T.copy()

    def store(self, lanes: Lanes, at: Instruction, address: Array, values: list[Array]) -> None:
        """Write neighbouring elements at each address."""
        dtype, count = values[0].dtype, len(values)
        rows = self._rows(lanes, at, address, dtype.itemsize * count)
        units = self._claim(lanes, at, address, rows, dtype.itemsize * count)
        self._known[units] = True
        view = self._bytes.view(dtype).reshape(-1, count)
        for j, value in enumerate(values):
            view[rows, j] = value

    def update(
        self, lanes: Lanes, at: Instruction, address: Array, values: Array, compute: Callable[[Array, Array], Array]
    ) -> Array:
        """Replace the element at each address by a function of it and a value, atomically; return the old elements."""
        rows = self._rows(lanes, at, address, values.itemsize)
        units = self._units(rows, values.itemsize)
        me = lanes.gather(lanes.thread)[:, None] + 1
        self._check_in_flight(lanes, at, address, units)
        self._check_known(lanes, at, address, units)
        for kept, theirs in ((self._writer, "wrote"), (self._reader, "read")):
            who = kept[units]
            self._refuse(lanes, at, address, _others(who, me), who, "updates", theirs)
        self._note_write(lanes, at, address, units)
        if self._updater is None:
            self._updater = np.zeros(len(self._writer), np.int32)
        several = _others(self._updater[units], me)
        self._updater[units] = me
        several |= self._updater[units] != me
        self._updater[units[several]] = _MANY
        return update_in_turn(self._bytes.view(values.dtype), rows, values, compute)

    def start_copy(self, lanes: Lanes, at: Instruction, address: Array, size: int) -> Array:
        """Mark the target of an asynchronous copy; return what `finish_copy` needs to know of it."""
        rows = self._rows(lanes, at, address, size)
        units = self._claim(lanes, at, address, rows, size)
        self._in_flight[units] = True
        return rows

    def finish_copy(self, rows: Array, data: Array, threads: Array) -> None:
        """Let an asynchronous copy land: `data` is (lanes, bytes), its writers are `threads`."""
        size = data.shape[1]
        units = self._units(rows, size)
        self._bytes.reshape(-1, size)[rows] = data
        self._known[units] = True
        self._in_flight[units] = False
        self._writer[units] = threads[:, None] + 1

    def barrier(self, blocks: Array | None) -> None:
        """Forget the accesses to these blocks (None: to all), because a barrier has ordered them."""
        for kept in self._kept:
            if blocks is None:
                kept.fill(0)
            else:
                kept.reshape(self._blocks, -1)[blocks] = 0

    def load_of_cluster(self, lanes: Lanes, at: Instruction, address: Array, dtype: Any) -> Array:
        """Return the element at each address in the shared memory of the cluster."""
        rank = (address >> np.uint64(RANK_SHIFT)).astype(np.int64) - 1
        own = lanes.gather(lanes.row)
        block = np.where(rank < 0, own, own // self._cluster * self._cluster + rank)
        place = address & np.uint64((1 << RANK_SHIFT) - 1)
        self._check(lanes, at, place, np.dtype(dtype).itemsize)
        rows = (block * self.stride + place.astype(np.int64)) // np.dtype(dtype).itemsize
        units = self._units(rows, np.dtype(dtype).itemsize)
        self._check_known(lanes, at, place, units)
        fresh = self._fresh[units]
        if fresh.any():
            nth = first_lane(fresh)
            what = f"reads shared memory at {place[nth]} of block {rank[nth]} of its cluster"
            lanes.fail(RaceError, at, nth, f"{what}, written since the last barrier of the cluster")
        self._read_from_afar[units] = True
        return np.asarray(self._bytes.view(dtype)[rows])

    def put(self, lanes: Lanes, at: Instruction, nth: int, row: int, address: int, data: Array) -> None:
        """Write the bytes of a bulk copy from this address of a block on.

        What was accessed there before is over: the memory barriers know who may access the new data.
        """
        end = address + len(data)
        if end > self.size:
            lanes.fail(SharedAccessError, at, nth, f"copies in bulk up to {end}; the block has {self.size} bytes")
        first, last = row * self.stride + address, row * self.stride + end
        self._bytes[first:last] = data
        units = slice(first // self.grain, last // self.grain)
        self._known[units] = True
        for kept in self._kept:
            kept[units] = 0

    def get(self, row: int, address: Array) -> Array:
        """Return the 16-byte pieces at these addresses of a block, concatenated along the last dimension."""
        pieces = self._bytes.reshape(-1, 16)[(row * self.stride + address) // 16]
        return np.asarray(pieces.reshape(*address.shape[:-1], -1))

    def cluster_barrier(self, blocks: Array) -> None:
        """Forget the accesses to these blocks, which are whole clusters."""
        self.barrier(blocks)
        for kept in (self._fresh, self._read_from_afar):
            kept.reshape(self._blocks, -1)[blocks] = False

    def finish(self) -> None:
        """Check that no block ends while another block of its cluster may still read its shared memory.

        Raises
        ------
        RaceError
            There was no barrier of the cluster after such a read.
        """
        if self._read_from_afar.any():
            raise RaceError("a block may end while others of its cluster read its shared memory: no barrier follows")

    def _note_write(self, lanes: Lanes, at: Instruction, address: Array, units: Array) -> None:
        """Record a write for the checks of the other blocks of the cluster."""
        if self._cluster == 1:
            return
        afar = self._read_from_afar[units]
        if afar.any():
            nth = first_lane(afar)
            what = (
                f"writes shared memory at {address[nth]} that another block read since the last barrier of the cluster"
            )
            lanes.fail(RaceError, at, nth, what)
        self._fresh[units] = True

    def warp_barrier(self, lanes: Lanes) -> None:
        """Order the accesses of the executing warps for their own threads."""
        executing: Array = np.logical_or.reduce(lanes.current_mask.reshape(self._blocks, -1, WARP), axis=2)
        for kept in self._kept:
            units = kept.reshape(self._blocks, -1)
            block, unit = np.nonzero((units > 0) | (units <= _FIRST_LANES))
            warp = _warp(units[block, unit], 0)
            here = executing[block, warp]
            units[block[here], unit[here]] = _FIRST_WARP - warp[here]

    @property
    def _kept(self) -> list[Array]:
        updater = [] if self._updater is None else [self._updater]
        return [self._writer, self._reader, *updater]

    def _check_known(self, lanes: Lanes, at: Instruction, address: Array, units: Array) -> None:
        known = self._known[units]
        if not known.all():
            nth = first_lane(~known)
            lanes.fail(UnwrittenSharedError, at, nth, f"reads shared memory at {address[nth]} that nobody wrote")

    def _check_updates(self, lanes: Lanes, at: Instruction, address: Array, units: Array, me: Array, mine: str) -> None:
        if self._updater is not None:
            updater = self._updater[units]
            self._refuse(lanes, at, address, _others(updater, me), updater, mine, "updated")

    def _rows(self, lanes: Lanes, at: Instruction, address: Array, size: int) -> Array:
        """Return the index of each access in units of its size."""
        self._check(lanes, at, address, size)
        return (lanes.gather(lanes.row) * self.stride + address.astype(np.int64)) // size

    def _check(self, lanes: Lanes, at: Instruction, address: Array, size: int) -> None:
        """Check alignment and bounds."""
        if (address % np.uint64(size)).any():
            nth = first_lane(address % np.uint64(size))
            lanes.fail(
                MisalignedError, at, nth, f"accesses {size} bytes of shared memory at {address[nth]}, no multiple of it"
            )
        if address.size and int(address.max()) + size > self.size:
            nth = first_lane(address + np.uint64(size) > np.uint64(self.size))
            what = f"accesses {size} bytes of shared memory at {address[nth]}; the block has {self.size}"
            lanes.fail(SharedAccessError, at, nth, what)

    def _units(self, rows: Array, size: int) -> Array:
        """Return the units that each access covers, as (lanes, units of an access)."""
        per = size // self.grain
        return rows[:, None] * per + np.arange(per)

    def _claim(self, lanes: Lanes, at: Instruction, address: Array, rows: Array, size: int) -> Array:
        """Check that a write races with no earlier access, and record the writer."""
        units = self._units(rows, size)
        me = lanes.gather(lanes.thread)[:, None] + 1
        self._check_in_flight(lanes, at, address, units)
        self._check_updates(lanes, at, address, units, me, "writes")
        writer, reader = self._writer[units], self._reader[units]
        self._refuse(lanes, at, address, _others(writer, me), writer, "writes", "wrote")
        self._refuse(lanes, at, address, _others(reader, me), reader, "writes", "read")
        self._note_write(lanes, at, address, units)
        self._writer[units] = me
        together = self._writer[units]
        self._refuse(lanes, at, address, together != me, together, "writes", "writes")
        return units

    def _check_in_flight(self, lanes: Lanes, at: Instruction, address: Array, units: Array) -> None:
        """Check that no copy goes where the lanes access memory; the memory barriers note that they do."""
        flying = self._in_flight[units]
        if self._mbarriers:
            flying = flying | self._mbarriers.access(lanes, address)[:, None]
        if flying.any():
            nth = first_lane(flying)
            what = f"touches shared memory at {address[nth]} while an asynchronous copy to it is in flight"
            lanes.fail(RaceError, at, nth, what)

    def _refuse(
        self, lanes: Lanes, at: Instruction, address: Array, bad: Array, other: Array, mine: str, theirs: str
    ) -> None:
        if bad.any():
            nth = first_lane(bad)
            thread = int(other[nth][np.argmax(bad[nth])])
            who = f"thread {thread - 1}" if thread > 0 else "several threads"
            if _FIRST_LANES < thread <= _FIRST_WARP:
                who = f"warp {_FIRST_WARP - thread}"
            what = f"{mine} shared memory at {address[nth]} that {who} {theirs} since the last barrier"
            lanes.fail(RaceError, at, nth, what)


def _warp(who: Array, of_nobody: Array | int) -> Array:
    """Return the warp of those who accessed a unit, and -1 for several; `of_nobody` where there was no access."""
    of_lanes = np.where(who <= _FIRST_LANES, _FIRST_LANES, _FIRST_WARP) - who
    return np.where(who > 0, (who - 1) // WARP, np.where(who == 0, of_nobody, of_lanes))


def _others(who: Array, me: Array) -> Array:
    """Return where a unit was accessed by another thread and no barrier of the block or the warp came after."""
    others: Array = (who != 0) & (who != me) & (who != _FIRST_WARP - (me - 1) // WARP)
    return others
