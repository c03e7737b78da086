"""16-bit operands on rung 11, simulated: their split to the bit, two products or one, the bound, and every wait."""

import kernel_texts
import numpy as np
import pytest
import rung_11
from rung_11 import KERNELS, worst

from fastsgemm import sim
from fastsgemm.call.arrays.library import BFLOAT16
from fastsgemm.config import F16DirectConfig
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.host import as_float32, write
from fastsgemm.jit.source import target
from fastsgemm.problem import DTYPES, DType, Dtypes, Sym
from fastsgemm.request import of_call, resolve
from fastsgemm.sim import Machine, nvrtc
from fastsgemm.sim.errors import (
    EndlessWaitError,
    GlobalAccessError,
    KernelFault,
    MisalignedError,
    RaceError,
    UnfinishedProductError,
)
from fastsgemm.sim.gemm import multiply

BLOCK_K, PAD_K, SPARSE, DENSE = 32, 64, 4, 1 << 20
NUMPY = {DType.F32: np.float32, DType.BF16: BFLOAT16, DType.F16: np.float16}
PAIRS = [name for name in DTYPES if name != "f32xf32"]


def of_type(dtype, values):
    made = np.empty(values.shape, NUMPY[dtype])
    with np.errstate(over="ignore"):
        write(made, np.ascontiguousarray(values, np.float32))
    return made


