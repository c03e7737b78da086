"""Blocks of operands: what a share of C needs, at any place, and how wide its loads may be."""

import numpy as np
import pytest

from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Stored
from fastsgemm.geometry.matrix import Address, Base, Matrix, Operand

M, N, K = 40, 44, 48
FIRST, SHAPE = (5, 7), (20, 12)


def place(memory, element):
    """Bytes from the beginning of the memory to an element."""
    return element.__array_interface__["data"][0] - memory.__array_interface__["data"][0]


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("misalignment", [0, 4, 8, 12])
def test_the_operands_of_a_share_lie_where_those_of_a_slice_do(trans, padding, misalignment):
    (m, n), (rows, columns) = FIRST, SHAPE
    shapes = ((M, K), (K, N), (M, N))
    slices = (
        (slice(m, m + rows), slice(None)),
        (slice(None), slice(n, n + columns)),
        (slice(m, m + rows), slice(n, n + columns)),
    )
    whole, expected = [], []
    for shape, own in zip(shapes, slices, strict=True):
        lines, length = shape[::-1] if trans else shape
        memory = np.zeros((lines, length + padding), np.float32)
        view = memory[:, :length].T if trans else memory[:, :length]
        whole.append(Operand(shape, Stored(trans, length + padding), misalignment, (16,)))
        expected.append((view[own].shape, (misalignment + place(memory, view[own])) % 16, place(memory, view[own])))
    shares = variants.share(*whole, (m, rows), (n, columns))
    assert [(one.shape, one.misalignment) for one in shares] == [one[:2] for one in expected]
    assert all(one.how == given.how and one.steps == (16,) for one, given in zip(shares, whole, strict=True))
    firsts = ((m, 0), (0, n), (m, n))
    assert [one.offset(first) for one, first in zip(whole, firsts, strict=True)] == [one[2] for one in expected]


@pytest.mark.parametrize("trans", [False, True])
def test_a_block_of_packed_lines_is_padded_to_whole_vectors(trans):
    packed = Operand((M, N), Stored(not trans, 45), 4).packed(trans)
    block = packed.block((0, 0), (M - 1, N) if trans else (M, N - 1))
    assert (block.line, block.width) == (M if trans else N, 4)


@pytest.mark.parametrize("strides", [(44, 1), (1, 40), (0, 1), (1, 0), (0, 0), (-44, -1), (44, -2)])
@pytest.mark.parametrize("misalignment", [0, 4, 12])
@pytest.mark.parametrize("first", [(0, 0), FIRST, (4, 8), (0, 9), (3, 0)])
def test_a_block_of_a_source_begins_at_its_first_element(strides, misalignment, first):
    whole = Matrix(Address(Base.SOURCE), (2, M, N), (8, *strides), misalignment)
    memory = np.zeros(1 << 13, np.float32)
    view = np.lib.stride_tricks.as_strided(memory[4096:], (M, N), (4 * strides[0], 4 * strides[1]))
    distance = place(memory[4096:], view[first[0] :, first[1] :])
    block = whole.block(first, SHAPE)
    assert block == Matrix(Address(Base.SOURCE, distance), (2, *SHAPE), (8, *strides), (misalignment + distance) % 16)
