"""Who touched each unit of global memory last: what a race is found by.

For every unit it keeps the thread that wrote it, those that read it since, and how many asynchronous copies read it
at this moment. `fastsgemm.sim.clock` says which of these are in order for the thread that comes next.
"""

from __future__ import annotations

import numpy as np

from fastsgemm.sim import clock
from fastsgemm.sim.batch import Array, Batch
from fastsgemm.sim.errors import RaceError
from fastsgemm.sim.ptx import Instruction

_NOBODY = 0


class Accesses:
    """The last accesses to each unit of memory that a launch may write.

    Parameters
    ----------
    units : int
        Memory is taken from the system only for those that are touched.
    """

    def __init__(self, units: int) -> None:
        self._writer = np.zeros(units, np.int32)  # thread + 1
        self._written_at = np.zeros(units, np.int32)
        self._reader = np.zeros(units, np.int32)  # the last of the group
        self._read_at = np.zeros(units, np.int32)
        self._group = np.zeros(units, np.int8)  # how far apart the readers are, see `clock`
        self._copies = np.zeros(units, np.int32)

    @property
    def written(self) -> Array:
        """Whether each unit was ever written."""
        return np.asarray(self._writer != _NOBODY)

    def read(self, batch: Batch, at: Instruction, address: Array, units: Array) -> None:
        """Note that the lanes that execute read; `units` is (lanes, units of an access).

        Raises
        ------
        RaceError
            Another thread has written one of them, and no barrier has put that in order.
        """
        thread = batch.gather(batch.identity)[:, None]
        self._check(batch, at, address, thread, units, "reads", "wrote")
        self._note_read(batch, thread, units)

    def write(self, batch: Batch, at: Instruction, address: Array, units: Array) -> None:
        """Note that the lanes that execute write.

        Raises
        ------
        RaceError
            Another thread has touched one of them or writes it too, or an asynchronous copy reads it.
        """
        thread = batch.gather(batch.identity)[:, None]
        self._check(batch, at, address, thread, units, "writes", "wrote")
        self._check(batch, at, address, thread, units, "writes", "read")
        copied = self._copies[units] > 0
        if copied.any():
            nth = _first(copied)
            what = f"writes {_at(batch, address, nth)} while an asynchronous copy from it is in flight"
            batch.fail(RaceError, at, nth, what)
        self._writer[units] = thread + 1
        together = self._writer[units] - 1
        if (together != thread).any():
            nth = _first(together != thread)
            other = int(together[nth][np.argmax(together[nth] != thread[nth])])
            what = f"writes {_at(batch, address, nth)} that {batch.name_of_thread(other)} writes at the same time"
            batch.fail(RaceError, at, nth, what)
        self._written_at[units] = batch.clock.now(thread)

    def start_copy(self, units: Array) -> None:
        """Note that asynchronous copies read these units until `finish_copy`."""
        np.add.at(self._copies, units, 1)

    def finish_copy(self, batch: Batch, thread: Array, units: Array) -> None:
        """Note that copies have read these units on behalf of their threads, one for each unit."""
        np.subtract.at(self._copies, units, 1)
        self._note_read(batch, thread, units)

    def _note_read(self, batch: Batch, thread: Array, units: Array) -> None:
        before = self._reader[units] - 1
        unordered = self._unordered(batch, before, self._read_at[units], self._group[units], thread)
        group = np.where(unordered, np.maximum(self._group[units], clock.distance(before, thread, batch.width)), 0)
        self._reader[units] = thread + 1
        group = np.maximum(group, clock.distance(self._reader[units] - 1, thread, batch.width))
        self._read_at[units] = batch.clock.now(thread)
        self._group[units] = clock.THREAD
        several = group > clock.THREAD
        np.maximum.at(self._group, units[several], group[several])

    def _check(
        self, batch: Batch, at: Instruction, address: Array, thread: Array, units: Array, mine: str, theirs: str
    ) -> None:
        if theirs == "wrote":
            other, when, group = self._writer[units] - 1, self._written_at[units], np.zeros(1, np.int8)
        else:
            other, when, group = self._reader[units] - 1, self._read_at[units], self._group[units]
        bad = self._unordered(batch, other, when, group, thread)
        if bad.any():
            nth = _first(bad)
            which = int(np.argmax(bad[nth]))
            who = batch.name_of_thread(int(other[nth, which]))
            if np.broadcast_to(group, bad.shape)[nth, which] > clock.THREAD:
                who += " and others"
            what = f"{mine} {_at(batch, address, nth)} that {who} {theirs} with no barrier between them"
            batch.fail(RaceError, at, nth, what)

    @staticmethod
    def _unordered(batch: Batch, other: Array, when: Array, group: Array, thread: Array) -> Array:
        """Return where somebody made an earlier access that is not in order for `thread`."""
        suspect = (other + 1 != _NOBODY) & ((other != thread) | (group > clock.THREAD))
        if suspect.any():
            chosen = [np.broadcast_to(x, suspect.shape)[suspect] for x in (other, when, group, thread)]
            suspect[suspect] = ~batch.clock.ordered(*chosen)
        return np.asarray(suspect)


def _first(bad: Array) -> int:
    """Return the first lane with an entry of `bad` set."""
    return int(np.flatnonzero(bad.any(axis=1))[0])


def _at(batch: Batch, address: Array, nth: int) -> str:
    return f"global memory at {batch.memory.describe(int(address[nth]))}"
