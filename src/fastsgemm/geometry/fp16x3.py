"""Rung 11 in numbers: the arrays of a split operand, tiles, parts of K, and the panels that bound the workspace.

Pure arithmetic. What the arrays hold is described in ``cuda_src/device/split_format.cuh``. A *line* is a row of A or a
column of B: what runs along K.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from fastsgemm.config import Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.geometry.layout import ITEM

BLOCK_K = 32  # steps of k in the 128 bytes of a line
LINE_BYTES = 128  # of a line in a block of k: 32 times hi and lo
_INFO_BYTES, _WHERE_BYTES = 8, 16  # of a line
_ALIGNMENT = 256  # bytes: of every array in workspace
_PART = 4  # blocks of k: a part of K is whole groups of so many
SPLIT_THREADS = 512  # of a block of split.cu
_COLUMN_LINES = 32  # of a block of split.cu, where lines are strided
_COLUMN_TILE = 128  # steps of k of such a block's tile, which takes 16 KB of shared memory
_COLUMN_TILE_BYTES = ITEM * _COLUMN_LINES * _COLUMN_TILE
_COLUMN_FEW_TILES = 4  # of a block: three such blocks fit on an SM that has 227 KB
_COLUMN_MANY_TILES = 10  # of a part of K: of more, two blocks on an SM would keep too little
_COLUMN_STAGES = 3  # tiles of a block without clusters, which are the stages of a pipeline
_OTHER_SHARED = 1024  # bytes: at least what a block takes besides the tiles, and what the device reserves
MAXIMA_THREADS, MAXIMA_LINES = 256, 128  # of a block of column_maxima.cu

# Bytes of workspace that the two split operands of a product may take together. Larger ones are split in panels.
# At 32768^3 there are two panels of each operand, and splitting B twice costs 1 % of the time.
WORKSPACE = 4 << 30
_PANEL = 768  # lines: panels are whole tiles of every config, and keep the alignment of strided operands


TileConfig = Fp16x3Config | Fp16x3MmaConfig


def file_of(config: TileConfig) -> str:
    """Return the file of the kernel that takes this config."""
    return "11_fp16x3.cu" if isinstance(config, Fp16x3Config) else "11_fp16x3_mma.cu"


class SplitArrays(NamedTuple):
    """Where the three arrays of a split operand lie, in bytes from the first."""

    pairs: int
    info: int
    where: int
    end: int


def split_arrays(lines: int, K: int) -> SplitArrays:
    """Return where the arrays of a split operand lie, one behind the other."""
    info = _aligned(LINE_BYTES * blocks_of(K) * lines)
    where = info + _aligned(_INFO_BYTES * lines)
    return SplitArrays(0, info, where, where + _aligned(_WHERE_BYTES * lines))


def _whole(extent: int, by: int) -> int:
    return -(-extent // by)


def blocks_of(K: int) -> int:
    """Return the blocks of 32 steps that K has."""
    return -(-K // BLOCK_K)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def panels(lines: int, K: int, others: int, limit: int = WORKSPACE) -> list[tuple[int, int]]:
    """Return (first, lines) of the panels that an operand is split in, so that both operands keep to the limit.

    Parameters
    ----------
    lines : int
        Of the operand.
    K : int
    others : int
        Lines of the other operand that are split in the same call: 0 where it was split before.
    limit : int
        Bytes for both. A panel has at least 768 lines, whatever K is.
    """
    line = LINE_BYTES * blocks_of(K)
    if line * (lines + others) <= limit:
        return [(0, lines)]
    own = limit // line - others if line * others <= limit // 2 else limit // line // 2
    size = max(_PANEL, own // _PANEL * _PANEL)
    return [(first, min(size, lines - first)) for first in range(0, lines, size)]


class Tiling(Struct, frozen=True):
    """A product of split operands, as it is launched.

    Attributes
    ----------
    M, N : int
        Of the caller's product.
    k_blocks, part_blocks : int
        Blocks of 32 steps of k, of K and of a part of it.
    computed_blocks : int
        Those that a tile takes: of a part, filled up to what the main loop takes at a time.
    parts : int
    trans_c : bool
        The kernel's rows are the caller's columns, and the other way round.
    tiles : int
        Of C.
    grid : int
        Blocks.
    """

    M: int
    N: int
    k_blocks: int
    part_blocks: int
    computed_blocks: int
    parts: int
    trans_c: bool
    tiles: int
    grid: int

    @property
    def ldw(self) -> int:
        """Floats from a row of the partial sums to the next: a multiple of four."""
        return -(-self.N // 4) * 4

    @property
    def partial_sums(self) -> int:
        """Bytes of workspace for the sums of all parts; none for a single part, which goes to C."""
        return _aligned(ITEM * self.parts * self.M * self.ldw) if self.parts > 1 else 0

    @property
    def exceptions(self) -> int:
        """Bytes of workspace for a word a tile."""
        return _aligned(4 * self.tiles)


def tiling(config: TileConfig, M: int, N: int, K: int, trans_c: bool, multiprocessors: int) -> Tiling:
    """Return how an (M, N) product is launched."""
    rows, columns = (N, M) if trans_c else (M, N)
    k_blocks = blocks_of(K)
    part_blocks = _whole(_whole(k_blocks, config.SPLIT_K), _PART) * _PART
    parts = _whole(k_blocks, part_blocks)
    tiles = _whole(rows, config.BM) * _whole(columns, config.BN)
    grid = min(multiprocessors, tiles * parts) if isinstance(config, Fp16x3Config) else tiles * parts
    turn = config.PROMOTE_STAGES if isinstance(config, Fp16x3Config) else 1  # what the main loop takes at a time
    computed = _whole(min(part_blocks, k_blocks), turn) * turn
    return Tiling(M, N, k_blocks, part_blocks, computed, parts, trans_c, tiles, grid)


class Side(NamedTuple):
    """An operand, or a panel of its lines, that ``split.cu`` splits.

    Attributes
    ----------
    strided : bool
        Neighbouring lines are neighbours in memory; else neighbouring k are.
    vec : int
        Floats that can be read at a time: 4 or 1.
    lines : int
    """

    strided: bool
    vec: int
    lines: int

    @property
    def order(self) -> tuple[bool, int]:
        """The sides of a launch are sorted by this: blocks of strided lines take longest, so they come first.

        Else the order does not matter, and with one order fewer kernels are compiled.
        """
        return not self.strided, -self.vec


class SplitLaunch(NamedTuple):
    """A launch of ``split.cu``.

    Attributes
    ----------
    constants : dict
    first_blocks, blocks : int
        Blocks of the first side, and of all.
    shared_bytes : int
        Dynamic shared memory of a block.
    """

    constants: dict[str, int]
    first_blocks: int
    blocks: int
    shared_bytes: int


def split_launch(sides: Sequence[Side], K: int, clusters: bool, multiprocessors: int, shared_limit: int) -> SplitLaunch:
    """Return how one side or two are split by one launch.

    Parameters
    ----------
    sides : sequence of Side
        Sorted by their `order`.
    K : int
    clusters : bool
        Whether the device has clusters of blocks; else ``column_maxima.cu`` comes before, for strided lines.
    multiprocessors : int
    shared_limit : int
        Bytes of shared memory that a block of the device may have.
    """
    first, second = sides[0], sides[-1]
    cluster, tiles = 1, _COLUMN_STAGES
    if clusters and first.strided:
        groups = sum(_column_groups(side) for side in sides if side.strided)
        cluster = _column_cluster(K, groups, multiprocessors)
        few = second.strided and cluster * groups <= multiprocessors
        small = second.strided or second.lines < first.lines // 4  # what else the launch splits
        tiles = _column_tiles(K, cluster, few, small, shared_limit)
    threads, quads = (SPLIT_THREADS, 4) if second.strided else _line_threads(K)

    def blocks_of_side(side: Side) -> int:
        if not side.strided:
            return _whole(side.lines, SPLIT_THREADS // threads)
        groups = _column_groups(side)
        return groups * (cluster if clusters else min(blocks_of(K), _whole(4 * multiprocessors, groups)))

    first_blocks, *others = map(blocks_of_side, sides)
    constants = {
        "STRIDED_1": int(first.strided), "VEC_1": first.vec, "STRIDED_2": int(second.strided), "VEC_2": second.vec,
        "LINE_THREADS": threads, "QUADS": quads, "CLUSTER": cluster, "TILES": tiles, "THREADS": SPLIT_THREADS,
    }  # fmt: skip
    blocks = _whole(first_blocks + sum(others), cluster) * cluster
    return SplitLaunch(constants, first_blocks, blocks, _COLUMN_TILE_BYTES * tiles if first.strided else 0)


def _line_threads(K: int) -> tuple[int, int]:
    """Return the threads that share a contiguous line, and how many times four elements each of them keeps.

    A line of up to 16384 elements stays in registers.
    """
    threads = next((threads for threads in (32, 64, 128, 256) if threads * 16 >= K), SPLIT_THREADS)
    return threads, 4 if threads * 16 >= K else 8


def _column_groups(side: Side) -> int:
    """Return how many times 32 lines a side of strided lines has."""
    return _whole(side.lines, _COLUMN_LINES)


def _column_tiles_of(K: int, cluster: int) -> int:
    """Return the tiles that a block's part of K takes."""
    return _whole(_whole(blocks_of(K), cluster) * BLOCK_K, _COLUMN_TILE)


