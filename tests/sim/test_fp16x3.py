"""Rung 11 on the simulated device: the split to the bit, products within their bound, and every wait that is needed."""

import dataclasses
import re

import kernel_texts
import numpy as np
import pytest
import rung_11
from fp16x3_kernels import smallest_split
from rung_11 import KERNELS, worst

from fastsgemm import rungs, sim
from fastsgemm.config import Fp16x3Config
from fastsgemm.errors import ConfigError, DeviceError
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.sim import Machine
from fastsgemm.sim.errors import (
    BarrierError,
    EndlessWaitError,
    GlobalAccessError,
    KernelFault,
    MisalignedError,
    RaceError,
    SharedAccessError,
    UnfinishedProductError,
    UnwrittenSharedError,
)

BLOCK_K, PAD_K, SPARSE, DENSE = 32, 64, 4, 1 << 20
WGMMA = KERNELS["wgmma"][1]
PRODUCTS = ("fastsgemm_fp16x3", "fastsgemm_fp16x3_mma")


def split_by_numpy(X):
    """Return pairs, info and the places left out, from the description of the format alone, in float64."""
    lines, K = X.shape
    blocks = -(-K // PAD_K) * PAD_K // BLOCK_K
    exact = np.zeros((lines, blocks * BLOCK_K))
    exact[:, :K] = X
    info, places = [], []
    for line in exact:
        largest = np.abs(line).max()
        finite = np.isfinite(line).all()
        exponent = int(np.frexp(largest)[1]) - 15 if finite and largest > 0 else 0
        line *= 2.0**-exponent
        small = np.flatnonzero((line != 0) & (np.abs(line) < smallest_split(K)))
        line[small] = 0
        info.append((exponent, len(small) + (0 if finite else DENSE)))
        places.append(set(small))
    with np.errstate(all="ignore"):
        hi = exact.astype(np.float16)
        lo = ((exact - hi) * 4096).astype(np.float16)
    bits = [np.where(np.isnan(x), 0x7FFF, x.view(np.uint16)).reshape(lines, blocks, BLOCK_K) for x in (hi, lo)]
    return swizzled(np.concatenate(bits, axis=2).transpose(1, 0, 2)), np.array(info), places


def swizzled(pairs):
    """Return lines whose 16-byte pieces have changed places, or have changed back."""
    blocks, lines, _ = pairs.shape
    pieces = pairs.reshape(blocks, lines, 8, 8)
    line = np.arange(lines)[:, None]
    return pieces[:, line, np.arange(8) ^ line % 8].reshape(pairs.shape)


def hard_operand(lines, K, seed=0):
    """Normal numbers and, a line each: zeros, subnormals, a huge range, elements left out, an infinity, a NaN."""
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((lines, K)).astype(np.float32)
    X[1] = 0
    X[2] *= np.float32(2.0**-140)
    X[3] *= np.float32(2.0**120)
    X[4, [0, K - 1]] = 1e-20
    X[5, ::3] = 1e-15
    X[6, K // 2] = np.inf
    X[7, K - 1] = np.nan
    X[8, 0] = -0.0
    return X


SPLITS = {  # architecture, K, and of each side the order, lines, and floats between them
    "rows": ("sm_90", 96, [("rows", 37, 0)]),
    "rows, ragged": ("sm_90", 101, [("rows", 11, 2)]),
    "rows, long": ("sm_90", 33000, [("rows", 9, 0)]),
    "columns, one block": ("sm_90", 96, [("columns", 36, 0)]),
    "columns, ragged": ("sm_90", 70, [("columns", 37, 2)]),
    "columns, two blocks": ("sm_90", 300, [("columns", 9, 1)]),
    "columns, long": ("sm_90", 4300, [("columns", 9, 3)]),
    "columns, longer than shared memory": ("sm_90", 15000, [("columns", 10, 0)]),
    "columns, longer than shared memory, and rows": ("sm_90", 8000, [("columns", 12, 0), ("rows", 9, 0)]),
    "columns without clusters": ("sm_80", 101, [("columns", 37, 3)]),
    "both along rows": ("sm_90", 700, [("rows", 9, 0), ("rows", 33, 0)]),
    "both along rows, one aligned": ("sm_90", 300, [("rows", 9, 1), ("rows", 20, 0)]),
    "both along columns": ("sm_90", 1100, [("columns", 68, 0), ("columns", 12, 0)]),
    "both along columns, one aligned": ("sm_90", 260, [("columns", 33, 0), ("columns", 12, 0)]),
    "rows and columns": ("sm_90", 600, [("rows", 75, 0), ("columns", 37, 3)]),
    "columns and rows": ("sm_90", 4300, [("columns", 12, 0), ("rows", 9, 2)]),
    "rows and columns without clusters": ("sm_80", 101, [("rows", 10, 3), ("columns", 36, 0)]),
    "both along columns without clusters": ("sm_80", 530, [("columns", 33, 0), ("columns", 40, 0)]),
}


def assert_split(matrices, results):
    for X, found in zip(matrices, results, strict=True):
        pairs, info, places = split_by_numpy(X)
        np.testing.assert_array_equal(found.info, info)
        np.testing.assert_array_equal(found.pairs, pairs)
        for line, left_out in enumerate(places):
            if info[line, 1] <= SPARSE:
                assert set(found.where[line, : len(left_out)].tolist()) == left_out


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", SPLITS)
def test_the_split_is_that_of_its_description(name):
    arch, K, sides = SPLITS[name]
    matrices = [hard_operand(lines, K, seed) for seed, (_, lines, _) in enumerate(sides)]
    given = [rung_11.as_stored(X, order, padding) for X, (order, _, padding) in zip(matrices, sides, strict=True)]
    results, reports = rung_11.split(given, Machine(arch))
    finding = 0 if arch == "sm_90" else sum(order == "columns" for order, _, _ in sides)
    assert len(reports) == finding + 1
    assert_split(matrices, results)


def split_without_clusters(K):
    """Split strided lines on a device of one multiprocessor, where a block has all of K; compare."""
    machine = rung_11.machine("sm_80", multiprocessors=1)
    X = hard_operand(100, K)
    results, reports = rung_11.split([rung_11.as_stored(X, "columns", 1)], machine)
    assert reports[-1].grid == 4  # of 32 lines
    assert_split([X], results)


@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 7])
def test_strided_lines_pass_through_the_stages_of_a_pipeline(tiles):
    split_without_clusters(128 * tiles - 5)


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ("cp_async_wait_group<TILES - 1>();", "asynchronous copy"),
        ("__syncthreads();\n        }\n        const float *tile", "reads shared memory"),
        ("__syncthreads();\n            copy(number + TILES);", "writes shared memory"),
    ],
)
def test_no_wait_of_the_pipeline_can_be_left_out(old, message, monkeypatch):
    without(old, monkeypatch)
    with pytest.raises(RaceError, match=message):
        split_without_clusters(128 * 7)


