"""Rung 10 on the simulated device, launched by hand: exact sums, whatever the layout, the widths and the split of K."""

import itertools

import numpy as np
import pytest

from fastsgemm import config as configs
from fastsgemm.geometry.batch import Batch
from fastsgemm.jit import source
from fastsgemm.sim import Machine, Region
from fastsgemm.sim.errors import (
    ForbiddenAccessError,
    GlobalAccessError,
    MisalignedError,
    RaceError,
    UnwrittenOutputError,
    UnwrittenSharedError,
)

LAYOUTS = list(itertools.product((0, 1), repeat=3))  # TRANS_A, TRANS_B, TRANS_C
ROWS = {1: 1, 2: 2, 3: 4, 5: 4, 8: 8, 16: 16, 17: 16}  # BM for each M: whole tiles, ragged ones, two of them


def constants(BM=4, BN=32, BK=64, TN=4, TK=8, layout=(0, 0, 0), vec=(1, 1, 1)):
    names = ("TRANS_A", "TRANS_B", "TRANS_C", "VEC_A", "VEC_B", "VEC_C")
    return {
        "BM": BM,
        "BN": BN,
        "BK": BK,
        "TN": TN,
        "TK": TK,
        "MIN_BLOCKS": 1,
        "BATCHED": 0,
        "SOURCE": 0,
        "TYPE_A": 0,
        "TYPE_B": 0,
        "K_GROUP": configs.K_GROUP,
        "MAX_ALTERNATED": configs.MAX_ALTERNATED,
        "MAX_PASS": configs.MAX_PASS,
        **dict(zip(names, layout + vec, strict=True)),
    }


def kernel(c, edit=lambda text: text):
    return edit(source.with_constants("10_skinny.cu", c))


def integers(M, N, K, parts=1, seed=0):
    """Operands whose products and sums are exact in float32: any order of additions gives the same bits."""
    draw = np.random.default_rng(seed)
    return tuple(draw.integers(-8, 9, shape).astype(np.float32) for shape in ((M, K), (K, N), (parts, M, N)))


def stored(x, transposed, gap):
    """The matrix in the middle of a larger one, the rows `gap` apart: what is between them belongs to nobody."""
    lines = x.T if transposed else x
    wide = np.full((lines.shape[0], lines.shape[1] + gap), 7.0, np.float32)
    view = wide[:, : lines.shape[1]]
    view[...] = lines
    return view