def _column_cluster(K: int, groups: int, multiprocessors: int) -> int:
    """Return the blocks that share out K of strided lines, in a cluster.

    As few as leave two blocks an SM and few tiles for each, because the blocks of a cluster wait for each other.
    """
    for cluster in (1, 2, 4):
        tiles = _column_tiles_of(K, cluster)
        if tiles == 1 or (tiles <= _COLUMN_FEW_TILES and cluster * groups >= 2 * multiprocessors):
            return cluster
    return 8


def _column_tiles(K: int, cluster: int, few: bool, small: bool, shared_limit: int) -> int:
    """Return the tiles that a block of strided lines keeps in shared memory: all of its part of K if they fit.

    Three blocks an SM fit beside each other, or two where K is long. One has an SM alone where the blocks are `few`, or
    where two would read much twice and one reads all once, unless the launch splits more than a `small` side besides.
    Some numbers of tiles are left out, so that there are fewer kernels.
    """
    tiles = _column_tiles_of(K, cluster)
    room = [(shared_limit // abreast - _OTHER_SHARED) // _COLUMN_TILE_BYTES for abreast in (1, 2, 3)]
    fewest = next((kept for kept in (1, 2, _COLUMN_FEW_TILES) if tiles <= kept <= room[2]), room[2])
    if tiles <= fewest:
        return fewest
    return room[0] if few or (small and _COLUMN_MANY_TILES < tiles <= room[0]) else room[1]


def maxima_parts(lines: int, K: int, multiprocessors: int) -> int:
    """Return the parts of K in which ``column_maxima.cu`` looks for the largest magnitudes."""
    across = _whole(lines, MAXIMA_LINES)
    return max(1, min(_whole(K, 64), _whole(4 * multiprocessors, across), 64))


def orientations(config: TileConfig) -> Iterator[bool]:
    """Yield the values of TRANS_C that a config can be launched with."""
    yield False
    if config.BM != config.BN:
        yield True
