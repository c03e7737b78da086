"""``batch_invariant=True`` on the simulated device: the order of docs/batch-invariance.md, whatever else changes."""

import itertools
import re
from dataclasses import replace

import kernel_texts
import numpy as np
import pytest
from msgspec import structs

import fastsgemm
from fastsgemm import known_devices, problem, rungs
from fastsgemm.config import PipelinedConfig, SkinnyInOrderConfig
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.batch import ONE_PRODUCT
from fastsgemm.jit import source
from fastsgemm.sim import Machine, Region, sgemm
from fastsgemm.sim.errors import RaceError, UnwrittenSharedError

SEGMENT = 1024  # version 1 of the order
RUNG, SKINNY_RUNG = rungs.find("pipelined"), rungs.SKINNY_IN_ORDER
DEPTHS = (1, 1023, 1024, 1025, 2048, 2051)
CONFIGS = {
    "two stages through registers": PipelinedConfig(32, 32, 8, 4, 4, 16, 32, 1, CP_ASYNC=0),
    "one step at a time": PipelinedConfig(32, 32, 32, 4, 4, 32, 16, 1, FRAGMENTS=1, SPREAD=2),
    "one row, three steps ahead": PipelinedConfig(1, 64, 32, 1, 1, 1, 32, 1, CP_ASYNC=2, STAGES=3, FRAGMENTS=4),
    "two rows, through registers": PipelinedConfig(2, 128, 16, 2, 2, 2, 64, 1, FRAGMENTS=4, SPREAD=1),
    "four rows, seven steps ahead": PipelinedConfig(4, 64, 32, 4, 1, 4, 32, 1, CP_ASYNC=2, STAGES=6, FRAGMENTS=8),
    "eight columns": PipelinedConfig(128, 8, 32, 2, 4, 32, 8, 1, CP_ASYNC=2, SPREAD=1, STAGES=4),
    "seven steps ahead through registers": PipelinedConfig(4, 64, 64, 1, 1, 4, 8, 1, CP_ASYNC=0, FRAGMENTS=8, SPREAD=2),
}


@pytest.fixture(scope="module")
def ordered(libm_fma):
    """The contract: each segment one chain of FMAs, their sums added from the first on, then the epilogue."""
    sums = {}

    def compute(A, B, alpha=1.0, beta=0.0, C=None):
        key = (A.shape, B.shape, A.tobytes(), B.tobytes())
        if key not in sums:
            total = None
            for first in range(0, A.shape[1], SEGMENT):
                chain = np.zeros((A.shape[0], B.shape[1]), np.float32)
                for k in range(first, min(first + SEGMENT, A.shape[1])):
                    chain = libm_fma(A[:, k : k + 1], B[k : k + 1], chain)
                total = chain if total is None else total + chain
            sums[key] = total
        alpha, beta = np.float32(alpha), np.float32(beta)
        return alpha * sums[key] if beta == 0 else libm_fma(alpha, sums[key], beta * C)

    return compute


def drawn(*shape, seed=5):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stored(x, letter):
    return np.asfortranarray(x) if letter == "T" else np.ascontiguousarray(x)


def same_bits(found, expected):
    np.testing.assert_array_equal(np.ascontiguousarray(found).view(np.uint32), expected.view(np.uint32))


CASES = list(itertools.product(CONFIGS, ("sm_90", "sm_80", "sm_75"), (1, 2)))


