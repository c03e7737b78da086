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


class _Updates:
    """The last atomics on each unit: the last thread, its time, and how far apart the threads are."""

    def __init__(self, units: int) -> None:
        self.who = np.zeros(units, np.int32)  # thread + 1
        self.when = np.zeros(units, np.int32)
        self.group = np.zeros(units, np.int8)

    def note(self, lanes: Lanes, thread: Array, units: Array) -> None:
        before = self.who[units]
        group = np.where(before == _NOBODY, 0, np.maximum(self.group[units], lanes.clock.distance(before - 1, thread)))
        self.who[units] = thread + 1
        group = np.maximum(group, lanes.clock.distance(self.who[units] - 1, thread))
        self.when[units] = lanes.clock.now(thread)
        np.maximum.at(self.group, units, group.astype(np.int8))


class Accesses:
    """The last accesses to each unit of memory that a launch may write.

    Parameters
    ----------
    units : int
        The system provides memory only for those that are accessed.
    describe : callable
        Returns an address in words, for messages.
    """

    def __init__(self, units: int, describe: Callable[[int], str]) -> None:
        self._describe = describe
        self._writer = np.zeros(units, np.int32)  # thread + 1
        self._written_at = np.zeros(units, np.int32)
        self._reader = np.zeros(units, np.int32)  # the last of the group
        self._read_at = np.zeros(units, np.int32)
        self._group = np.zeros(units, np.int8)  # how far apart the readers are, see `clock`
        self._copies = np.zeros(units, np.int32)
        self._updates: _Updates | None = None  # made at the first atomic

    @property
    def written(self) -> Array:
        """Whether each unit was ever written."""
        written = self._writer != _NOBODY
        return np.asarray(written if self._updates is None else written | (self._updates.who != _NOBODY))

    def update(self, lanes: Lanes, at: Instruction, address: Array, units: Array) -> None:
        """Note that the lanes that execute update atomically.

        Raises
        ------
        RaceError
            Another thread has read or written one of the units by a plain access, and no barrier orders the two.
        """
        thread = lanes.gather(lanes.identity)[:, None]
        self._refuse(
            lanes, at, address, self._met_writer(lanes, thread, units), self._writer[units], "updates", "wrote"
        )
        reader, group = self._reader[units], self._group[units]
        read = self._unordered(lanes, reader, self._read_at[units], group, thread)
        self._refuse(lanes, at, address, read, reader, "updates", "read", group)
        if self._updates is None:
            self._updates = _Updates(len(self._writer))
        self._updates.note(lanes, thread, units)

    def _check_updates(
        self, lanes: Lanes, at: Instruction, address: Array, thread: Array, units: Array, mine: str
    ) -> None:
        if self._updates is not None:
            who, when, group = (kept[units] for kept in (self._updates.who, self._updates.when, self._updates.group))
            unordered = self._unordered(lanes, who, when, group, thread)
            self._refuse(lanes, at, address, unordered, who, mine, "updated", group)

    def read(self, lanes: Lanes, at: Instruction, address: Array, units: Array) -> None:
        """Note that the lanes that execute read; `units` is (lanes, units of an access).

        Raises
        ------
        RaceError
            Another thread has written one of them, and no barrier orders the two.
        """
        thread = lanes.gather(lanes.identity)[:, None]
        self._refuse(lanes, at, address, self._met_writer(lanes, thread, units), self._writer[units], "reads", "wrote")
        self._check_updates(lanes, at, address, thread, units, "reads")
        self._note_read(lanes, thread, units)

    def write(self, lanes: Lanes, at: Instruction, address: Array, units: Array, holds: Callable[[], Array]) -> None:
        """Note that the lanes that execute are about to write; `holds` says which units have that value already.

        Raises
        ------
        RaceError
            Another thread has read one of them, or written another value; or an asynchronous copy reads it.
        """
        thread = lanes.gather(lanes.identity)[:, None]
        self._check_updates(lanes, at, address, thread, units, "writes")
        written = self._met_writer(lanes, thread, units)
        if written.any():
            self._refuse(lanes, at, address, written & ~holds(), self._writer[units], "writes", "wrote")
        copied = self._copies[units] > 0
        if copied.any():
            nth = first_lane(copied)
            what = f"writes {self._at(address, nth)} while an asynchronous copy from it is in flight"
            lanes.fail(RaceError, at, nth, what)
        reader, group = self._reader[units], self._group[units]
        read = self._unordered(lanes, reader, self._read_at[units], group, thread)
        self._refuse(lanes, at, address, read, reader, "writes", "read", group)
        self._writer[units] = thread + 1
        self._written_at[units] = lanes.clock.now(thread)

    def check_written(
        self, lanes: Lanes, at: Instruction, address: Array, units: Array, holds: Callable[[], Array]
    ) -> None:
        """Check that what the lanes that execute have written is still there.

        Raises
        ------
        RaceError
            Two of them have written different values.
        """
        other = self._writer[units]
        lost = other != lanes.gather(lanes.identity)[:, None] + 1
        if lost.any():
            self._refuse(lanes, at, address, lost & ~holds(), other, "writes", "writes")

    def start_copy(self, units: Array) -> None:
        """Note that asynchronous copies read these units until `finish_copy`."""
        np.add.at(self._copies, units, 1)

    def finish_copy(self, lanes: Lanes, thread: Array, units: Array) -> None:
        """Record that copies have read these units, each for its thread."""
        np.subtract.at(self._copies, units, 1)
        self._note_read(lanes, thread, units)

    def _note_read(self, lanes: Lanes, thread: Array, units: Array) -> None:
        before = self._reader[units]
        unordered = self._unordered(lanes, before, self._read_at[units], self._group[units], thread)
        group = np.maximum(self._group[units], lanes.clock.distance(before - 1, thread))
        group = np.where(unordered, group, clock.THREAD)
        self._reader[units] = thread + 1
        group = np.maximum(group, lanes.clock.distance(self._reader[units] - 1, thread))
        self._read_at[units] = lanes.clock.now(thread)
        self._group[units] = clock.THREAD
        several = group > clock.THREAD
        np.maximum.at(self._group, units[several], group[several])

    def _met_writer(self, lanes: Lanes, thread: Array, units: Array) -> Array:
        """Return where another thread's write is not ordered before an access by `thread`."""
        return self._unordered(lanes, self._writer[units], self._written_at[units], np.zeros(1, np.int8), thread)

    @staticmethod
    def _unordered(lanes: Lanes, who: Array, when: Array, group: Array, thread: Array) -> Array:
        """Return where an earlier access by thread `who` - 1 is not ordered before an access by `thread`."""
        suspect = (who != _NOBODY) & ((who != thread + 1) | (group > clock.THREAD))
        if suspect.any():
            chosen = [np.broadcast_to(x, suspect.shape)[suspect] for x in (who - 1, when, group, thread)]
            suspect[suspect] = ~lanes.clock.ordered(*chosen)
        return np.asarray(suspect)

    def _refuse(
        self,
        lanes: Lanes,
        at: Instruction,
        address: Array,
        bad: Array,
        who: Array,
        mine: str,
        theirs: str,
        group: Array | None = None,
    ) -> None:
        if not bad.any():
            return
        nth = first_lane(bad)
        which = int(np.argmax(bad[nth]))
        other = lanes.name_of_thread(int(who[nth, which]) - 1)
        if group is not None and group[nth, which] > clock.THREAD:
            other += " and others"
        what = f"{mine} {self._at(address, nth)} that {other} {theirs} with no barrier between them"
        lanes.fail(RaceError, at, nth, what)

    def _at(self, address: Array, nth: int) -> str:
        return f"global memory at {self._describe(int(address[nth]))}"
