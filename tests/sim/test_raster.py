"""Which tile each block computes: every tile once, in groups of rows, at any size of the grid."""

import numpy as np
import pytest

from fastsgemm.jit import source
from fastsgemm.sim import Machine, Region

TILE = 16  # BM and BN
LARGEST = 2**31 - 1024  # an extent of a matrix

KERNEL = """
extern "C" __global__ void kernel(int M, int N, int* out) {{
    const Tile tile = tile_of_block<16, 16, {group}>(M, N);
    out[2 * blockIdx.x] = tile.m;
    out[2 * blockIdx.x + 1] = tile.n;
}}
"""


def walked(group, M, N, blocks):
    """The (row, column) of the tiles of the first blocks, in tiles."""
    out = np.zeros((blocks, 2), np.float32)
    text = source.plain("device/raster.cuh") + KERNEL.format(group=group)
    operands = {"out": Region(out, write=True)}
    Machine("sm_90").launch(text, "kernel", blocks, 1, 0, [np.int32(M), np.int32(N), "out"], operands)
    return (out.view(np.int32) // TILE).tolist()


def expected(group, rows, columns):
    return [
        [row, column]
        for first in range(0, rows, group)
        for column in range(columns)
        for row in range(first, min(first + group, rows))
    ]


@pytest.mark.parametrize("group", [1, 3, 8, 1000])
@pytest.mark.parametrize(("M", "N"), [(1, 1), (16 * 8, 16 * 5), (16 * 8 + 1, 16 * 5 - 1), (3, 100), (100, 3)])
def test_tiles_are_walked_in_groups_of_rows(group, M, N):
    tiles = expected(group, -(-M // TILE), -(-N // TILE))
    assert walked(group, M, N, len(tiles)) == tiles


@pytest.mark.parametrize("group", [1, 8, 32, 64, 2**30])
def test_the_widest_and_the_highest_grid(group):
    assert walked(group, 17, LARGEST, 4) == (
        [[0, 0], [0, 1], [0, 2], [0, 3]] if group == 1 else [[0, 0], [1, 0], [0, 1], [1, 1]]
    )
    assert walked(group, LARGEST, 1, 4) == [[0, 0], [1, 0], [2, 0], [3, 0]]
