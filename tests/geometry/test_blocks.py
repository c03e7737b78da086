"""Blocks of matrices: where they begin, and how they are aligned."""

import numpy as np
import pytest

from fastsgemm.geometry.matrix import Address, Base, Matrix

M, N = 40, 44
FIRST, SHAPE = (5, 7), (20, 12)


def place(memory, element):
    """Bytes from the beginning of the memory to an element."""
    return element.__array_interface__["data"][0] - memory.__array_interface__["data"][0]


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
