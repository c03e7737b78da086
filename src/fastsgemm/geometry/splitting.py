"""How ``split.cu`` and ``column_maxima.cu`` split operands into pairs of FP16 numbers: grids and constants.

Pure arithmetic. A *line* is a row of A or a column of B.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fastsgemm.geometry.fp16x3 import PAD_K, ceil_div, padded
from fastsgemm.geometry.layout import ITEM
from fastsgemm.known_devices import compute_capability
from fastsgemm.problem import DType

_CLUSTERS = 90  # the first architecture with clusters of blocks
SPLIT_THREADS = 512  # of a block of split.cu
_COLUMN_LINES = 32  # of a block of split.cu, where lines are strided
_MOST_CLUSTER = 8  # blocks that share out K of strided lines: as many as every device with clusters allows
_COLUMN_TILE = 128  # steps of k of such a block's tile, which takes 16 KB of shared memory
_COLUMN_TILE_BYTES = ITEM * _COLUMN_LINES * _COLUMN_TILE
_COLUMN_FEW_TILES = 4  # of a block: three such blocks fit on an SM that has 227 KB
_COLUMN_MANY_TILES = 10  # of a part of K: of more, two blocks on an SM would keep too little
_COLUMN_STAGES = 3  # tiles of a block without clusters, which are the stages of a pipeline
_OTHER_SHARED = 1024  # bytes: at least what a block takes besides the tiles, and what the device reserves
_MANY_BLOCKS = 8  # per SM, of contiguous lines: more code for each of them is worth its way from memory
MAXIMA_THREADS, MAXIMA_LINES = 256, 128  # of a block of column_maxima.cu


class Side(NamedTuple):
    """An operand, or a panel of its lines, that ``split.cu`` splits."""

    strided: bool  # neighbouring lines are neighbours in memory; else neighbouring k are
    vec: int  # elements that can be read at a time: 4 or 1
    lines: int
    dtype: DType = DType.F32

    @property
    def order(self) -> tuple[bool, int, int]:
        """The sides of a launch are sorted by this: blocks of strided lines take longest, so they come first.

        Else the order does not matter, and with one order fewer kernels are compiled.
        """
        return not self.strided, -self.vec, self.dtype


class SplitLaunch(NamedTuple):
    """A launch of ``split.cu``."""

    constants: dict[str, int]
    first_blocks: int  # blocks of the first side, and of all
    blocks: int
    shared_bytes: int  # dynamic shared memory of a block


def split_launch(
    sides: Sequence[Side], K: int, clusters: bool, multiprocessors: int, shared_limit: int, matrices: int = 1
) -> SplitLaunch:
    """Return how one side or two, sorted by their `order`, are split by one launch.

    A device without clusters of blocks runs ``column_maxima.cu`` before, for strided lines. The limit is the shared
    memory that a block of the device may have, in bytes. Of several `matrices` of one side, the blocks are those of
    each.
    """
    first, second = sides[0], sides[-1]
    cluster, tiles = 1, _COLUMN_STAGES
    if clusters and first.strided:
        groups = matrices * sum(_column_groups(side) for side in sides if side.strided)
        cluster = _column_cluster(K, groups, multiprocessors)
        few = second.strided and cluster * groups <= multiprocessors
        small = second.strided or second.lines < first.lines // 4  # what else the launch splits
        tiles = _column_tiles(K, cluster, few, small, shared_limit)
    threads, quads = (SPLIT_THREADS, 4) if second.strided else _line_threads(K)
    many = matrices * sum(side.lines for side in sides) * threads >= _MANY_BLOCKS * multiprocessors * SPLIT_THREADS
    if many and not second.strided and any(side.dtype for side in sides):
        threads, quads = _line_threads(K, 8)  # so that as many bytes are on their way as of float32

    def blocks_of_side(side: Side) -> int:
        if not side.strided:
            return ceil_div(side.lines, SPLIT_THREADS // threads)
        groups = _column_groups(side)
        return groups * (cluster if clusters else min(ceil_div(K, PAD_K), ceil_div(4 * multiprocessors, groups)))

    first_blocks, *others = map(blocks_of_side, sides)
    constants = {
        "STRIDED_1": int(first.strided), "VEC_1": first.vec, "STRIDED_2": int(second.strided), "VEC_2": second.vec,
        "TYPE_1": int(first.dtype), "TYPE_2": int(second.dtype), "LINE_THREADS": threads, "QUADS": quads,
        "CLUSTER": cluster, "TILES": tiles, "BATCHED": 0,
    }  # fmt: skip
    blocks = ceil_div(first_blocks + sum(others), cluster) * cluster
    return SplitLaunch(constants, first_blocks, blocks, _COLUMN_TILE_BYTES * tiles if first.strided else 0)


def _line_threads(K: int, quads: int = 4) -> tuple[int, int]:
    """Return the threads that share a contiguous line, and how many times four elements each of them keeps.

    A line of up to 16384 elements stays in registers.
    """
    threads = next((threads for threads in (32, 64, 128, 256) if threads * 4 * quads >= K), SPLIT_THREADS)
    return threads, quads if threads * 4 * quads >= K else 8


def _column_groups(side: Side) -> int:
    """Return how many times 32 lines a side of strided lines has."""
    return ceil_div(side.lines, _COLUMN_LINES)


def columns_share(sides: Sequence[int], multiprocessors: int) -> float:
    """Return the share of a device with clusters that a launch keeps busy, which splits so many strided lines per side.

    The lines are long, so that a block has an SM alone. The SMs without a block in the last wave wait for the others.
    """
    waves = sum(_MOST_CLUSTER * ceil_div(lines, _COLUMN_LINES) for lines in sides) / multiprocessors
    return waves / max(1, math.ceil(waves))


def _column_tiles_of(K: int, cluster: int) -> int:
    """Return the tiles that a block's part of K takes."""
    return ceil_div(padded(ceil_div(K, cluster)), _COLUMN_TILE)


