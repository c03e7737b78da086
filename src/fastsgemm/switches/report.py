"""What a switch replaced, and what it passed on to the library's own products and why."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Line(Protocol):
    """Products that had the same end, as each library's report describes them."""

    @property
    def reason(self) -> str:
        """Why they were passed on; empty if they were replaced."""


L = TypeVar("L", bound=Line)
K = TypeVar("K", bound=Hashable)


class Report(Generic[L]):
    """What a switch has done since it was turned on."""

    def __init__(self, lines: list[L]) -> None:
        self.lines = tuple(lines)

    @property
    def replaced(self) -> tuple[L, ...]:
        """What fastsgemm computes."""
        return tuple(line for line in self.lines if not line.reason)

    @property
    def passed_on(self) -> tuple[L, ...]:
        """What the library's own products compute."""
        return tuple(line for line in self.lines if line.reason)


class Totals(dict[K, tuple[int, int]]):
    """How many products of each kind there were, and their FLOPs. Threads that add at the same time may lose one."""

    def add(self, kind: K, count: int, flops: int) -> None:
        """Add products of one kind, and their FLOPs together."""
        before_count, before_flops = self.get(kind, (0, 0))
        self[kind] = before_count + count, before_flops + flops


def number(count: int, what: str) -> str:
    """Return a number of things."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
