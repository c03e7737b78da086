"""Locks that make threads do work once, safe against finalisers that need the same work."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

_this_thread = threading.local()


class Locks:
    """Some locks, assigned to keys by hash.

    Python may run a finaliser at any point while a lock is held, and a finaliser may multiply. So a thread that holds
    any of these locks waits for no other: at worst it does work twice.
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
