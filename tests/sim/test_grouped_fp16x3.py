"""Groups of rows by rung 11 on the simulated device, beside `sgemm` of each group, to the bit."""

import kernel_texts
import numpy as np
import pytest
import rung_11

from fastsgemm import rungs
from fastsgemm.call import grouped as plans
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.heuristics.selection import GIVEN, Choice, Selection
from fastsgemm.problem import Ragged
from fastsgemm.request import resolve
from fastsgemm.sim.errors import KernelFault
from fastsgemm.sim.gemm import multiply
from fastsgemm.sim.grouped import grouped_mm

RUNG = rungs.find("fp16x3")
REQUEST = resolve(precision="fp16x3")
M, N, K = 150, 41, 70
OFFSETS = {
    "uneven": [3, 30, 30, 101, 140],
    "one": [150],
    "all empty": [0, 0, 0],
    "not ascending": [20, -5, 300, 40, 2**31 - 1],
    "more than lanes": list(range(1, 41)),
    "the last of many": [0] * 40 + [150],
}


@pytest.fixture(params=rung_11.KERNELS)
def kernel(request, monkeypatch):
    """Return the machine and the config of a kernel, which every product of groups of rows gets."""
    arch, config = rung_11.KERNELS[request.param]
    config, real = geometry.in_order(config, K), plans.choose_grouped

    def choose(device, request, problem):
        taken = request.tensor_cores and problem.ragged is Ragged.ROWS and problem.K
        return Choice(Selection(RUNG, config, GIVEN)) if taken else real(device, request, problem)

    monkeypatch.setattr(plans, "choose_grouped", choose)
    return rung_11.machine(arch), config


def drawn(layout, groups, types=(np.float32, np.float32), columns=N, seed=1):
    random = np.random.default_rng(seed)
    A, B = random.standard_normal((M, K)), random.standard_normal((groups, K, columns))
    A = np.asfortranarray(A.astype(types[0])) if layout[0] == "T" else A.astype(types[0])
    B = np.swapaxes(np.swapaxes(B, 1, 2).astype(types[1], order="C"), 1, 2) if layout[1] == "T" else B.astype(types[1])
    return A, B, random.standard_normal((M, columns)).astype(np.float32)


def same_bits(found, expected):
    both_nan = np.isnan(found) & np.isnan(expected)
    assert (both_nan | (found.view(np.uint32) == expected.view(np.uint32))).all()


def check(kernel, A, B, C, offsets, alpha=1.5, beta=0.0, source=None):
    """Compare with the product of each group by itself, whose order of summation is the same; return the reports."""
    machine, config = kernel
    ordered = resolve("fp16x3", config, batch_invariant=True)
    expected, begin = C.copy(), 0
    for group, offset in enumerate(offsets):
        rows = slice(begin, min(max(begin, offset), M))
        begin = rows.stop
        if rows.start < rows.stop:
            of_source = None if source is None else source[rows]
            multiply(ordered, A[rows], B[group], expected[rows], alpha, beta, of_source, machine)
    reports = grouped_mm(A, B, np.array(offsets), alpha, beta, C, source, machine, REQUEST)
    same_bits(C, expected)
    assert [launch.kernel.file for launch, _ in reports][-2:] == [geometry.file_of(config), "guard_fp16x3.cu"]
    return reports


@pytest.mark.sampled(every=23)
@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_any_offsets_and_layout(kernel, layout, name):
    A, B, C = drawn(layout, len(OFFSETS[name]))
    C[...] = np.nan
    check(kernel, A, B, C, OFFSETS[name])


@pytest.mark.sampled(every=13)
@pytest.mark.parametrize("columns", [8, 9, 40, 130])
@pytest.mark.parametrize("source", ["in place", "apart", "strided"])
def test_beta_and_a_source(kernel, source, columns):
    A, B, C = drawn("NN", 5, columns=columns)
    S = None if source == "in place" else np.ones((M, 2 * columns), np.float32)
    S = S if source == "in place" else S[:, ::2] if source == "strided" else np.ascontiguousarray(S[:, :columns])
    check(kernel, A, B, C, OFFSETS["uneven"], -0.5, 2.0, S)


@pytest.mark.slow
def test_one_column(kernel):
    """`sgemm` exchanges A and B of a column, so its bits are others."""
    A, B, C = drawn("NN", 5, columns=1)
    grouped_mm(A, B, np.array(OFFSETS["uneven"]), 1.0, 0.0, C, None, kernel[0], REQUEST)
    for group, (begin, end) in enumerate([(0, 3), (3, 30), (30, 30), (30, 101), (101, 140)]):
        if end > begin:
            assert rung_11.worst(C[begin:end], A[begin:end], B[group], 1.0, 0.0, C[begin:end]) < 40


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize(
    "types", [(np.float16, np.float32), (np.float32, np.float16), (np.float16, np.float16)], ids=str
)
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_operands_of_16_bits(kernel, layout, types):
    if types[0] is types[1] and kernel[0].device.arch == "sm_90":
        pytest.skip("sgemm multiplies such operands as they lie, in another order")
    check(kernel, *drawn(layout, 5, types), OFFSETS["uneven"])


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_the_guard_repairs_rows_and_columns_of_the_right_group(kernel, layout):
    """Sparse and dense lines, infinities and NaNs, next to and between groups."""
    A, B, C = drawn(layout, 5)
    A[2, 1:], A[3, ::2], A[29, 5], A[30, 7], A[100, 4:9] = 1e-20, 1e-22, np.inf, np.nan, 1e-25
    B[1, 1:, 0], B[3, ::2, 7], B[3, 2, 8], B[4, 1, 40] = 1e-20, 1e-22, 1e-30, np.nan
    with np.errstate(all="ignore"):
        check(kernel, A, B, C, OFFSETS["uneven"], 1.0, 0.5)


