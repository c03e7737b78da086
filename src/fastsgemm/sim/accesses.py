"""The last accesses to each unit of global memory, which show races.

For every unit it stores the thread that wrote it last, the threads that have read it since, the threads that updated
it atomically, and the number of asynchronous copies that are reading it. `fastsgemm.sim.clock` says which of these
accesses are ordered before the next one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fastsgemm.sim import clock
from fastsgemm.sim.errors import RaceError
from fastsgemm.sim.lanes import Array, Lanes, first_lane
from fastsgemm.sim.ptx import Instruction

_NOBODY = 0


class _Last:
    """The last accesses of one kind to each unit: those by one thread, or by several that nothing has ordered."""

    def __init__(self, units: int) -> None:
        # The system provides memory only for those that are accessed.
        self.who = np.zeros(units, np.int32)  # the thread of the last one plus 1, or `_NOBODY`
        self.when = np.zeros(units, np.int32)  # its time
        self.group = np.zeros(units, np.int8)  # how far apart the threads are; see `clock`

    def unordered(self, lanes: Lanes, thread: Array, units: Array) -> Array:
        """Return where they are not ordered before an access by `thread`."""
        who = self.who[units]
        suspect = (who != _NOBODY) & ((who != thread + 1) | (self.group[units] > clock.THREAD))
        if suspect.any():
            chosen = units[suspect]
            now = np.broadcast_to(thread, suspect.shape)[suspect]
            suspect[suspect] = ~lanes.clock.ordered(who[suspect] - 1, self.when[chosen], self.group[chosen], now)
        return np.asarray(suspect)

    def note(self, lanes: Lanes, thread: Array, units: Array) -> None:
        """Add accesses by `thread`, and forget those that are ordered before them."""
        group = np.maximum(self.group[units], lanes.clock.distance(self.who[units] - 1, thread))
        group = np.where(self.unordered(lanes, thread, units), group, clock.THREAD)
        self.who[units] = thread + 1
        group = np.maximum(group, lanes.clock.distance(self.who[units] - 1, thread))
        self.when[units] = lanes.clock.now(thread)
        self.group[units] = clock.THREAD
        several = group > clock.THREAD
        np.maximum.at(self.group, units[several], group[several])


class Accesses:
    """The last accesses to each unit of memory that a launch may write."""

    def __init__(self, units: int, describe: Callable[[int], str]) -> None:
        self._describe = describe  # an address in words, for messages
        self._writes = _Last(units)  # each by one thread, or by several that wrote the same value
        self._reads = _Last(units)
        self._updates: _Last | None = None  # by atomics; made at the first
        self._copies = np.zeros(units, np.int32)

    @property
    def written(self) -> Array:
        """Whether each unit was ever written."""
        written = self._writes.who != _NOBODY
        return np.asarray(written if self._updates is None else written | (self._updates.who != _NOBODY))

    def update(self, lanes: Lanes, at: Instruction, address: Array, units: Array) -> None:
        """Note that the lanes that execute update atomically.

        Raises
        ------
        RaceError
            Another thread has read or written one of the units by a plain access, and no barrier orders the two.
        """
        thread = lanes.gather(lanes.identity)[:, None]
        self._check(lanes, at, address, units, self._writes, "updates", "wrote")
        self._check(lanes, at, address, units, self._reads, "updates", "read")
        if self._updates is None:
            self._updates = _Last(len(self._copies))
        self._updates.note(lanes, thread, units)

    def read(self, lanes: Lanes, at: Instruction, address: Array, units: Array) -> None:
        """Note that the lanes that execute read; `units` is (lanes, units of an access).

        Raises
        ------
        RaceError
            Another thread has written one of them, and no barrier orders the two.
        """
        self._check(lanes, at, address, units, self._writes, "reads", "wrote")
        self._check(lanes, at, address, units, self._updates, "reads", "updated")
        self._reads.note(lanes, lanes.gather(lanes.identity)[:, None], units)

    def write(self, lanes: Lanes, at: Instruction, address: Array, units: Array, holds: Callable[[], Array]) -> None:
        """Note that the lanes that execute are about to write; `holds` says which units have that value already.

        Raises
        ------
        RaceError
            Another thread has read one of them, or written another value; or an asynchronous copy reads it.
        """
        thread = lanes.gather(lanes.identity)[:, None]
        self._check(lanes, at, address, units, self._updates, "writes", "updated")
        written = self._writes.unordered(lanes, thread, units)
        if written.any():
            self._refuse(lanes, at, address, units, written & ~holds(), self._writes, "writes", "wrote")
        copied = self._copies[units] > 0
        if copied.any():
            nth = first_lane(copied)
            what = f"writes {self._at(address, nth)} while an asynchronous copy from it is in flight"
            lanes.fail(RaceError, at, nth, what)
        self._check(lanes, at, address, units, self._reads, "writes", "read")
        self._writes.who[units] = thread + 1
        self._writes.when[units] = lanes.clock.now(thread)

    def check_written(
        self, lanes: Lanes, at: Instruction, address: Array, units: Array, holds: Callable[[], Array]
    ) -> None:
        """Check that what the lanes that execute have written is still there.

        Raises
        ------
        RaceError
            Two of them have written different values.
        """
        lost = self._writes.who[units] != lanes.gather(lanes.identity)[:, None] + 1
        if lost.any():
            self._refuse(lanes, at, address, units, lost & ~holds(), self._writes, "writes", "writes")

    def start_copy(self, units: Array) -> None:
        """Note that asynchronous copies read these units until `finish_copy`."""
        np.add.at(self._copies, units, 1)

    def finish_copy(self, lanes: Lanes, thread: Array, units: Array) -> None:
        """Record that copies have read these units, each for its thread."""
        np.subtract.at(self._copies, units, 1)
        self._reads.note(lanes, thread, units)

    def _check(
        self, lanes: Lanes, at: Instruction, address: Array, units: Array, last: _Last | None, mine: str, theirs: str
    ) -> None:
        """Check that earlier accesses are ordered before those of the lanes that execute."""
        if last is not None:
            unordered = last.unordered(lanes, lanes.gather(lanes.identity)[:, None], units)
            self._refuse(lanes, at, address, units, unordered, last, mine, theirs)

    def _refuse(
        self,
        lanes: Lanes,
        at: Instruction,
        address: Array,
        units: Array,
        bad: Array,
        last: _Last,
        mine: str,
        theirs: str,
    ) -> None:
        if not bad.any():
            return
        nth = first_lane(bad)
        unit = units[nth, int(np.argmax(bad[nth]))]
        other = lanes.name_of_thread(int(last.who[unit]) - 1)
        if last.group[unit] > clock.THREAD:
            other += " and others"
        what = f"{mine} {self._at(address, nth)} that {other} {theirs} with no barrier between them"
        lanes.fail(RaceError, at, nth, what)

    def _at(self, address: Array, nth: int) -> str:
        return f"global memory at {self._describe(int(address[nth]))}"
