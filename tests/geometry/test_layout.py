"""Layouts against brute force: every address of small matrices, written down one by one."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastsgemm.geometry import layout
from fastsgemm.geometry.layout import LeadingDimension, Meta

extents = st.integers(0, 6)
shapes = st.tuples(extents, extents)
strides = st.tuples(st.integers(-13, 13), st.integers(-13, 13))


def addresses(shape, strides):
    """The element offset of every element, row by row."""
    return [i * strides[0] + j * strides[1] for i in range(shape[0]) for j in range(shape[1])]


def addresses_stored(shape, how):
    """The same as a kernel computes them."""
    places = [(i, j) for i in range(shape[0]) for j in range(shape[1])]
    return [j * how.ld + i if how.trans else i * how.ld + j for i, j in places]


def byte_set(shape, strides, first=0):
    return {first + 4 * address + byte for address in addresses(shape, strides) for byte in range(4)}


@given(shapes, strides)
def test_stored_is_what_the_kernel_reads_or_nothing_the_kernel_could_read(shape, strides):
    how = layout.stored(shape, strides)
    if how is not None:
        assert addresses_stored(shape, how) == addresses(shape, strides)
    else:
        readable = [LeadingDimension(trans, ld) for trans in (False, True) for ld in range(-13, 14)]
        assert all(addresses_stored(shape, how) != addresses(shape, strides) for how in readable)


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((3, 5), (5, 1), LeadingDimension(False, 5)),
        ((3, 5), (8, 1), LeadingDimension(False, 8)),
        ((3, 5), (1, 3), LeadingDimension(True, 3)),
        ((3, 5), (-5, 1), LeadingDimension(False, -5)),
        ((3, 5), (0, 1), LeadingDimension(False, 0)),
        ((3, 5), (10, 2), None),
        ((3, 5), (5, -1), None),
        ((3, 5), (1, 0), LeadingDimension(True, 0)),
        ((1, 5), (99, 1), LeadingDimension(False, 0)),
        ((1, 5), (99, 7), LeadingDimension(True, 7)),
        ((5, 1), (7, 99), LeadingDimension(False, 7)),
        ((5, 1), (1, 99), LeadingDimension(True, 0)),
        ((1, 1), (99, 7), LeadingDimension(False, 0)),
    ],
)
def test_stored_by_example(shape, strides, expected):
    assert layout.stored(shape, strides) == expected


def test_vectors_are_used_exactly_where_every_line_is_whole_aligned_vectors():
    for shape in product(range(1, 10), repeat=2):
        for strides in [pair for ld in (-8, -6, 0, 2, 3, 4, 8, 9) for pair in ((ld, 1), (1, ld))]:
            how = layout.stored(shape, strides)
            lines, length = shape[::-1] if how.trans else shape
            for misalignment in (0, 1, 4, 8, 12):
                starts = [misalignment + 4 * how.ld * line for line in range(lines)]
                whole = [w for w in (1, 2, 4) if length % w == 0 and all(start % (4 * w) == 0 for start in starts)]
                found = layout.vector_width(how.ld, length, misalignment)
                assert found == max(whole, default=1), (shape, strides, misalignment)


@given(shapes, strides)
def test_byte_range_is_the_least_that_holds_every_element(shape, strides):
    found = addresses(shape, strides)
    expected = (4 * min(found), 4 * (max(found) + 1)) if found else (0, 0)
    assert layout.byte_range(shape, strides) == expected


def test_overlaps_itself_is_exact():
    for shape in product(range(6), repeat=2):
        for strides in product(range(-7, 8), repeat=2):
            found = addresses(shape, strides)
            assert layout.overlaps_itself(shape, strides) == (len(set(found)) < len(found)), (shape, strides)


@given(st.integers(-60, 60), shapes, strides, shapes, strides)
def test_overlap_is_exact_to_the_byte(distance, shape, strides, other_shape, other_strides):
    expected = not byte_set(shape, strides).isdisjoint(byte_set(other_shape, other_strides, distance))
    assert layout.overlap(distance, shape, strides, other_shape, other_strides) == expected


@pytest.mark.parametrize(
    ("distance", "expected"), [(4 * 50, False), (4 * 49, True), (-4 * 50, False), (4, True), (0, True)]
)
def test_column_blocks_of_one_buffer_overlap_only_where_they_share_columns(distance, expected):
    half = (1000, 50)
    assert layout.overlap(distance, half, (100, 1), half, (100, 1)) is expected


def test_even_and_odd_columns_of_a_large_buffer_do_not_overlap():
    half = (40_000, 20_000)
    assert not layout.overlap(4, half, (40_000, 2), half, (40_000, 2))
    assert layout.overlap(8, half, (40_000, 2), half, (40_000, 2))


@given(shapes, strides, strides)
def test_arrays_at_one_address_are_the_same_if_each_index_is_the_same_element(shape, steps, other_steps):
    same = addresses(shape, steps) == addresses(shape, other_steps)
    if 0 not in shape:  # else there are no elements to compare
        assert layout.same_elements(Meta(shape, steps), Meta(shape, other_steps)) == same
    assert not layout.same_elements(Meta(shape, steps), Meta((shape[0] + 1, shape[1]), steps))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (3, 1, 2, 4)])
def test_row_major_strides_are_those_of_numpy(shape):
    x = np.empty((*shape, 2, 3), np.int8)
    assert layout.row_major(x.shape) == x.strides
    assert layout.row_major(shape, size=6) == x.strides[:-2]