@pytest.mark.sampled(every=3)
def test_columns_are_the_rows_of_the_transposed_product(kernel):
    A, B, C = drawn("NN", 5)
    turned = C.T.copy(order="F")
    grouped_mm(B.swapaxes(1, 2), A.T, np.array(OFFSETS["uneven"]), 1.5, 0.5, turned, None, kernel[0], REQUEST)
    check(kernel, A, B, C, OFFSETS["uneven"], 1.5, 0.5)
    same_bits(np.ascontiguousarray(turned.T), C)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("apart", [1, 2, 4])
def test_matrices_of_b_any_number_of_elements_apart(kernel, apart):
    A, B, C = drawn("NN", 5, columns=40)  # with matrices beside each other, each row of B is aligned
    wide = np.full((5, B[0].size + apart), np.nan, np.float32)
    strided = wide[:, :-apart].reshape(B.shape)
    strided[...] = B
    assert np.shares_memory(strided, wide)
    check(kernel, A, strided, C, OFFSETS["uneven"])


@pytest.mark.parametrize("types", [(np.float32, np.float32), (np.float16, np.float32)], ids=str)
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_with_an_alpha_of_0_only_c_is_read_and_only_rows_of_groups_are_written(kernel, beta, types):
    A, B, C = (np.full_like(x, np.nan) for x in drawn("NN", 5, types))
    C[...] = 3
    [(launch, _)] = grouped_mm(A, B, np.array(OFFSETS["uneven"]), 0.0, beta, C, None, kernel[0], REQUEST)
    assert launch.kernel.file == "09_pipelined.cu"
    assert (C[:140] == 3 * beta).all() and (C[140:] == 3).all()


@pytest.mark.sampled(every=3)
def test_operands_without_a_unit_stride_are_packed(kernel):
    A, B, C = drawn("NN", 5)
    A, B, C = (np.repeat(x, 2, axis=-1)[..., ::2] for x in (A, B, C))
    expected = np.ascontiguousarray(C)
    check(kernel, np.ascontiguousarray(A), np.ascontiguousarray(B), expected, OFFSETS["uneven"], 1.5, 0.5)
    grouped_mm(A, B, np.array(OFFSETS["uneven"]), 1.5, 0.5, C, None, kernel[0], REQUEST)
    same_bits(np.ascontiguousarray(C), expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_random_groups(kernel, seed):
    random = np.random.default_rng(seed)
    groups = int(random.integers(1, 12))
    offsets = random.integers(-20, M + 20, groups) if seed % 2 else np.sort(random.integers(0, M + 1, groups))
    A, B, C = drawn(["NN", "NT", "TN", "TT"][seed % 4], groups, columns=int(random.integers(1, 140)), seed=seed)
    if seed % 3 == 0:
        A[random.integers(0, M, 9), random.integers(0, K, 9)] = 1e-25
        B[:, random.integers(0, K, 9), random.integers(0, B.shape[2], 9)] = 1e-25
    check(kernel, A, B, C, offsets.tolist(), float(random.uniform(-1, 1)), (0.0, 0.5)[seed % 2])


WRONG = {
    "rows of the group before are stored": ("return i < range.first || i >= range.end;", "return i >= range.end;"),
    "tiles begin where groups do": ("rows.first / SWIZZLED_LINES * SWIZZLED_LINES;", "rows.first;"),
    "B of the group before": ("<long long>(group) *", "<long long>(max(group - 1, 0)) *"),
    "groups are not whole periods": ("* whole_periods(N)", "* N"),
}


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("what", WRONG)
def test_what_must_not_be_left_out(kernel, what, monkeypatch):
    old, new = WRONG[what]
    A, B, C = drawn("NN", 5)
    check(kernel, A, B, C, OFFSETS["uneven"])
    found = []

    def edit(text):
        found.append(old in text)
        return text.replace(old, new)

    kernel_texts.change(monkeypatch, edit)
    with pytest.raises((AssertionError, KernelFault)):
        check(kernel, A, B, C, OFFSETS["uneven"])
    assert any(found)


@pytest.mark.sampled(every=3)
def test_the_guard_repairs_the_rows_of_its_group_alone(kernel, monkeypatch):
    A, B, C = drawn("NN", 5)
    A[29, ::2] = 1e-22  # dense, and in the first tile of the next group
    check(kernel, A, B, C, OFFSETS["uneven"], 1.5, 0.5)
    kernel_texts.replace(monkeypatch, "max(block.m - up, group.first)", "block.m - up", "guard_fp16x3.cu")
    with pytest.raises((AssertionError, KernelFault)):
        check(kernel, A, B, C, OFFSETS["uneven"], 1.5, 0.5)


@pytest.mark.sampled(every=3)
def test_there_are_as_many_tiles_as_the_worst_offsets_need(kernel):
    """One row in each group but one, and each begins late in a period of the swizzle."""
    machine, config = kernel
    worst = [7, *range(15, 15 + 8 * 15, 8), M]
    [*_, (product, _), _] = check(kernel, *drawn("NN", len(worst)), worst)
    ends = [0, *worst]
    rows = sum(-(-(end - begin // 8 * 8) // config.BM) for begin, end in zip(ends, worst, strict=False))
    assert rows <= geometry.most_grouped_rows(config, M, len(worst)) <= rows + len(worst)
    t = geometry.grouped_tiling(config, M, N, K, len(worst), machine.device.multiprocessors, most=True)
    assert product.grid == (t.grid,)