def without(old, monkeypatch):
    """Leave out the first call in a piece of split.cu's text."""

    def edit(text):
        assert text.count(old) == 1
        return text.replace(old, old[old.index(";") :])

    kernel_texts.change(monkeypatch, edit, "split.cu")


def problem(M, N, K, seed=0):
    draw = np.random.default_rng(seed)
    return tuple(draw.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N), (M, N)))


def halves(X):
    """Return the split operand of X, from NumPy."""
    pairs, info, _ = split_by_numpy(X)
    left_out_at = np.zeros((len(X), 4), np.int32)
    pairs = np.ascontiguousarray(pairs.astype(np.uint16))
    return rung_11.Pairs(pairs, info.astype(np.int32), left_out_at, X.shape[1])


@pytest.mark.sampled(every=4)  # of nine: the diagonal
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("swap_ab", "parts", "beta"), [(False, 1, 0.0), (False, 2, -1.5), (True, 1, -1.5)])
def test_products_are_within_the_bound(kernel, swap_ab, parts, beta):
    arch, config = KERNELS[kernel]
    config = config.replace(SPLIT_K=parts)
    M, N, K = (35, 150, 200) if swap_ab else (150, 35, 200)  # an odd number of blocks of k
    A, B, C = problem(M, N, K)
    found = C if beta else np.full_like(C, np.nan)
    old = C.copy()
    exceptions = rung_11.product(halves(A), halves(B.T), 0.7, beta, found, config, rung_11.machine(arch), swap_ab)
    assert worst(found, A, B, np.float32(0.7), beta, old) < 6
    assert not exceptions.any()