@pytest.mark.sampled(every=11)
@pytest.mark.parametrize(("name", "arch", "parts"), CASES)
def test_the_order_is_that_of_the_contract_on_every_device_in_every_layout(name, arch, parts, ordered):
    """The depth and the layout go round with the case, so that a quick run sees all of them too."""
    place = CASES.index((name, arch, parts))
    K, layout = DEPTHS[place % len(DEPTHS)], problem.LAYOUTS[place // 5 % 4]
    config = CONFIGS[name].replace(SPLIT_K=parts)
    if arch == "sm_75":
        config = config.replace(STAGES=2)
    A, B, C = drawn(3, K), drawn(K, 66, seed=6), drawn(3, 66, seed=7)
    expected = ordered(A, B, 0.7, -1.3, C)
    A, B = stored(A, layout[0]), stored(B, layout[1])
    sgemm(RUNG, config, A, B, 0.7, -1.3, C, Machine(arch), batch_invariant=True)
    same_bits(C, expected)


SKINNY = {
    "a segment a warp": SkinnyInOrderConfig(1, 32, 32, 4, 3),
    "segments in turn": SkinnyInOrderConfig(1, 16, 64, 2, 2),
    "tiles of eight steps": SkinnyInOrderConfig(1, 8, 8, 1, 3),
    "a segment a block": SkinnyInOrderConfig(1, 4, 16, 1, 5, SPLIT_K=2),
    "one column, a segment a block": SkinnyInOrderConfig(1, 1, 256, 1, 5, SPLIT_K=2),
}
SKINNY_CASES = list(itertools.product(SKINNY, ("sm_90", "sm_80", "sm_75"), problem.LAYOUTS))


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize(("name", "arch", "layout"), SKINNY_CASES)
def test_rung_10_has_the_order_of_the_contract_for_a_row_and_for_a_column(name, arch, layout, ordered):
    place = SKINNY_CASES.index((name, arch, layout))
    M, N = ((1, 36), (1, 19), (35, 1))[place // 4 % 3]
    K = (2052, 3075, 1024, 5)[place // 5 % 4]
    A, B, C = drawn(M, K), drawn(K, N, seed=6), drawn(M, N, seed=7)
    expected = ordered(A, B, 0.7, -1.3, C)
    sgemm(SKINNY_RUNG, SKINNY[name], stored(A, layout[0]), stored(B, layout[1]), 0.7, -1.3, C, Machine(arch))
    same_bits(C, expected)


@pytest.mark.parametrize("what", ["__syncwarp();", "cp_async_wait_group<STAGES - 2>();", "__syncthreads();"])
def test_no_barrier_and_no_wait_of_rung_10_can_be_left_out(what, monkeypatch):
    """With two warps and three segments, the sums of the first two are overwritten after they were added."""
    config, A, B = SkinnyInOrderConfig(1, 4, 128, 2, 2), drawn(1, 2052), drawn(2052, 4, seed=6)
    text = source.rung_spec(SKINNY_RUNG, config, variants.Variant()).text
    places = [found.start() for found in re.finditer(re.escape(what), text)]
    assert len(places) == (2 if what == "__syncthreads();" else 1)
    for number in range(len(places)):

        def edit(text, number=number):
            parts = text.split(what)
            return what.join(parts[: number + 1]) + ";" + what.join(parts[number + 1 :])

        kernel_texts.change(monkeypatch, edit)
        with pytest.raises((RaceError, UnwrittenSharedError)):
            sgemm(SKINNY_RUNG, config, A, B)


@pytest.mark.parametrize("parts", [1, 2])
def test_rung_10_reads_nothing_where_alpha_or_k_is_zero_and_takes_batches(parts, ordered):
    config = SkinnyInOrderConfig(1, 4, 16, 1, 3, SPLIT_K=parts)
    A, B = np.full((1, 1030), np.nan, np.float32), np.full((1030, 5), np.nan, np.float32)
    C = drawn(1, 5)
    expected = np.float32(0.5) * C
    sgemm(SKINNY_RUNG, config, A, B, 0.0, 0.5, C)
    same_bits(C, expected)
    found, _ = sgemm(SKINNY_RUNG, config, A[:, :0], B[:0])
    same_bits(found, np.zeros((1, 5), np.float32))
    A, B = drawn(3, 1, 1030), drawn(1030, 5, seed=6)
    found, _ = sgemm(SKINNY_RUNG, config, A, B)
    same_bits(found, ordered(A[:, 0], B)[:, None])


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(("device", "rows"), [("Tesla T4", 3), ("NVIDIA H200", 9), ("NVIDIA A100-SXM4-40GB", 2)])
@pytest.mark.parametrize("K", [1100, 1024, 2050])
def test_a_row_does_not_depend_on_the_batch_or_on_the_device(K, device, rows, ordered, on_sim, monkeypatch):
    """The public call, with the config that the database chooses for each device."""
    A, B = drawn(9, K), drawn(K, 6, seed=6)
    expected = ordered(A, B)
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", device)
    found = fastsgemm.sgemm(A[4 : 4 + rows], B, batch_invariant=True)
    same_bits(found, expected[4 : 4 + rows])


@pytest.mark.parametrize("K", [1100, *(pytest.param(K, marks=pytest.mark.slow) for K in (1024, 2050))])
def test_a_part_of_a_row_does_not_depend_on_the_rest(K, ordered, on_sim):
    A, B = drawn(9, K), drawn(K, 6, seed=6)
    expected = ordered(A, B)
    same_bits(fastsgemm.sgemm(A[7:8], B[:, 2:5].copy(order="F"), batch_invariant=True), expected[7:8, 2:5])
    same_bits(fastsgemm.sgemm(A, B[:, 4:5], batch_invariant=True), expected[:, 4:5])


def test_the_sign_of_a_sum_that_underflows_does_not_depend_on_the_parts():
    """-2^-150 rounds to -0. A sum that began with +0 and not with the first segment's would lose the sign."""
    A, B = np.zeros((1, 1030), np.float32), np.zeros((1030, 64), np.float32)
    A[:, [1023, 1029]], B[[1023, 1029]] = 2.0**-75, -(2.0**-75)
    for parts in (1, 2):
        found, _ = sgemm(RUNG, CONFIGS["one row, three steps ahead"].replace(SPLIT_K=parts), A, B, batch_invariant=True)
        assert (found.view(np.uint32) == 0x80000000).all()
    for config in (SKINNY["a segment a warp"], SKINNY["a segment a block"]):
        found, _ = sgemm(SKINNY_RUNG, config, A, B)
        assert (found.view(np.uint32) == 0x80000000).all()


def test_nothing_but_the_last_segment_is_short():
    """The parts of a split are the segments, and a block that adds segments up ends a chain where they end."""
    config = CONFIGS["two stages through registers"].replace(SEGMENT=SEGMENT)
    assert [grid.split(config, K) for K in (1, 1024, 1025, 10**6)] == [(1, 8), (1, 1024), (1, 1032), (1, 10**6)]
    split = config.replace(SPLIT_K=2)
    assert [grid.split(split, K) for K in (1, 1024, 1025, 10**6)] == [(1, 1024), (1, 1024), (2, 1024), (977, 1024)]
    assert not split.adds_chains and split.kernel == config.replace(SEGMENT=0)  # a block has one segment
    assert config.adds_chains and config.kernel == config.replace(SEGMENT=0, PARTIAL_ACCUMULATORS=2)
    assert config.shared_bytes - split.shared_bytes == 4 * 32 * 32
    assert split.shared_bytes == split.kernel.shared_bytes


def test_the_end_of_k_is_never_multiplied_first():
    call = variants.dense_call(problem.Problem(64, 64, 1024 + 5))
    config = CONFIGS["two stages through registers"]
    for K in (13, 1029):
        call = structs.replace(call, problem=replace(call.problem, K=K))
        assert variants.variant_for(RUNG, call, config, peeled_tiles=1000).peel
        assert not variants.variant_for(RUNG, call, rungs.in_order(config, K), peeled_tiles=1000).peel


@pytest.mark.parametrize("count", [1, 2, 16, 17, 129, 300])
@pytest.mark.parametrize(("M", "N", "strides"), [(5, 9, (11, 1)), (40, 37, (1, 41))])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_the_sums_of_segments_are_added_from_the_first_to_the_last(count, M, N, strides, beta, libm_fma):
    W = drawn(count * M + 1, N)
    memory = np.full(1600, np.nan if beta == 0 else 7.0, np.float32)
    view = np.lib.stride_tricks.as_strided(memory, (M, N), [4 * stride for stride in strides])
    old, total = view.copy(), W[:M]
    for part in range(1, count):
        total = total + W[part * M : (part + 1) * M]
    alpha = np.float32(1.5)
    expected = alpha * total if beta == 0 else libm_fma(alpha, total, np.float32(beta) * old)
    args = (M, N, count, "W", M * N, 1.5, beta, "C", *strides, ONE_PRODUCT.packed)
    regions = {"W": Region(W), "C": Region(memory.reshape(1, -1), write=True, read=bool(beta))}
    blocks = grid.reduction_blocks(M, N, count, in_order=True)
    Machine().launch(
        kernel_texts.helper("reduce_segments"), rungs.kernel_name("reduce_segments"), *blocks, 0, args, regions
    )
    same_bits(view.copy(), expected)


def test_every_simulated_device_has_a_legal_config():
    from fastsgemm.heuristics.choice import choose
    from fastsgemm.request import Request

    for name in known_devices.known():
        device = known_devices.find(name)
        for extents in ((1, 64, 5), (1, 4096, 5000), (700, 900, 1024), (4096, 4096, 4096)):
            operands = variants.dense_operands(problem.Problem(*extents))
            choice = choose(device, Request(batch_invariant=True), *operands)
            assert choice.rung.violations(choice.config, device.shared_limit) == []
            assert choice.config.segment == SEGMENT
