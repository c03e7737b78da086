"""Rung 11 in numbers: the arrays of a split operand, tiles, parts of K, and the panels that bound the workspace.

Pure arithmetic. What the arrays hold is described in ``cuda_src/device/split_format.cuh``. A *line* is a row of A or a
column of B: what runs along K.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fastsgemm.config import F16DirectConfig, Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.geometry.grid import triangle_tiles
from fastsgemm.geometry.matrix import Operand
from fastsgemm.geometry.tensor_map import MOST_STRIDE, PERIOD, UNIT
from fastsgemm.problem import MAX_GRID, DType, Dtypes, Sym

BLOCK_K = 32  # steps of k in the 128 bytes of a line
PAD_K = 64  # in memory K is filled up with zeros to a multiple of it
LINE_BYTES = 128  # of a line in a block of k: 32 times hi and lo; of a 16-bit operand hi alone, half of that
SPARSE = 4  # places for elements left out of a line
_INFO_BYTES, _WHERE_BYTES = 8, 4 * SPARSE  # of a line
_ALIGNMENT = 256  # bytes: of every array in workspace
GUARD_THREADS = 256  # of a block of guard_fp16x3.cu
_DIRECT = "sm_90"  # the architecture of 11_half.cu
_LEAST_STAGES = 2  # of its ring
_WIDEST_MIXED = 128  # columns of a tile whose other operand is float32
_SCRATCH_BYTES = 1280  # through which a warp of 11_fp16x3.cu stores, where its rows of a stage have too few
_BARRIER_BYTES = 16  # of the two barriers of a stage

# Blocks of k: a part of K is a multiple of it. The product on sm_90 takes PROMOTE_STAGES blocks at a time, 1 or 2, and
# must not go past the end of a part. Another multiple of 2 would change the bits of results where K is split.
_PART = 4

# Steps of k of a part of split operands where the order of summation depends on K alone: so many that adding the parts
# takes a few percent of a large product, and so few that a product of few rows and a long K has several blocks.
ORDERED_PART = 8192
# From this K on, chains of two stages are promoted there, which needs fewer additions.
ORDERED_LONG = 256

# Tiles begin at multiples of so many lines, and so do the lines of each matrix of a batch that is split.
SWIZZLED_LINES = 8

# Bytes of workspace that the two split operands of a product may take together. Larger ones are split in panels.
# At 32768^3 there are two panels of each operand, and splitting B twice costs 1 % of the time.
WORKSPACE = 4 << 30
# Lines: panels begin at multiples of it. These are whole tiles of every config, since all BM and BN divide 128, and
# multiples of 16 bytes where lines are strided. A panel has at least as many lines, whatever K is.
_PANEL = 768


SplitConfig = Fp16x3Config | Fp16x3MmaConfig  # of a product of split operands
TileConfig = SplitConfig | F16DirectConfig


_FILES = {Fp16x3Config: "11_fp16x3.cu", Fp16x3MmaConfig: "11_fp16x3_mma.cu", F16DirectConfig: "11_half.cu"}


def file_of(config: TileConfig) -> str:
    """Return the file of the kernel that takes this config."""
    return _FILES[type(config)]


class SplitArrays(NamedTuple):
    """Where the three arrays of a split operand lie, in bytes from the first."""

    pairs: int
    info: int
    where: int
    end: int


def line_bytes(dtype: DType) -> int:
    """Return the bytes of a line of an operand of this type in a block of k."""
    return LINE_BYTES // 2 if dtype else LINE_BYTES


def split_arrays(lines: int, K: int, dtype: DType = DType.F32) -> SplitArrays:
    """Return where the arrays of a split operand lie, one behind the other."""
    info = _aligned(line_bytes(dtype) * stored_blocks(K) * lines)
    where = info + _aligned(_INFO_BYTES * lines)
    return SplitArrays(0, info, where, where + _aligned(_WHERE_BYTES * lines))


def ceil_div(extent: int, size: int) -> int:
    """Return how many pieces of this size cover an extent."""
    return -(-extent // size)


def blocks_of(K: int) -> int:
    """Return the blocks of 32 steps that K has."""
    return -(-K // BLOCK_K)


def stored_blocks(K: int) -> int:
    """Return the blocks of 32 steps that a split operand has in memory."""
    return padded(K) // BLOCK_K


def padded(K: int) -> int:
    """Return K with the zeros that fill it up."""
    return ceil_div(K, PAD_K) * PAD_K


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def panels(lines: int, K: int, others: int, limit: int = WORKSPACE) -> list[tuple[int, int]]:
    """Return (first, lines) of the panels that an operand is split in, so that both operands keep to the limit.

    `others` are lines of the other operand that are split in the same call: 0 where it was split before. The limit is
    in bytes for both, if both are float32. A panel has at least 768 lines, whatever K is.
    """
    line = LINE_BYTES * stored_blocks(K)
    if line * (lines + others) <= limit:
        return [(0, lines)]
    own = limit // line - others if line * others <= limit // 2 else limit // line // 2
    size = max(_PANEL, own // _PANEL * _PANEL)
    return [(first, min(size, lines - first)) for first in range(0, lines, size)]


class Tiling(Struct, frozen=True):
    """A product of rung 11, as it is launched."""

    M: int  # of the caller's product
    N: int
    k_blocks: int  # blocks of 32 steps of k, of K and of a part of it
    part_blocks: int
    computed_blocks: int  # those that a tile takes: of a part, filled up to what the main loop takes at a time
    parts: int
    trans_c: bool  # the kernel's rows are the caller's columns, and the other way round
    tile: tuple[int, int]  # rows and columns of the caller's C in a tile
    tiles: int  # of C
    works: int  # tiles of all parts and products that are computed: of a symmetric C, those that meet one triangle
    grid: int  # blocks
    sym: Sym = Sym.WHOLE  # what of C is stored, as the kernel sees it
    products: int = 1  # of the launch

    def split_before(self, before: Sequence[bool]) -> int:
        """Return the constant SPLIT_BEFORE of ``11_fp16x3.cu``, given whether A and B were split before the call."""
        a, b = before[::-1] if self.trans_c else before
        return int(a and not b) + 2 * int(b and not a)


def tiling(
    config: TileConfig,
    M: int,
    N: int,
    K: int,
    trans_c: bool,
    multiprocessors: int,
    sym: Sym = Sym.WHOLE,
    products: int = 1,
) -> Tiling:
    """Return how (M, N) products are launched together; with a `sym` that is not WHOLE, M is N and `trans_c` is false.

    Several products have a launch in common where operands are multiplied as they lie.
    """
    rows, columns = (N, M) if trans_c else (M, N)
    k_blocks = blocks_of(K)
    part_blocks = ceil_div(ceil_div(k_blocks, config.SPLIT_K), _PART) * _PART
    parts = ceil_div(k_blocks, part_blocks)
    tiles = ceil_div(rows, config.BM) * ceil_div(columns, config.BN)
    works = products * parts * (triangle_tiles(config.BM, config.BN, N) if sym else tiles)
    grid = works if isinstance(config, Fp16x3MmaConfig) else min(multiprocessors, works)  # the others are persistent
    # Blocks of k that the main loop takes at a time.
    turn = config.PROMOTE_STAGES if isinstance(config, Fp16x3Config) else config.STEPS // BLOCK_K
    computed = ceil_div(min(part_blocks, k_blocks), turn) * turn
    tile = (config.BN, config.BM) if trans_c else (config.BM, config.BN)
    return Tiling(M, N, k_blocks, part_blocks, computed, parts, trans_c, tile, tiles, works, grid, sym, products)


def in_order(config: TileConfig, K: int) -> TileConfig:
    """Return the config with the chains and parts of K that depend on K alone; see docs/batch-invariance.md."""
    if isinstance(config, F16DirectConfig):
        return config.replace(SPLIT_K=1)
    parts = ceil_div(K, ORDERED_PART)
    if isinstance(config, Fp16x3MmaConfig):
        return config.replace(SPLIT_K=parts)
    return config.replace(SPLIT_K=parts, PROMOTE_STAGES=2 if K >= ORDERED_LONG else 1)


def stage_bytes(config: TileConfig, dtypes: Dtypes) -> int:
    """Return the bytes of a stage where A and B, as the kernel takes them, are of operands of these types."""
    return config.STEPS // BLOCK_K * (config.BM * line_bytes(dtypes.a) + config.BN * line_bytes(dtypes.b))


def ring(config: TileConfig, dtypes: Dtypes) -> tuple[int, int]:
    """Return the stages of a ring of operands of these types, and the shared memory of a block in bytes.

    STAGES of a config are for two float32 operands, of a `F16DirectConfig` for two of one 16-bit type. Of other
    operands as many stages are taken as fit in the same shared memory, so that as many bytes are on their way.
    """
    if dtypes.a is dtypes.b and bool(dtypes.a) is isinstance(config, F16DirectConfig):
        return config.STAGES, config.shared_bytes
    stage = stage_bytes(config, dtypes)
    if isinstance(config, Fp16x3MmaConfig):
        stages = config.shared_bytes // stage
        return stages, stages * stage
    # Of each warp that multiplies: in 11_fp16x3.cu its rows of a stage may serve.
    scratch = config.BM // 16 * _SCRATCH_BYTES if dtypes.a or isinstance(config, F16DirectConfig) else 0
    stages = (config.shared_bytes - PERIOD - scratch) // (stage + _BARRIER_BYTES)
    return stages, PERIOD + stages * (stage + _BARRIER_BYTES) + scratch


def is_direct(arch: str, a: Operand, b: Operand, sym: Sym = Sym.WHOLE) -> bool:
    """Return whether ``11_half.cu`` can read these operands as they lie: k contiguous, aligned, and of these types.

    Both of one 16-bit type, or bfloat16 and float32 without symmetry.
    """
    dtypes = Dtypes(a.dtype, b.dtype)
    known = takes_as_they_lie(arch, dtypes) or (arch == _DIRECT and {*dtypes} == {DType.BF16, DType.F32} and not sym)
    return known and has_direct_rows(a) and has_direct_rows(b.transposed)


def takes_as_they_lie(arch: str, dtypes: Dtypes) -> bool:
    """Return whether ``11_half.cu`` multiplies operands of these types, both of one 16-bit type."""
    return arch == _DIRECT and dtypes.a is dtypes.b and dtypes.a > 0


def has_direct_rows(operand: Operand) -> bool:
    """Return whether ``11_half.cu`` can read the rows of an operand: contiguous, from multiples of 16 bytes on."""
    ld, item = operand.how.ld, operand.dtype.item
    return (
        not operand.how.trans and operand.misalignment % UNIT == 0
        and all(step * item % UNIT == 0 for step in (ld, *operand.steps))
        and (operand.shape[0] == 1 or 0 < ld * item <= MOST_STRIDE)
    )  # fmt: skip


def fault_of_mixed(config: F16DirectConfig) -> str | None:
    """Return why ``11_half.cu`` cannot run with a config where one operand is float32, or None if it can."""
    stages, _ = ring(config, Dtypes(DType.F32, DType.BF16))
    if config.BN > _WIDEST_MIXED:
        return f"BN must be at most {_WIDEST_MIXED}, got {config.BN}"
    if stages < _LEAST_STAGES:
        return f"{_LEAST_STAGES} stages with lines of float32 must fit where its {config.STAGES} do, got {stages}"
    return None


def orientations(config: TileConfig, dtypes: Dtypes) -> Iterator[bool]:
    """Yield the values of TRANS_C that a config can be launched with, for A and B of these types."""
    if isinstance(config, F16DirectConfig) and dtypes.a is not dtypes.b:  # the rows of the kernel's A are float32
        yield not dtypes.b
        return
    yield False
    if config.BM != config.BN:
        yield True


def most_grouped_rows(config: TileConfig, rows: int, groups: int) -> int:
    """Return the most rows of tiles that so many groups of rows can have; each begins up to 7 rows before its group."""
    filled = min(groups, rows)  # groups that are not empty
    return filled + (rows + (SWIZZLED_LINES - 2) * filled) // config.BM


def grouped_lines(columns: int, groups: int) -> int:
    """Return the lines of the B of all groups, split."""
    return groups * ceil_div(columns, SWIZZLED_LINES) * SWIZZLED_LINES


def grouped_tiling(
    config: TileConfig, rows: int, columns: int, K: int, groups: int, multiprocessors: int, most: bool = False
) -> Tiling:
    """Return how groups of rows are launched: with the tiles of groups whose last one is half full, or the `most`."""
    t = tiling(config, rows, columns, K, False, multiprocessors)
    down = most_grouped_rows(config, rows, groups) if most else ceil_div(2 * rows + groups * config.BM, 2 * config.BM)
    tiles = down * ceil_div(columns, config.BN)
    grid = tiles if isinstance(config, Fp16x3MmaConfig) else min(multiprocessors, tiles)
    return replace(t, tiles=tiles, works=tiles, grid=grid)


def takes_groups(rows: int, columns: int, K: int, groups: int, dtypes: Dtypes) -> bool:
    """Return whether groups of rows are computed by one launch: their operands are split whole.

    So few lines fit that the kernels can number them, and the rows of all tiles, by 32 bits.
    """
    split_b = split_arrays(grouped_lines(columns, groups), K, dtypes.b)
    return split_arrays(rows, K, dtypes.a).end + split_b.end <= WORKSPACE and groups <= MAX_GRID
