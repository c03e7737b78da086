"""Locks that make threads do the same work once, in which a finaliser may need the same work."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

_this_thread = threading.local()


class Locks:
    """Some locks, shared out by key.

    Python may run a finaliser at any step of the work that is done under a lock, and a finaliser may multiply. So a
    thread that holds any of these locks waits for no other one: at worst it does work a second time.
    """

    def __init__(self, count: int) -> None:
        self._locks = tuple(threading.Lock() for _ in range(count))

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of a key."""
        if getattr(_this_thread, "holds", False):
            yield
            return
        with self._locks[hash(key) % len(self._locks)]:
            _this_thread.holds = True
            try:
                yield
            finally:
                _this_thread.holds = False
