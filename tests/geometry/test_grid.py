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