def split_by_numpy(X):
    """Return the bits of single FP16 numbers, info and the places left out, from the description of the format."""
    values = as_float32(X)
    lines, K = values.shape
    blocks = -(-K // PAD_K) * PAD_K // BLOCK_K
    exact = np.zeros((lines, blocks * BLOCK_K))
    exact[:, :K] = values
    info, places = [], []
    for line in exact:
        largest, finite = np.abs(line).max(), np.isfinite(line).all()
        exponent = int(np.frexp(largest)[1]) - 15 if finite and largest > 0 else 0
        line *= 2.0**-exponent
        if finite:
            inexact = np.flatnonzero(line.astype(np.float16).astype(np.float64) != line)
            line[inexact] = 0
            info.append((exponent, len(inexact)))
        else:
            info.append((exponent, DENSE))
            line[:] = 0  # anything: the guard computes what such a line meets
            inexact = []
        places.append({*map(int, inexact)})
    bits = exact.astype(np.float16).view(np.uint16).reshape(lines, blocks, 4, 8).transpose(1, 0, 2, 3)
    line = np.arange(lines)[:, None]
    return bits[:, line, np.arange(4) ^ line % 8 // 2].reshape(blocks, lines, BLOCK_K), np.array(info), places


def hard_operand(dtype, lines, K, seed=0):
    """Normal numbers and, a line each: zeros, the smallest numbers, a huge range, elements left out, Inf, NaN."""
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((lines, K)).astype(np.float32)
    X[1] = 0
    X[2] *= np.float32(2.0**-130 if dtype is DType.BF16 else 2.0**-20)
    X[3] *= np.float32(2.0**120 if dtype is DType.BF16 else 2.0**13)
    X[4] = np.exp2(draw.uniform(-40, 1, K)) if dtype is DType.BF16 else np.exp2(draw.uniform(-24, 15.9, K))
    X[5, ::3] = 1e-15 if dtype is DType.BF16 else 6e-8
    X[6, K // 2] = np.inf
    X[7, K - 1] = np.nan
    X[8, 0] = -0.0
    return of_type(dtype, X)


SPLITS = {  # architecture, K, and of each side the type, the order, lines, and elements between them
    "rows": ("sm_90", 96, [("bf16", "rows", 37, 0)]),
    "rows, ragged": ("sm_90", 101, [("f16", "rows", 11, 2)]),
    "rows, long": ("sm_90", 17000, [("bf16", "rows", 9, 0)]),
    "columns": ("sm_90", 300, [("bf16", "columns", 36, 0)]),
    "columns, ragged": ("sm_90", 70, [("f16", "columns", 37, 2)]),
    "columns, longer than shared memory": ("sm_90", 9000, [("bf16", "columns", 10, 2)]),
    "columns without clusters": ("sm_80", 530, [("bf16", "columns", 37, 3)]),
    "columns without clusters, aligned": ("sm_80", 260, [("f16", "columns", 40, 0), ("f32", "rows", 12, 0)]),
    "both, one float32": ("sm_90", 300, [("f32", "columns", 12, 0), ("bf16", "columns", 12, 0)]),
    "both of two types": ("sm_90", 260, [("f16", "rows", 12, 0), ("bf16", "rows", 12, 0)]),
    "both of one type": ("sm_90", 260, [("bf16", "rows", 12, 0), ("bf16", "columns", 12, 4)]),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", SPLITS)
def test_the_split_is_that_of_its_description(name):
    arch, K, sides = SPLITS[name]
    by_name = {"f32": DType.F32, "bf16": DType.BF16, "f16": DType.F16}
    matrices = [
        rung_11.as_stored(hard_operand(by_name[dtype], lines, K, seed), order, padding)
        for seed, (dtype, order, lines, padding) in enumerate(sides)
    ]
    results, _ = rung_11.split(matrices, Machine(arch))
    for X, found in zip(matrices, results, strict=True):
        if X.dtype == np.float32:
            continue  # tests/sim/test_fp16x3.py has its description
        bits, info, places = split_by_numpy(X)
        dense = found.info[:, 1] >= DENSE
        np.testing.assert_array_equal(dense, info[:, 1] >= DENSE)
        np.testing.assert_array_equal(found.info[~dense], info[~dense])
        np.testing.assert_array_equal(found.pairs[:, ~dense], bits[:, ~dense])
        for line, left_out in enumerate(places):
            if info[line, 1] <= SPARSE:
                assert set(found.where[line, : len(left_out)].tolist()) == left_out


def test_a_bfloat16_is_exact_down_to_2_to_the_minus_31_of_its_lines_maximum():
    """Every significand, at the exponents about that limit."""
    significands = np.arange(128, 256)
    for exponent, exact in ((-31, True), (-32, False)):
        line = np.concatenate([[1.0], significands / 128 * 2.0**exponent])
        bits, info, _ = split_by_numpy(of_type(DType.BF16, line[None]))
        assert bool(info[0, 1] == 0) is exact
        [found], _ = rung_11.split([of_type(DType.BF16, line[None])], Machine("sm_90"))
        np.testing.assert_array_equal(found.info, info)
        np.testing.assert_array_equal(found.pairs, bits)


def problem(pair, M, N, K):
    draw, (a, b) = np.random.default_rng(0), DTYPES[pair]
    A, B = of_type(a, draw.standard_normal((M, K))), of_type(b, draw.standard_normal((K, N)))
    return A, B, draw.standard_normal((M, N)).astype(np.float32)


@pytest.mark.sampled(every=9)  # of 72: each pair once
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("swap_ab", "parts", "beta"), [(False, 1, 0.0), (False, 2, -1.5), (True, 1, -1.5)])
def test_products_are_within_the_bound(kernel, pair, swap_ab, parts, beta):
    arch, config = KERNELS[kernel]
    M, N, K = (35, 150, 200) if swap_ab else (150, 35, 200)  # an odd number of blocks of k
    A, B, C = problem(pair, M, N, K)
    found = C.copy() if beta else np.full_like(C, np.nan)
    rung_11.multiply(A, B, 0.7, beta, found, config.replace(SPLIT_K=parts), rung_11.machine(arch), swap_ab)
    assert worst(found, A, B, np.float32(0.7), beta, C) < 6


@pytest.mark.sampled(every=2)  # each kernel with each number of groups, of one pair
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("pair", ["bf16xbf16", "bf16xf16"])
@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_integers_are_multiplied_exactly(kernel, pair, groups):
    """Also where the number of promotions is odd, or one: each chain ends in other registers."""
    arch, config = KERNELS[kernel]
    draw, (a, b) = np.random.default_rng(1), DTYPES[pair]
    K = groups * BLOCK_K * getattr(config, "PROMOTE_STAGES", 1)
    A, B = of_type(a, draw.integers(-99, 99, (64, K))), of_type(b, draw.integers(-99, 99, (K, 16)))
    C = np.full((64, 16), np.nan, np.float32)
    rung_11.multiply(A, B, 1.0, 0.0, C, config, rung_11.machine(arch))
    np.testing.assert_array_equal(C, as_float32(A) @ as_float32(B))


@pytest.mark.sampled(every=2)  # of six: each pair once
@pytest.mark.parametrize("pair", ["bf16xf32", "f32xf16", "bf16xbf16"])
@pytest.mark.parametrize("kernel", ["mma", "wgmma"])
def test_the_whole_product_with_every_exception(pair, kernel):
    """The guard has what is no FP16 number: within the bound where all is finite, the same Inf and NaN elsewhere."""
    arch, config = KERNELS[kernel]
    A, B, C = problem(pair, 70, 40, 40)
    tiny = 1e-20 if A.dtype != np.float16 else 0
    for place, value in (((3, 5), tiny), ((64, slice(0, 9)), tiny), ((66, 7), np.inf)):
        A[place] = of_type(DTYPES[pair].a, np.float32(value))
    for place, value in (((2, 2), 1e-18 if B.dtype != np.float16 else 6e-8), ((5, 39), np.nan)):
        B[place] = of_type(DTYPES[pair].b, np.float32(value))
    a, b = as_float32(A), as_float32(B)
    with np.errstate(invalid="ignore"):
        exact = 0.5 * (a.astype(np.float64) @ b.astype(np.float64)) - 2.0 * C
    old = C.copy()
    rung_11.multiply(A, B, 0.5, -2.0, C, config, rung_11.machine(arch))
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(C[~finite], exact[~finite])
    rows, columns = np.arange(70) != 66, np.arange(40) != 39
    part = np.ix_(rows, columns)
    assert worst(C[part], A[rows], B[:, columns], 0.5, -2.0, old[part]) < 6


@pytest.mark.parametrize("pair", ["bf16xf32", "bf16xbf16"])
def test_graded_lines_keep_the_bound(pair):
    """Rows and columns over the whole range of their types: what is below 2^-31 of a maximum is the guard's."""
    A, B, C = problem(pair, 66, 30, 130)
    scale = np.exp2(np.random.default_rng(5).integers(-60, 60, 130)).astype(np.float32)
    A, B = of_type(DTYPES[pair].a, as_float32(A) * scale), of_type(DTYPES[pair].b, as_float32(B) / scale[:, None])
    rung_11.multiply(A, B, 1.0, 0.0, C, KERNELS["wgmma"][1], rung_11.machine("sm_90"))
    assert worst(C, A, B, 1.0, 0.0, 0 * C) < 20


@pytest.mark.parametrize(("kernel", "opcode"), [("mma", "mma.sync"), ("wgmma", "wgmma.mma_async")])
def test_a_16_bit_operand_saves_a_product_and_half_the_bytes(kernel, opcode):
    arch, config = KERNELS[kernel]
    counts = []
    for pair in ("f32xf32", "bf16xf32", "f32xf16", "bf16xf16"):
        A, B, C = problem(pair, 64, 64, 64)
        plan = rung_11.plan_of(A, B, C, config, Machine(arch))
        [product] = [launch for launch in plan.launches if launch.kernel.file.startswith("11_")]
        text = nvrtc.compile_source(product.kernel.text, target(product.kernel.file, arch)).ptx
        pairs = {matrix.name: matrix.nbytes for matrix in product.matrices if matrix.name.startswith("pairs")}
        counts.append((text.count(opcode), pairs["pairs of A"], pairs["pairs of B"]))
    whole = 64 * 64 * 4
    products = [count for count, _, _ in counts]
    assert products[1] == products[2] == products[0] * 2 // 3
    assert products[3] >= products[0] // 3  # the loop is written out twice, once for each chain
    assert [sizes for _, *sizes in counts] == [
        [whole, whole], [whole // 2, whole], [whole, whole // 2], [whole // 2, whole // 2],
    ]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_smaller_stages_are_as_many_more_as_fit(kernel, pair):
    _, config = KERNELS[kernel]
    stages, shared = geometry.ring(config, DTYPES[pair])
    assert stages >= config.STAGES and shared <= config.shared_bytes
    more = geometry.stage_bytes(config, DTYPES[pair]) + 16
    assert shared + more > config.shared_bytes - 1280 * 8
    assert geometry.ring(config, Dtypes()) == (config.STAGES, config.shared_bytes)


@pytest.mark.sampled(every=3)  # of four: each value once
@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
@pytest.mark.parametrize("sym", [Sym.BOTH, Sym.LOWER])
def test_a_gram_product_of_16_bits(arch, sym):
    A = of_type(DType.BF16, np.random.default_rng(2).standard_normal((70, 130)))
    C = np.zeros((70, 70), np.float32)
    config = next(config for name, config in KERNELS.values() if name == arch)
    rung_11.multiply(A, A.T, 1.0, 0.0, C, config, rung_11.machine(arch), sym=sym)
    kept = np.tri(70, dtype=bool)
    if sym is Sym.BOTH:
        np.testing.assert_array_equal(C, C.T)
    else:
        assert not C[~kept].any()
    exact = as_float32(A).astype(np.float64) @ as_float32(A).T
    assert np.abs(C - exact)[kept].max() < 1e-5 * np.abs(exact).max()


@pytest.mark.sampled(every=2)  # of six: each architecture once
@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "sm_120"])
@pytest.mark.parametrize("pair", ["bf16xf32", "f16xf16"])
def test_sgemm_takes_operands_without_a_unit_stride_and_a_16_bit_out(arch, pair):
    A, B, _ = problem(pair, 70, 60, 260)
    out = np.zeros((35, 30), NUMPY[DTYPES[pair].a])
    given = A[::2, ::2], B[::2, ::2]
    whole, report = sim.sgemm("fp16x3", None, *given, machine=Machine(arch), precision="fp16x3")
    assert "fp16x3" in report.kernel and worst(whole, *given, 1.0, 0.0, 0 * whole) < 6
    sim.sgemm("fp16x3", None, *given, machine=Machine(arch), precision="fp16x3", out=out)
    np.testing.assert_array_equal(as_float32(out), as_float32(of_type(DTYPES[pair].a, whole)))


FULL, EMPTY = "mbarrier_wait_parity(full(stage), phase);", "mbarrier_wait_parity(empty(stage), phase ^ 1);"
RELEASE = "if (piece == 0 && i + j > 0) ring.release(last);"
LEFT_OUT = {  # of the products of two 16-bit operands
    "wait for the chain before": (
        f"wgmma_wait_group<1>();\n                {RELEASE}", RELEASE, UnfinishedProductError, "uses the registers",
    ),
    "wait at the end": ("wgmma_wait_group<0>();", "", UnfinishedProductError, "uses the registers"),
    "fence": ("wgmma_fence();", "", UnfinishedProductError, "since the last wgmma.fence"),
    "commit": ("wgmma_commit_group();", "", UnfinishedProductError, "uses the registers"),
    "release": (RELEASE, "", EndlessWaitError, "never ends"),
    "wait for a full stage": (FULL, "", KernelFault, "bulk copy"),
    "wait for an empty stage": (EMPTY, "", RaceError, "copies to shared memory"),
}  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_must_not_be_left_out(what, monkeypatch):
    old, new, error, message = LEFT_OUT[what]
    arch, config = KERNELS["wgmma"]
    kernel_texts.replace(monkeypatch, old, new, "11_fp16x3.cu")
    A, B, C = problem("bf16xbf16", config.BM, config.BN, 1500)
    with pytest.raises(error, match=message):
        rung_11.multiply(A, B, 1.0, 0.0, C, config, rung_11.machine(arch))


@pytest.mark.parametrize("kernel", ["mma", "wgmma"])
@pytest.mark.parametrize("old", ["ONE ? line / 2 : line", "int(line) % 8 / 2 * 16"])
def test_the_swizzle_of_both_sides_must_agree(kernel, old, monkeypatch):
    """Lines that are laid out in one way and read in another give another product."""
    arch, config = KERNELS[kernel]
    if kernel == "wgmma" and old.startswith("ONE"):
        pytest.skip("wgmma swizzles by itself")
    file = "11_fp16x3_mma.cu" if old.startswith("ONE") else "split.cu"
    kernel_texts.change(monkeypatch, lambda text: text.replace(old, old.replace("/ 2", "/ 1 % 4")), file)
    A, B, C = problem("bf16xbf16", 64, 32, 64)
    rung_11.multiply(A, B, 1.0, 0.0, C, config, rung_11.machine(arch))
    assert worst(C, A, B, 1.0, 0.0, 0 * C) > 1000


# Two operands of one type, or bfloat16 and float32, as they lie: 11_half.cu

DIRECT = {
    "fewest stages": F16DirectConfig(BM=128, BN=16, STAGES=2),
    "few rows": F16DirectConfig(BM=64, BN=16, STAGES=14),
    "parts": F16DirectConfig(BM=64, BN=32, STAGES=7, GROUP_M=2, SPLIT_K=2),
    "two warpgroups": F16DirectConfig(BM=128, BN=64, STAGES=7, GROUP_M=1),
    "wide": F16DirectConfig(BM=128, BN=256, STAGES=4, GROUP_M=1),
}


LYING = ["bf16xbf16", "f16xf16", "bf16xf32", "f32xbf16"]


def as_they_lie(pair, M, N, K, seed=0):
    """A and B with k contiguous, and lines that begin at multiples of 16 bytes."""
    draw, line = np.random.default_rng(seed), -(-K // 8) * 8
    A, B = (
        of_type(dtype, draw.standard_normal((lines, line)))[:, :K]
        for lines, dtype in zip((M, N), DTYPES[pair], strict=True)
    )
    return A, B.T, draw.standard_normal((M, N)).astype(np.float32)


def taken_by(pair):
    """The configs for such operands."""
    mixed = DTYPES[pair].a is not DTYPES[pair].b
    return [config for config in DIRECT.values() if not mixed or geometry.fault_of_mixed(config) is None]


def directly(A, B, alpha, beta, C, config, source=None, machine=None, output="C", **how):
    """Multiply by sgemm on the simulated device; return the files of the kernels."""
    request = of_call(resolve("fp16x3", config, precision="fp16x3", **how), output=output)
    reports = multiply(request, A, B, C, alpha, beta, source, machine or rung_11.machine("sm_90"))
    return [launch.kernel.file for launch, _ in reports]


@pytest.mark.sampled(every=13)
@pytest.mark.parametrize(
    ("pair", "kind"), [(pair, kind) for pair in LYING for kind in DIRECT if DIRECT[kind] in taken_by(pair)]
)
@pytest.mark.parametrize("shape", [(70, 130, 328), (9, 70, 523), (130, 40, 64), (64, 16, 1500), (1, 200, 40)])
def test_they_are_multiplied_as_they_lie_within_the_bound(shape, kind, pair):
    """Also where K ends within a stage, or within 16 bytes, and where a block has several tiles."""
    A, B, C = as_they_lie(pair, *shape)
    old, found = C.copy(), C.copy()
    files = directly(A, B, 0.7, -1.5, found, DIRECT[kind])
    assert files[0] == "11_half.cu" and {*files[1:]} <= {"reduce_parts.cu"}
    assert worst(found, A, B, np.float32(0.7), -1.5, old) < 6
    found = np.full_like(C, np.nan)
    directly(A, B, 1.0, 0.0, found, DIRECT[kind])
    assert worst(found, A, B, 1.0, 0.0, 0 * C) < 6


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", DIRECT)
@pytest.mark.parametrize("stages", [1, 2, 3, 9])
def test_integers_are_exact_as_they_lie(kind, stages):
    draw = np.random.default_rng(1)
    A, B = (of_type(DType.BF16, draw.integers(-99, 99, (lines, 64 * stages))) for lines in (66, 30))
    for left in [A, as_float32(A)] if geometry.fault_of_mixed(DIRECT[kind]) is None else [A]:
        C = np.full((66, 30), np.nan, np.float32)
        directly(left, B.T, 1.0, 0.0, C, DIRECT[kind])
        np.testing.assert_array_equal(C, as_float32(A) @ as_float32(B).T)


@pytest.mark.slow
def test_a_persistent_block_goes_on_with_its_next_tile():
    """One multiprocessor computes all tiles: the stages of the next are on their way while one is stored."""
    machine = rung_11.machine("sm_90", multiprocessors=1)
    for pair in ("bf16xbf16", "bf16xf32"):
        A, B, C = as_they_lie(pair, 200, 60, 300)
        for config in taken_by(pair):
            directly(A, B, 1.0, 0.0, C, config, machine=machine)
            assert worst(C, A, B, 1.0, 0.0, 0 * C) < 6


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("kind", DIRECT)
@pytest.mark.parametrize("lying", ["row", "column", "matrix"])
@pytest.mark.parametrize("order", "CF")
def test_a_source_and_every_order_of_c(kind, lying, order):
    for pair in ["bf16xbf16", "bf16xf32", "f32xbf16"] if geometry.fault_of_mixed(DIRECT[kind]) is None else ["f16xf16"]:
        A, B, C = as_they_lie(pair, 70, 40, 264)
        source = {"row": C[5], "column": C[:, 7:8], "matrix": C.copy()}[lying]
        old = np.broadcast_to(source, C.shape)
        found = np.full_like(C, np.nan, order=order)
        directly(A, B, 0.7, -1.5, found, DIRECT[kind], source)
        assert worst(found, A, B, np.float32(0.7), -1.5, old) < 6


@pytest.mark.sampled(every=13)
@pytest.mark.parametrize("kind", DIRECT)
@pytest.mark.parametrize("old", ["C", "matrix", "row of another type"])
@pytest.mark.parametrize("columns", [40, 37])  # stored four at a time, or one by one
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_16_bit_results_are_rounded_once_as_they_are_stored(dtype, order, columns, old, kind):
    """Also where K is in parts, where A and B are not read, and where the result is symmetric."""
    A, B, C = as_they_lie("bf16xbf16", 70, columns, 264)
    C = of_type(dtype, C)
    source = {"C": None, "matrix": C.copy(), "row of another type": as_float32(C)[5:6]}[old]
    for alpha in (0.7, 0.0):
        expected = as_float32(C)
        directly(A, B, alpha, -1.5, expected, DIRECT[kind], None if source is None else as_float32(source))
        found = C.copy(order=order)
        files = directly(A, B, alpha, -1.5, found, DIRECT[kind], source, output="out")
        assert ("copy_strided.cu" in files) is (order == "F")
        np.testing.assert_array_equal(as_float32(found), as_float32(of_type(dtype, expected)))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", DIRECT)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("pair", ["bf16xbf16", "f32xbf16"])
def test_a_batch_is_one_launch_as_it_lies(pair, turned, kind):
    """Of two dimensions; also where A is shared, where C is column-major, and where a source is added."""
    if DIRECT[kind] not in taken_by(pair):
        pytest.skip("the config is for two operands of one type")
    batch, (M, N, K) = (2, 3), (70, 40, 264)
    A, B, _ = as_they_lie(pair, 2 * M, 6 * N, K)
    A, B = A.reshape(2, 1, M, K), B.T.reshape(2, 3, N, K).swapaxes(-1, -2)
    old = np.random.default_rng(7).standard_normal((2, 1, 1, N)).astype(np.float32)
    found = (
        np.full((*batch, N, M), np.nan, np.float32).swapaxes(-1, -2)
        if turned
        else np.full((*batch, M, N), np.nan, np.float32)
    )
    files = directly(np.broadcast_to(A, (*batch, M, K)), B, 0.7, -1.5, found, DIRECT[kind], old)
    assert files.count("11_half.cu") == 1 and len(files) == 1 + (DIRECT[kind].SPLIT_K > 1)
    for i, j in np.ndindex(batch):
        wanted = np.broadcast_to(old[i, 0], (M, N))
        assert worst(found[i, j], A[i, 0], B[i, j], np.float32(0.7), -1.5, wanted) < 6


@pytest.mark.parametrize("kind", DIRECT)
def test_a_gram_product_as_it_lies(kind):
    A, _, _ = as_they_lie("bf16xbf16", 130, 8, 264)
    C = np.zeros((130, 130), np.float32)
    assert directly(A, A.T, 1.0, 0.0, C, DIRECT[kind])[0] == "11_half.cu"
    np.testing.assert_array_equal(C, C.T)
    assert worst(C, A, A.T, 1.0, 0.0, 0 * C) < 6


@pytest.mark.parametrize("K", [100, 88])  # of 88, the last 24 steps of a float32 operand are copied twice
@pytest.mark.parametrize("pair", ["bf16xbf16", "bf16xf32", "f32xbf16"])
def test_what_is_not_finite_needs_no_guard(pair, K):
    """A float32 infinity has no bfloat16 pieces, and 0 times the other operand's is a NaN: both are computed anew."""
    A, B, C = as_they_lie(pair, 70, 40, K)
    B[5, 9] = of_type(DTYPES[pair].b, np.float32(0))
    A[3, 5], A[66, K - 1] = (of_type(DTYPES[pair].a, np.float32(x)) for x in (np.inf, -np.inf))
    B[7, 9], B[K - 9, 20] = (of_type(DTYPES[pair].b, np.float32(x)) for x in (np.nan, np.inf))
    directly(A, B, 1.0, 0.0, C, DIRECT["parts"])
    with np.errstate(invalid="ignore"):
        exact = as_float32(A) @ as_float32(B)
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(C[~finite], exact[~finite])
    assert np.isfinite(C[finite]).all()


@pytest.mark.parametrize("kind", ["few rows", "parts"])
def test_floats_with_bits_below_the_least_bfloat16_number_keep_them(kind):
    A, B, C = as_they_lie("f32xbf16", 70, 40, 200)
    A[::3] *= np.float32(2.0**-122)
    B = of_type(DType.BF16, as_float32(B.T) * np.float32(2.0**60)).T
    directly(A, B, 1.0, 0.0, C, DIRECT[kind])
    assert worst(C, A, B, 1.0, 0.0, 0 * C) < 48


def test_a_choice_reads_them_as_they_lie():
    A, B, _ = as_they_lie("f16xf16", 150, 200, 400)
    C, report = sim.sgemm("fp16x3", None, A, B, precision="fp16x3")
    assert report.kernel == "fastsgemm_half" and worst(C, A, B, 1.0, 0.0, 0 * C) < 6
    batch = np.stack([A[:64], A[64:128]])
    C, report = sim.sgemm("fp16x3", None, batch, B, precision="fp16x3")
    np.testing.assert_allclose(C[1], as_float32(A[64:128]) @ as_float32(B), rtol=1e-4, atol=1e-4)


LINES = {
    "every second": (lambda A: A[::2], True),
    "in reverse order": (lambda A: A[::-1], False),
    "all one": (lambda A: np.broadcast_to(A[7], A.shape), False),
    "one": (lambda A: np.lib.stride_tricks.as_strided(A, (1, A.shape[1]), (-6, A.strides[1])), True),
}


@pytest.mark.parametrize("lines", LINES)
def test_lines_at_any_distance(lines):
    """The strides of tensor maps are positive, so operands with others are split."""
    view, direct = LINES[lines]
    A, B, _ = as_they_lie("bf16xbf16", 150, 200, 400)
    C, report = sim.sgemm("fp16x3", None, view(A), B, precision="fp16x3")
    assert (report.kernel == "fastsgemm_half") is direct
    assert worst(C, view(A), B, 1.0, 0.0, 0 * C) < 6


FILLED = "mbarrier_arrive_expect_tx(full, bytes);"
DIRECT_LEFT_OUT = {
    "a box": ("B.copy(data + STAGE_A, k, work.tile.n, full);", "", EndlessWaitError, "never ends"),
    "bytes of a stage": (FILLED, "mbarrier_arrive_expect_tx(full, STAGE_A);", KernelFault, None),
    "too many bytes": (FILLED, "mbarrier_arrive_expect_tx(full, bytes + 16);", EndlessWaitError, "never ends"),
    "the swizzle's place": ("A.copy(data + box", "A.copy(data + 512 + box", MisalignedError, "multiple of 1024"),
    "wait for an empty stage": (EMPTY, "", KernelFault, None),
    "wait for a full stage": (FULL, "", KernelFault, None),
    "an arrival": ("ring.init(4 *", "ring.init(3 *", KernelFault, None),
    "release": ("ring.release(last);\n            repair", "repair", EndlessWaitError, "never ends"),
    "lanes that have read": ("__syncwarp();  // the lanes have read the pass before", "", RaceError, "thread 0 read"),
    "lanes that have written": ("__syncwarp();  // the lanes have written", "", RaceError, "thread 1 wrote"),
}  # fmt: skip


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("what", DIRECT_LEFT_OUT)
def test_what_must_not_be_left_out_as_they_lie(what, monkeypatch):
    old, new, error, message = DIRECT_LEFT_OUT[what]
    kernel_texts.replace(monkeypatch, old, new, "11_half.cu")
    machine = rung_11.machine("sm_90", multiprocessors=1)
    A, B, C = as_they_lie("bf16xbf16", 130, 16, 2048)
    with pytest.raises(error, match=message):
        directly(A, B, 1.0, 0.0, C, DIRECT["few rows"], machine=machine)


FENCED = "wgmma_fence();\n#pragma unroll\n            for (int j = 0; j < 6"
OTHERS = "wgmma_wait_group<1>();\n            if (turn == 1"
PIECES_LEFT_OUT = {
    "wait for a full stage": (FULL, "", KernelFault, None),
    "wait for an empty stage": (EMPTY, "", KernelFault, None),
    "wait for the chain before": (OTHERS, OTHERS.replace("1>", "2>", 1), UnfinishedProductError, "registers"),
    "wait for the pieces before": ("if (CHAINS == 1) wgmma_wait_group<1>();", "", UnfinishedProductError, "registers"),
    "fence of the registers": (FENCED, FENCED.replace("wgmma_fence();", ""), UnfinishedProductError, "wgmma.fence"),
    "a box that is outside": ("(STEPS / 2) : 0;", "(STEPS / 2) : 32;", GlobalAccessError, "nothing is"),
    "an early release": ("if (turn == 1 && i > 0)", "if (turn == 0 && i > 0)", RaceError, "has not waited"),
}  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("what", PIECES_LEFT_OUT)
def test_what_must_not_be_left_out_with_pieces(what, monkeypatch):
    old, new, error, message = PIECES_LEFT_OUT[what]
    kernel_texts.replace(monkeypatch, old, new, "11_half.cu")
    A, B, C = as_they_lie("f32xbf16", 64, 128, 1048)
    width = 64 if what == "wait for the pieces before" else 128
    with pytest.raises(error, match=message):
        directly(A, B, 1.0, 0.0, C, F16DirectConfig(BM=64, BN=width, STAGES=5))


@pytest.mark.parametrize(("old", "new", "pair"), [
    ("wgmma_mma_async<CHAIN_COLUMNS, TYPE>(chain, matrix_descriptor(a + k * STEP)",
     "wgmma_mma_async<CHAIN_COLUMNS, TYPE>(chain, matrix_descriptor<64>(a + k * STEP)", "bf16xbf16"),
    ("lane % 4 / 2) ^ line)", "lane % 4 / 2) ^ line / 2)", "f32xbf16"),
    ("return row % 4 * 2 + row / 4;", "return row;", "f32xbf16"),
])  # fmt: skip
def test_another_swizzle_is_another_product(old, new, pair, monkeypatch):
    kernel_texts.replace(monkeypatch, old, new, "11_half.cu")
    A, B, C = as_they_lie(pair, 64, 16, 128)
    directly(A, B, 1.0, 0.0, C, DIRECT["few rows"])
    assert worst(C, A, B, 1.0, 0.0, 0 * C) > 1000
