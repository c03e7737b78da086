"""Rung 9 on the simulated device: tiles moved back inside, copies in flight, K in parts."""

import dataclasses
import itertools
import re

import kernel_texts
import numpy as np
import pytest

from fastsgemm import problem, rungs
from fastsgemm.config import PipelinedConfig
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.batch import Batch
from fastsgemm.heuristics import database
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.jit import source
from fastsgemm.problem import Problem
from fastsgemm.sim import Machine, Region, sgemm
from fastsgemm.sim.errors import RaceError, UnwrittenSharedError

RUNG = rungs.find("pipelined")
SMALL = PipelinedConfig(
    32, 32, 8, 4, 4, 16, 32, 1, GROUP_M=2, MIN_BLOCKS=1, ORDER=1, FRAGMENTS=2, CP_ASYNC=0, SPREAD=0, SPLIT_K=1
)
PARTIAL_SUMS = source.HELPERS["reduce_parts"]["PARTIAL_SUMS"]
LAYOUTS = problem.LAYOUTS


def operands(M, N, K, seed=0):
    draw = np.random.default_rng(seed)
    return tuple(draw.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N), (M, N)))


def stored(x, letter):
    return np.asfortranarray(x) if letter == "T" else np.ascontiguousarray(x)


def same_bits(found, expected):
    np.testing.assert_array_equal(np.ascontiguousarray(found).view(np.uint32), expected.view(np.uint32))


def close(found, A, B, alpha=1.0, beta=0.0, C=0.0):
    """Whatever the order of the sum: within the rounding of K products and sums, and of the epilogue."""
    a, b, c = (np.asarray(x, np.float64) for x in (A, B, C))
    exact = alpha * (a @ b) + beta * c
    magnitude = abs(alpha) * (abs(a) @ abs(b)) + abs(beta) * abs(c)
    assert (np.abs(found - exact) <= (A.shape[1] + 4) * 2.0**-24 * magnitude).all()


def added_up(parts, alpha, beta, C, fma):
    """What reduce_parts is to do: ascending within each partial sum, then the partial sums, then the epilogue."""
    partial_sums = []
    for first in range(PARTIAL_SUMS):
        total = np.zeros_like(parts[0])
        for part in parts[first::PARTIAL_SUMS]:
            total = total + part
        partial_sums.append(total)
    total = partial_sums[0]
    for partial_sum in partial_sums[1:]:
        total = total + partial_sum
    alpha, beta = np.float32(alpha), np.float32(beta)
    return alpha * total if beta == 0 else fma(alpha, total, beta * C)


@pytest.fixture
def in_parts(reference, libm_fma):
    """Return a function that computes what a product with K in parts must be, to the bit."""

    def compute(config, A, B, alpha=1.0, beta=0.0, C=None):
        K = A.shape[1]
        count, chunk = grid.split(config, K)
        if count == 1:
            return reference(A, B, alpha, beta, C)
        parts = [reference(A[:, first : first + chunk], B[first : first + chunk]) for first in range(0, K, chunk)]
        assert len(parts) == count
        return added_up(parts, alpha, beta, C, libm_fma)

    return compute


# C beside a tile of it: rows and columns that are the tile's and 8 or 5 more, or less than the tile's
SIZES = {"both larger": (40, 72), "M smaller": (12, 40), "N smaller": (40, 12), "both smaller": (8, 4)}


@pytest.mark.sampled(every=31)
@pytest.mark.parametrize("asynchronous", [0, 1, 2, 3])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_element_is_updated_once_wherever_the_tiles_end(layout, size, width, asynchronous, reference):
    """A tile that would reach past an edge is moved back over its neighbour, and must leave the neighbour's alone."""
    config = dataclasses.replace(SMALL, CP_ASYNC=asynchronous)
    M, N = (extent - {1: 1 if extent < 32 else 3, 2: 2, 4: 0}[width] for extent in SIZES[size])
    K = {1: 21, 2: 22, 4: 20}[width]
    A, B, C = operands(M, N, K)
    variant = variants.variant_for(
        RUNG, variants.dense_call(Problem(M, N, K, layout)), config, database.fitted("sm_90").peeled_tiles
    )
    assert (variant.vec_a, variant.vec_b, variant.vec_c) == (width, width, 4 if width == 4 else 1)
    assert variant.guard is (size != "both larger")
    expected = reference(A, B, 0.7, -1.3, C)
    _, report = sgemm(RUNG, config, stored(A, layout[0]), stored(B, layout[1]), 0.7, -1.3, C)
    same_bits(C, expected)
    assert report.total.stores["C"].bytes == report.total.loads["C"].bytes == 4 * C.size


