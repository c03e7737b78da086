"""Symmetric results on the simulated device: half the tiles, every element written once, the bits of whole products."""

import dataclasses
import itertools

import kernel_texts
import numpy as np
import pytest
from msgspec.structs import replace

from fastsgemm import rungs
from fastsgemm.config import PipelinedConfig
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.batch import ADDRESS_PLACE, Batch, BatchAndSource
from fastsgemm.geometry.layout import LeadingDimension, row_major, stored
from fastsgemm.geometry.matrix import Address, Base, Matrix, Operand
from fastsgemm.jit import source as jit_source
from fastsgemm.sim import Machine, Region
from fastsgemm.sim.errors import RaceError, UnwrittenSharedError
from fastsgemm.sim.global_memory import misalignment

RUNG = rungs.find("pipelined")
BOTH, LOWER, UPPER = 1, 2, 3
SMALL = PipelinedConfig(
    32, 32, 8, 4, 4, 16, 32, 1, GROUP_M=2, MIN_BLOCKS=1, ORDER=1, FRAGMENTS=2, CP_ASYNC=0, SPREAD=0, SPLIT_K=1
)
CONFIGS = {
    "square": SMALL,
    "many stages": dataclasses.replace(SMALL, CP_ASYNC=3, STAGES=3),
    "wide": dataclasses.replace(SMALL, BM=32, BN=64, WM=32, WN=32, TM=8, TN=4, CP_ASYNC=1),
    "high": dataclasses.replace(SMALL, BM=64, BN=32, WM=32, WN=32, WNITER=2, TM=4, TN=4, GROUP_M=3),
    "neither divides": dataclasses.replace(SMALL, BM=96, BN=64, BK=24, TM=8, TN=4, WM=32, WN=64, WNITER=2, CP_ASYNC=1),
    "two sub-tiles": dataclasses.replace(SMALL, BM=64, BN=64, WM=32, WN=64, WNITER=1),
    "three sub-tiles": dataclasses.replace(SMALL, BM=48, BN=128, WM=48, WN=64, WNITER=2),
    "sub-tiles in pairs": dataclasses.replace(SMALL, BM=64, BN=64, TN=1, WM=32, WN=32),  # more do not fit at once
    "lanes in halves": dataclasses.replace(SMALL, BM=128, BN=128, TM=16, WM=32, WN=64),  # not even one column of all
    "half a warp stores": dataclasses.replace(SMALL, BM=16, BN=16, BK=4, TN=1, WM=8, WN=16),  # what a pass has room for
    "two columns": dataclasses.replace(SMALL, TM=2, TN=2, WM=16, WN=16, WNITER=1),
    "sixteen rows": dataclasses.replace(SMALL, BM=64, BN=64, BK=16, TM=16, TN=4, WM=64, WN=32, WNITER=1),
    "sliced": dataclasses.replace(SMALL, BK=16, SLICED_K=2),
    "chains": dataclasses.replace(SMALL, PARTIAL_ACCUMULATORS=2),
}
SPLITS = {
    "split": dataclasses.replace(SMALL, SPLIT_K=3),
    "many parts": dataclasses.replace(SMALL, SPLIT_K=9),
    "wide, split": dataclasses.replace(CONFIGS["wide"], SPLIT_K=2),
}