def test_tiles_with_exceptions_are_noted_and_dense_lines_left_alone():
    A, B, C = problem(100, 40, 64)
    A[3, 7] = np.inf
    A[70, 5] = 1e-20
    old = C.copy()
    exceptions = rung_11.product(halves(A), halves(B.T), 1.0, 1.0, C, WGMMA, rung_11.machine("sm_90"))
    np.testing.assert_array_equal(exceptions, [1] * 6)
    np.testing.assert_array_equal(C[3], old[3])
    kept = np.arange(100) != 3
    A[70, 5] = 0
    assert worst(C[kept], A[kept], B, 1, 1, old[kept]) < 6


def test_the_whole_product_with_every_exception():
    """What FP32 gives: within the bound where all is finite, and the same infinities and NaN elsewhere."""
    A, B, C = problem(70, 40, 40)
    A[3, 5], A[64, :9], A[66, 7], B[2, 2], B[5, 39] = 1e-20, 1e-15, np.inf, 1e-18, np.nan
    with np.errstate(invalid="ignore"):
        exact = 0.5 * (A.astype(np.float64) @ B.astype(np.float64)) - 2.0 * C
    old = C.copy()
    rung_11.multiply(A, B, 0.5, -2.0, C, WGMMA, rung_11.machine("sm_90"))
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(C[~finite], exact[~finite])
    rows, columns = np.arange(70) != 66, np.arange(40) != 39
    part = np.ix_(rows, columns)
    assert worst(C[part], A[rows], B[:, columns], 0.5, -2.0, old[part]) < 6


SOURCES = {  # of a C of 70 x 40
    "row": lambda C: C[5],
    "column": lambda C: C[:, 7:8],
    "matrix": lambda C: C.copy(),
    "padded": lambda C: rung_11.as_stored(C, "rows", 3),
    "strided": lambda C: np.repeat(np.repeat(C, 2, 0), 3, 1)[::2, ::3],
}


def problem_with_exceptions(parts=1):
    A, B, C = problem(70, 40, 140 if parts > 1 else 40)  # a part has 128 steps
    A[3, 5], A[64, :9], B[2, 2], B[::9, 30] = 1e-20, 1e-15, 1e-18, 1e-15
    return A, B, C


@pytest.mark.parametrize("lying", SOURCES)
@pytest.mark.parametrize("kernel", ["mma", "wgmma"])
@pytest.mark.parametrize(("swap_ab", "parts"), [(False, 1), (True, 1), (False, 2)])
@pytest.mark.sampled(every=11)
def test_a_source_is_read_in_place_of_c(kernel, swap_ab, parts, lying):
    """Also for the lines that the guard computes. What D held does not matter, as it holds NaN."""
    arch, config = KERNELS[kernel]
    A, B, C = problem_with_exceptions(parts)
    source = SOURCES[lying](C)
    before, D = source.copy(), np.full_like(C, np.nan)
    old = np.broadcast_to(source, C.shape)
    rung_11.multiply(A, B, 0.7, -1.5, D, config.replace(SPLIT_K=parts), rung_11.machine(arch), swap_ab, old)
    assert worst(D, A, B, np.float32(0.7), -1.5, old) < 6
    np.testing.assert_array_equal(source, before)


