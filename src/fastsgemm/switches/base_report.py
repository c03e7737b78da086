"""The products that a switch replaced, and those that it passed on to the library, with reasons."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Line(Protocol):
    """Products with the same outcome, as each library's report describes them."""

    @property
    def reason(self) -> str:
        """Why they were passed on; empty if they were replaced."""


L = TypeVar("L", bound=Line)
K = TypeVar("K", bound=Hashable)


class Report(Generic[L]):
    """The products that a switch has seen since it was turned on."""

    def __init__(self, lines: list[L]) -> None:
        self.lines = tuple(lines)

    @property
    def replaced(self) -> tuple[L, ...]:
        """Lines of products that fastsgemm computes."""
        return tuple(line for line in self.lines if not line.reason)

    @property
    def passed_on(self) -> tuple[L, ...]:
        """Lines of products that the library computes."""
        return tuple(line for line in self.lines if line.reason)


class Totals(dict[K, tuple[int, int]]):
    """Numbers of products by key, and their FLOPs. Threads that add at the same time may lose one."""

    def add(self, key: K, count: int, flops: int) -> None:
        """Add products under a key, and their total FLOPs."""
        before_count, before_flops = self.get(key, (0, 0))
        self[key] = before_count + count, before_flops + flops


def number(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