def drawn(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def as_stored(x, trans, padding=0):
    """Matrices with lines of their own, `padding` floats apart, column-major if `trans`."""
    lines = x.swapaxes(-1, -2) if trans else x
    memory = np.full((*lines.shape[:-1], lines.shape[-1] + padding), np.nan, np.float32)[..., : lines.shape[-1]]
    memory[...] = lines
    return memory.swapaxes(-1, -2) if trans else memory


def operand(x):
    *steps, down, right = (stride // 4 for stride in x.strides)
    how = stored(x.shape[-2:], (down, right)) or LeadingDimension(False, 0)
    return Operand(x.shape[-2:], how, x.ctypes.data % 16 if x.base is None else 0, tuple(steps))


def launch(config, A, B, C, sym, alpha=1.0, beta=0.0, source=None):
    """Compute C <- alpha A B + beta C, or what SYM says of it, by a config.

    Returns the report of the product, with the accesses to C of the kernel that stores it.
    """
    lying = None
    if source is not None:
        strides = tuple(stride // 4 for stride in source.strides)
        lying = Matrix(Address(Base.SOURCE), source.shape, strides, misalignment(source) % 16)
    call = variants.call_for(*map(operand, (A, B, C)), extents=C.shape[:-2], source=lying)
    variant = variants.variant_for(RUNG, call, config, 0)
    parts, chunk = grid.split(config, call.problem.K)
    N, K = call.problem.N, call.problem.K
    into = {"C": Region(C, read=bool(beta) and source is None, write=True, complete=sym in (0, BOTH))}
    if source is not None:
        into["S"] = Region(source, read=bool(beta))
    batch, written = call.batch, into
    (to, ld), (one, two), last, kind = ("C", call.ldc), (alpha, beta), last_argument(call, batch), sym
    if parts > 1:
        W = np.full((batch.count, parts, N, N), np.nan, np.float32)
        steps = row_major(batch.extents, size=parts * N * N)
        written = {"W": Region(W, read=False, write=True, complete=not sym)}
        (to, ld), (one, two), last, kind = ("W", N), (1.0, 0.0), replace(batch, c=steps).packed, sym and LOWER
    a, b = ("B", "A") if call.swap_ab else ("A", "B")
    tiles = grid.triangle_tiles(config.BM, config.BN, N) if sym else grid.tiles(config, call.problem)
    args = (
        N, N, K, one, a, call.lda, b, call.ldb, two, to, ld, chunk, N * N, grid.chain(config, K), last,
    )  # fmt: skip
    report = Machine("sm_90").launch(
        jit_source.rung_spec(RUNG, config, replace(variant, sym=kind)).text, RUNG.kernel, (tiles * parts, *batch.grid),
        config.threads, config.shared_bytes, args, {"A": Region(A), "B": Region(B)} | written,
    )  # fmt: skip
    if parts > 1:
        adding = add_up(call, W, replace(batch, a=steps), sym, alpha, beta, into)
        report.total.stores["C"], report.total.loads["C"] = adding.total.stores["C"], adding.total.loads["C"]
    return report


def last_argument(call, batch):
    """A batch, with where the source lies if there is one."""
    if call.source is None:
        return batch.packed
    return (BatchAndSource(batch, call.source).packed(0), (ADDRESS_PLACE, "S"))


def add_up(call, W, batch, sym, alpha, beta, into):
    """Add up the parts in W; return the report."""
    _, parts, N, _ = W.shape
    text = kernel_texts.helper("reduce_parts", SYM=sym, SOURCE=int(call.source is not None))
    blocks, threads = grid.reduction_blocks(N, N, parts, sym=sym)
    strides_c = (1, call.ldc) if call.variant.trans_c else (call.ldc, 1)
    args = (N, N, parts, "W", N * N, alpha, beta, "C", *strides_c, last_argument(call, batch))
    name, regions = rungs.kernel_name("reduce_parts"), {"W": Region(W)} | into
    return Machine("sm_90").launch(text, name, (blocks, *batch.grid), threads, 0, args, regions, early=True)


def triangle(N, sym, order="C"):
    """Which elements of C are stored; a column-major C is seen as its transpose."""
    whole = np.ones((N, N), bool)
    kept = {0: whole, BOTH: whole, LOWER: np.tril(whole), UPPER: np.triu(whole)}[sym]
    return kept.T if order == "F" else kept


def same_bits(found, expected):
    np.testing.assert_array_equal(np.ascontiguousarray(found).view(np.uint32), np.ascontiguousarray(expected).view("I"))


def compare(config, A, B, C, sym, alpha=1.0, beta=0.0, source=None):
    """Compare with the whole product of the same config; return both reports."""
    whole, before = C.copy(order="K"), C.copy(order="K")
    order = "F" if C.strides[-2] == 4 != C.strides[-1] else "C"
    whole_report = launch(config, A, B, whole, 0, alpha, beta, source)
    report = launch(config, A, B, C, sym, alpha, beta, source)
    N = C.shape[-1]
    kept = triangle(N, sym, order)
    same_bits(np.where(kept, C, before), C)  # nothing else is written
    same_bits(np.where(kept, C, 0), np.where(kept, whole, 0))
    written = report.total.stores["C"].bytes
    assert written == 4 * kept.sum() * (C.size // N**2)  # each element once
    assert report.total.loads["C"].bytes == (written if beta and source is None else 0)
    return report, whole_report


CASES = list(itertools.product(CONFIGS, (BOTH, LOWER, UPPER), ("NT", "TN"), (128, 130, 97, 20, 7), "CF", (0.0, -1.5)))


@pytest.mark.parametrize("name", [*CONFIGS, *SPLITS])
def test_the_configs_are_legal(name):
    assert RUNG.violations((CONFIGS | SPLITS)[name], 232448) == []


@pytest.mark.sampled(every=151)
@pytest.mark.parametrize(("name", "sym", "layout", "N", "order", "beta"), CASES)
def test_a_triangle_has_the_bits_of_the_whole_product(name, sym, layout, N, order, beta):
    """A A^T and A^T A, aligned and not; C need not be symmetric, and holds NaN where it is not read."""
    K = 37 if N % 4 else 36
    A = as_stored(drawn(N, K), layout == "TN")
    C = drawn(N, N, seed=2) if beta else np.full((N, N), np.nan, np.float32)
    C = as_stored(C, order == "F", 0 if N % 4 else 4)
    compare(CONFIGS[name], A, A.T, C, sym, 0.7, beta)


@pytest.mark.sampled(every=23)
@pytest.mark.parametrize(("N", "beta"), [(128, 0.0), (130, -1.5), (65, 0.5)])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("sym", [BOTH, LOWER, UPPER])
@pytest.mark.parametrize("name", SPLITS)
def test_parts_are_added_up_for_one_triangle(name, sym, order, N, beta):
    A = drawn(N, 150)
    C = drawn(N, N, seed=2) if beta else np.full((N, N), np.nan, np.float32)
    compare(SPLITS[name], A, A.T, as_stored(C, order == "F"), sym, 0.7, beta)


@pytest.mark.sampled(every=11)
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize(
    ("name", "count"),
    [*(("reduce_parts", n) for n in (0, 1, 8, 9, 300)), *(("reduce_segments", n) for n in (1, 2, 16, 17, 300))],
)
@pytest.mark.parametrize("sym", [BOTH, LOWER, UPPER])
@pytest.mark.parametrize(("N", "strides"), [(3, (11, 1)), (37, (1, 41)), (70, (72, 1))])
def test_the_sums_alone(N, strides, sym, name, count, beta):
    """The parts hold nothing above the diagonal; the sums have the order of those of a whole product."""
    W = drawn(max(1, count), N, N)
    results = []
    for kind in (0, sym):
        memory = np.full(6000, np.nan if beta == 0 else 7.0, np.float32)
        view = np.lib.stride_tricks.as_strided(memory, (N, N), [4 * stride for stride in strides])
        view[...] = drawn(N, N, seed=2) if beta else np.nan
        parts = np.where(np.tril(np.ones((N, N), bool)), W, np.nan if kind else W.swapaxes(1, 2)).astype(np.float32)
        args = (N, N, count, "W", N * N, 1.5, beta, "C", *strides, Batch().packed)
        regions = {"W": Region(parts), "C": Region(memory.reshape(1, -1), write=True, read=bool(beta))}
        blocks = grid.reduction_blocks(N, N, count, name == "reduce_segments", kind)
        text = kernel_texts.helper(name, SYM=kind)
        report = Machine().launch(text, rungs.kernel_name(name), *blocks, 0, args, regions)
        kept = triangle(N, kind)
        assert report.total.stores["C"].bytes == 4 * kept.sum()
        results.append(np.where(kept, view, 0))
    same_bits(results[1], np.where(triangle(N, sym), results[0], 0))


SOURCES = {
    "row": lambda N: np.broadcast_to(drawn(N, seed=3), (N, N)),
    "column": lambda N: np.broadcast_to(drawn(N, 1, seed=3), (N, N)),
    "matrix": lambda N: drawn(N, N, seed=3),
    "column-major": lambda N: drawn(N, N, seed=3).T,
}


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("lying", SOURCES)
@pytest.mark.parametrize("name", ["square", "two columns", "split"])
@pytest.mark.parametrize(("N", "order"), [(128, "C"), (97, "C"), (128, "F")])
def test_a_source_is_read_for_both_triangles(N, order, name, lying):
    A = drawn(N, 40)
    C = as_stored(np.full((N, N), np.nan, np.float32), order == "F")
    compare((CONFIGS | SPLITS)[name], A, A.T, C, BOTH, 0.7, -1.5, SOURCES[lying](N))


@pytest.mark.parametrize(
    ("name", "order", "beta"),
    [("square", "C", -1.5), ("split", "C", 0.5), ("wide", "F", 0.0), ("half a warp stores", "C", 0.0)],
)
def test_every_product_of_a_batch(name, order, beta):
    A = drawn(2, 3, 68, 30)
    C = as_stored(drawn(2, 3, 68, 68, seed=2) if beta else np.full((2, 3, 68, 68), np.nan, np.float32), order == "F")
    compare((CONFIGS | SPLITS)[name], A, A.swapaxes(-1, -2), C, BOTH, 0.7, beta)


def test_of_operands_that_differ_the_lower_triangle_is_stored_twice():
    """A B of polynomials of one symmetric matrix is symmetric but for its rounding, and is stored exactly symmetric."""
    A, B = drawn(100, 40), drawn(40, 100, seed=2)
    C, whole = np.full((100, 100), np.nan, np.float32), np.empty((100, 100), np.float32)
    launch(SMALL, A, B, C, BOTH)
    launch(SMALL, A, B, whole, 0)
    same_bits(np.tril(C), np.tril(whole))
    same_bits(C, C.T)


def test_half_the_work_and_whole_sectors():
    A, C = drawn(256, 64), np.empty((256, 256), np.float32)
    report, whole = compare(SMALL, A, A.T, C, BOTH)
    assert (report.grid, whole.grid) == (36, 64)
    assert report.total.thread_fmas / whole.total.thread_fmas == 36 / 64
    stores = report.total.stores["C"]
    assert stores.sectors <= 4 * 256 * 256 // 32 + 2 * 256  # on the diagonal, a sector is stored in up to four pieces
    split, _ = compare(SPLITS["split"], A, A.T, C, BOTH)
    assert split.total.stores["C"].sectors <= 4 * 256 * 256 // 32 + 2 * 256


def test_rows_of_the_transpose_are_as_long_as_a_warp_tile():
    """Rows that begin anywhere: a row of 48 floats touches 7 sectors, or 8; three of 16 would touch 8 to 9."""
    A, C = drawn(193, 64), np.empty((193, 193), np.float32)
    report, _ = compare(CONFIGS["three sub-tiles"], A, A.T, C, UPPER)
    assert report.total.stores["C"].sectors <= 193 * 194 // 2 // 48 * 8 + 193


BARRIERS = {  # of which so many are in the source
    "if (first) __syncwarp();  // the lanes have read the pass before": 1,
    "if (pass) __syncwarp();  // the lanes have read the pass before": 1,
    "__syncwarp();  // the lanes have written": 2,
    "__syncwarp();  // the lanes have read what the next store overwrites": 1,
    "if constexpr (VEC == 1 || SYM) __syncthreads();": 1,
}


@pytest.mark.parametrize(("text", "number"), [(text, n) for text, count in BARRIERS.items() for n in range(count)])
def test_no_barrier_of_the_stores_can_be_left_out(text, number, monkeypatch):
    """Where both stores lay what they store through shared memory, in several passes."""
    right = jit_source.with_constants

    def without(*args):
        pieces = right(*args).split(text)
        assert len(pieces) == BARRIERS[text] + 1
        return text.join(pieces[: number + 1]) + ";" + text.join(pieces[number + 1 :])

    monkeypatch.setattr(jit_source, "with_constants", without)
    A = drawn(97, 37)
    with pytest.raises((RaceError, UnwrittenSharedError)):
        launch(CONFIGS["high"], A, A.T, np.empty((97, 97), np.float32), BOTH)
