"""Parts of K, tiles and panels of rung 11."""

import itertools
import re

import pytest

from fastsgemm.config import F16DirectConfig, Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.geometry.fp16x3 import (
    BLOCK_K,
    LINE_BYTES,
    PAD_K,
    SPARSE,
    SWIZZLED_LINES,
    WORKSPACE,
    fault_of_mixed,
    most_grouped_rows,
    orientations,
    panels,
    ring,
    split_arrays,
    takes_groups,
    tiling,
)
from fastsgemm.jit import source
from fastsgemm.problem import FLOAT32, DType, Dtypes

TILES = [
    *(Fp16x3Config(BM=BM, BN=BN, STAGES=4) for BM in (64, 128) for BN in (16, 32, 64, 128)),
    *(Fp16x3MmaConfig(BM=BM, BN=BN, WM=32, WN=32) for BM in (64, 128) for BN in (64, 128)),
]


def test_the_kernels_have_the_same_format():
    """The numbers in split_format.cuh, and the bytes that its structures take."""
    text = source.plain("column_maxima.cu")  # which includes it
    stated = {name: int(value) for name, value in re.findall(r"constexpr int (\w+) = (\d+);", text)}
    format_ = (BLOCK_K, PAD_K, LINE_BYTES // 2, SPARSE, SWIZZLED_LINES)
    assert tuple(stated[name] for name in ("BLOCK_K", "PAD_K", "LINE_HALVES", "SPARSE", "SWIZZLED_LINES")) == format_
    assert "struct alignas(8) Line {" in text
    for K in (1, PAD_K):
        one = split_arrays(256, K)  # arrays that need no padding
        sizes = (one.info - one.pairs, one.where - one.info, one.end - one.where)
        assert sizes == (256 * 128 * PAD_K // BLOCK_K, 256 * 8, 256 * 4 * SPARSE)


@pytest.mark.parametrize("K", [1, 33, 96, 1000, 4096, 100000])
@pytest.mark.parametrize("promoted", [1, 2])
@pytest.mark.parametrize("split_k", [1, 2, 3, 7, 16])
def test_no_block_of_k_is_in_two_parts(K, promoted, split_k):
    config = Fp16x3Config(PROMOTE_STAGES=promoted, SPLIT_K=split_k)
    t = tiling(config, 500, 300, K, False, 132)
    taken = []
    for part in range(t.parts):
        first, last = part * t.part_blocks, min((part + 1) * t.part_blocks, t.k_blocks)
        groups = -(-(last - first) // promoted)  # as the kernel counts them
        taken += range(first, first + promoted * groups)
    assert taken[: t.k_blocks] == [*range(t.k_blocks)] and len(taken) < t.k_blocks + promoted
    assert t.parts <= split_k


@pytest.mark.parametrize("config", TILES, ids=str)
def test_panels_begin_at_a_tile_and_keep_the_alignment(config):
    assert config.violations(232448) == []
    for lines, K in itertools.product((100, 1000, 5000), (1, 4096)):
        found = panels(lines, K, 300, limit=LINE_BYTES * -(-K // 32) * 1300)
        assert sum(count for _, count in found) == lines
        for first, _ in found:
            assert first % config.BM == first % config.BN == first % 4 == 0


@pytest.mark.parametrize(("before", "expected"), [((0, 0), 0), ((1, 0), 1), ((0, 1), 2), ((1, 1), 0)])
def test_the_kernel_knows_which_of_its_operands_alone_was_split_before(before, expected):
    for trans_c in (False, True):
        t = tiling(Fp16x3Config(), 500, 300, 64, trans_c, 132)
        assert t.split_before([bool(one) for one in before]) == (3 - expected if trans_c and expected else expected)


@pytest.mark.parametrize("config", TILES, ids=str)
@pytest.mark.parametrize("trans_c", [False, True])
def test_tiles_cover_the_callers_c(config, trans_c):
    t = tiling(config, 500, 300, 64, trans_c, 132)
    assert sorted(t.tile) == sorted((config.BM, config.BN)) and t.tile[trans_c] == config.BM
    assert t.tiles == -(-500 // t.tile[0]) * -(-300 // t.tile[1])


def test_a_ring_has_as_many_stages_as_fit_where_those_of_its_config_do():
    """Beside them: two barriers of each, the swizzle's period and, for rows of 16 bits, what a warp stores through."""
    mixed = Dtypes(DType.F32, DType.BF16)
    assert ring(Fp16x3Config(), FLOAT32) == (7, 1024 + 7 * (256 * 128 + 16))
    assert ring(Fp16x3Config(), Dtypes(DType.BF16, DType.F32)) == (8, 1024 + 8 * (128 * 64 + 128 * 128 + 16) + 8 * 1280)
    assert ring(Fp16x3Config(), mixed) == (9, 1024 + 9 * (128 * 128 + 128 * 64 + 16))
    assert ring(F16DirectConfig(), mixed) == (4, 1024 + 4 * (128 * 256 + 128 * 128 + 16) + 8 * 1280)
    assert ring(Fp16x3MmaConfig(), mixed) == (4, 4 * (128 * 128 + 128 * 64))


@pytest.mark.parametrize(("stages", "expected"), [(3, "2 stages with lines of float32 must fit"), (4, None), (6, None)])
def test_two_stages_of_a_float32_operand_are_enough(stages, expected):
    fault = fault_of_mixed(F16DirectConfig(128, 64, stages))
    assert fault is expected or fault.startswith(expected)


def test_a_config_is_launched_both_ways_unless_its_tile_is_a_square():
    assert [*orientations(Fp16x3Config(128, 64), FLOAT32)] == [False, True]
    assert [*orientations(Fp16x3Config(128, 128), FLOAT32)] == [False]
    mixed = [Dtypes(DType.F32, DType.BF16), Dtypes(DType.BF16, DType.F32)]
    assert [[*orientations(F16DirectConfig(), dtypes)] for dtypes in mixed] == [[False], [True]]


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_so_few_lines_of_groups_are_taken_that_the_kernels_number_them_by_32_bits(dtype):
    """The rows of all tiles, too, as if they lay one below the other."""
    dtypes = Dtypes(dtype, dtype)
    most = WORKSPACE * 2**20 // split_arrays(2**20, 1, dtype).end  # of the shortest
    assert takes_groups(most - 64, 1, 1, 1, dtypes) and not takes_groups(most, 1, 1, 1, dtypes)
    assert takes_groups(1, most - 64, 1, 1, dtypes) and not takes_groups(1, most, 1, 1, dtypes)
    assert takes_groups(1, 1, 1, 65535, dtypes) and not takes_groups(1, 1, 1, 65536, dtypes)
    assert all(SPARSE * most < 2**31 > most_grouped_rows(config, most, 65535) * config.BM for config in TILES)