def test_a_source_that_beta_is_zero_for_is_not_read():
    A, B, C = problem_with_exceptions()
    rung_11.multiply(A, B, 0.7, 0.0, C, WGMMA, rung_11.machine("sm_90"), source=np.full_like(C, np.nan))
    assert worst(C, A, B, np.float32(0.7), 0, 0 * C) < 6


def small_products(K, smallest):
    """Return A and B whose lines have one large element, times zero, and else such that pairs err most."""
    between = 2.0**-14 * (smallest + 0.98 * 2.0**-25)  # of two FP16 numbers, nearly in the middle
    A, B = np.full((8, K), between, np.float32), np.full((K, 8), between, np.float32)
    A[:, 0], A[:, 1], B[0], B[1] = 1, 0, 0, 1
    return A, B


@pytest.mark.parametrize("K", [512, 2048])
def test_pairs_with_fewer_digits_are_within_the_bound(K, monkeypatch):
    """From K = 512 on elements are split whose pairs err more, as far as the bound of K u has room, and no farther."""
    A, B = small_products(K, smallest_split(K))
    C = np.zeros((8, 8), np.float32)
    rung_11.multiply(A, B, 1.0, 0.0, C, WGMMA, rung_11.machine("sm_90"))
    assert 200 < worst(C, A, B, 1, 0, C) < K
    (pair, *_), _ = rung_11.split([A, np.ascontiguousarray(B.T)], rung_11.machine("sm_90"))
    assert not pair.info[:, 1].any()
    kernel_texts.change(monkeypatch, lambda text: text.replace("(28 - __clz(K))", "(30 - __clz(K))"), "split.cu")
    A, B = small_products(K, smallest_split(K) / 2)
    rung_11.multiply(A, B, 1.0, 0.0, C, WGMMA, rung_11.machine("sm_90"))
    assert worst(C, A, B, 1, 0, C) > K


STRIDES, TURNED = "source_row, grouped.source_column)", "grouped.source_column, source_row)"
OF_BATCH = "batch.source.row_stride, batch.source.column_stride)"


@pytest.mark.sampled(every=2)  # of six: each kernel, and both faults
@pytest.mark.parametrize(("file", "old", "new"), [
    ("11_fp16x3.cu", STRIDES, TURNED),
    ("11_fp16x3.cu", "<SOURCE", "<0"),
    ("guard_fp16x3.cu", "<SOURCE", "<0"),
    ("guard_fp16x3.cu", STRIDES, TURNED),
    ("reduce_parts.cu", OF_BATCH, "batch.source.column_stride, batch.source.row_stride)"),
    ("reduce_parts.cu", "first_of(batch.source)", "nullptr"),
])  # fmt: skip
def test_every_kernel_that_stores_c_needs_the_source(file, old, new, monkeypatch):
    def edit(text):
        changed, count = re.subn("(OldValues.*)" + re.escape(old), r"\1" + new, text)
        if count == 0:
            raise ValueError(f"{old!r} is not there")  # no AssertionError, which is expected
        return changed

    kernel_texts.change(monkeypatch, edit, file)
    with pytest.raises((AssertionError, KernelFault)):
        test_a_source_is_read_in_place_of_c("wgmma", False, 1 + (file == "reduce_parts.cu"), "row")


@pytest.mark.parametrize("parts", [1, 2])
def test_alpha_does_not_overflow_a_part_of_a_sum(parts):
    """The guard adds what was left out of the pairs: with an alpha above 1 only to sums that are not scaled yet."""
    A, B, C = (np.zeros(shape, np.float32) for shape in ((2, 140), (140, 3), (2, 3)))
    A[0, :3] = 1, 0.99 * 2.0**-28, 1.99  # the second is left out
    B[:2, 0] = 2.0**98, -1.99 * 2.0**126
    A[1, 5], A[1, 6], B[6, 1] = 1e-20, 1, 1  # times zeros
    config = WGMMA.replace(SPLIT_K=parts)
    found = C.copy()
    rung_11.multiply(A, B, 2.0**30, 0.0, found, config, rung_11.machine("sm_90"))
    exact = 2.0**30 * (A.astype(np.float64) @ B)
    assert np.isfinite(exact).all() and worst(found[:1, :1], A[:1], B[:, :1], 2.0**30, 0, C[:1, :1]) < 6
    np.testing.assert_array_equal(found[1], [0, 2.0**30, 0])
    rung_11.multiply(A[1:], B[:, 1:2], np.inf, 0.0, found[1:, 1:2], config, rung_11.machine("sm_90"))
    assert found[1, 1] == np.inf