def run(c, A, B, C, alpha=1.0, beta=0.0, k_chunk=None, gap=None, edit=lambda text: text):
    """Launch and return (C, report); part y of C is what the blocks of part y left there."""
    parts, M, N = C.shape
    K = A.shape[1]
    gap = gap or (4 if 4 in (c["VEC_A"], c["VEC_B"]) else 3)
    a, b = stored(A, c["TRANS_A"], gap), stored(B, c["TRANS_B"], gap)
    to = np.array(C.transpose(0, 2, 1) if c["TRANS_C"] else C, order="C", copy=True)
    operands = {
        "A": Region(a, read=K > 0),
        "B": Region(b, read=K > 0),
        "C": Region(to, read=bool(beta), write=True, complete=True),
    }
    grid = -(-M // c["BM"]) * -(-N // c["BN"]) * parts
    block = c["BN"] // c["TN"] * (c["BK"] // c["TK"])
    ld = [x.strides[-2] // 4 for x in (a, b, to)]
    args = [M, N, K, alpha, "A", ld[0], "B", ld[1], beta, "C", ld[2], k_chunk or max(K, 1), M * N, Batch().packed]
    report = Machine("sm_90").launch(kernel(c, edit), "fastsgemm_skinny", grid, block, 0, args, operands)
    return (to.transpose(0, 2, 1) if c["TRANS_C"] else to), report


def expected(A, B, C, alpha=1.0, beta=0.0, k_chunk=None):
    step = k_chunk or max(A.shape[1], 1)
    wide = [x.astype(np.float64) for x in (A, B)]
    cuts = [slice(y * step, (y + 1) * step) for y in range(C.shape[0])]
    products = np.stack([wide[0][:, cut] @ wide[1][cut] for cut in cuts])
    return alpha * products + (beta * C.astype(np.float64) if beta else 0.0)


@pytest.mark.sampled(every=11)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: "".join(map(str, x)))
@pytest.mark.parametrize("M", ROWS)
def test_ragged_problems_float_by_float(M, layout):
    for N, K in ((7, 3), (61, 137), (37, 211)):  # less than a tile; two tiles and the ragged end of K; many steps
        A, B, C = integers(M, N, K, seed=M)
        c = constants(ROWS[M], layout=layout)
        alpha, beta = (1.0, 0.0) if N == 7 else (0.5, -2.0)
        found, _ = run(c, A, B, C, alpha, beta)
        np.testing.assert_array_equal(found, expected(A, B, C, alpha, beta))


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: "".join(map(str, x)))
@pytest.mark.parametrize("M", [1, 4, 12, 20])
def test_ragged_problems_four_floats_at_a_time(M, layout):
    """Extents along which an operand is contiguous are multiples of four; all others are not."""
    trans_a, trans_b, trans_c = layout
    N = 37 if trans_b and trans_c else 68
    K = 140 if trans_b or not trans_a else 139
    vec = (1 if M == 1 and trans_a else 4, 4, 1 if M == 1 and trans_c else 4)
    A, B, C = integers(M, N, K, seed=M)
    found, report = run(constants(min(M, 16) if M != 12 else 8, layout=layout, vec=vec), A, B, C, 1.0, 0.5)
    np.testing.assert_array_equal(found, expected(A, B, C, 1.0, 0.5))
    tiles_m = -(-M // (8 if M == 12 else min(M, 16)))
    assert report.total.loads["B"].bytes <= 4 * B.size * tiles_m * (1 if N == 68 else 2) * 2


@pytest.mark.sampled(every=3)  # of four: no operand transposed, and both
@pytest.mark.parametrize("layout", LAYOUTS[::2], ids=lambda x: "".join(map(str, x)))
def test_a_passes_through_shared_memory_without_bank_conflicts(layout):
    """Two lanes or more read the same 16 bytes, so that a load takes two of the banks' turns of 128 bytes."""
    counted = []
    for tiles in (1, 3):
        c = constants(16, BN=64, BK=256, TK=16, layout=layout, vec=(4, 4, 4))
        A, B, C = integers(16, 64, tiles * 256)
        counted.append(run(c, A, B, C)[1].total)
    few, many = counted  # the difference is the main loop's
    loads, stores = ([getattr(total, name) for total in (few, many)] for name in ("shared_loads", "shared_stores"))
    # Less where the compiler reads 4 bytes once more, which it does in one process and not in another.
    assert loads[1].wavefronts - loads[0].wavefronts <= 2 * (loads[1].requests - loads[0].requests)
    assert stores[1].wavefronts - stores[0].wavefronts == 2 * (16 * 256 * 4 // 128)


SHAPES = [  # BM, BN, BK, TN, TK: every way to share out threads, rows and partial sums
    (1, 4, 512, 4, 8), (1, 128, 16, 4, 16), (1, 256, 8, 4, 4), (1, 32, 32, 1, 8), (2, 16, 64, 2, 4), (4, 64, 48, 8, 12),
    (8, 32, 32, 4, 4), (16, 16, 128, 4, 8), (16, 128, 8, 4, 8), (16, 64, 64, 8, 16), (32, 32, 64, 4, 8),
]  # fmt: skip


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("vec", [1, 4])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s)))
def test_every_kind_of_constants(shape, trans_b, vec):
    M, N, K = shape[0] + 4 if shape[0] > 2 else shape[0], shape[1] + 4, 2 * shape[2] + 12
    A, B, C = integers(M, N, K)
    c = constants(*shape, layout=(0, trans_b, 0), vec=(vec, vec, vec))
    found, _ = run(c, A, B, C)
    np.testing.assert_array_equal(found, expected(A, B, C))


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("k_chunk", [4, 52, 64, 100, 128])
def test_splits_of_k(k_chunk, trans_b):
    """Each part is the product over its own steps; the last may be short."""
    K = 260
    A, B, C = integers(5, 40, K, parts=-(-K // k_chunk))
    found, _ = run(constants(layout=(0, trans_b, 0), vec=(4, 4, 1)), A, B, C, k_chunk=k_chunk)
    np.testing.assert_array_equal(found, expected(A, B, C, k_chunk=k_chunk))
    np.testing.assert_array_equal(found.sum(0), A @ B)


def test_parts_past_the_end_of_k_are_zero():
    A, B, C = integers(2, 9, 8, parts=3)
    found, _ = run(constants(2), A, B, C, k_chunk=4)
    np.testing.assert_array_equal(found[:2].sum(0), A @ B)
    assert (found[2] == 0.0).all()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: "".join(map(str, x)))
def test_beta_zero_never_reads_c_and_no_k_never_a_and_b(layout):
    A, B, C = integers(3, 10, 70)
    nan = np.full_like(C, np.nan)
    found, report = run(constants(layout=layout), A, B, nan)
    np.testing.assert_array_equal(found[0], A @ B)
    assert report.total.loads["C"].requests == 0
    found, report = run(constants(layout=layout), A[:, :0], B[:0], C, 1.0, 2.0)
    np.testing.assert_array_equal(found, 2.0 * C)
    assert set(report.total.loads) <= {"C"}
    found, report = run(constants(layout=layout), A[:, :0], B[:0], nan)
    np.testing.assert_array_equal(found, 0.0 * C)


@pytest.mark.parametrize("trans_b", [0, 1])
def test_rounding_is_that_of_a_sum_in_pieces(trans_b):
    """Normal values: as good as any order of 1,000 additions, and the same bits every time."""
    draw = np.random.default_rng(1)
    A, B = (draw.standard_normal(shape).astype(np.float32) for shape in ((2, 1000), (1000, 33)))
    C = np.zeros((1, 2, 33), np.float32)
    c = constants(2, layout=(0, trans_b, 0))
    found, again = run(c, A, B, C)[0], run(c, A, B, C)[0]
    exact = expected(A, B, C)
    assert np.linalg.norm(found - exact) <= 3e-7 * np.linalg.norm(exact)
    np.testing.assert_array_equal(found.view(np.uint32), again.view(np.uint32))


def test_b_is_read_once_in_whole_sectors():
    A, B, C = integers(8, 128, 256)
    for trans_b in (0, 1):
        _, report = run(constants(8, layout=(0, trans_b, 0), vec=(4, 4, 4)), A, B, C, gap=8)
        read = report.total.loads["B"]
        assert read.bytes == 4 * B.size
        assert read.sectors == read.bytes // 32


@pytest.mark.slow
@pytest.mark.parametrize("left_out", range(5))
def test_no_barrier_can_be_left_out(left_out):
    A, B, C = integers(8, 40, 200)

    def edit(text):
        parts = text.split("__syncthreads();")
        assert len(parts) == 6
        return "__syncthreads();".join(parts[: left_out + 1]) + ";" + "__syncthreads();".join(parts[left_out + 1 :])

    with pytest.raises((RaceError, UnwrittenSharedError)):
        run(constants(8, layout=(0, 0, 1)), A, B, C, edit=edit)


@pytest.mark.sampled(every=2)  # which meets every kind of error
@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("min(n0 + column(i * VEC_N), N - VEC_N)", "n0 + column(i * VEC_N)", GlobalAccessError),
        ("min(m0 + m, M - (TRANS_A ? VEC : 1))", "m0 + m", GlobalAccessError),
        ("b.read<false>(g, k_left - BK)", "b.read<true>(g, BK)", GlobalAccessError),
        ("a.read<false>(k_left - 2 * BK)", "a.read<true>(BK)", GlobalAccessError),
        (" || tile.n + n >= N", "", RaceError),
        ("tile.m + m >= M || ", "", GlobalAccessError),
        ("sum[j] = pairwise_sum<ADDERS>(", "sum[j] = C[0] + pairwise_sum<ADDERS>(", ForbiddenAccessError),
        ("k_left -= BK, buffer", "k_left -= k_left >= BK ? BK : 2 * BK, buffer", None),
        ("i < BM * BN; i += THREADS", "i < BM * BN - THREADS; i += THREADS", UnwrittenOutputError),
        ("acc[which][row + i][j];", "acc[which][row + i][0];", AssertionError),
        ("constexpr int LOAD_B = !TRANS_B && TN % 4 ? 1 : VEC_B;", "constexpr int LOAD_B = 4;", MisalignedError),
        ("C += part * split_stride;", "", RaceError),
        ("const int slice = adder + s * ADDERS;", "const int slice = adder;", AssertionError),
        ("const int k_first = part * k_chunk;", "const int k_first = 0;", AssertionError),
    ],
)
def test_the_checks_see_what_they_are_there_for(old, new, error):
    """Spoil the kernel in one place; None is a change that must not matter."""
    A, B, C = integers(7, 45, 150, parts=2)

    def edit(text):
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is there {text.count(old)} times")  # no AssertionError, which may be expected
        return text.replace(old, new)

    def check():
        found, _ = run(constants(8), A, B, C, k_chunk=76, edit=edit)
        np.testing.assert_array_equal(found, expected(A, B, C, k_chunk=76))

    if error is None:
        check()
        return
    with pytest.raises(error):
        check()
