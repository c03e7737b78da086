"""How a matrix lies in memory: pure arithmetic on shapes and strides, both counted in elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import gcd
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from fastsgemm.config import VECTOR
from fastsgemm.problem import DType

ITEM = 4  # bytes of a float32
MOST_OVERLAP_WORK = 10_000  # steps of the search for a shared element; a step takes up to about 2 us

Pair = tuple[int, int]
Extents = tuple[int, ...]


class Strided(Protocol):
    """What has a shape and strides: an array, its `Meta`, or a `fastsgemm.geometry.matrix.Matrix`."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def strides(self) -> Sequence[int]: ...


class Meta(Struct, frozen=True, gc=False):
    """An array of a caller but for its address. With the alignment of that, it determines how a product is launched."""

    shape: Any
    strides: Any  # in elements
    dtype: DType = DType.F32
    device: int = 0  # CUDA's number of it
    # Why the array cannot be used: what makes the error, of the operand's name.
    fault: Callable[[str], Exception] | None = None
    readonly: bool = False


class LeadingDimension(Struct, frozen=True):
    """A matrix as the kernels address it: one stride is 1, the other is `ld`."""

    trans: bool  # False: row-major, element (i, j) at i * ld + j. True: column-major, at j * ld + i
    ld: int  # the leading dimension; unlike in BLAS it may be smaller than a line, zero or negative, because a view may


def stored(shape: Pair, strides: Pair) -> LeadingDimension | None:
    """Return how the kernels can read this matrix, or None if neither stride is 1."""
    (rows, columns), (down, right) = shape, strides
    if columns <= 1 and rows <= 1:
        return LeadingDimension(False, 0)
    if rows <= 1:
        return LeadingDimension(False, 0) if right == 1 else LeadingDimension(True, right)
    if columns <= 1:
        return LeadingDimension(True, 0) if down == 1 else LeadingDimension(False, down)
    if right == 1:
        return LeadingDimension(False, down)
    return LeadingDimension(True, right) if down == 1 else None


def is_transpose(one: Strided, other: Strided) -> bool:
    """Return whether matrices, or batches of them, are others transposed if both begin at the same address."""
    shape, strides = one.shape, one.strides
    dimensions = len(shape)
    if not dimensions == len(strides) == len(other.shape) == len(other.strides) > 1:
        return False
    turned = (*range(dimensions - 2), dimensions - 1, dimensions - 2)
    return all(
        shape[d] == other.shape[t] and (shape[d] == 1 or strides[d] == other.strides[t]) for d, t in enumerate(turned)
    )


def row_major(shape: Sequence[int], size: int = 1) -> tuple[int, ...]:
    """Return the strides of an array in row-major order, of items that are `size` elements each."""
    strides = []
    for extent in reversed(shape):
        strides.append(size)
        size *= extent
    return tuple(reversed(strides))


def line_vector(ld: int, misalignment: int, item: int = ITEM) -> int:
    """Return how many elements of a line can be accessed together: 4 or 1. Its ragged end is the kernel's matter.

    Elements have `item` bytes. The misalignment is the address of the first one modulo 16, in bytes.
    """
    return 4 if misalignment % (4 * item) == 0 and ld % 4 == 0 else 1


def vector_width(ld: int, line: int, misalignment: int, item: int = ITEM) -> int:
    """Return the widest load, in elements, that divides every line of a matrix into whole, aligned loads: 4, 2 or 1.

    A line has `line` elements of `item` bytes. The misalignment is the address of element (0, 0) modulo 16, in bytes.
    """
    return max(1, gcd(item * VECTOR, item * ld, item * line, misalignment) // item)


def byte_range(shape: Extents, strides: Extents, item: int = ITEM) -> Pair:
    """Return the first and the one-past-last byte of an array, relative to its first element."""
    if 0 in shape:
        return (0, 0)
    low = high = 0
    for extent, stride in zip(shape, strides, strict=True):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    return (item * low, item * (high + 1))


def overlaps_itself(shape: Extents, strides: Extents) -> bool | None:
    """Whether two elements of an array are the same memory, or None if the search for them gives up."""
    sizes = [(extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1]
    if 0 in shape:
        return False
    if any(stride == 0 for _, stride in sizes):
        return True
    reach = 0  # of the dimensions with smaller strides
    for extent, stride in sorted(sizes, key=lambda pair: abs(pair[1])):
        if abs(stride) <= reach:
            break
        reach += (extent - 1) * abs(stride)
    else:
        return False
    shape, strides = zip(*sizes, strict=True)
    if len(sizes) == 2:
        return _matrix_overlaps_itself(shape, strides)
    answers = [_slices_overlap(d, shape, strides) for d in range(len(sizes))]
    return True if True in answers else None if None in answers else False


def _slices_overlap(d: int, shape: Extents, strides: Extents) -> bool | None:
    """Whether an element with index 0 in dimension `d` is the same memory as one with another index there.

    Whether two elements coincide depends on the differences of their indices alone, so such a pair exists for some `d`
    if any two elements coincide.
    """
    first, others = list(shape), list(shape)
    first[d], others[d] = 1, shape[d] - 1
    return overlap(ITEM * strides[d], tuple(first), strides, tuple(others), strides)


def _matrix_overlaps_itself(shape: Extents, strides: Extents) -> bool:
    """Whether two elements of a matrix, of no extent 0 or 1 and no stride 0, are the same memory.

    Elements (i, j) and (i + p, j - q) coincide where p * down == q * right; the smallest solution has
    p = right / g and q = down / g, so it is enough to see whether that one fits in the matrix.
    """
    (rows, columns), (down, right) = shape, strides
    divisor = gcd(down, right)
    return abs(right) // divisor < rows and abs(down) // divisor < columns


class _Ghost:
    """An object that NumPy takes for an array at any address; its memory is never touched."""

    def __init__(self, address: int, shape: Extents, strides: Extents, item: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{item}",
            "data": (address, True),
            "shape": shape,
            "strides": tuple(item * stride for stride in strides),
        }


@lru_cache(maxsize=1024)
def overlap(
    distance: int,
    shape: Extents,
    strides: Extents,
    other_shape: Extents,
    other_strides: Extents,
    items: Pair = (ITEM, ITEM),
) -> bool | None:
    """Whether two arrays share an element; see `shares_memory`.

    The first element of the second array lies `distance` bytes after that of the first. Their elements have `items`
    bytes.
    """
    base = 1 << 46  # any address that is large enough for the second matrix to have one too
    try:
        one = np.asarray(_Ghost(base, *_once(shape, strides), items[0]))
        two = np.asarray(_Ghost(base + distance, *_once(other_shape, other_strides), items[1]))
    except (OverflowError, ValueError):  # more bytes than NumPy counts
        return None
    return shares_memory(one, two)


def _once(shape: Extents, strides: Extents) -> tuple[Extents, Extents]:
    """Return shape and strides with one element along each stride of 0, which only repeats the same memory."""
    once = (min(extent, 1) if stride == 0 else extent for extent, stride in zip(shape, strides, strict=True))
    return tuple(once), strides


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


def same_elements(one: Strided, other: Strided) -> bool:
    """Whether two arrays that begin at one address have the same elements.

    A stride along an extent of 1 says nothing.
    """
    return tuple(one.shape) == tuple(other.shape) and all(
        extent == 1 or step == other_step
        for extent, step, other_step in zip(one.shape, one.strides, other.strides, strict=True)
    )
