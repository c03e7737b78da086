"""References that share no code with what they check, and a short way to launch a small kernel."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from fractions import Fraction

import numpy as np
import pytest

from fastsgemm.sim import Machine, Region

NAN = np.uint32(0x7FFFFFFF).view(np.float32)


def rounded(x: Fraction, zero: float = 0.0) -> np.float32:
    """Return the float32 nearest to `x`, ties to even; an exact zero gets the sign of `zero`."""
    if x == 0:
        return np.float32(zero)
    size = abs(x)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, -126)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - 23)
    value = round(size / unit) * unit  # Python rounds a Fraction half to even
    if value >= Fraction(2) ** 128:
        return np.float32(math.copysign(math.inf, x))
    return np.float32(math.copysign(float(value), x))


def fma_of_fractions(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """Return a * b + c with one rounding, by rational numbers."""
    x, y, z = float(a), float(b), float(c)
    if not all(map(math.isfinite, (x, y, z))):
        result = x * y + z  # products of float32 are exact in float64: right for NaN and Inf
        return NAN if math.isnan(result) else np.float32(result)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    return rounded(exact, x * y + z if exact == 0 else 0.0)


@pytest.fixture(scope="session")
def exact_fma():
    """`fma_of_fractions`: slow and beyond doubt."""
    return fma_of_fractions


@pytest.fixture(scope="session")
def libm_fma():
    """fmaf of the C library on arrays, compared with `exact_fma` in test_arithmetic.

    It is called only where it matters. The product is exact in float64, so the exact sum lies between the neighbours of
    the float64 sum. Where both neighbours round to the same float32, so does the exact sum.
    """
    name = ctypes.util.find_library("m")
    if name is None:
        pytest.skip("no C library with fmaf")
    function = ctypes.CDLL(name).fmaf
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    on_arrays = np.frompyfunc(function, 3, 1)

    def fma(a, b, c):
        with np.errstate(all="ignore"):
            total = np.asarray(np.multiply(a, b, dtype=np.float64) + c)
            result = total.astype(np.float32)
            below, above = (np.nextafter(total, end).astype(np.float32) for end in (-np.inf, np.inf))
            unsure = below != above  # also where the sum is NaN
            if unsure.any():
                result[unsure] = on_arrays(*(np.broadcast_to(x, total.shape)[unsure] for x in (a, b, c)))
        return result

    return fma


@pytest.fixture(scope="session")
def reference(libm_fma):
    """C <- alpha * A @ B + beta * C by a chain of FMAs in ascending k; each product is computed once a session."""
    chains = {}

    def compute(A, B, alpha=1.0, beta=0.0, C=None):
        key = (A.shape, B.shape, A.tobytes(), B.tobytes())
        if key not in chains:
            acc = np.zeros((A.shape[0], B.shape[1]), np.float32)
            for k in range(A.shape[1]):
                acc = libm_fma(A[:, k : k + 1], B[k : k + 1, :], acc)
            chains[key] = acc
        alpha, beta = np.float32(alpha), np.float32(beta)
        return alpha * chains[key] if beta == 0 else libm_fma(alpha, chains[key], beta * C)

    return compute


@pytest.fixture
def on_sim(fresh_machine, monkeypatch):
    """Host arrays go through a simulated device."""
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")


@pytest.fixture
def launch():
    """Launch a kernel whose parameters are all pointers, each to the operand of that name."""

    def go(source, names, operands, grid=1, block=32, shared_bytes=0, arch="sm_90"):
        regions = {k: v if isinstance(v, Region) else Region(v, write=True) for k, v in operands.items()}
        parameters = ", ".join(f"float* {name}" for name in names)
        text = f'#line 1 "kernel.cu"\nextern "C" __global__ void kernel({parameters}) {{\n{source}\n}}\n'
        return Machine(arch).launch(text, "kernel", grid, block, shared_bytes, list(names), regions)

    return go
