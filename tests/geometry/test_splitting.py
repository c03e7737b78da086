"""How operands are split by one launch: its blocks and constants."""

import itertools

import pytest

from fastsgemm.geometry.splitting import SPLIT_THREADS, Side, columns_share, split_launch
from fastsgemm.problem import DType

LONGEST = 2**31 - 2**16  # of M, N and K
H200, CONSUMER = 232448, 101376  # bytes of shared memory that a block may have: sm_90, and sm_86 or sm_120
TILE = 128 * 32 * 4  # bytes


def sides(*given):
    return sorted((Side(*one) for one in given), key=lambda side: side.order)


@pytest.mark.parametrize("K", [1, 256, 257, 512, 1024, 1025, 8192, 8193, 100000])
@pytest.mark.parametrize("clusters", [True, False])
def test_clusters_are_whole_and_lines_fit(K, clusters):
    for (strided, lines), (other, more) in itertools.product(itertools.product((True, False), (1, 33, 1000)), repeat=2):
        two = sides((strided, 4, lines), (other, 1, more))
        launch = split_launch(two, K, clusters, 132, CONSUMER)
        cluster, threads = launch.constants["CLUSTER"], launch.constants["LINE_THREADS"]
        assert launch.first_blocks % cluster == launch.blocks % cluster == 0
        assert cluster == 1 or (clusters and (strided or other))
        blocks = (launch.first_blocks, launch.blocks - launch.first_blocks)
        for number, (side, own) in enumerate(zip(two, blocks, strict=True), start=1):
            assert (side.strided, side.vec) == tuple(
                launch.constants[f"{name}_{number}"] for name in ("STRIDED", "VEC")
            )
            groups = -(-side.lines // 32)
            if side.strided:
                assert own % groups == 0 and (not clusters or own == groups * cluster)
            else:
                assert own * SPLIT_THREADS >= side.lines * threads
                assert K > 16384 or threads * 4 * launch.constants["QUADS"] >= K


def test_strided_lines_come_first_and_one_order_serves_both():
    assert sides((False, 4, 9), (True, 1, 5)) == [Side(True, 1, 5), Side(False, 4, 9)]
    assert sides((False, 1, 9), (False, 4, 5)) == [Side(False, 4, 5), Side(False, 1, 9)]


@pytest.mark.parametrize("strided", [True, False])
def test_a_single_side_has_all_blocks_and_a_kernel_of_two(strided):
    one, two = (split_launch(count * [Side(strided, 4, 100)], 3000, True, 132, H200) for count in (1, 2))
    assert one.first_blocks == one.blocks == two.first_blocks == two.blocks // 2
    assert one.constants == two.constants


@pytest.mark.parametrize("strided", [True, False])
@pytest.mark.parametrize("K", [1, 8192])
def test_the_largest_operand_has_few_enough_blocks(strided, K):
    assert split_launch([Side(strided, 4, LONGEST)], K, True, 132, H200).blocks < 2**31


@pytest.mark.parametrize(
    ("K", "lines", "cluster", "tiles"),
    [
        (1000, 1000, 8, 1),  # a tile for each block of a cluster, because there are few blocks
        (2048, 2048, 8, 2),
        (4096, 4096, 8, 4),  # three blocks an SM
        (300, 12000, 1, 4),  # enough blocks without clusters
        (8192, 8192, 8, 7),  # two blocks an SM, which read the eighth tile again
        (1000, 5000, 2, 4),  # enough blocks with clusters of two
        (12000, 300, 8, 14),  # fewer blocks than SMs
        (8192, 300, 8, 14),
        (12000, 2000, 8, 14),  # two blocks an SM would read five of twelve tiles again
    ],
)
def test_strided_lines_are_kept_in_shared_memory(K, lines, cluster, tiles):
    launch = split_launch([Side(True, 4, lines)], K, True, 132, H200)
    assert (launch.constants["CLUSTER"], launch.constants["TILES"]) == (cluster, tiles)
    assert launch.shared_bytes == tiles * TILE


def test_two_blocks_an_sm_where_the_launch_splits_much_besides():
    """That is a quarter as many contiguous lines, or more."""
    for lines, tiles in ((249, 14), (250, 7)):
        assert (
            split_launch(sides((True, 4, 1000), (False, 4, lines)), 12000, True, 132, H200).constants["TILES"] == tiles
        )


@pytest.mark.parametrize("limit", [CONSUMER, H200])
@pytest.mark.parametrize("K", [1, 700, 5000, 9000, 100000])
@pytest.mark.parametrize("lines", [9, 5000])
def test_the_shared_memory_of_a_split_fits(K, lines, limit):
    """As often as blocks of the side may lie beside each other on an SM, which has 1 KB more than a block may."""
    for other in ([], [Side(False, 4, 9)]):
        launch = split_launch([Side(True, 4, lines), *other], K, True, 132, limit)
        abreast = 1 if launch.blocks <= 132 and not other else 2
        assert launch.shared_bytes >= TILE and abreast * (launch.shared_bytes + 1024) <= limit
    assert split_launch([Side(False, 4, lines)], K, True, 132, limit).shared_bytes == 0


def test_many_lines_of_16_bits_have_as_many_bytes_on_their_way_as_of_float32():
    def keeps(lines, K, dtype):
        sides = [Side(False, 4, lines, dtype), Side(False, 4, 256, DType.F32)]
        constants = split_launch(sorted(sides, key=lambda side: side.order), K, True, 132, 232448).constants
        return constants["QUADS"], constants["LINE_THREADS"]

    assert keeps(4096, 6144, DType.F32) == (4, 512) and keeps(4096, 6144, DType.BF16) == (8, 256)
    assert keeps(256, 6144, DType.BF16) == (4, 512)  # few: the code would take longer to come from memory
    assert keeps(4096, 2048, DType.F16) == (8, 64) and keeps(1024, 1024, DType.BF16) == (4, 64)


@pytest.mark.parametrize("sides", [[256], [617], [787, 1519], [8192], [20, 5000, 11], []])
def test_the_share_of_a_device_that_is_busy(sides):
    """Blocks begin one after the other on the SM that is free first; each takes as long as any other."""
    ends = [0] * 132
    for _ in range(sum(8 * -(-lines // 32) for lines in sides)):
        ends[ends.index(min(ends))] += 1
    assert columns_share(sides, 132) == pytest.approx(sum(ends) / max(1, 132 * max(ends)))
