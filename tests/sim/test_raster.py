"""Which tile each block computes: every tile once, in groups of rows, at any size of the grid."""

import numpy as np
import pytest

from fastsgemm.geometry import grid
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


TRIANGLE = """
extern "C" __global__ void kernel(int N, unsigned first, int *out) {{
    const Tile tile = tile_of_block<{BM}, {BN}, {group}, 1>(N, N, first + blockIdx.x);
    out[3 * blockIdx.x] = tile.m;
    out[3 * blockIdx.x + 1] = tile.n;
    out[3 * blockIdx.x + 2] = count_tiles<{BM}, {BN}, 1>(N, N);
}}
"""


def walked_triangle(BM, BN, group, N, first, blocks):
    """The number of tiles, and the (row, column) of those of some blocks, in elements."""
    out = np.zeros((blocks, 3), np.int32)
    text = source.plain("device/raster.cuh") + TRIANGLE.format(BM=BM, BN=BN, group=group)
    operands = {"out": Region(out, write=True)}
    Machine("sm_90").launch(text, "kernel", blocks, 1, 0, [np.int32(N), np.uint32(first), "out"], operands)
    assert (out[:, 2] == out[0, 2]).all()
    return int(out[0, 2].view(np.uint32)), out[:, :2].tolist()


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("group", [1, 3, 8, 2**30])
@pytest.mark.parametrize(("BM", "BN"), [(16, 16), (16, 64), (64, 16), (24, 16), (80, 48), (24, 64)])
@pytest.mark.parametrize("N", [1, 16, 333, 512, 577])
def test_the_tiles_of_a_triangle_are_walked_once_each(N, BM, BN, group):
    meets = [[m, n] for m in range(0, N, BM) for n in range(0, N, BN) if min(m + BM, N) > n]
    count, tiles = walked_triangle(BM, BN, group, N, 0, len(meets))
    assert count == len(meets) and sorted(tiles) == meets


def test_blocks_in_flight_share_rows_and_columns_of_a_triangle():
    """40 blocks at a time read few tile rows of A and tile columns of B, which of A A^T are the same lines."""
    _, tiles = walked_triangle(16, 16, 8, 16 * 64, 0, 64 * 65 // 2)
    shared = [{line for tile in tiles[first : first + 40] for line in tile} for first in range(0, len(tiles), 40)]
    assert max(map(len, shared)) <= 20


@pytest.mark.parametrize(("BM", "BN", "N"), [(16, 16, 2**20 - 16), (128, 64, 2**22 + 1), (24, 64, 2**21 - 77)])
def test_the_largest_triangles(BM, BN, N):
    """Nearly 2^31 tiles: the first blocks and the last have different tiles of the triangle, each inside of it."""
    expected = grid.triangle_tiles(BM, BN, N)
    assert 2**30 < expected < 2**31
    seen = set()
    for first in (0, expected // 2, expected - 20):
        count, tiles = walked_triangle(BM, BN, 8, N, first, 20)
        assert count == expected
        assert all(0 <= n < N and 0 <= m < N and m % BM == n % BN == 0 and min(m + BM, N) > n for m, n in tiles)
        seen |= {tuple(tile) for tile in tiles}
    assert len(seen) == 60
