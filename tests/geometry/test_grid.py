"""How many blocks a kernel is launched with."""

import pytest

from fastsgemm.errors import ShapeError
from fastsgemm.geometry import grid


@pytest.mark.parametrize(
    ("parts", "elements", "in_order"), [(8, 1024, False), (9, 128, False), (16, 256, True), (17, 32, True)]
)
def test_parts_that_need_too_many_blocks_to_add_up_are_refused(parts, elements, in_order):
    assert grid.reduction_blocks(2**20, elements * (2**11 - 1), parts, in_order) == (2**31 - 2**20, 256)
    with pytest.raises(ShapeError, match=f"the limit of a grid is {grid.MAX_BLOCKS}"):
        grid.reduction_blocks(2**20, elements * 2**11, parts, in_order)


@pytest.mark.parametrize(("BM", "BN"), [(64, 64), (32, 128), (128, 32), (96, 128), (80, 48), (24, 64), (8, 16)])
@pytest.mark.parametrize("N", [1, 7, 64, 65, 96, 500, 1024, 1025])
def test_the_tiles_of_a_triangle_are_those_with_an_element_on_or_below_the_diagonal(BM, BN, N):
    meets = [(row, column) for row in range(0, N, BM) for column in range(0, N, BN) if min(row + BM, N) > column]
    assert grid.triangle_tiles(BM, BN, N) == len(meets)
