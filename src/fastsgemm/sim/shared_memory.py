"""Shared memory of the blocks of a batch, and the accesses to it since the last barrier.

Besides the bytes, it stores for every unit of four bytes (fewer if the kernel has narrower accesses) whether it was
ever written, which thread wrote it and which read it since the last barrier, and whether an asynchronous copy to it is
in flight. A warp barrier replaces these threads by their warp, because it orders earlier accesses for the threads of
that warp and for no others. What memory barriers order, `MemoryBarriers` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastsgemm.config import MAX_THREADS
from fastsgemm.sim.clock import WARP
from fastsgemm.sim.errors import MisalignedError, RaceError, SharedAccessError, UnwrittenSharedError
from fastsgemm.sim.lanes import Array, Lanes, first_lane
from fastsgemm.sim.memory_barriers import MemoryBarriers
from fastsgemm.sim.ptx import Instruction
from fastsgemm.sim.traffic import BANK_BYTES, by_warp, wavefronts
from fastsgemm.sim.updates import update_in_turn

# Who accessed a unit: 0 for nobody, a thread's number + 1, or one of these.
_MANY = -1  # threads of several warps
_FIRST_WARP = -2  # minus w: threads of warp w, which a warp barrier has ordered for that warp
_FIRST_LANES = _FIRST_WARP - MAX_THREADS // WARP  # minus w: several threads of warp w, which nothing has ordered
RANK_SHIFT = 24  # bit at which an address in a cluster's shared memory has the rank of the block, plus 1
_MOST_LANES = 1 << 18  # of the patterns that are kept


@dataclass(frozen=True)
class Pattern:
    """What accesses have in common whose addresses differ by the same number of bytes in all lanes.

    A loop makes few of them. So everything that costs many operations is here, relative to the first address.
    """

    end: int  # of the last byte
    rows: Array  # in units of the access's size, with the place of the lane's block
    units: Array  # in units of the memory's grain, as (lanes, units of an access)
    me: Array  # what `_writer` and `_reader` call the lane itself, for each unit
    readers: Array  # for each unit: what they call all lanes of this access that have it
    alone: bool  # whether no two lanes access one unit
    loading: int  # wavefronts of a load
    storing: int


class Access(NamedTuple):
    """Where the lanes that execute access shared memory."""

    address: Array
    rows: Array
    units: Array
    pattern: Pattern


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
        self._quiet = np.zeros(units, np.bool_)  # known, and since the last barrier neither written nor copied to
        self._writer = np.zeros(units, np.int32)  # see `_MANY`
        self._reader = np.zeros(units, np.int32)
        self._updater: Array | None = None  # by atomics; made when there is one
        self._blocks = blocks
        # Since the last barrier of the cluster: written, and read by another block.
        self._fresh = np.zeros(units if cluster > 1 else 0, np.bool_)
        self._read_from_afar = np.zeros_like(self._fresh)
        self._patterns: dict[tuple[int, bytes, bytes | None], Pattern] = {}

    def access(self, lanes: Lanes, at: Instruction, address: Array, size: int) -> Access:
        """Return where the lanes that execute access `size` bytes each, having checked alignment and bounds."""
        step = max(size, BANK_BYTES)
        first = int(address[0]) // step * step
        relative = address - np.uint64(first)
        key = (size, relative.tobytes(), None if lanes.mask is None else lanes.mask.tobytes())
        pattern = self._patterns.get(key)
        if pattern is None:
            if len(self._patterns) * lanes.count > _MOST_LANES:
                self._patterns.clear()
            self._check(lanes, at, address, size)
            pattern = self._patterns[key] = self._pattern(lanes, address, first, size)
        elif first + pattern.end > self.size:
            self._check(lanes, at, address, size)
        return Access(address, pattern.rows + first // size, pattern.units + first // self.grain, pattern)

    def _pattern(self, lanes: Lanes, address: Array, first: int, size: int) -> Pattern:
        rows = (lanes.gather(lanes.row) * self.stride + address.astype(np.int64)) // size
        units = self._units(rows, size)
        me = np.repeat(lanes.gather(lanes.thread)[:, None] + 1, units.shape[1], axis=1)
        who = np.zeros(len(self._reader), np.int32)
        who[units] = me
        last = who[units]
        several = last != me
        if several.any():
            unit, joined = units[several], _joined(last[several], me[several])
            who[unit] = joined
            who[unit[joined == _MANY]] = _MANY
        table = by_warp(lanes, address)
        return Pattern(
            end=int(address.max()) + size - first,
            rows=rows - first // size,
            units=units - first // self.grain,
            me=me,
            readers=who[units],
            alone=not several.any(),
            loading=wavefronts(table, size, loading=True),
            storing=wavefronts(table, size, loading=False),
        )

    def load(self, lanes: Lanes, at: Instruction, access: Access, dtype: Any, count: int) -> Array:
        """Return `count` neighbouring elements for each access, as (count, lanes that execute)."""
        units, readers = access.units, access.pattern.readers
        if self._mbarriers or not self._quiet.take(units).all():
            self._check_in_flight(lanes, at, access)
            self._check_known(lanes, at, access.address, units)
            self._refuse_others(lanes, at, access, self._updater, "reads", "updated")
            self._refuse_others(lanes, at, access, self._writer, "reads", "wrote")
        before = self._reader.take(units)
        if (before != readers).any():
            self._reader[units] = _joined(before, readers) if before.any() else readers
        data: Array = self._bytes.view(dtype).reshape(-1, count)[access.rows]
        return data.T.copy()

    def store(self, lanes: Lanes, at: Instruction, access: Access, values: list[Array]) -> None:
        """Write neighbouring elements."""
        self._claim(lanes, at, access)
        self._known.put(access.units, True)
        view = self._bytes.view(values[0].dtype).reshape(-1, len(values))
        for j, value in enumerate(values):
            view[access.rows, j] = value

    def update(
        self, lanes: Lanes, at: Instruction, access: Access, values: Array, compute: Callable[[Array, Array], Array]
    ) -> Array:
        """Replace each element by a function of it and a value, atomically; return the old elements."""
        units = access.units
        self._check_in_flight(lanes, at, access)
        self._check_known(lanes, at, access.address, units)
        self._refuse_others(lanes, at, access, self._writer, "updates", "wrote")
        self._refuse_others(lanes, at, access, self._reader, "updates", "read")
        self._note_write(lanes, at, access)
        if self._updater is None:
            self._updater = np.zeros(len(self._writer), np.int32)
        several = _others(self._updater[units], access.pattern.me) | (access.pattern.readers != access.pattern.me)
        self._updater[units] = np.where(several, _MANY, access.pattern.me)
        self._quiet.put(units, False)
        return update_in_turn(self._bytes.view(values.dtype), access.rows, values, compute)

    def start_copy(self, lanes: Lanes, at: Instruction, access: Access) -> Array:
        """Mark the target of an asynchronous copy; return what `finish_copy` needs to know of it."""
        self._claim(lanes, at, access)
        self._in_flight.put(access.units, True)
        return access.rows

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
        where = slice(None) if blocks is None else blocks
        for kept in self._kept:
            kept.reshape(self._blocks, -1)[where] = 0
        quiet, known, flying = (each.reshape(self._blocks, -1) for each in (self._quiet, self._known, self._in_flight))
        quiet[where] = known[where] & ~flying[where]

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
        self._quiet[units] = ~self._in_flight[units]
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

    def _note_write(self, lanes: Lanes, at: Instruction, access: Access) -> None:
        """Record a write for the checks of the other blocks of the cluster."""
        if self._cluster == 1:
            return
        afar = self._read_from_afar[access.units]
        if afar.any():
            nth = first_lane(afar)
            what = f"writes shared memory at {access.address[nth]} that another block read"
            lanes.fail(RaceError, at, nth, f"{what} since the last barrier of the cluster")
        self._fresh[access.units] = True

    def warp_barrier(self, lanes: Lanes) -> None:
        """Order the accesses of the executing warps for their own threads."""
        executing: Array = np.logical_or.reduce(lanes.current_mask.reshape(self._blocks, -1, WARP), axis=2)
        for kept in self._kept:
            units = np.flatnonzero(kept)
            who = kept[units]
            unordered = (who > 0) | (who <= _FIRST_LANES)
            units, warp = units[unordered], _warp(who[unordered], 0)
            here = executing[units // (len(kept) // self._blocks), warp]
            kept[units[here]] = _FIRST_WARP - warp[here]

    @property
    def _kept(self) -> list[Array]:
        updater = [] if self._updater is None else [self._updater]
        return [self._writer, self._reader, *updater]

    def _check_known(self, lanes: Lanes, at: Instruction, address: Array, units: Array) -> None:
        known = self._known.take(units)
        if not known.all():
            nth = first_lane(~known)
            lanes.fail(UnwrittenSharedError, at, nth, f"reads shared memory at {address[nth]} that nobody wrote")

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

    def _claim(self, lanes: Lanes, at: Instruction, access: Access) -> None:
        """Check that a write races with no earlier access, and record the writer."""
        self._check_in_flight(lanes, at, access)
        self._refuse_others(lanes, at, access, self._updater, "writes", "updated")
        self._refuse_others(lanes, at, access, self._writer, "writes", "wrote")
        self._refuse_others(lanes, at, access, self._reader, "writes", "read")
        self._note_write(lanes, at, access)
        self._quiet.put(access.units, False)
        self._writer[access.units] = access.pattern.me
        if not access.pattern.alone:
            together = self._writer[access.units]
            self._refuse(lanes, at, access, together != access.pattern.me, together, "writes", "writes")

    def _check_in_flight(self, lanes: Lanes, at: Instruction, access: Access) -> None:
        """Check that no copy goes where the lanes access memory; the memory barriers note that they do."""
        flying = self._in_flight.take(access.units)
        if self._mbarriers:
            flying = flying | self._mbarriers.access(lanes, access.address)[:, None]
        if flying.any():
            nth = first_lane(flying)
            what = f"touches shared memory at {access.address[nth]} while an asynchronous copy to it is in flight"
            lanes.fail(RaceError, at, nth, what)

    def _refuse_others(
        self, lanes: Lanes, at: Instruction, access: Access, kept: Array | None, mine: str, theirs: str
    ) -> None:
        """Check that nobody else has made accesses of one kind since the last barrier."""
        if kept is not None and (who := kept.take(access.units)).any():
            self._refuse(lanes, at, access, _others(who, access.pattern.me), who, mine, theirs)

    def _refuse(
        self, lanes: Lanes, at: Instruction, access: Access, bad: Array, other: Array, mine: str, theirs: str
    ) -> None:
        if bad.any():
            nth = first_lane(bad)
            thread = int(other[nth][np.argmax(bad[nth])])
            who = f"thread {thread - 1}" if thread > 0 else "several threads"
            if _FIRST_LANES < thread <= _FIRST_WARP:
                who = f"warp {_FIRST_WARP - thread}"
            what = f"{mine} shared memory at {access.address[nth]} that {who} {theirs} since the last barrier"
            lanes.fail(RaceError, at, nth, what)


def _warp(who: Array, of_nobody: Array | int) -> Array:
    """Return the warp of those who accessed a unit, and -1 for several; `of_nobody` where there was no access."""
    of_lanes = np.where(who <= _FIRST_LANES, _FIRST_LANES, _FIRST_WARP) - who
    return np.where(who > 0, (who - 1) // WARP, np.where(who == 0, of_nobody, of_lanes))


def _others(who: Array, me: Array) -> Array:
    """Return where a unit was accessed by another thread and no barrier of the block or the warp came after."""
    others: Array = (who != 0) & (who != me) & (who != _FIRST_WARP - _warp(me, 0))
    return others


def _joined(before: Array, after: Array) -> Array:
    """Return who has accessed a unit after two accesses to it."""
    warp = _warp(after, 0)
    several = np.where(_warp(before, warp) == warp, _FIRST_LANES - warp, _MANY)
    return np.where(_others(before, after), several, after)