def test_dense_lines_are_repaired_in_all_parts(monkeypatch):
    """What the product stores of them, nothing, is NaN in each part; the guard makes the whole sum of the first."""
    A, B, C = problem_with_exceptions(parts=2)
    config, found = WGMMA.replace(SPLIT_K=2), np.full_like(C, np.nan)
    rung_11.multiply(A, B, 3.0, 0.0, found, config, rung_11.machine("sm_90"))
    assert worst(found, A, B, 3, 0, C) < 6
    kernel_texts.replace(monkeypatch, "part < p.parts", "part < p.parts - 1", "guard_fp16x3.cu")
    rung_11.multiply(A, B, 3.0, 0.0, found, config, rung_11.machine("sm_90"))
    assert np.isnan(found[64]).all() and np.isnan(found[:, 30]).all()


@pytest.mark.parametrize("kernel", ["mma", "wgmma"])
def test_parts_err_by_half_the_smallest_subnormal_number_each(kernel):
    """Where the result is subnormal, when they are scaled back; their sum is exact then."""
    arch, config = KERNELS[kernel]
    A, B, C = problem(40, 20, 600)
    A, B = A * np.float32(2.0**-70), B * np.float32(2.0**-72)
    rung_11.multiply(A, B, 1.0, 0.0, C, config.replace(SPLIT_K=4), rung_11.machine(arch))
    a, b = A.astype(np.float64), B.astype(np.float64)
    assert 0 < abs(C).max() < 2.0**-126
    assert (abs(C - a @ b) <= 6 * 2.0**-24 * (abs(a) @ abs(b)) + 4 / 2 * 2.0**-149).all()


@pytest.mark.sampled(every=5)  # of six: the first and the last
@pytest.mark.parametrize(("arch", "order"), [("sm_90", "C"), ("sm_90", "F"), ("sm_80", "C")])
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_sgemm_takes_every_layout(arch, order, layout):
    """With the tile that is chosen for the problem, transposed or not."""
    A, B, C = problem(21, 50, 130)
    a, b = (np.asarray(x, order="CF"[letter == "T"]) for x, letter in zip((A, B), layout, strict=True))
    found = np.asarray(C, order=order).copy(order="K")
    out, report = sim.sgemm(rungs.find("fp16x3"), None, a, b, 1.5, -0.5, found, Machine(arch))
    assert out is found and report.kernel in PRODUCTS
    assert worst(found, A, B, 1.5, -0.5, C) < 6


def test_sgemm_takes_a_config():
    A, B, C = problem(70, 40, 200)
    config = Fp16x3Config(BM=64, BN=32, STAGES=4, SPLIT_K=2)
    out, _ = sim.sgemm(rungs.find("fp16x3"), config, A, B, machine=Machine("sm_90"))
    assert worst(out, A, B, 1, 0, C) < 6
    with pytest.raises(ConfigError, match="takes a Fp16x3MmaConfig on sm_80"):
        sim.sgemm(rungs.find("fp16x3"), config, A, B, machine=Machine("sm_80"))
    with pytest.raises(DeviceError, match="needs a device of sm_80"):
        sim.sgemm(rungs.find("fp16x3"), None, A, B, machine=Machine("sm_75"))


