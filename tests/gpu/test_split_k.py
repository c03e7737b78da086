"""Split-K on a device: bits in a fixed order of summation, on any stream, among other calls, captured or not."""

import itertools
from dataclasses import replace
from functools import partial

import pytest

from fastsgemm import PipelinedConfig, rungs, sgemm
from fastsgemm.geometry import grid, variants
from fastsgemm.heuristics import database
from fastsgemm.problem import Problem

pytestmark = pytest.mark.gpu

CONFIG = PipelinedConfig(
    32, 32, 8, 4, 4, 16, 32, 1, GROUP_M=2, MIN_BLOCKS=1, ORDER=1, FRAGMENTS=2, CP_ASYNC=1, SPREAD=0, SPLIT_K=4
)
HOW = {"rung": "pipelined", "config": CONFIG}
PARTIAL_SUMS = 8  # of cuda_src/reduce_parts.cu
SHAPES = [(1, 1, 64), (5, 7, 333), (64, 64, 4096), (33, 130, 517), (130, 4, 1000), (257, 65, 255), (64, 64, 8)]
DEEP = (64, 64, 65536)


def operands(torch, layout, M, N, K):
    """A, B and C, and then A and B as the layout stores them."""
    a, b, c = (torch.randn(shape, device="cuda") for shape in ((M, K), (K, N), (M, N)))
    return a, b, c, *(x.T.contiguous().T if letter == "T" else x for x, letter in zip((a, b), layout, strict=True))


def epilogue(total, alpha, beta, c):
    """What becomes of a sum: beta * C is rounded, the rest is one FMA."""
    return (total.double() * alpha + (c * beta).double()).float()


def in_parts(torch, config, a, b, alpha, beta, c):
    """The same by rung 1, part by part, and by PyTorch's sums in the order that is promised."""
    K = a.shape[1]
    _, chunk = grid.split(config, K)
    parts = [sgemm(a[:, first : first + chunk], b[first : first + chunk], rung=1) for first in range(0, K, chunk)]
    if len(parts) == 1:
        return sgemm(a, b, alpha, beta, c.clone(), rung=1)
    partial_sums = []
    for first in range(PARTIAL_SUMS):
        total = torch.zeros_like(c)
        for part in parts[first::PARTIAL_SUMS]:
            total = total + part
        partial_sums.append(total)
    total = partial_sums[0]
    for partial_sum in partial_sums[1:]:
        total = total + partial_sum
    if beta == 0:
        return total * alpha
    return epilogue(total, alpha, beta, c)


def peeled(config, K):
    """The steps of k that come before the first tile."""
    variant = variants.variant_for(
        rungs.find("pipelined"), variants.dense_call(Problem(64, 64, K)), config, database.fitted("sm_90").peeled_tiles
    )
    return K % config.BK if variant.peel else 0


