"""Rung 10 on a device: narrow results of every layout against float64, bits that repeat, K in parts, graphs."""

import itertools
from dataclasses import replace
from functools import partial

import pytest

from fastsgemm import SkinnyConfig, explain, rungs, sgemm

pytestmark = pytest.mark.gpu

RUNG = "skinny"
LAYOUTS = ["NN", "NT", "TN", "TT"]
DEPTHS = [0, 1, 7, 1000, 65536]
CONFIGS = [
    SkinnyConfig(1, 32, 512, TN=4, TK=16, MIN_BLOCKS=1),
    SkinnyConfig(4, 64, 256, TN=4, TK=16, MIN_BLOCKS=1),
    SkinnyConfig(8, 64, 128, TN=2, TK=8, MIN_BLOCKS=2),
    SkinnyConfig(16, 128, 128, TN=4, TK=16, MIN_BLOCKS=1),
    SkinnyConfig(32, 32, 64, TN=4, TK=4, MIN_BLOCKS=1),
]


def stored(x, column_major):
    return x.T.contiguous().T if column_major else x


def wrong(torch, a, b, c, alpha, beta, layout, column_major, config=None):
    """Whether any element is further from float64 than the roundings of its sum allow."""
    K = a.shape[1]
    A, B = (stored(x, letter == "T") for x, letter in zip((a, b), layout, strict=True))
    C = stored(c, column_major).clone(memory_format=torch.preserve_format)
    if beta == 0:
        C.fill_(float("nan"))  # must not be read
    assert sgemm(A, B, alpha, beta, C, rung=RUNG, config=config) is C
    expected = alpha * (a.double() @ b.double()) + beta * c.double()
    size = abs(alpha) * (a.double().abs() @ b.double().abs()) + abs(beta) * c.double().abs()
    return ~((C.double() - expected).abs() <= (K + 3) * 2.0**-23 * size).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("K", DEPTHS)
def test_every_narrow_extent_agrees_with_float64(torch, layout, K):
    """1 to 32 rows or columns, aligned or not, with C row-major or column-major."""
    faults = []
    for few, many in itertools.product(range(1, 33), (36, 131)):
        for M, N in ((few, many), (many, few)):
            a, b, c = (torch.randn(shape, device="cuda") for shape in ((M, K), (K, N), (M, N)))
            for column_major, (alpha, beta) in itertools.product((False, True), ((1.0, 0.0), (1.5, -0.5))):
                label = (M, N, alpha, beta, column_major)
                faults.append((label, wrong(torch, a, b, c, alpha, beta, layout, column_major)))
    assert torch.stack([fault for _, fault in faults]).sum().item() == 0, [
        label for label, fault in faults if fault.item()
    ]


@pytest.mark.parametrize("parts", [1, 3, 100])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_config_in_parts_agrees_with_float64(torch, config, parts):
    divided = replace(config, SPLIT_K=parts)
    for (M, N), K, layout, column_major in itertools.product(
        ((1, 1), (3, 200), (130, 5), (16, 36), (33, 40)), (7, 1000, 4100), LAYOUTS, (False, True)
    ):
        a, b, c = (torch.randn(shape, device="cuda") for shape in ((M, K), (K, N), (M, N)))
        for alpha, beta in ((1.0, 0.0), (1.5, -0.5)):
            fault = wrong(torch, a, b, c, alpha, beta, layout, column_major, divided)
            assert not fault.item(), (M, N, K, layout, column_major, alpha, beta)


def test_alpha_zero_reads_neither_a_nor_b(torch):
    nan = torch.full((500, 500), float("nan"), device="cuda")
    for M, N in ((3, 500), (500, 3)):
        c = torch.randn(M, N, device="cuda")
        for config, beta in itertools.product((None, replace(CONFIGS[1], SPLIT_K=2)), (0.0, 1.0, -2.5)):
            start = torch.full_like(c, float("nan")) if beta == 0 else c.clone()
            out = sgemm(nan[:M], nan[:, :N], 0.0, beta, start, rung=RUNG, config=config)
            assert torch.equal(out, beta * c if beta else torch.zeros_like(c))


def test_what_lies_between_the_lines_of_c_stays(torch):
    for (M, N), column_major, parts in itertools.product(((5, 70), (70, 5), (8, 64)), (False, True), (1, 3)):
        lines, length = (N, M) if column_major else (M, N)
        buffer = torch.full((lines, length + 4), 12345.0, device="cuda")
        C = buffer[:, :length].T if column_major else buffer[:, :length]
        a, b = (torch.randint(-4, 5, shape, device="cuda").float() for shape in ((M, 900), (900, N)))
        sgemm(a, b, C=C, rung=RUNG, config=replace(CONFIGS[1], SPLIT_K=parts))
        assert torch.equal(C, (a.double() @ b.double()).float())
        assert (buffer[:, length:] == 12345.0).all()


@pytest.mark.parametrize("shape", [(1, 4096), (16, 4096), (4096, 3), (32, 32)])
@pytest.mark.parametrize("parts", [1, 7])
def test_a_hundred_repeats_beside_other_work_give_the_same_bits(torch, differing, shape, parts):
    config = replace(CONFIGS[1], SPLIT_K=parts)
    (M, N), K = shape, 5000
    a, b = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
    call = partial(sgemm, rung=RUNG, config=config)
    assert differing(lambda: call(a, b), lambda: call(b.T, a.T)) == 0  # the other has workspace of its own


@pytest.mark.parametrize("shape", [(4, 300), (300, 4)])
@pytest.mark.parametrize("parts", [1, 5])
def test_a_graph_replays_with_new_inputs(torch, shape, parts):
    config = replace(CONFIGS[1], SPLIT_K=parts)
    (M, N), K = shape, 2000
    a, b, c = (torch.zeros(extents, device="cuda") for extents in ((M, K), (K, N), (M, N)))
    sgemm(a, b, 2.0, 1.0, c, rung=RUNG, config=config)
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        sgemm(a, b, 2.0, 1.0, c, rung=RUNG, config=config)
    for value in (1.0, 3.0):
        a.fill_(value)
        b.fill_(2.0)
        c.fill_(5.0)
        for _ in range(3):
            graph.replay()  # beta = 1: each replay adds
        torch.cuda.synchronize()
        assert c.unique().tolist() == [5 + 3 * 2 * K * value * 2]


def test_the_default_for_a_narrow_result_is_right(torch):
    """Whichever rung it is: without times in the database, this one."""
    for M, N, K in ((1, 4096, 4096), (4096, 1, 4096), (16, 1024, 1024), (32, 32, 65536), (5, 7, 3)):
        ones = torch.ones(M, K, device="cuda"), torch.ones(K, N, device="cuda")
        assert (sgemm(*ones) == K).all()  # a dropped step of k shows
        assert explain(M, N, K).choice.rung in rungs.DEFAULTS


def test_the_configs_of_this_file_are_legal(gpu):
    assert [c for c in CONFIGS if rungs.find(RUNG).violations(c, gpu.shared_limit)] == []