def _column_cluster(K: int, groups: int, multiprocessors: int) -> int:
    """Return the blocks that share out K of strided lines, in a cluster.

    As few as leave two blocks per SM and few tiles for each, because the blocks of a cluster wait for each other.
    """
    for cluster in (1, 2, 4):
        tiles = _column_tiles_of(K, cluster)
        if tiles == 1 or (tiles <= _COLUMN_FEW_TILES and cluster * groups >= 2 * multiprocessors):
            return cluster
    return _MOST_CLUSTER


def _column_tiles(K: int, cluster: int, few: bool, small: bool, shared_limit: int) -> int:
    """Return the tiles that a block of strided lines keeps in shared memory: all of its part of K if they fit.

    Three blocks fit on an SM beside each other, or two where K is long. One has an SM alone where the blocks are `few`,
    or where two would read much twice and one reads all once, unless the launch splits more than a `small` side
    besides. Some numbers of tiles are left out, so that there are fewer kernels.
    """
    tiles = _column_tiles_of(K, cluster)
    room = [(shared_limit // abreast - _OTHER_SHARED) // _COLUMN_TILE_BYTES for abreast in (1, 2, 3)]
    fewest = next((most for most in (1, 2, _COLUMN_FEW_TILES) if tiles <= most <= room[2]), room[2])
    if tiles <= fewest:
        return fewest
    return room[0] if few or (small and _COLUMN_MANY_TILES < tiles <= room[0]) else room[1]


def has_clusters(arch: str) -> bool:
    """Return whether an architecture has clusters of blocks."""
    return compute_capability(arch) >= _CLUSTERS


def maxima_parts(side: Side, K: int, multiprocessors: int) -> int:
    """Return the parts of K in which ``column_maxima.cu`` finds the largest magnitudes; 0 where ``split.cu`` does.

    That is for devices without clusters of blocks; on others ``split.cu`` always does.
    """
    if not side.strided:
        return 0
    across = ceil_div(side.lines, MAXIMA_LINES)
    return max(1, min(ceil_div(K, 64), ceil_div(4 * multiprocessors, across), 64))


def maxima_grid(lines: int, parts: int) -> tuple[int, int]:
    """Return the blocks of ``column_maxima.cu``."""
    return ceil_div(lines, MAXIMA_LINES), parts
