"""A source that lies anyhow, on the simulated device: the bits of a C that holds its values, and no more reads."""

import itertools

import kernel_texts
import numpy as np
import pytest

import fastsgemm
from fastsgemm import PipelinedConfig, SkinnyConfig, rungs
from fastsgemm.config import SEGMENT, Fp16x3Config, Fp16x3MmaConfig, SkinnyInOrderConfig
from fastsgemm.sim import Machine, sgemm
from fastsgemm.sim.errors import GlobalAccessError

LARGE, DEEP, FEW_ROWS = (37, 36, 20), (13, 12, 1030), (12, 72, 150)

PIPELINED = PipelinedConfig(32, 32, 8, 4, 4, 16, 32, 1)
QUICK_STEPS = PipelinedConfig(16, 16, 32, 1, 4, 8, 16, 1)  # a step of k is four FMAs
SKINNY = SkinnyConfig(BM=4, BN=32, BK=16, TN=4, TK=4)
FP16X3, WGMMA = rungs.find("fp16x3"), Fp16x3Config(BM=64, BN=16, STAGES=4)
HOW = {
    "pipelined": (rungs.find("pipelined"), PIPELINED, LARGE),
    "a thread with two columns": (rungs.find("pipelined"), PipelinedConfig(16, 32, 32, 4, 2, 16, 16, 1), LARGE),
    "split-K": (rungs.find("pipelined"), PIPELINED.replace(SPLIT_K=2), LARGE),
    "skinny": (rungs.find("skinny"), SKINNY, LARGE),
    "skinny, split-K": (rungs.find("skinny"), SKINNY.replace(SPLIT_K=2), LARGE),
    "batch_invariant": (rungs.find("pipelined"), PIPELINED.replace(SEGMENT=SEGMENT), LARGE),
    "skinny_in_order": (rungs.SKINNY_IN_ORDER, SkinnyInOrderConfig(BM=1, BN=16, BK=16, WARPS=2, STAGES=2), (3, 36, 20)),
    "batch_invariant, split-K": (rungs.find("pipelined"), QUICK_STEPS.replace(SPLIT_K=2, SEGMENT=SEGMENT), DEEP),
    "fp16x3": (FP16X3, WGMMA, LARGE),
    "fp16x3, swap_ab": (FP16X3, WGMMA, FEW_ROWS),
    "fp16x3, split-K": (FP16X3, WGMMA.replace(SPLIT_K=2), FEW_ROWS),
    "fp16x3, mma": (FP16X3, Fp16x3MmaConfig(64, 64, 32, 32, 4, 8), LARGE),
}


def drawn(*shape, seed=7):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SOURCES = {
    "row": lambda M, N: drawn(N),
    "column": lambda M, N: drawn(M, 1),
    "element": lambda M, N: drawn(1, 1),
    "row-major": lambda M, N: drawn(M, N),
    "padded": lambda M, N: drawn(M, N + 4)[:, 4:],
    "column-major": lambda M, N: drawn(N, M).T,
    "strided": lambda M, N: drawn(2 * M, 3 * N)[::2, ::3],
    "upwards": lambda M, N: drawn(M, N)[::-1],
    "leftwards": lambda M, N: drawn(M, N)[:, ::-1],
    "4 bytes past an aligned address": lambda M, N: drawn(M, N + 4)[:, 1 : 1 + N],
    "row, 4 bytes past an aligned address": lambda M, N: drawn(N + 4)[1 : 1 + N],
    "rows of an odd stride": lambda M, N: drawn(M, N + 1)[:, :N],
    "every second of a row": lambda M, N: drawn(2 * N)[::2],
}


def same_bits(found, expected):
    np.testing.assert_array_equal(np.ascontiguousarray(found).view(np.uint32), expected.view(np.uint32))


def both(how, C, order="C", alpha=1.5, beta=-0.5, batch=()):
    """Return what is computed with a source, in place, and the source's report; A, B and D have this batch."""
    rung, config, (M, N, K) = HOW[how]
    A, B = drawn(*batch, M, K, seed=1), drawn(*batch, K, N, seed=2)
    D = np.full((*batch, N, M), np.nan, np.float32).swapaxes(-1, -2) if order == "F" else np.empty((*batch, M, N), "f")
    D[...] = np.nan
    old = D.copy(order="K")
    old[...] = C
    before = C.copy()
    found, report = sgemm(rung, config, A, B, alpha, beta, C, out=D)
    same_bits(C.copy(), before)
    expected, _ = sgemm(rung, config, A, B, alpha, beta, old)
    return found, np.ascontiguousarray(expected), report


CASES = list(itertools.product(HOW, SOURCES, "CF"))


@pytest.mark.sampled(every=41)
@pytest.mark.parametrize(("how", "lying", "order"), CASES)
def test_any_strides_give_the_bits_of_a_c_with_the_same_values(how, lying, order):
    found, expected, _ = both(how, SOURCES[lying](*HOW[how][2][:2]), order)
    same_bits(found, expected)


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("of_c", ["2MN", "N", "M1", "21N", "2M1", "1MN"])
@pytest.mark.parametrize("how", ["pipelined", "split-K", "skinny", "batch_invariant, split-K", "fp16x3"])
def test_a_batch_whose_source_is_broadcast(how, of_c):
    M, N, _ = HOW[how][2]
    found, expected, _ = both(how, drawn(*({"M": M, "N": N}.get(letter) or int(letter) for letter in of_c)), batch=(2,))
    same_bits(found, expected)


