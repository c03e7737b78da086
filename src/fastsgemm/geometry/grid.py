"""How many blocks a kernel is launched with, and how split-K divides K: pure arithmetic."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

from fastsgemm.config import Config, PipelinedConfig
from fastsgemm.errors import ShapeError
from fastsgemm.problem import Problem, Sym

MAX_BLOCKS = 2**31 - 1  # of a one-dimensional grid

# Constants of reduce_parts.cu.
REDUCTION = {"THREADS": 256, "PARTIAL_SUMS": 8, "SERIAL_PARTS": 8, "ELEMENTS": 4, "READS": 4}

# Constants of reduce_segments.cu.
SEGMENT_REDUCTION = {"THREADS": 256, "GROUPS": 8, "SERIAL_PARTS": 16, "READS": 16}

_SHORTEST = 16  # steps of k in a chain: adding up shorter ones would cost too much
_ZERO = np.float32(0.0)
_MINUS_ZERO = np.float32(-0.0)  # as alpha it adds nothing to beta * C, not even the sign of a zero
_NO_STEPS = np.int32(0)


def split(config: Config, K: int) -> tuple[int, int]:
    """Return into how many parts K is divided, and the steps of each; the last may have fewer.

    A part is whole tiles, so there may be fewer parts than SPLIT_K says. With SEGMENT, each segment is a part.
    """
    if config.segment and config.split_k > 1:
        return max(1, -(-K // config.segment)), config.segment
    tile = config.tile_k
    chunk = max(1, -(-K // (tile * config.split_k))) * tile
    return max(1, -(-K // chunk)), chunk


def chain(config: PipelinedConfig, K: int) -> int:
    """Return the steps of k of each chain of FMAs in a part of K: whole tiles, of at least 16 steps."""
    if config.segment:
        return config.segment
    tiles = min(K, split(config, K)[1]) // config.tile_k
    return max(config.tile_k * -(-tiles // config.PARTIAL_ACCUMULATORS), shortest_chain(config))


def shortest_chain(config: PipelinedConfig) -> int:
    """Return the steps of k that each of several chains has at least."""
    return config.tile_k * -(-_SHORTEST // config.tile_k)


def steps(K: Any, alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Return the K and the alpha that a kernel is launched with: no steps where A and B are not to be read."""
    if K and alpha:
        return K, alpha
    return _NO_STEPS, _MINUS_ZERO if beta else _ZERO


def triangle_tiles(BM: int, BN: int, N: int) -> int:
    """Return the number of tiles of an N x N C that meet its lower triangle, as ``device/raster.cuh`` counts them.

    Groups of tile rows that are as high as a whole number of tiles is wide have the same number of tiles in their
    squares below the diagonal, and the same on it.
    """
    rows = BN // gcd(BM, BN)  # of a group
    groups = N // (rows * BM)
    square, on_diagonal = rows * (rows * BM // BN), sum(-(-row * BM // BN) for row in range(1, rows + 1))
    others = range(groups * rows + 1, -(-N // BM) + 1)
    return groups * ((groups - 1) * square + 2 * on_diagonal) // 2 + sum(-(-min(row * BM, N) // BN) for row in others)


def tiles(config: Config, problem: Problem) -> int:
    """Return the number of tiles that are computed of the C of one product, for a problem as the rung computes it."""
    if problem.symmetric:
        return triangle_tiles(config.BM, config.BN, problem.N)
    return -(-problem.M // config.BM) * -(-problem.N // config.BN)


def blocks(config: Config, problem: Problem) -> int:
    """Return the number of blocks of the one-dimensional grid: one for each tile that is computed and part of K.

    The problem is as the rung computes it; see `with_swap_ab`.

    Raises
    ------
    ShapeError
        The grid would be larger than the hardware allows.
    """
    count = tiles(config, problem)
    if config.split_k > 1:
        count *= split(config, problem.K)[0]
    if count > MAX_BLOCKS:
        raise ShapeError(
            f"C of {problem.M} x {problem.N} needs {count} blocks of {config.BM} x {config.BN}, "
            f"the limit of a grid is {MAX_BLOCKS}"
        )
    return count


def patch(elements: int) -> tuple[int, int]:
    """Return height and width of the patch of a triangle that a block adds up; see ``device/triangle_patch.cuh``."""
    height = 1 << (elements.bit_length() - 1) // 2
    return height, elements // height


def reduction_blocks(M: int, N: int, count: int, in_order: bool = False, sym: Sym = Sym.WHOLE) -> tuple[int, int]:
    """Return blocks, and threads of a block, that add up `count` parts of an (M, N) product.

    The kernel is ``reduce_segments`` where the parts are segments, `in_order`, else ``reduce_parts``. M is N unless
    `sym` is WHOLE.

    Raises
    ------
    ShapeError
        The grid would be larger than the hardware allows.
    """
    constants = SEGMENT_REDUCTION if in_order else REDUCTION
    threads, few = constants["THREADS"], count <= constants["SERIAL_PARTS"]
    elements = threads * constants.get("ELEMENTS", 1)  # of a block with one thread for each, or ELEMENTS a thread
    sharing = constants["GROUPS" if in_order else "PARTIAL_SUMS"]  # threads of an element
    elements = elements if few else elements // sharing
    blocks = triangle_tiles(*patch(elements), N) if sym else -(-M * N // elements)
    if blocks > MAX_BLOCKS:
        raise ShapeError(
            f"C of {M} x {N} needs {blocks} blocks that add up its parts, the limit of a grid is {MAX_BLOCKS}"
        )
    return blocks, threads
