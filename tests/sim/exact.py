"""Float32 arithmetic by rational numbers: slow, and independent of what it checks."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

_NAN = np.uint32(0x7FFFFFFF).view(np.float32)


def rounded(x: Fraction, zero: float = 0.0) -> np.float32:
    """Return the float32 nearest to `x`, ties to even; an exact zero gets the sign of `zero`."""
    if x == 0:
        return np.float32(zero)
    size = abs(x)
    exponent = max(math.floor(math.log2(size.numerator) - math.log2(size.denominator)) - 1, -126)
    while exponent < 300 and size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - 23)
    steps = round(size / unit)  # Python rounds a Fraction half to even
    value = steps * unit
    if value >= Fraction(2) ** 128:
        return np.float32(math.copysign(math.inf, x))
    return np.float32(math.copysign(float(value), x))


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """Return a * b + c with one rounding."""
    x, y, z = float(a), float(b), float(c)
    if not all(map(math.isfinite, (x, y, z))):
        result = x * y + z  # the products of float32 are exact in float64, so this is right for NaN and Inf
        return _NAN if math.isnan(result) else np.float32(result)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    return rounded(exact, x * y + z if exact == 0 else 0.0)