@pytest.mark.parametrize(("K", "alpha"), [(0, 1.0), (8, 0.0), (8, 1.0)])
def test_precision_leaves_what_is_small_or_empty_to_an_ieee_kernel(K, alpha):
    A, B, C = problem(5, 6, K)
    expected = np.float32(alpha) * (A @ B) + C
    out, report = sim.sgemm(None, None, A, B, alpha, 1.0, C, Machine("sm_90"), precision="fp16x3")
    assert report.kernel not in PRODUCTS
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def launch(monkeypatch, kernel, old, new, missing=0):
    """Run a product with a piece of the kernel's text replaced; return the largest error in u |A| |B|.

    `missing` lines of each operand are missing from a whole tile.
    """
    arch, config = KERNELS[kernel]
    assert old in rung_11.source_of(geometry.file_of(config), config.compiled)
    kernel_texts.change(monkeypatch, lambda text: text.replace(old, new))
    A, B, C = problem(config.BM - missing, config.BN - missing, 320)
    rung_11.product(halves(A), halves(B.T), 1.0, 0.0, C, config, rung_11.machine(arch))
    return worst(C, A, B, 1.0, 0.0, C)


FULL, EMPTY = "mbarrier_wait_parity(full(stage), phase);", "mbarrier_wait_parity(empty(stage), phase ^ 1);"
COPIES = "  // all threads' copies"
LEFT_OUT = {
    "wait for copies": ("mma", "cp_async_wait_group<STAGES - 2>();", "", RaceError, "asynchronous copy"),
    "barrier of the block": ("mma", f"__syncthreads();{COPIES}", COPIES, RaceError, "reads shared memory"),
    "wait for any full stage": ("wgmma", FULL, "", UnwrittenSharedError, "before any bulk copy"),
    "wait for the second full stage": ("wgmma", FULL, "if (i == 0) " + FULL, RaceError, "bulk copy is in flight"),
    "wait for an empty stage": ("wgmma", EMPTY, "", RaceError, "copies to shared memory"),
    "wrong parity": ("wgmma", EMPTY, EMPTY.replace(" ^ 1", ""), EndlessWaitError, "never ends"),
    "release": ("wgmma", "if (i > 0) ring.release(last);", "", EndlessWaitError, "never ends"),
    "wait for hi hi": ("wgmma", "wgmma_wait_group<1>();", "", UnfinishedProductError, "uses the registers"),
    "wait at the end": ("wgmma", "wgmma_wait_group<0>();", "", UnfinishedProductError, "uses the registers"),
    "fence": ("wgmma", "wgmma_fence();", "", UnfinishedProductError, "since the last wgmma.fence"),
    "commit": ("wgmma", "wgmma_commit_group();", "", UnfinishedProductError, "uses the registers"),
    "an arrival": ("wgmma", "ring.init(4 * CONSUMERS);", "ring.init(3);", RaceError, "which warp 3 uses"),
    # blockIdx.z is 0; a constant 0 crashes NVRTC 13.0.
    "room for an arrival": ("wgmma", "mbarrier_init(full(i), 1)", "mbarrier_init(full(i), blockIdx.z)",
                            BarrierError, "once too often"),
    "barrier after making": ("wgmma", "__syncthreads();", "", RaceError, "since it was made"),
    "room for the barriers": ("wgmma", "base + STAGES * STAGE + i * 8", "base + i * 8",
                              SharedAccessError, "over a memory barrier"),
}  # fmt: skip


@pytest.mark.sampled(every=2)  # which meets every kind of error
@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_must_not_be_left_out(what, monkeypatch):
    kernel, old, new, error, message = LEFT_OUT[what]
    with pytest.raises(error, match=message):
        launch(monkeypatch, kernel, old, new)


@pytest.mark.parametrize("kernel", ["mma", "wgmma"])
def test_pairs_that_are_not_swizzled_are_seen(kernel):
    arch, config = KERNELS[kernel]
    A, B, C = problem(64, 32, 64)
    a, b = (dataclasses.replace(split, pairs=swizzled(split.pairs)) for split in (halves(A), halves(B.T)))
    rung_11.product(a, b, 1.0, 0.0, C, config, rung_11.machine(arch))
    assert worst(C, A, B, 1.0, 0.0, C) > 1000


