"""Grouped products on the simulated device, which checks every access, beside NumPy in float64."""

import itertools

import numpy as np
import pytest

from fastsgemm import PipelinedConfig, rungs
from fastsgemm.call import grouped as plans
from fastsgemm.geometry.layout import Meta, row_major
from fastsgemm.heuristics.selection import GIVEN, Choice, Selection
from fastsgemm.problem import format_problem
from fastsgemm.request import PLAIN, resolve
from fastsgemm.sim import Machine
from fastsgemm.sim.gemm import multiply
from fastsgemm.sim.grouped import grouped_mm

SMALL = PipelinedConfig(32, 32, 8, 4, 4, 16, 32, 1)
CONFIGS = {
    "small": SMALL,
    "slices": PipelinedConfig(16, 32, 16, 2, 4, 16, 16, 1, SLICED_K=2),
    "chains": SMALL.replace(PARTIAL_ACCUMULATORS=2),
    "four stages": SMALL.replace(CP_ASYNC=3, STAGES=4),
    "low tiles": PipelinedConfig(8, 64, 8, 1, 8, 8, 32, 1),
}
KINDS = ("rows", "k", "columns")
OFFSETS = {
    "even": [20, 40, 60, 80],
    "uneven": [1, 34, 34, 50, 51, 80],
    "all empty": [0, 0, 0],
    "one": [80],
    "the last": [0, 0, 0, 0, 80],
    "the first": [80, 80, 80],
    "rows left": [3, 40, 57],
    "not ascending": [30, 10, 50, 49, 80],
    "past the end": [30, 200, 40, 2**31 - 1],
    "below 0": [-5, 20, -(2**31), 60],
    "of one row each": list(range(1, 81)),
}
EXTENT = 80  # that is ragged
SOURCES = ("no", "in place", "apart")


@pytest.fixture
def forced(monkeypatch):
    """Return a function that lets products be computed with this config."""

    def force(config):
        monkeypatch.setattr(
            plans, "choose_grouped", lambda *_: Choice(Selection(rungs.find("pipelined"), config, GIVEN))
        )

    force(SMALL)
    return force


def parts(offsets, extent):
    """Return where each group begins and ends."""
    ends = np.minimum(np.maximum.accumulate(np.maximum(np.asarray(offsets, np.int64), 0)), extent)
    return list(zip([0, *ends[:-1]], ends, strict=True))


def matrix(random, *shape, order="N", pad=0):
    """Return a matrix, or a batch, of which the elements between the lines are not its own."""
    *batch, rows, columns = shape
    lines, length = (columns, rows) if order == "T" else (rows, columns)
    x = random.standard_normal((*batch, lines, length + pad)).astype(np.float32)[..., pad:]
    return x.swapaxes(-1, -2) if order == "T" else x


def shapes(kind, M, N, K, groups):
    """Return the shapes of A, B and C, of which EXTENT is ragged."""
    if kind == "rows":
        return (EXTENT, K), (groups, K, N), (EXTENT, N)
    if kind == "columns":
        return (groups, M, K), (K, EXTENT), (M, EXTENT)
    return (M, EXTENT), (EXTENT, N), (groups, M, N)


def expected(kind, A, B, offsets, alpha, beta, old, C):
    """Return C after the product in float64: what belongs to no group is unchanged."""
    A, B, result = A.astype(np.float64), B.astype(np.float64), C.astype(np.float64)
    for g, (begin, end) in enumerate(parts(offsets, EXTENT)):
        if kind == "rows":
            where, product = np.s_[begin:end], A[begin:end] @ B[g]
        elif kind == "columns":
            where, product = np.s_[:, begin:end], A[g] @ B[:, begin:end]
        else:
            where, product = g, A[:, begin:end] @ B[begin:end]
        result[where] = alpha * product + (beta * old[where] if beta else 0)
    return result


def check(
    kind,
    offsets,
    layout="NNN",
    sizes=(36, 40, 20),
    alpha=1.0,
    source="no",
    pads=(0, 0, 0),
    dtype=np.int32,
    arch="sm_90",
):
    """Compare one product with float64, bits of what belongs to no group included; return its reports."""
    random = np.random.default_rng(len(offsets) + sum(sizes))
    drawn = [
        matrix(random, *shape, order=order, pad=pad)
        for shape, order, pad in zip(shapes(kind, *sizes, len(offsets)), layout, pads, strict=True)
    ]
    A, B, C = drawn
    beta = 0.0 if source == "no" else -0.5
    apart = matrix(random, *C.shape, order=layout[2]) if source == "apart" else None
    if source == "apart":
        C[...] = np.nan
    right = expected(kind, A, B, offsets, alpha, beta, C if apart is None else apart, C)
    reports = grouped_mm(A, B, np.array(offsets, dtype), alpha, beta, C, apart, Machine(arch))
    np.testing.assert_allclose(C, right, rtol=1e-5, atol=2e-5)
    return reports