@pytest.mark.parametrize("slices", [2, 4])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_slices_are_added_up_in_the_order_that_is_promised(torch, layout, slices):
    config = replace(CONFIG, BK=32, SPREAD=2, SLICED_K=slices, SPLIT_K=1)
    for M, N, K in SHAPES:
        a, b, c, *stored = operands(torch, layout, M, N, K)
        first = peeled(config, K)
        end = first + K // 32 * 32
        total = 0.0
        for one in range(slices):
            inside = [k for k in range(first, end) if (k - first) % 32 * slices // 32 == one]
            mine = [*range(one, first, slices), *inside, *range(end + one, K, slices)]
            chain = sgemm(a[:, mine].contiguous(), b[mine].contiguous(), rung=1) if mine else torch.zeros_like(c)
            total = total + chain
        expected = epilogue(total, 2.0, -0.5, c)
        for beside in (c.clone(), c.T.contiguous().T):
            found = sgemm(*stored, 2.0, -0.5, beside, rung="pipelined", config=config)
            assert torch.equal(found.contiguous().view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("chains", [2, 8])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_chains_are_added_up_in_the_order_that_is_promised(torch, layout, chains):
    config = replace(CONFIG, BK=16, CP_ASYNC=2, PARTIAL_ACCUMULATORS=chains, SPLIT_K=1)
    for M, N, K in SHAPES:
        a, b, c, *stored = operands(torch, layout, M, N, K)
        tiles = K // 16
        chain = 16 * max(1, -(-tiles // chains))
        ends = [peeled(config, K) + end for end in range(chain, 16 * tiles + 1, chain)] + [K]
        total = 0.0
        for first, last in itertools.pairwise([0, *ends]):
            if first < last:
                total = total + sgemm(a[:, first:last], b[first:last], rung=1)
        expected = epilogue(total, 2.0, -0.5, c)
        found = sgemm(*stored, 2.0, -0.5, c.clone(), rung="pipelined", config=config)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("parts", [2, 3, 8, 9, 1000])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_parts_are_added_up_in_the_order_that_is_promised(torch, layout, parts):
    """alpha and beta are powers of two: the epilogue then has one rounding, wherever it is computed."""
    config = replace(CONFIG, SPLIT_K=parts)
    for M, N, K in SHAPES:
        a, b, c, *stored = operands(torch, layout, M, N, K)
        for alpha, beta in ((1.0, 0.0), (2.0, -0.5)):
            expected = in_parts(torch, config, a, b, alpha, beta, c)
            for column_major in (False, True):
                C = c.T.contiguous().T if column_major else c.clone()
                if beta == 0:
                    C.fill_(float("nan"))
                sgemm(*stored, alpha, beta, C, rung="pipelined", config=config)
                assert torch.equal(C, expected), (M, N, K, alpha, beta, column_major)


@pytest.mark.parametrize("shape", [*SHAPES, DEEP, (16, 16, 4096), (300, 500, 77), (32, 32, 262144)])
def test_what_the_database_divides_is_right(torch, shape):
    M, N, K = shape
    a, b = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
    bound = (K + 3) * 2.0**-24 * (a.double().abs() @ b.double().abs())
    assert ((sgemm(a, b).double() - a.double() @ b.double()).abs() <= bound).all()
    ones = torch.ones(M, K, device="cuda"), torch.ones(K, N, device="cuda")
    assert (sgemm(*ones) == K).all()  # a dropped step of k shows


@pytest.mark.parametrize("parts", [2, 7, 64])
def test_a_hundred_repeats_beside_other_work_give_the_same_bits(torch, differing, parts):
    config = replace(CONFIG, SPLIT_K=parts)
    M, N, K = 96, 160, 8192
    a, b = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
    call = partial(sgemm, rung="pipelined", config=config)
    assert differing(lambda: call(a, b), lambda: call(b.T, a.T)) == 0  # the other has workspace of its own


def test_two_streams_at_once_have_workspace_of_their_own(torch, make_busy):
    """Queued behind long kernels on both streams, so that the products run together."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    pairs = [(torch.randn(64, 4096, device="cuda"), torch.randn(4096, 64, device="cuda")) for _ in streams]
    expected = [sgemm(*pair, **HOW) for pair in pairs]
    torch.cuda.synchronize()
    found = [[], []]
    for stream in streams:
        make_busy(stream.cuda_stream)
    for _ in range(30):
        for stream, pair, results in zip(streams, pairs, found, strict=True):
            with torch.cuda.stream(stream):
                results.append(sgemm(*pair, **HOW))
    torch.cuda.synchronize()
    for results, right in zip(found, expected, strict=True):
        assert all(torch.equal(result, right) for result in results)


def test_the_call_does_not_wait(torch, make_busy):
    a, b = torch.ones(64, 4096, device="cuda"), torch.ones(4096, 64, device="cuda")
    sgemm(a, b, **HOW)
    torch.cuda.synchronize()
    make_busy(0)
    result = sgemm(a, b, **HOW)
    waited = torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert not waited and (result == 4096).all()


def test_parts_are_captured_and_replayed(torch):
    graphs = []
    for size in (64, 96):
        a, b = (torch.zeros(shape, device="cuda") for shape in ((size, 4096), (4096, size)))
        c = torch.zeros(size, size, device="cuda")
        sgemm(a, b, 2.0, 1.0, c, **HOW)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            sgemm(a, b, 2.0, 1.0, c, **HOW)
        graphs.append((graph, a, b, c))
    for value in (1.0, 3.0):
        for _, a, b, c in graphs:
            a.fill_(value)
            b.fill_(2.0)
            c.fill_(5.0)
        for _ in range(10):
            for graph, *_ in graphs:
                graph.replay()  # beta = 1: each replay adds
        beside = sgemm(a, b, **HOW)
        torch.cuda.synchronize()
        assert (beside == 2 * 4096 * value).all()
        for *_, c in graphs:
            assert c.unique().tolist() == [5 + 10 * 2 * 2 * 4096 * value]
