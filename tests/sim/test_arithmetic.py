from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastsgemm.sim import arithmetic

bits = st.integers(0, 2**32 - 1)
near_one = st.integers(0, 2**24 - 1).map(lambda low: 0x3F000000 + low)
tiny = st.integers(0, 2**25 - 1)
signs = st.sampled_from([0, 1 << 31])


def _float(pattern):
    return np.array([pattern], np.uint32).view(np.float32)


def _check_fma(exact_fma, a, b, c):
    with np.errstate(all="ignore"):
        found = arithmetic.fma(a, b, c).view(np.uint32)[0]
        expected = exact_fma(a[0], b[0], c[0]).view(np.uint32)
    assert found == expected, (a, b, c, hex(found), hex(expected))


@settings(max_examples=400, deadline=None)
@given(bits, bits, bits)
def test_fma_on_any_bits(exact_fma, a, b, c):
    _check_fma(exact_fma, _float(a), _float(b), _float(c))


@settings(max_examples=400, deadline=None)
@given(*[st.lists(bits, min_size=4, max_size=4)] * 3, st.sampled_from([1, 2]))
@example([0x3F800800] * 4, [0x3F800800] * 4, [0x21800000, 0xA1800000] * 2, 1)  # rounded twice by float64
def test_an_fma_of_pairs_is_two_fmas(a, b, c, scalars):
    """Registers have two floats each; one of the operands may be the same for all lanes."""
    a, b, c = (np.array(x, np.uint32) for x in (a, b, c))
    a = a[: 2 * scalars]
    with np.errstate(all="ignore"):
        found = arithmetic.fma_of_pairs(*(x.view(np.uint64) for x in (a, b, c)))
        expected = arithmetic.fma(*(x.view(np.float32) for x in (np.resize(a, 4), b, c)))
    assert found.dtype == np.uint64
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@settings(max_examples=400, deadline=None)
@given(near_one, near_one, st.integers(-50, 50), st.integers(0, 2**23 - 1), signs)
def test_fma_of_overlapping_sizes(exact_fma, a, b, exponent, fraction, sign):
    c = ((127 + exponent) << 23) | fraction | sign
    _check_fma(exact_fma, _float(a), _float(b), _float(c))


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**24 - 1), st.integers(1, 40), st.sampled_from([-1, 0, 1]), signs)
def test_fma_around_halfway(exact_fma, mantissa, depth, side, sign):
    """c is a float, a * b is half of its last place, or that and a hair more or less: double rounding's trap."""
    c = np.float32((1 << 23 | mantissa) * 1.0)
    half = np.float32(0.5 if c < 2**24 else 1.0)
    factor = np.float32(1.0 + side * 2.0**-23 if side >= 0 else 1.0 - 2.0**-24)
    for scale in (1.0, 2.0**-depth):
        signed = np.float32(-1.0 if sign else 1.0)
        args = (signed * half * np.float32(scale), factor, signed * c * np.float32(scale))
        _check_fma(exact_fma, *(np.array([x], np.float32) for x in args))


def test_fma_rounds_once_where_float64_rounds_twice(exact_fma):
    a = np.float32(1 + 2**-12)
    c = np.float32(2.0**-60)
    product = float(a) * float(a)  # 1 + 2^-11 + 2^-24: exactly between two floats, and c decides
    assert np.float32(product + float(c)) == np.float32(1 + 2**-11)
    found = arithmetic.fma(*(np.array([x], np.float32) for x in (a, a, c)))
    assert found[0] == np.float32(1 + 2**-11 + 2**-23)
    found = arithmetic.fma(*(np.array([x], np.float32) for x in (a, a, -c)))
    assert found[0] == np.float32(1 + 2**-11)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**23 - 1), st.integers(0, 2**23 - 1), st.integers(20, 104), tiny, signs)
def test_fma_with_subnormal_results(exact_fma, a, b, exponent, c, sign):
    first = ((127 - exponent) << 23) | a
    second = (exponent << 23) | b  # the product is about 2^-127
    _check_fma(exact_fma, _float(first), _float(second), _float(c | sign))


@settings(max_examples=200)
@given(bits, bits, bits)
@example(0x3F800800, 0x3F800800, 0x21800000)  # (1 + 2^-12)^2 lies between two floats, and 2^-60 decides
@example(0x3F800800, 0x3F800800, 0xA1800000)
@example(0x00800001, 0x3F000000, 0x80000000)  # a tie between two subnormal numbers
@example(0x7F800000, 0x3F800000, 0xFF800000)
def test_the_fma_of_the_c_library_is_exact(exact_fma, libm_fma, a, b, c):
    """So that it may be the reference for whole matrices."""
    a, b, c = _float(a), _float(b), _float(c)
    found, expected = libm_fma(a, b, c), exact_fma(a[0], b[0], c[0])
    assert found.view(np.uint32)[0] == expected.view(np.uint32) or (np.isnan(found[0]) and np.isnan(expected))


def test_fma_broadcasts_and_corrects_lane_by_lane(exact_fma):
    a = np.float32([1 + 2**-12])
    c = np.float32([2.0**-60, -(2.0**-60), 0.0, np.inf, np.nan])
    found = arithmetic.fma(a, a, c)
    expected = [exact_fma(a[0], a[0], x) for x in c]
    np.testing.assert_array_equal(found.view(np.uint32), np.array(expected).view(np.uint32))
    uniform = arithmetic.fma(a, a, c[:1])
    assert uniform.shape == (1,) and uniform[0] == expected[0]


@pytest.mark.parametrize("operation", [arithmetic.mul, arithmetic.add, arithmetic.sub])
def test_a_nan_that_comes_out_is_the_one_of_the_device(operation):
    payload = np.array([0xFFC12345], np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        assert operation(payload, np.float32([1.0])).view(np.uint32)[0] == 0x7FFFFFFF


def test_subnormals_are_kept():
    least = _float(1)
    assert arithmetic.add(least, least).view(np.uint32)[0] == 2
    assert arithmetic.mul(least, np.float32([0.5])).view(np.uint32)[0] == 0
    assert arithmetic.mul(_float(3), np.float32([0.5])).view(np.uint32)[0] == 2  # a tie, to even