def test_a_batch_of_more_dimensions_than_a_launch_has(fresh_machine):
    A = np.full((2, 4, 2, 4, 3, 4), np.nan, np.float32)[:, ::2, :, ::2]
    A[...] = drawn(2, 2, 2, 2, 3, 4)
    B, C = drawn(2, 2, 2, 2, 4, 5, seed=2), drawn(2, 1, 2, 3, 1)
    found, _ = sgemm(rungs.find("pipelined"), PIPELINED, A, B, 1.0, 1.0, C, out=np.empty((2, 2, 2, 2, 3, 5), "f"))
    np.testing.assert_allclose(found, A.astype("d") @ B + C, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("lying", ["row", "row-major", "padded"])
@pytest.mark.parametrize("how", ["pipelined", "skinny", "fp16x3", "fp16x3, mma"])
def test_what_lies_like_c_is_read_16_bytes_at_a_time(how, lying):
    M, N, _ = LARGE
    _, _, report = both(how, SOURCES[lying](M, N))
    loads, stores = report.total.loads["S"], report.total.stores["C"]
    assert loads.bytes == stores.bytes == 4 * M * N and loads.requests == stores.requests
    _, _, scalar = both(how, SOURCES["4 bytes past an aligned address"](M, N))
    assert scalar.total.loads["S"].bytes == 4 * M * N and scalar.total.loads["S"].requests == 4 * loads.requests


@pytest.mark.parametrize("how", ["pipelined", "skinny"])
def test_a_column_that_is_all_of_c_is_read_16_bytes_at_a_time(how):
    rung, config, _ = HOW[how]
    A, B, C = drawn(36, 20), drawn(20, 1, seed=2), drawn(36, 1, seed=3)
    found, report = sgemm(rung, config, A, B, 1.5, -0.5, C, out=np.full((36, 1), np.nan, np.float32))
    same_bits(found, sgemm(rung, config, A, B, 1.5, -0.5, C.copy())[0])
    loads, stores = report.total.loads["S"], report.total.stores["C"]
    assert loads.bytes == stores.bytes == 4 * 36 and loads.requests == stores.requests


@pytest.mark.sampled(every=5)  # of six: the first and the last
@pytest.mark.parametrize(
    "how", ["pipelined", "split-K", "skinny", "batch_invariant, split-K", "fp16x3", "fp16x3, split-K"]
)
def test_beta_zero_never_reads_the_source_and_alpha_zero_never_a_and_b(how):
    rung, config, (M, N, K) = HOW[how]
    nan = np.full((M, N), np.nan, np.float32)
    A, B = drawn(M, K), drawn(K, N)
    expected, _ = sgemm(rung, config, A, B)
    same_bits(sgemm(rung, config, A, B, 1.0, 0.0, nan[0], out=nan.copy())[0], expected)
    C = drawn(N)
    C[0] = -0.0
    wanted = np.float32(2.0) * np.broadcast_to(C, (M, N))
    same_bits(sgemm(rung, config, nan[:, :8], nan[:8], 0.0, 2.0, C, out=nan.copy())[0], wanted)
    same_bits(sgemm(rung, config, A[:, :0], B[:0], 1.0, 2.0, C, out=nan.copy())[0], wanted)


def test_the_order_that_depends_on_k_alone_holds_for_a_bias(on_sim):
    """The same bits for a row alone and among others, in place and out of place."""
    A, B, bias = drawn(5, 1100), drawn(1100, 8, seed=2), drawn(8)
    among = fastsgemm.sgemm(A, B, 1.0, 1.0, bias, out=np.empty((5, 8), "f"), batch_invariant=True)
    alone = fastsgemm.sgemm(A[3:4], B, 1.0, 1.0, bias, out=np.empty((1, 8), "f"), batch_invariant=True)
    in_place = fastsgemm.sgemm(A[3:4], B, 1.0, 1.0, bias[None].copy(), batch_invariant=True)
    same_bits(among[3:4], alone)
    same_bits(in_place, alone)


def test_host_arrays_launch_one_kernel_that_reads_the_source(on_sim, monkeypatch):
    launched = []
    launch = Machine.launch
    monkeypatch.setattr(Machine, "launch", lambda self, text, *more, **options: (
        launched.append(text), launch(self, text, *more, **options))[1])  # fmt: skip
    A, B, bias, D = drawn(5, 8), drawn(8, 12), drawn(12), np.empty((5, 12), "f")
    assert fastsgemm.sgemm(A, B, 1.0, 1.0, bias, rung="pipelined", config=PIPELINED, out=D) is D
    np.testing.assert_allclose(D, A.astype("d") @ B + bias, rtol=1e-5, atol=1e-5)
    assert len(launched) == 1 and "constexpr int SOURCE = 4;" in launched[0]


@pytest.mark.parametrize(
    ("broken", "after"),
    [
        ("m * row_stride", "m * column_stride"),
        ("n * column_stride", "n * row_stride"),
        ("TRANS_C ? row_stride : column_stride", "TRANS_C ? column_stride : row_stride"),
        ("batch_offset(batch, batch.source.steps)", "batch_offset(batch, batch.c)"),
    ],
)
@pytest.mark.parametrize("how", ["pipelined", "skinny"])
def test_every_stride_of_the_source_matters(how, broken, after, monkeypatch):
    def edit(text):
        assert broken in text
        return text.replace(broken, after)

    kernel_texts.change(monkeypatch, edit)
    M, N, _ = LARGE
    batch = (2,) if "batch_offset" in broken else ()
    try:
        found, expected, _ = both(how, drawn(*batch, M, N + 1)[..., 1:], batch=batch)
    except GlobalAccessError:
        return
    assert not np.array_equal(found, expected)
