"""Batches, vectors and `out` on a device, beside PyTorch's own products of whole numbers, which are exact."""

import itertools

import pytest

from fastsgemm import PipelinedConfig, SkinnyConfig, rungs, sgemm
from fastsgemm.rungs import IEEE

pytestmark = pytest.mark.gpu

SPLIT = [
    {"config": PipelinedConfig(BM=64, BN=32, BK=8, WM=32, WN=32, WNITER=2, TM=4, TN=4, SPLIT_K=5)},
    {"config": SkinnyConfig(BM=4, BN=32, BK=64, TN=4, TK=8, SPLIT_K=3)},
]


@pytest.fixture
def whole(torch):
    """Return a function that makes a float32 tensor of small whole numbers."""
    return lambda *shape: torch.randint(-4, 5, shape, device="cuda").float()


@pytest.mark.parametrize("rung", [None, *(rung.number for rung in IEEE)])
@pytest.mark.parametrize("shape", [(3, 65, 33, 70), (5, 4, 4, 4), (2, 128, 128, 64), (7, 1, 300, 130)], ids=str)
def test_bmm_and_baddbmm(torch, whole, rung, shape):
    count, M, N, K = shape
    for a, b in itertools.product((False, True), repeat=2):
        A = whole(count, K, M).mT if a else whole(count, M, K)
        B = whole(count, N, K).mT if b else whole(count, K, N)
        assert torch.equal(sgemm(A, B, rung=rung), torch.bmm(A, B))
        C, D = whole(count, M, N), torch.full((count, M, N), float("nan"), device="cuda")
        old = C.clone()
        assert sgemm(A, B, 2.0, -1.0, C, rung=rung, out=D) is D
        assert torch.equal(D, torch.baddbmm(old, A, B, beta=-1, alpha=2)) and torch.equal(C, old)
        assert torch.equal(sgemm(A, B, 2.0, -1.0, C, rung=rung), D)


@pytest.mark.parametrize("N", [70, 72])
@pytest.mark.parametrize(
    "options", [{}, {"rung": 1}, {"rung": 9}, {"rung": 10}, {"rung": 11}, {"batch_invariant": True}, *SPLIT]
)
def test_addmm_with_a_source_that_lies_anyhow(torch, whole, N, options):
    A, B = whole(33, 130), whole(130, N)
    sources = [whole(*shape) for shape in ((N,), (1, N), (33, 1), (1, 1), (33, N))]
    sources += [whole(N, 33).T, whole(66, 3 * N)[::2, ::3], whole(33, N + 4)[:, 1 : 1 + N], whole(N + 4)[1 : 1 + N]]
    for C in sources:
        expected = torch.addmm(C.expand(33, N), A, B, beta=-2)
        for D in (whole(33, N), whole(N, 33).T, whole(33, 2 * N)[:, ::2]):
            assert torch.equal(sgemm(A, B, 1.0, -2.0, C, out=D, **options), expected)


def test_vectors(torch, whole):
    A, B, x, y = whole(5, 33, 130), whole(3, 130, 70), whole(130), whole(260)[::2]
    for a, b in ((A, y), (x, B), (x, y), (A[0], y), (x, B[0])):
        found, expected = sgemm(a, b), torch.matmul(a, b)
        assert found.shape == expected.shape and torch.equal(found, expected)


def test_matrices_that_broadcast_are_read_where_they_are(torch, whole):
    A, B = whole(4, 1, 33, 40), whole(3, 40, 50)
    assert torch.equal(sgemm(A, B), torch.matmul(A, B))
    shared = whole(40, 50).expand(6, 40, 50)
    A = whole(6, 33, 40)
    before = torch.cuda.memory_allocated()
    found = sgemm(A, shared)
    assert torch.cuda.memory_allocated() - before <= 4 * found.numel() + 512
    assert torch.equal(found, A @ shared)
    heads = whole(4, 17, 6, 40).transpose(1, 2)  # of attention: (batch, heads, sequence, features)
    assert torch.equal(sgemm(heads, heads.mT), torch.matmul(heads, heads.mT))


@pytest.mark.parametrize("count", [65535, 65536, 70_000, 200_000])
@pytest.mark.parametrize("rung", [None, 1, 9, 10])
def test_large_batches(torch, whole, count, rung):
    A, B = whole(count, 4, 4), whole(count, 4, 4)
    assert torch.equal(sgemm(A, B, rung=rung), torch.bmm(A, B))


@pytest.mark.parametrize("options", SPLIT, ids=["pipelined", "skinny"])
def test_split_k(torch, whole, options):
    A, B, C = whole(3, 20, 1000), whole(3, 1000, 50), whole(3, 20, 50)
    expected = torch.baddbmm(C, A, B, beta=-1, alpha=2)
    for source in (C, whole(3, 1, 50)):
        D = torch.empty_like(C)
        wanted = torch.baddbmm(source.expand(3, 20, 50), A, B, beta=-1, alpha=2)
        assert torch.equal(sgemm(A, B, 2.0, -1.0, source, out=D, **options), wanted)
    assert torch.equal(sgemm(A, B, 2.0, -1.0, C, **options), expected)


def test_products_further_apart_than_2_to_the_31(torch, whole, room):
    buffer = torch.empty(4, 2**30, device="cuda")
    A, B = whole(4, 68, 67), whole(4, 67, 36)
    far = [buffer[:, at : at + x.numel() // 4].view(4, *x.shape[1:]) for at, x in ((0, A), (5000, B))]
    C = buffer[:, 10_000 : 10_000 + 68 * 36].view(4, 68, 36)
    far[0].copy_(A)
    far[1].copy_(B)
    for rung in (None, *(rung.number for rung in IEEE)):
        C.fill_(float("nan"))
        sgemm(*far, C=C, rung=rung)
        assert torch.equal(C, torch.bmm(A, B)), rung


def test_fp16x3_in_a_batch(torch):
    A, B = torch.randn(3, 300, 500, device="cuda"), torch.randn(3, 500, 260, device="cuda")
    expected = torch.bmm(A.double(), B.double())
    bound = 500 * 2.0**-24 * torch.bmm(A.abs().double(), B.abs().double())
    for options in ({"precision": "fp16x3"}, {"rung": rungs.find("fp16x3").number}):
        assert ((sgemm(A, B, **options).double() - expected).abs() <= bound).all()
    C = torch.randn(260, device="cuda")
    out = torch.empty(3, 300, 260, device="cuda")
    sgemm(A, B, 1.0, 1.0, C, precision="fp16x3", out=out)
    assert ((out.double() - expected - C.double()).abs() <= bound + 1e-5).all()


def test_a_batch_in_a_graph(torch, whole):
    A, B, C, D = whole(5, 33, 40), whole(5, 40, 50), whole(50), whole(5, 33, 50)
    sgemm(A, B, 1.0, 1.0, C, out=D)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sgemm(A, B, 1.0, 1.0, C, out=D)
    A.copy_(whole(5, 33, 40))
    D.zero_()
    graph.replay()
    assert torch.equal(D, torch.baddbmm(C.expand(5, 33, 50), A, B))