UNEVEN = [
    dataclasses.replace(SMALL, BM=96, BN=96, BK=24, TM=8, TN=4, WM=32, WN=96, WNITER=3, CP_ASYNC=1, SPREAD=2),
    # Of 64 threads, 40 share out the 16-byte reads of A and 48 those of B.
    *(dataclasses.replace(SMALL, BM=80, BN=48, TM=2, TN=2, WM=40, WN=48, WNITER=3, CP_ASYNC=how) for how in range(4)),
]


@pytest.mark.sampled(every=23)
@pytest.mark.parametrize("size", [(97, 99, 53), (100, 192, 48), (98, 194, 50)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", UNEVEN, ids=str)
def test_tiles_may_have_sides_that_threads_cannot_share_out_evenly(config, layout, size, reference):
    assert RUNG.violations(config, 232448) == []
    M, N, K = size
    A, B, C = operands(M, N, K)
    expected = reference(A, B, 1.5, 0.5, C)
    sgemm(RUNG, config, stored(A, layout[0]), stored(B, layout[1]), 1.5, 0.5, C)
    same_bits(C, expected)


@pytest.mark.sampled(every=13)
@pytest.mark.parametrize("spread", [0, 1, 2])
@pytest.mark.parametrize("asynchronous", [0, 1, 2, 3])
@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize("layout", ["TN", "NT"])
def test_every_depth_of_k_however_a_tile_is_copied(layout, fragments, asynchronous, spread, reference):
    config = dataclasses.replace(SMALL, FRAGMENTS=fragments, CP_ASYNC=asynchronous, SPREAD=spread)
    # BK is 8; by cp.async go both operands of TN, and with CP_ASYNC = 2 and 3 those of NT.
    for K in (1, 7, 8, 9, 16, 23, 24, 37):
        A, B, C = operands(36, 68, K)
        expected = reference(A, B, 1.5, 0.5, C)
        sgemm(RUNG, config, stored(A, layout[0]), stored(B, layout[1]), 1.5, 0.5, C)
        same_bits(C, expected)


def peeled(config, K):
    """The steps of k that come before the first tile."""
    return (
        K % config.BK
        if variants.variant_for(
            RUNG, variants.dense_call(Problem(64, 64, K)), config, database.fitted("sm_90").peeled_tiles
        ).peel
        else 0
    )


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("stages", "fragments", "asynchronous"), [(3, 1, 2), (4, 2, 2), (3, 2, 3), (4, 4, 3)])
@pytest.mark.parametrize("layout", ["TN", "NT"])
def test_every_depth_of_k_with_more_stages_or_fewer_than_tiles(layout, asynchronous, fragments, stages, reference):
    config = dataclasses.replace(SMALL, FRAGMENTS=fragments, CP_ASYNC=asynchronous, STAGES=stages)
    for K in (7, 8, 9, 23, 24, 32, 61, 17 * 8 + 3):
        A, B, C = operands(36, 68, K)
        expected = reference(A, B, 1.5, 0.5, C)
        sgemm(RUNG, config, stored(A, layout[0]), stored(B, layout[1]), 1.5, 0.5, C)
        same_bits(C, expected)


CHAINED = [
    dataclasses.replace(SMALL, PARTIAL_ACCUMULATORS=4, CP_ASYNC=2, STAGES=3),
    dataclasses.replace(SMALL, PARTIAL_ACCUMULATORS=4, CP_ASYNC=3, STAGES=3),
    dataclasses.replace(SMALL, PARTIAL_ACCUMULATORS=4),
    dataclasses.replace(SMALL, PARTIAL_ACCUMULATORS=5),
    dataclasses.replace(SMALL, PARTIAL_ACCUMULATORS=2, BK=16, FRAGMENTS=1, CP_ASYNC=2, SPREAD=1),
    dataclasses.replace(SMALL, PARTIAL_ACCUMULATORS=16, BM=64, BN=64, WM=32, WN=64, WNITER=2, SPREAD=2),
]


@pytest.mark.sampled(every=19)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", CHAINED, ids=str)
@pytest.mark.parametrize(("N", "K"), [(68, 7), (68, 8), (68, 17), (68, 33), (67, 100), (68, "whole chains"), (68, 100)])
def test_chains_are_added_up_in_order(config, layout, N, K, reference, libm_fma):
    """So many chains of whole tiles, none of less than 16 steps; the end of K is at the first's start or last.

    There it belongs to the last chain, unless that is complete.
    """
    assert RUNG.violations(config, 232448) == []
    if K == "whole chains":
        K = 16 * config.PARTIAL_ACCUMULATORS
    tiles = K // config.BK
    chain = config.BK * max(-(-tiles // config.PARTIAL_ACCUMULATORS), -(-16 // config.BK))
    first_tile = peeled(config, K)
    ends = [first_tile + end for end in range(chain, tiles * config.BK + 1, chain)] + [K]
    A, B, C = operands(36, N, K)
    chains = [
        reference(np.ascontiguousarray(A[:, first:last]), np.ascontiguousarray(B[first:last]))
        for first, last in itertools.pairwise([0, *ends])
        if first < last
    ]
    total = chains[0]
    for one in chains[1:]:
        total = total + one
    expected = libm_fma(np.float32(0.7), total, np.float32(-1.3) * C)
    sgemm(RUNG, config, stored(A, layout[0]), stored(B, layout[1]), 0.7, -1.3, C)
    same_bits(C, expected)


def test_chains_and_slices_and_parts_go_together():
    config = dataclasses.replace(SMALL, BK=16, SLICED_K=2, PARTIAL_ACCUMULATORS=4, SPLIT_K=3)
    A, B, C = operands(36, 67, 411)
    expected = 0.5 * (A.astype(float) @ B) - 2.0 * C
    sgemm(RUNG, config, A, B, 0.5, -2.0, C)
    assert np.abs(C - expected).max() < 411 * 2.0**-22


def in_slices(reference, config, A, B):
    """The chain of every slice: its steps of each whole tile, and before or after them every SLICED_K-th of the end."""
    K, slices = A.shape[1], config.SLICED_K
    steps, first_tile = config.BK // slices, peeled(config, K)
    end = first_tile + K // config.BK * config.BK
    chains = []
    for one in range(slices):
        inside = [k for k in range(first_tile, end) if (k - first_tile) % config.BK // steps == one]
        mine = np.array([*range(one, first_tile, slices), *inside, *range(end + one, K, slices)], int)
        chains.append(reference(np.ascontiguousarray(A[:, mine]), np.ascontiguousarray(B[mine])))
    total = chains[0]
    for chain in chains[1:]:
        total = total + chain
    return total


SLICED = [
    dataclasses.replace(SMALL, BK=16, SLICED_K=2, CP_ASYNC=2, STAGES=4),
    dataclasses.replace(SMALL, BK=16, SLICED_K=2, CP_ASYNC=3, STAGES=3),
    dataclasses.replace(SMALL, BK=16, SLICED_K=4, CP_ASYNC=3),
    dataclasses.replace(SMALL, BK=16, SLICED_K=2),
    dataclasses.replace(SMALL, BK=16, SLICED_K=2, FRAGMENTS=1, SPREAD=1),
    dataclasses.replace(SMALL, SLICED_K=2, SPREAD=2, BM=64, BN=64, WM=32, WN=64, WNITER=2),  # sums in several goes
    dataclasses.replace(SMALL, SLICED_K=4, BK=32, CP_ASYNC=1, SPREAD=2),
    dataclasses.replace(SMALL, SLICED_K=8, BK=64, SPREAD=1),
]


@pytest.mark.sampled(every=25)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", SLICED, ids=str)
@pytest.mark.parametrize(("N", "tiles", "steps"), [(68, 0, 1), (67, 0, 5), (67, 1, 0), (67, 2, 7), (68, 2, 7)])
def test_slices_add_up_their_chains_in_order(config, layout, N, tiles, steps, reference, libm_fma):
    assert RUNG.violations(config, 232448) == []
    A, B, C = operands(36, N, tiles * config.BK + steps)
    total = in_slices(reference, config, A, B)
    expected = libm_fma(np.float32(1.5), total, np.float32(0.5) * C)
    sgemm(RUNG, config, stored(A, layout[0]), stored(B, layout[1]), 1.5, 0.5, C)
    same_bits(C, expected)


def test_parts_of_slices(reference):
    config = dataclasses.replace(SLICED[0], SPLIT_K=2)
    A, B, _ = operands(40, 36, 48)
    halves = [in_slices(reference, config, A[:, half], B[half]) for half in (slice(0, 32), slice(32, 48))]
    same_bits(sgemm(RUNG, config, A, B)[0], halves[0] + halves[1])


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize("order", [0, 1, 2, 3, 4, 5])
def test_every_order_of_the_outer_product(order, fragments, reference):
    config = dataclasses.replace(SMALL, ORDER=order, FRAGMENTS=fragments, BM=64, WM=32, TM=8)
    for K in (7, 19):
        A, B, C = operands(36, 68, K)
        expected = reference(A, B, 1.5, 0.5, C)
        sgemm(RUNG, config, A, B, 1.5, 0.5, C)
        same_bits(C, expected)


@pytest.mark.parametrize(("WM", "TM"), [(8, 2), pytest.param(24, 2, marks=pytest.mark.slow)])
def test_strips_of_rows_that_are_not_four(WM, TM, reference):
    config = dataclasses.replace(SMALL, ORDER=3, BM=2 * WM, WM=WM, TM=TM)
    assert RUNG.violations(config, 232448) == []
    assert config.TM * config.wmiter % 4
    A, B, _ = operands(50, 36, 19)
    same_bits(sgemm(RUNG, config, A, B)[0], reference(A, B))


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(("BM", "BN", "BK", "WNITER"), [(32, 32, 16, 1), (64, 32, 8, 1), (96, 64, 8, 2)])
@pytest.mark.parametrize("spread", [0, 1, 2])
def test_lines_of_a_transposed_tile_are_written_together(BM, BN, BK, WNITER, spread, reference):
    """A thread has one line, two or three of it, and four times as many where it reads 4 bytes at a time."""
    config = dataclasses.replace(SMALL, BM=BM, BN=BN, BK=BK, WM=BM // 2, WN=BN, WNITER=WNITER, SPREAD=spread)
    for K in (2 * BK + 4, 2 * BK + 5):  # 16 bytes a load and 4
        A, B, _ = operands(BM, BN, K)
        same_bits(sgemm(RUNG, config, A, stored(B, "T"))[0], reference(A, B))


@pytest.mark.parametrize("fragments", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_thread_tiles_of_several_sub_tiles_and_strips(fragments, reference):
    config = dataclasses.replace(
        SMALL, BN=64, BM=64, BK=16, TM=8, WM=64, WN=32, WNITER=1, ORDER=3, FRAGMENTS=fragments, CP_ASYNC=1
    )
    assert config.wmiter == 2
    A, B, _ = operands(67, 70, 35)
    same_bits(sgemm(RUNG, config, A, B)[0], reference(A, B))


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_before_sm_80_nothing_is_copied_past_the_registers(arch, reference):
    config = dataclasses.replace(SMALL, CP_ASYNC=1)
    A, B, _ = operands(36, 68, 21)
    machine = Machine(arch)
    found, _ = sgemm(RUNG, config, stored(A, "T"), B, machine=machine)
    same_bits(found, reference(A, B))


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("parts", [2, 1000, 8, 9, 3, 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_k_are_added_up_in_a_fixed_order(layout, parts, in_parts):
    config = dataclasses.replace(SMALL, SPLIT_K=parts)
    K = 8 * 19 + 5
    A, B, C = operands(37, 67, K)
    a, b = stored(A, layout[0]), stored(B, layout[1])
    expected = in_parts(config, A, B, 0.7, -1.3, C)
    found = [sgemm(RUNG, config, a, b, 0.7, -1.3, C.copy())[0] for _ in range(2)]
    same_bits(found[0], expected)
    same_bits(found[1], expected)
    close(found[0], A, B, 0.7, -1.3, C)


@pytest.mark.parametrize("shape", [(40, 72, 64), (12, 72, 63), (40, 12, 64), (8, 4, 40), (1, 1, 40), (1, 67, 61)])
def test_parts_of_problems_of_every_size(shape, in_parts):
    """Guarded and not, with partial sums that are stored 16 bytes at a time where N allows, whatever C allows."""
    config = dataclasses.replace(SMALL, SPLIT_K=3, CP_ASYNC=1)
    A, B, C = operands(*shape)
    wide = np.full((shape[0] + 1, shape[1] + 3), 7.0, np.float32)
    view = wide[1:, 1:-2]
    view[...] = C
    _, report = sgemm(RUNG, config, A, B, 2.0, 0.5, view)
    same_bits(view.copy(), in_parts(config, A, B, 2.0, 0.5, C))
    view[...] = 7.0
    assert (wide == 7.0).all()
    count = grid.split(config, shape[2])[0]
    assert report.total.stores["W"].bytes == 4 * count * C.size
    assert report.total.stores["W"].requests <= 4 * C.size * count / (1 if shape[1] % 4 else 4)


def test_parts_of_a_column_major_c(in_parts):
    config = dataclasses.replace(SMALL, SPLIT_K=4)
    A, B, C = operands(67, 37, 61)
    expected = in_parts(config, A, B, 1.5, 0.5, C)
    found = np.asfortranarray(C)
    sgemm(RUNG, config, A, B, 1.5, 0.5, found)
    same_bits(found, expected)


class TestBlasRulesInParts:
    CONFIG = dataclasses.replace(SMALL, SPLIT_K=3)

    def test_beta_zero_never_reads_c(self, in_parts):
        A, B, C = operands(33, 66, 40)
        found, _ = sgemm(RUNG, self.CONFIG, A, B, 1.5, 0.0, np.full_like(C, np.nan))
        same_bits(found, in_parts(self.CONFIG, A, B, 1.5, 0.0, C))

    @pytest.mark.parametrize("beta", [0.0, 1.0, -2.0])
    def test_alpha_zero_never_reads_a_and_b(self, beta):
        _, _, C = operands(33, 66, 40)
        C[0, 0] = -0.0
        A, B = np.full((33, 40), np.nan, np.float32), np.full((40, 66), np.nan, np.float32)
        expected = np.float32(beta) * C if beta else np.zeros_like(C)
        found, report = sgemm(RUNG, self.CONFIG, A, B, 0.0, beta, C)
        same_bits(found, expected)
        assert set(report.total.loads) == set()

    @pytest.mark.parametrize("alpha", [1.0, np.nan])
    @pytest.mark.parametrize("beta", [0.0, -2.0])
    def test_without_steps_c_is_scaled(self, alpha, beta):
        A, B, C = operands(33, 66, 0)
        assert grid.split(self.CONFIG, 0)[0] == 1
        expected = np.float32(beta) * C if beta else np.zeros_like(C)
        same_bits(sgemm(RUNG, self.CONFIG, A, B, alpha, beta, C)[0], expected)

    def test_nan_and_infinity_of_any_part_arrive(self):
        A, B, _ = operands(33, 66, 40)
        A[1, 30], A[2, 2] = np.inf, np.nan
        found, _ = sgemm(RUNG, self.CONFIG, A, B)
        assert np.isinf(found[1]).all() and np.isnan(found[2]).all() and np.isfinite(found[3:]).all()


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 33])
@pytest.mark.parametrize(
    ("M", "N", "strides", "vec"),
    [
        (5, 9, (11, 1), 1), (5, 9, (1, 5), 1), (40, 37, (39, 1), 1), (40, 37, (1, 41), 1),
        (5, 8, (12, 1), 4), (37, 36, (40, 1), 4),
    ],
)  # fmt: skip
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_the_sum_alone(count, M, N, strides, vec, beta, libm_fma):
    draw = np.random.default_rng(3)
    W = draw.standard_normal((count * M + 1, N)).astype(np.float32)
    memory = np.full(1600, np.nan if beta == 0 else 7.0, np.float32)
    view = np.lib.stride_tricks.as_strided(memory, (M, N), [4 * stride for stride in strides])
    old = view.copy()
    parts = [W[part * M : (part + 1) * M] for part in range(count)]
    expected = added_up(parts, 1.5, beta, old, libm_fma)
    args = (M, N, count, "W", M * N, 1.5, beta, "C", *strides, Batch().packed)
    regions = {"W": Region(W), "C": Region(memory.reshape(1, -1), write=True, read=bool(beta))}
    name = rungs.kernel_name("reduce_parts")
    text = kernel_texts.helper("reduce_parts", VEC_C=vec)
    Machine().launch(text, name, *grid.reduction_blocks(M, N, count), 0, args, regions)
    same_bits(view.copy(), expected)


WAYS = [(1, 0, 0), (1, 1, 2), (1, 2, 1), (2, 0, 1), (2, 1, 0), (2, 1, 2), (2, 2, 0), (2, 2, 1), (2, 1, 3)]

# A wait for the next tile is a wait for copies and a barrier: each is left out of each call. Calls in the order of the
# source, those of two stages and those of more. The main loop's stand at another place where fragments are read ahead.
WAIT = r"(?:stages\.)?\bwait\(\);"
WAITS = {"fill": (0, 1), "loop, ahead": (2, 4), "loop": (3, 5), "peel": (6, 6)}
BARRIER = r"__syncthreads\(\);"  # the first five are of grouped products, the next two are waits
BARRIERS = {"slices": (7, 8), "ahead": (9,), "end of K": (10,), "store": (11,)}


def waits(config):
    """The numbers of the waits that are compiled for this config."""
    many = config.STAGES > 2
    loop = "loop" if config.FRAGMENTS == 1 else "loop, ahead"
    return [WAITS[call][many] for call in ("fill", loop, "peel")]


def barriers(config):
    """The numbers of the other barriers that are compiled for this config."""
    places = ["end of K", "store"] + ["slices"] * (config.SLICED_K > 1) + ["ahead"] * (config.FRAGMENTS == 2)
    return sorted(number for place in places for number in BARRIERS[place])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "fragments", "spread", "asynchronous", "slices"),
    [
        *(("barriers", *way, 1) for way in WAYS),
        *(("barriers", *way, 2) for way in WAYS[::3]),
        *(("copies", *way, 1) for way in WAYS if way[2]),  # without copies in flight nothing waits
        *(("copies", *way, 2) for way in WAYS[2::3] if way[2]),
    ],
)
def test_no_barrier_and_no_wait_can_be_left_out(slices, what, fragments, spread, asynchronous, monkeypatch):
    config = dataclasses.replace(SMALL, SLICED_K=slices, FRAGMENTS=fragments, CP_ASYNC=asynchronous, SPREAD=spread)
    if slices > 1:
        config = dataclasses.replace(config, BK=16)
    if what == "barriers":
        left_out(config, WAIT, "cp_async_wait_all();", 7, waits(config), monkeypatch)
        left_out(config, BARRIER, ";", 12, barriers(config), monkeypatch)
    else:
        left_out(config, WAIT, "__syncthreads();", 7, waits(config), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("slices", [1, 2])
def test_no_warp_barrier_can_be_left_out(slices, monkeypatch):
    """Between rows that are stored in several passes, after the main loop."""
    config = dataclasses.replace(SMALL, SLICED_K=slices, FRAGMENTS=2, CP_ASYNC=1, SPREAD=2)
    config = dataclasses.replace(config, BM=64, BN=64, WM=32, WN=64, WNITER=2)
    left_out(config, r"__syncwarp\(\);", ";", 5, [0, 1], monkeypatch)  # the others are of symmetric results


@pytest.mark.slow
@pytest.mark.parametrize(("what", "fragments"), [("barriers", 2), ("copies", 1)])
def test_nor_with_three_stages(what, fragments, monkeypatch):
    config = dataclasses.replace(SMALL, FRAGMENTS=fragments, CP_ASYNC=2, STAGES=3, SPREAD=2)
    if what == "barriers":
        left_out(config, WAIT, "cp_async_wait_group<1>();", 7, waits(config), monkeypatch)
        left_out(config, BARRIER, ";", 12, barriers(config), monkeypatch)
    else:
        left_out(config, WAIT, "__syncthreads();", 7, waits(config), monkeypatch)


def left_out(config, pattern, instead, count, numbers, monkeypatch):
    """Replace those of these numbers in turn, of `count` in the source, and see that it matters."""

    def races(tiles, peel):
        monkeypatch.setattr(database, "fitted", lambda arch: Fitted(peeled_tiles=tiles if peel else 0))
        A, B, _ = operands(config.BM, config.BN + 3, tiles * config.BK + 3)
        try:
            sgemm(RUNG, config, stored(A, "T"), B)
        except (RaceError, UnwrittenSharedError):
            return True
        return False

    assert len(re.findall(pattern, source.rung_spec(RUNG, config, variants.Variant()).text)) == count
    for number in numbers:

        def edit(text, number=number):
            found = list(re.finditer(pattern, text))[number]
            return text[: found.start()] + instead + text[found.end() :]

        kernel_texts.change(monkeypatch, edit)
        # The end of K comes first, or last, after a tile in one stage or another.
        assert races(2, True) or any(races(tiles, False) for tiles in (2, 3, 4)), number
    kernel_texts.restore(monkeypatch)
