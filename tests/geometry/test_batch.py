"""Batches seen as few dimensions as possible: the products that a batch names are those of numpy.matmul."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsgemm.errors import ShapeError
from fastsgemm.geometry.batch import ADDRESS_PLACE, DIMENSIONS, Batch, BatchAndSource, merged
from fastsgemm.geometry.layout import byte_range, row_major
from fastsgemm.geometry.matrix import Address, Base, Matrix


def lying(x):
    return matrix(x.shape, tuple(step // x.itemsize for step in x.strides))


def matrix(shape, strides, misalignment=0):
    return Matrix(Address(Base.A), shape, strides, misalignment)


def dense(shape):
    return matrix(shape, row_major(shape))


@st.composite
def arrays(draw, shape):
    """Draw an array of this shape: its dimensions in any order in memory, some reversed, some with gaps."""
    order = draw(st.permutations(range(len(shape))))
    gaps = draw(st.lists(st.integers(1, 3), min_size=len(shape), max_size=len(shape)))
    whole = np.empty([shape[d] * gaps[d] for d in order], np.int64)
    seen = whole.transpose(np.argsort(order))
    steps = [gap * draw(st.sampled_from([1, -1])) for gap in gaps]
    return seen[(..., *(slice(None, None, step) for step in steps))]  # an array even where it has no dimension


@st.composite
def products(draw):
    """Draw A and B that numpy.matmul takes, and an array for their product."""
    extents = draw(st.lists(st.integers(1, 3), max_size=5))
    M, N, K = (draw(st.integers(1, 3)) for _ in range(3))

    def batch():
        kept = draw(st.integers(0, len(extents)))
        return tuple(1 if draw(st.booleans()) else extent for extent in extents[len(extents) - kept :])

    A, B = draw(arrays((*batch(), M, K))), draw(arrays((*batch(), K, N)))
    A = A[0] if A.ndim == 2 and draw(st.booleans()) else A
    B = B[:, 0] if B.ndim == 2 and draw(st.booleans()) else B
    C = draw(arrays(np.matmul(A, B).shape))
    return A, B, C


def seen(x, read):
    """Return `x` as a matrix says that it lies."""
    assert byte_range(read.shape, read.strides) == byte_range(lying(x).shape, lying(x).strides)
    return np.lib.stride_tricks.as_strided(x, read.shape, [x.itemsize * step for step in read.strides])


@settings(max_examples=100, deadline=None)
@given(products())
def test_the_products_are_those_of_numpy_matmul(operands):
    A, B, C = operands
    for x in (A, B):
        x[...] = np.arange(1, x.size + 1).reshape(x.shape)
    C[...] = 0
    a, b, c = merged(*map(lying, operands))
    assert all(extent > 1 for extent in c.extents) and a.extents == b.extents == c.extents
    result = seen(C, c)
    result[...] = seen(A, a) @ seen(B, b)
    np.testing.assert_array_equal(C, np.matmul(A, B))


@settings(max_examples=40, deadline=None)
@given(products(), st.data())
def test_what_is_read_in_place_of_c_broadcasts(operands, data):
    C = operands[2]
    kept = data.draw(st.integers(0, C.ndim))
    shape = tuple(1 if data.draw(st.booleans()) else extent for extent in C.shape[C.ndim - kept :])
    source = data.draw(arrays(shape))
    source[...] = np.arange(source.size).reshape(shape)
    _, _, c, d = merged(*map(lying, operands), lying(source))
    result = seen(C, c)
    result[...] = seen(source, d)
    np.testing.assert_array_equal(C, np.broadcast_to(source, C.shape))


@pytest.mark.parametrize("source", [((8,), (1,)), ((8, 1), (1, 1)), ((8, 1), (1, 5)), ((1, 8, 1), (3, 1, 2))])
def test_a_source_of_one_column_lies_alike_whatever_its_shape_and_the_strides_along_extents_of_1(source):
    result = (8,) if len(source[0]) == 1 else (8, 1)
    b = dense((6,) if len(source[0]) == 1 else (6, 1))
    result = (1, *result) if len(source[0]) == 3 else result
    *_, read = merged(dense((*result[:-2], 8, 6)), b, dense(result), matrix(*source))
    assert read == matrix((8, 1), (1, 0))


def test_a_batch_of_dense_matrices_is_one_dimension():
    shapes = (2, 3, 4, 5, 6), (2, 3, 4, 6, 7), (2, 3, 4, 5, 7)
    assert merged(*map(dense, shapes)) == [dense((24, 5, 6)), dense((24, 6, 7)), dense((24, 5, 7))]


def test_a_batch_that_shares_b_is_rows_of_one_product():
    shapes = (8, 5, 6), (6, 7), (8, 5, 7)
    assert [each.shape for each in merged(*map(dense, shapes))] == [(40, 6), (6, 7), (40, 7)]


def test_without_folding_the_dimensions_of_a_batch_are_merged_but_stay_a_batch():
    shapes = (2, 4, 5, 6), (6, 5), (2, 4, 5, 5)
    unfolded = merged(*map(dense, shapes), fold=False)
    assert [each.shape for each in unfolded] == [(8, 5, 6), (8, 6, 5), (8, 5, 5)]
    assert unfolded[1].steps == (0,)


def test_dimensions_that_a_launch_has_no_room_for_are_the_smallest_and_come_first():
    shape = (5, 2, 4, 3, 6)  # of a batch, every second element along each dimension, so that none can be merged
    strides = row_major([2 * extent for extent in (*shape, 8, 8)], size=2)
    a, _, c = merged(*[matrix((*shape, 8, 8), strides)] * 3)
    assert c.extents == (2, 3, 5, 4, 6) and len(c.extents) - DIMENSIONS == 2
    assert a.steps == tuple(strides[d] for d in (1, 3, 0, 2, 4))


def test_the_argument_of_the_kernels_has_the_innermost_dimension_last():
    packed = Batch((5, 7), (10, 20), (0, 30), (40, 50)).packed
    assert struct.unpack("3I4x9q", packed) == (35, 5, 7, 0, 10, 20, 0, 0, 30, 0, 40, 50)


def test_the_argument_of_a_kernel_with_a_source():
    batch = Batch((5, 7), (10, 20), (0, 30), (40, 50))
    packed = BatchAndSource(batch, matrix((5, 7, 3, 3), (60, 0, 0, 1))).packed(1 << 40)
    assert packed[:ADDRESS_PLACE] == batch.packed
    assert struct.unpack("Q5q", packed[ADDRESS_PLACE:]) == (1 << 40, 0, 1, 0, 60, 0)


@pytest.mark.parametrize(
    ("source", "width"),
    [
        (matrix((8, 8), (0, 1)), 4),
        (matrix((2, 2, 8, 8), (16, 0, 8, 1)), 4),
        (matrix((8, 8), (-8, 1)), 4),
        (matrix((8, 8), (6, 1)), 1),
        (matrix((2, 8, 8), (6, 8, 1)), 1),
        (matrix((8, 8), (8, 1), misalignment=8), 1),
        (matrix((8, 8), (1, 0)), 1),
        (matrix((8, 8), (1, 8)), 1),
        (matrix((8, 8), (0, 0)), 1),
    ],
)
def test_a_source_is_read_in_vectors_where_each_is_aligned(source, width):
    assert source.width == width and source.transposed.transposed == source


@pytest.mark.parametrize(
    ("count", "grid"), [(2, (2, 1)), (65535, (65535, 1)), (65536, (32768, 2)), (65535**2, (65535, 65535))]
)
def test_a_large_batch_is_spread_over_two_dimensions_of_the_grid(count, grid):
    assert Batch((count,), (1,), (1,), (1,)).grid == grid


def test_a_batch_that_no_grid_holds_is_refused():
    with pytest.raises(ShapeError, match=f"a batch of {65535**2 + 1} products is too large, the limit is {65535**2}"):
        _ = Batch((65535**2 + 1,), (1,), (1,), (1,)).grid


def test_one_product_has_no_grid_of_its_own():
    assert Batch().grid == () and Batch().count == 1
