"""Float32 arithmetic with the bits of the device: one rounding, subnormals kept, one NaN.

Every function takes and returns float32 arrays. NumPy rounds +, - and * to nearest even as the device does; only
the fused multiply-add and the NaN that comes out need care.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Pairs = NDArray[np.uint64]  # of floats, the first one in the low bits

NAN = np.uint32(0x7FFFFFFF)  # what an operation of the device gives for every NaN
_LOW = np.uint64(0x1FFFFFFF)  # bits of a double's mantissa beyond those of a float
_HALF = np.uint64(0x10000000)  # those bits exactly between two normal floats
_TINY = 2.0**-125  # below, floats are or may round to subnormals, and lie on a coarser grid
_ONE = np.uint64(1)


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """Return a * b + c rounded once.

    The product is exact in float64. The sum is rounded to float64 and again to float32, which differs from one
    rounding only where the float64 lies exactly between two floats: those few are done again with `_to_odd`.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    bits = total.view(np.uint64)
    doubtful = (bits & _LOW) == _HALF
    tiny = np.abs(total) < _TINY
    if np.count_nonzero(tiny):
        doubtful |= tiny & (total != 0.0)
    if np.count_nonzero(doubtful):
        where = np.nonzero(np.broadcast_to(doubtful, total.shape))
        addend = np.broadcast_to(c, total.shape)[where].astype(np.float64)
        total[where] = _to_odd(product[where] if product.shape == total.shape else product, addend, total[where])
    return canonical(total.astype(np.float32))


def fma_of_pairs(a: Pairs, b: Pairs, c: Pairs) -> Pairs:
    """Return a * b + c for both floats of each register of 64 bits."""
    floats = [np.ascontiguousarray(x).view(np.float32) for x in np.broadcast_arrays(a, b, c)]
    return fma(*floats).view(np.uint64)


def _to_odd(a: NDArray[Any], b: NDArray[Any], total: NDArray[Any]) -> NDArray[Any]:
    """Return a + b rounded to odd: truncated, with the last bit set where the sum is inexact.

    A number rounded to odd with more than one spare bit rounds on to the same float as the exact sum.
    """
    part = total - a  # TwoSum: total + error == a + b exactly
    error = (a - (total - part)) + (b - part)
    even = (total.view(np.uint64) & _ONE) == 0
    step = np.where((error > 0.0) == (total > 0.0), 1, -1)
    moved = (total.view(np.int64) + step).view(np.float64)
    return np.where((error != 0.0) & even & np.isfinite(total), moved, total)


def mul(a: Floats, b: Floats) -> Floats:
    """Return a * b rounded once."""
    return canonical(a * b)


def add(a: Floats, b: Floats) -> Floats:
    """Return a + b rounded once."""
    return canonical(a + b)


def sub(a: Floats, b: Floats) -> Floats:
    """Return a - b rounded once."""
    return canonical(a - b)


def canonical(x: Floats) -> Floats:
    """Return `x` with every NaN the one that the device makes."""
    nan = x != x
    if np.count_nonzero(nan):
        x = np.where(nan, NAN, x.view(np.uint32)).view(np.float32)
    return x
