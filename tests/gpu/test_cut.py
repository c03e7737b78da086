"""C in two shares on a device: the bits of two products, and what comes next on the stream waits for both."""

from itertools import product

import forced_choice
import pytest

from fastsgemm import PipelinedConfig, SkinnyConfig, rungs, sgemm
from fastsgemm.problem import LAYOUTS

pytestmark = pytest.mark.gpu

LARGE = rungs.find("pipelined"), PipelinedConfig(64, 64, 16, 8, 4, 32, 32, 1, CP_ASYNC=2)
SMALL = {
    "rung 9": (LARGE[0], PipelinedConfig(32, 32, 16, 4, 4, 16, 32, 1)),
    "split-K": (LARGE[0], PipelinedConfig(32, 32, 16, 4, 4, 16, 32, 1, SPLIT_K=4)),
    "rung 10": (rungs.find("skinny"), SkinnyConfig(BM=4, BN=32, BK=64, TN=4, TK=8)),
}
M, N, K = 2000, 1500, 333


@pytest.fixture(params=[False, True], ids=["first first", "second first"])
def cut(gpu, monkeypatch, request):
    """Return a function that lets every C be cut there. The shares are launched in both orders."""

    def at(axis, place, small):
        way = forced_choice.cut(axis, place, LARGE, small, second_first=request.param)
        forced_choice.force(monkeypatch, way)
        gpu.forget_problems()

    yield at
    gpu.forget_problems()


def spans(axis, place):
    """The rows and columns of both shares."""
    both = slice(None, place), slice(place, None)
    return [(one, slice(None)) if axis == 0 else (slice(None), one) for one in both]


@pytest.mark.parametrize("small", SMALL)
@pytest.mark.parametrize(("layout", "axis"), [*product(LAYOUTS, (0, 1))])
def test_a_cut_product_has_the_bits_of_two(torch, cut, layout, axis, small):
    place = 1984 if axis == 0 else 1472
    a, b, c = (torch.randn(shape, device="cuda") for shape in ((M, K), (K, N), (M, N)))
    a, b = (x.T.contiguous().T if letter == "T" else x for x, letter in zip((a, b), layout, strict=True))
    expected = c.clone()
    for (rows, columns), (rung, config) in zip(spans(axis, place), (LARGE, SMALL[small]), strict=True):
        sgemm(a[rows], b[:, columns], 1.5, -0.5, expected[rows, columns], rung=rung, config=config)
    cut(axis, place, SMALL[small])
    assert torch.equal(sgemm(a, b, 1.5, -0.5, c), expected)


@pytest.mark.parametrize("small", SMALL)
@pytest.mark.parametrize("captured", [False, True])
def test_what_comes_next_waits_for_both_shares(torch, cut, small, captured):
    """The second share is done long before the first one, and does not wait for it to begin."""
    shape, K = (4096, 4160), 4096
    a, b = torch.randn(shape[0], K, device="cuda"), torch.randn(K, shape[1], device="cuda")
    expected = torch.empty(shape, device="cuda")
    for (rows, columns), (rung, config) in zip(spans(1, 4096), (LARGE, SMALL[small]), strict=True):
        sgemm(a[rows], b[:, columns], C=expected[rows, columns], rung=rung, config=config)
    cut(1, 4096, SMALL[small])
    stream = torch.cuda.Stream()
    c, copy = torch.empty(shape, device="cuda"), torch.empty(shape, device="cuda")
    torch.cuda.synchronize()

    def work():
        c.fill_(float("nan"))
        sgemm(a, b, C=c)
        copy.copy_(c)

    with torch.cuda.stream(stream):
        work()
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                work()
        for _ in range(5):
            graph.replay() if captured else work()
    torch.cuda.synchronize()
    assert torch.equal(copy, expected)


def test_the_shipped_data_cuts_a_product_as_explained(torch, gpu):
    a, b = torch.randn(3000, 3000, device="cuda"), torch.randn(3000, 3000, device="cuda")
    gpu.forget_problems()
    c = sgemm(a, b)
    (loaded,) = gpu.prepared.values()
    names = [launch.kernel.name for launch in loaded.plan.launches]
    if gpu.name == "NVIDIA H200":
        assert names.count("fastsgemm_pipelined") == 2
    exact = a.double() @ b.double()
    assert float((c - exact).norm() / exact.norm()) < 2e-6
