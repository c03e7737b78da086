"""How a matrix lies in memory: pure arithmetic on shapes and strides, both counted in elements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np

from fastsgemm.config import WIDTHS

ITEM = 4  # bytes of a float32
MOST_OVERLAP_WORK = 10_000  # steps of the search for a shared element; a step takes up to about 2 us

Pair = tuple[int, int]


@dataclass(frozen=True)
class Stored:
    """A matrix as the kernels address it: one stride is 1, the other is `ld`.

    Attributes
    ----------
    trans : bool
        False: row-major, element (i, j) at i * ld + j. True: column-major, at j * ld + i.
    ld : int
        The leading dimension. Unlike in BLAS it may be smaller than a line, zero or negative, because a view may.
    """

    trans: bool
    ld: int


def stored(shape: Pair, strides: Pair) -> Stored | None:
    """Return how the kernels can read this matrix, or None if neither stride is 1."""
    (rows, columns), (down, right) = shape, strides
    if columns <= 1 and rows <= 1:
        return Stored(False, 0)
    if rows <= 1:
        return Stored(False, 0) if right == 1 else Stored(True, right)
    if columns <= 1:
        return Stored(True, 0) if down == 1 else Stored(False, down)
    if right == 1:
        return Stored(False, down)
    return Stored(True, right) if down == 1 else None


def vector_width(ld: int, line: int, misalignment: int) -> int:
    """Return the widest load, in floats, that divides every line of a matrix into whole, aligned loads: 4, 2 or 1.

    Parameters
    ----------
    ld : int
    line : int
        Elements of a line.
    misalignment : int
        The address of element (0, 0) modulo 16, in bytes.
    """
    whole = (width for width in WIDTHS if not (misalignment % (ITEM * width) or ld % width or line % width))
    return max(whole, default=1)


def byte_range(shape: Pair, strides: Pair) -> Pair:
    """Return the first and the one-past-last byte of the matrix, relative to its element (0, 0)."""
    if 0 in shape:
        return (0, 0)
    ends = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    low = sum(min(0, end) for end in ends)
    high = sum(max(0, end) for end in ends)
    return (ITEM * low, ITEM * (high + 1))


def overlaps_itself(shape: Pair, strides: Pair) -> bool:
    """Whether two elements of the matrix are the same memory.

    Elements (i, j) and (i + p, j - q) coincide where p * down == q * right; the smallest solution has
    p = right / g and q = down / g, so it is enough to see whether that one fits in the matrix.
    """
    (rows, columns), (down, right) = shape, strides
    if (rows > 1 and down == 0) or (columns > 1 and right == 0):
        return 0 not in shape
    if rows <= 1 or columns <= 1:
        return False
    divisor = gcd(down, right)
    return abs(right) // divisor < rows and abs(down) // divisor < columns


class _Ghost:
    """An object that NumPy takes for an array at any address; its memory is never touched."""

    def __init__(self, address: int, shape: Pair, strides: Pair) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|V4",
            "data": (address, True),
            "shape": shape,
            "strides": tuple(ITEM * stride for stride in strides),
        }


@lru_cache(maxsize=1024)
def overlap(distance: int, shape: Pair, strides: Pair, other_shape: Pair, other_strides: Pair) -> bool | None:
    """Whether two matrices share an element; see `shares_memory`.

    Parameters
    ----------
    distance : int
        Bytes from element (0, 0) of the first matrix to that of the second.
    """
    base = 1 << 46  # any address that is large enough for the second matrix to have one too
    try:
        one = np.asarray(_Ghost(base, *_once(shape, strides)))
        two = np.asarray(_Ghost(base + distance, *_once(other_shape, other_strides)))
    except (OverflowError, ValueError):  # more bytes than NumPy counts
        return None
    return shares_memory(one, two)


def _once(shape: Pair, strides: Pair) -> tuple[Pair, Pair]:
    """Return shape and strides with one element along each stride of 0, which only repeats the same memory."""
    rows, columns = (min(extent, 1) if stride == 0 else extent for extent, stride in zip(shape, strides, strict=True))
    return (rows, columns), strides


def shares_memory(one: np.ndarray, two: np.ndarray) -> bool | None:
    """Whether two arrays share an element, or None if the search for one gives up.

    The answer is exact: interleaved views of one buffer do not overlap. NumPy searches for a solution of a bounded
    linear Diophantine equation in the four indices (see `numpy.shares_memory`). That takes microseconds if the strides
    are multiples of each other. Otherwise the search gives up after `MOST_OVERLAP_WORK` steps.
    """
    try:
        return bool(np.shares_memory(one, two, max_work=MOST_OVERLAP_WORK))  # type: ignore[arg-type]  # NumPy's stub knows two values
    except (np.exceptions.TooHardError, OverflowError):
        return None
