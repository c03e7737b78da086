"""The products that a switch replaced, and those that it passed on to the library, with reasons and by size."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from fastsgemm import private_files
from fastsgemm.errors import RecordError

_MOST_SHOWN = 20  # sizes of a table
_MOST_BYTES = 16 * 1024 * 1024  # of a file of sizes
_WRITTEN = re.compile(r"# (\d+) products?, .*\n--size=(\S+)\n")  # a size of `Report.arguments`


class Line(Protocol):
    """Products with the same outcome, as each library's report describes them."""

    @property
    def reason(self) -> str:
        """Why they were passed on; empty if they were replaced."""

    @property
    def size(self) -> str:
        """The problem as commands take it; empty if it is none that fastsgemm could compute."""

    @property
    def count(self) -> int:
        """How many there were."""

    @property
    def flops(self) -> int:
        """Of all together."""


class OfSize(NamedTuple):
    """The products of one size.

    Attributes
    ----------
    size : str
        As ``fastsgemm explain``, ``prepare``, ``tune`` and ``bench`` take it.
    products : int
    share : float
        Of the FLOPs of all products that have a size, from 0 to 1.
    """

    size: str
    products: int
    share: float


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

    @property
    def sizes(self) -> tuple[OfSize, ...]:
        """The products by size, replaced or not, those with most FLOPs first."""
        totals: Totals[str] = Totals()
        for line in self.lines:
            if line.size:
                totals.add(line.size, line.count, line.flops)
        whole = sum(flops for _, flops in totals.values()) or 1
        ordered = sorted(totals.items(), key=lambda item: (-item[1][1], -item[1][0], item[0]))
        return tuple(OfSize(size, count, flops / whole) for size, (count, flops) in ordered)

    def table(self) -> str:
        """Return the largest sizes as a table, for people."""
        shown, rest = self.sizes[:_MOST_SHOWN], self.sizes[_MOST_SHOWN:]
        width = max((len(each.size) for each in shown), default=0)
        lines = [f"  {each.size:{width}}  {_of(each)}" for each in shown]
        if rest:
            lines.append(f"  and {number(len(rest), 'size')} more, {sum(each.share for each in rest):.1%} of FLOPs")
        return "\n".join(["by size:", *lines]) if lines else ""

    def arguments(self) -> str:
        """Return the sizes as a file of arguments for the commands: ``fastsgemm tune @FILE``."""
        return "".join(f"# {_of(each)}\n--size={each.size}\n" for each in self.sizes)


def read(path: Path) -> list[tuple[str, int]]:
    """Return the sizes in a file of `Report.arguments`, and the number of products of each.

    Raises
    ------
    RecordError
        The file cannot be read, or has a size without a number of products.
    """
    try:
        text = private_files.read(path, _MOST_BYTES, private=False).decode("utf-8")
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    sizes = _WRITTEN.findall(text)
    if (text and not sizes) or len(sizes) != text.count("--size"):  # a program without products writes nothing
        raise RecordError(
            f"{path} is no file of --sizes: in one, a line such as '# 3 products, 70.0% of FLOPs' stands above each "
            f"--size=M,N,K, here above {len(sizes)} of {text.count('--size')}"
        )
    return [(size, int(products)) for products, size in sizes]


def _of(each: OfSize) -> str:
    return f"{number(each.products, 'product')}, {each.share:.1%} of FLOPs"


class Totals(dict[K, tuple[int, int]]):
    """Numbers of products by key, and their FLOPs. Threads that add at the same time may lose one."""

    def add(self, key: K, count: int, flops: int) -> None:
        """Add products under a key, and their total FLOPs."""
        before_count, before_flops = self.get(key, (0, 0))
        self[key] = before_count + count, before_flops + flops


def number(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