LAYOUTS = ["".join(letters) for letters in itertools.product("NT", repeat=3)]


@pytest.mark.sampled(every=23)
@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_offsets_in_any_layout(forced, kind, layout, name):
    [_] = check(kind, OFFSETS[name], layout)


@pytest.mark.sampled(every=37)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("pads", [(0, 0, 0), (1, 0, 2), (0, 3, 4), (4, 4, 1)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_alignment_alpha_beta_and_source(forced, kind, layout, pads, source):
    check(kind, OFFSETS["uneven"], layout, (36, 40, 20), -1.5, source, pads)


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("name", ["uneven", "not ascending", "of one row each"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", CONFIGS)
def test_any_config(forced, config, kind, name):
    forced(CONFIGS[config])
    check(kind, OFFSETS[name], "TTN", (37, 41, 19), source="in place")


@pytest.mark.sampled(every=23)
@pytest.mark.parametrize("seed", range(80))
def test_random_products(forced, seed):
    random = np.random.default_rng(seed)
    groups = int(random.integers(1, 12))
    offsets = random.integers(-20, EXTENT + 20, groups) if seed % 2 else np.sort(random.integers(0, EXTENT, groups))
    check(
        KINDS[seed % 3], offsets.tolist(), LAYOUTS[random.integers(8)], tuple(map(int, random.integers(1, 50, 3))),
        float(random.standard_normal()), SOURCES[random.integers(3)], tuple(map(int, random.integers(0, 5, 3))),
        (np.int32, np.int64)[seed % 2],
    )  # fmt: skip


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_120"])
def test_other_architectures(forced, arch, kind):
    check(kind, OFFSETS["uneven"], "TNN", (36, 40, 20), arch=arch)


@pytest.mark.parametrize("kind", KINDS)
def test_more_groups_than_threads(forced, kind):
    ends = np.sort(np.random.default_rng(3).integers(0, EXTENT, 300)).tolist()
    check(kind, ends, "TNN", (3, 5, 4))


def test_offsets_that_lie_apart_and_have_64_bits(forced):
    offsets = np.array([[20, 7], [33, -1], [80, 2**40]])[:, 0]
    A, B, C = (np.ones(shape, np.float32) for shape in shapes("rows", 0, 8, 4, 3))
    grouped_mm(A, B, offsets, 1.0, 0.0, C)
    assert (C == 4).all()


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_operands_without_a_unit_stride_are_packed(forced, kind, beta):
    random = np.random.default_rng(5)
    A, B, C = (matrix(random, *shape[:-1], 2 * shape[-1])[..., ::2] for shape in shapes(kind, 9, 11, 5, 3))
    right = expected(kind, A, B, [3, 40, 57], 1.0, beta, C, C)
    launched = [launch.kernel.name for launch, _ in grouped_mm(A, B, np.array([3, 40, 57]), 1.0, beta, C)]
    np.testing.assert_allclose(C, right, rtol=1e-5, atol=1e-5)
    copies = 4 if beta or kind != "k" else 3  # C is copied from workspace and, where it is read or kept, to it
    assert launched.count("fastsgemm_pipelined") == 1 and launched.count("fastsgemm_copy_strided") == copies


@pytest.mark.parametrize("alpha", [0.0, -2.0, np.inf])
def test_groups_without_steps_of_k_are_beta_c(forced, alpha):
    A, B, C = (np.ones(shape, np.float32) for shape in shapes("k", 5, 6, 0, 2))
    if not alpha:
        A[...] = np.nan
    grouped_mm(A, B, np.array([0, 0]), alpha, 0.0, C)
    assert (C.view(np.uint32) == 0).all()  # no -0
    C[...] = -0.0
    grouped_mm(A, B, np.array([0, 0]), alpha, 1.0, C)
    assert np.signbit(C).all()


@pytest.mark.parametrize("kind", KINDS)
def test_with_an_alpha_of_0_only_c_is_read_and_groups_are_found(forced, kind):
    A, B, C = (np.full(shape, np.nan, np.float32) for shape in shapes(kind, 6, 6, 5, 2))
    C[...] = 3
    grouped_mm(A, B, np.array([7, 20]), 0.0, 2.0, C)
    inside = {"rows": np.s_[:20], "k": np.s_[:], "columns": np.s_[:, :20]}[kind]
    assert (C[inside] == 6).all()
    C[inside] = 3
    assert (C == 3).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_launched_without_groups_or_elements(forced, kind):
    A, B, C = (np.ones(shape, np.float32) for shape in shapes(kind, 5, 6, 4, 0))
    assert grouped_mm(A, B, np.zeros(0, np.int32), 1.0, 0.0, C) == [] and (C == 1).all()


def test_an_extent_of_0_that_is_divided_into_groups(forced):
    A, B, C = np.ones((5, 0), np.float32), np.ones((0, 6), np.float32), np.full((2, 5, 6), 3, np.float32)
    grouped_mm(A, B, np.array([4, 9]), 1.0, 2.0, C)
    assert (C == 6).all()
    A, B, C = np.ones((0, 5), np.float32), np.ones((2, 5, 6), np.float32), np.ones((0, 6), np.float32)
    assert grouped_mm(A, B, np.array([4, 9]), 1.0, 0.0, C) == []


def test_k_of_0_gives_zeros_in_the_rows_of_groups(forced):
    A, B, C = (np.ones(shape, np.float32) for shape in shapes("rows", 0, 6, 0, 2))
    grouped_mm(A, B, np.array([7, 20]), -1.0, 0.0, C)
    assert (C[:20] == 0).all() and (C[20:] == 1).all()


def test_there_are_as_many_blocks_as_the_worst_offsets_need(forced):
    """One row in each group but one: no offsets need more tiles."""
    worst = [*range(1, 16), 80]
    [(rows, _)] = check("rows", worst, sizes=(0, 33, 8))
    [(columns, _)] = check("columns", worst, sizes=(33, 0, 8))
    tiles = sum(-(-(end - begin) // 32) for begin, end in parts(worst, EXTENT))
    assert rows.grid == columns.grid == (2 * tiles,)
    [(k, _)] = check("k", worst, sizes=(33, 20, 0))
    assert k.grid == (2 * len(worst),)


def test_the_choice_is_for_the_mean_group(monkeypatch):
    asked = []
    real = plans.choose_grouped
    monkeypatch.setattr(plans, "choose_grouped", lambda *given: asked.append(given) or real(*given))
    check("rows", [30, 30, 80], sizes=(0, 32, 8))
    check("k", [30, 30, 80], sizes=(12, 32, 0))
    check("columns", [30, 30, 80], "NNT", sizes=(12, 0, 8))  # computed as rows of the transposed product
    assert list(map(format_problem, (problem for *_, problem in asked))) == [
        "80,32,8,m3",
        "12,32,80,k3",
        "80,12,8,TT,m3",
    ]


def test_long_sums_have_several_chains():
    """Those of the mean group: with ragged k, a longer group has more chains of the same length."""
    device, ends = Machine("sm_90").device, Meta((3,), (1,))
    rows = (3000, 1100), (3, 1100, 1000), (3000, 1000)
    long_k = (1000, 3300), (3300, 1000), (3, 1000, 1000)
    for given in (rows, long_k):
        metas = [Meta(shape, row_major(shape)) for shape in given]
        [launch] = plans.make_grouped_plan(device, PLAIN, metas, ends, (0, 16, 32)).launches
        assert dict(launch.kernel.constants)["CHAINS"] == 1
        assert 1100 / 3 <= launch.arguments[13] <= 512  # the steps of a chain


@pytest.mark.parametrize("halves", [(), (0,), (0, 1)], ids=["float32", "A of 16 bits", "both"])
@pytest.mark.sampled(every=17)
@pytest.mark.parametrize("depth", [60, 2100])
@pytest.mark.parametrize("layout", ["NNN", "TTT", "NTT"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_order_gives_the_bits_of_sgemm(kind, layout, depth, halves):
    """Whatever the groups are, and the config, which depends on their number."""
    random, offsets = np.random.default_rng(4), [3, 20, 20, 57]
    if kind == "k":
        offsets, extent = [offset * depth // 60 for offset in offsets], depth
        sizes = (19, extent), (extent, 21), (4, 19, 21)
    else:
        sizes = shapes(kind, 19, 21, depth, 4)
    A, B, C = (matrix(random, *shape, order=order) for shape, order in zip(sizes, layout, strict=True))
    A, B = (x.astype(np.float16) if side in halves else x for side, x in enumerate((A, B)))
    request = resolve(batch_invariant=True)
    C[...] = np.nan
    grouped_mm(A, B, np.array(offsets), 1.5, 0.0, C, request=request)
    for g, (begin, end) in enumerate(parts(offsets, depth if kind == "k" else EXTENT)):
        rows = slice(begin, end)
        a, b, c = {
            "rows": (A[rows], B[g], C[rows]),
            "k": (A[:, rows], B[rows], C[g]),
            "columns": (A[g], B[:, rows], C[:, rows]),
        }[kind]
        alone = np.zeros(c.shape, np.float32)
        if alone.size:
            multiply(request, a, b, alone, 1.5, 0.0)
        assert (c.view(np.uint32) == alone.view(np.uint32)).all(), g