BYTES, STEP = "bytes(min(most, int(lines - first)) * LINE_BYTES<ONE>)", "a.from += a.step"
WRONG_COPIES = {
    "whole tiles": (BYTES, "bytes(most * LINE_BYTES<ONE>)", GlobalAccessError, "belongs to no operand"),
    "a line too many": (BYTES, BYTES.replace("<ONE>", "<ONE> + 128"), GlobalAccessError, "belongs to no operand"),
    "half a piece": (BYTES, BYTES.replace("<ONE>", "<ONE> - 8"), MisalignedError, "multiples of 16"),
    "from half a piece": (STEP, STEP + " - 4", MisalignedError, "multiples of 16"),
    "to half a piece": ("cp_async_bulk(data, ", "cp_async_bulk(data + 8, ", MisalignedError, "multiples of 16"),
    "past shared memory": ("cp_async_bulk(data, ", "cp_async_bulk(data + 65536, ", SharedAccessError, "bulk up to"),
    "fewer bytes than expected": (", a.bytes, full)", ", a.bytes - 16, full)", EndlessWaitError, "never ends"),
}


@pytest.mark.parametrize("what", WRONG_COPIES)
def test_wrong_bulk_copies_are_seen(what, monkeypatch):
    old, new, error, message = WRONG_COPIES[what]
    with pytest.raises(error, match=message):
        launch(monkeypatch, "wgmma", old, new, missing=3)


def test_a_line_that_is_not_copied_is_seen(monkeypatch):
    """What no copy wrote is NaN to a product. So lines past the end, which are not copied either, reach no element."""
    assert np.isnan(launch(monkeypatch, "wgmma", BYTES, BYTES.replace("<ONE>", "<ONE> - 128")))


@pytest.mark.parametrize("before", [1, 2])
def test_an_operand_that_was_split_before_is_prefetched(before, monkeypatch):
    """Before the launch before has ended. A line too many, past the end of the operand, shows that it is."""
    arch, config = KERNELS["wgmma"]
    A, B, C = problem(61, 13, 64)
    monkeypatch.setattr(geometry.Tiling, "split_before", lambda tiling, given: before)
    rung_11.product(halves(A), halves(B.T), 1.0, 0.0, C, config, rung_11.machine(arch))
    assert worst(C, A, B, 1.0, 0.0, C) < 6
    wrong = ("prefetch(lines.from, lines.bytes)", "prefetch(lines.from, lines.bytes + 128)")
    kernel_texts.change(monkeypatch, lambda text: text.replace(*wrong))
    with pytest.raises(GlobalAccessError, match=f"pairs of {'AB'[before - 1]}.*which belongs to no operand.*prefetch"):
        rung_11.product(halves(A), halves(B.T), 1.0, 0.0, C, config, rung_11.machine(arch))


def test_zeros_fill_up_the_blocks_of_a_promotion():
    arch, config = KERNELS["wgmma"]
    A, B, C = problem(64, 16, 80)
    a, b = halves(A), halves(B.T)
    a.pairs[-1] = 0x7FFF
    rung_11.product(a, b, 1.0, 0.0, C, config, rung_11.machine(arch))
    assert np.isnan(C).all()


@pytest.mark.parametrize(("old", "match"), [
    ("cluster_sync();\n        else", "written since the last barrier of the cluster"),
    ("cluster_wait();  // before", "may end while others"),
])  # fmt: skip
def test_barriers_of_a_cluster_must_not_be_left_out(old, match, monkeypatch):
    without(old, monkeypatch)
    with pytest.raises(RaceError, match=match):
        rung_11.split([rung_11.as_stored(hard_operand(9, 600), "columns", 0)], Machine("sm_90"))
