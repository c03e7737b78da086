"""C in two shares on a device: the bits of two products, and what comes next on the stream waits for both."""

from itertools import product

import pytest

from fastsgemm import PipelinedConfig, SkinnyConfig, rungs, sgemm
from fastsgemm.heuristics import cutting, packing
from fastsgemm.heuristics.choose import PREDICTED, Choice
from fastsgemm.heuristics.cutting import Cut
from fastsgemm.problem import LAYOUTS

pytestmark = pytest.mark.gpu

LARGE = Choice(rungs.find("pipelined"), PipelinedConfig(64, 64, 16, 8, 4, 32, 32, 1, CP_ASYNC=2), PREDICTED, None, 1.0)
SMALL = {
    "rung 9": Choice(LARGE.rung, PipelinedConfig(32, 32, 16, 4, 4, 16, 32, 1), PREDICTED, None, 1.0),
    "split-K": Choice(LARGE.rung, PipelinedConfig(32, 32, 16, 4, 4, 16, 32, 1, SPLIT_K=4), PREDICTED, None, 1.0),
    "rung 10": Choice(rungs.find("skinny"), SkinnyConfig(BM=4, BN=32, BK=64, TN=4, TK=8), PREDICTED, None, 1.0),
}
M, N, K = 2000, 1500, 333
# Where the second share begins. A corner is the last two columns of the last eight rows of 64 x 64 tiles, of which a
# column-major C has the last two rows of the last eight columns.
PLACES = [((1984, 0), "N"), ((0, 1472), "N"), ((1536, 1408), "N"), ((1920, 1024), "T")]


@pytest.fixture
def cut(gpu, monkeypatch):
    """Return a function that lets every C be cut there."""
    monkeypatch.setattr(packing, "select", lambda *given, **named: packing.Selection(LARGE))

    def at(place, small):
        monkeypatch.setattr(cutting, "find", lambda *given: Cut(place, (LARGE, small), 2.0))
        gpu.prepared.clear()

    yield at
    gpu.prepared.clear()


def by_shares(place, small, a, b, alpha, beta, c):
    """The same by two products, in a new C; the first computes a corner, too, and the second computes it again."""
    row, column = place
    first = (slice(None), slice(None)) if row and column else (slice(row or None), slice(column or None))
    found = c.clone()
    for span, choice in ((first, LARGE), ((slice(row, None), slice(column, None)), small)):
        rows, columns = span
        found[span] = c[span]
        sgemm(a[rows], b[:, columns], alpha, beta, found[span], rung=choice.rung, config=choice.config)
    return found


def drawn(torch, shape, letter):
    """A matrix, column-major for T."""
    x = torch.randn(shape, device="cuda")
    return x.T.contiguous().T if letter == "T" else x


@pytest.mark.parametrize("small", SMALL)
@pytest.mark.parametrize(("layout", "place"), [*product(LAYOUTS, PLACES)])
def test_a_cut_product_has_the_bits_of_two(torch, cut, layout, place, small):
    at, of_c = place
    a, b, c = (drawn(torch, *each) for each in (((M, K), layout[0]), ((K, N), layout[1]), ((M, N), of_c)))
    expected = by_shares(at, SMALL[small], a, b, 1.5, -0.5, c)
    cut(at, SMALL[small])
    assert torch.equal(sgemm(a, b, 1.5, -0.5, c), expected)


@pytest.mark.parametrize("small", SMALL)
@pytest.mark.parametrize(("at", "of_c"), PLACES)
def test_all_of_a_cut_c_is_written_and_a_source_is_read(torch, cut, at, of_c, small):
    a, b, source = (drawn(torch, *each) for each in (((M, K), "N"), ((K, N), "N"), ((M, N), of_c)))
    cut(at, SMALL[small])
    nothing = torch.full_like(source, float("nan"))
    found, added = sgemm(a, b, C=nothing.clone()), sgemm(a, b, 1.0, 0.5, source, out=nothing.clone())
    assert torch.equal(found, by_shares(at, SMALL[small], a, b, 1.0, 0.0, nothing))
    assert torch.equal(added, by_shares(at, SMALL[small], a, b, 1.0, 0.5, source))


@pytest.mark.parametrize("small", SMALL)
@pytest.mark.parametrize("place", [(0, 4096), (3584, 4096)])
@pytest.mark.parametrize("captured", [False, True])
def test_what_comes_next_waits_for_both_shares(torch, cut, small, captured, place):
    """The second share is done long before the first one, and does not wait for it to begin."""
    shape, K = (4096, 4160), 4096
    a, b = torch.randn(shape[0], K, device="cuda"), torch.randn(K, shape[1], device="cuda")
    expected = by_shares(place, SMALL[small], a, b, 1.0, 0.0, torch.zeros(shape, device="cuda"))
    cut(place, SMALL[small])
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
    gpu.prepared.clear()
    c = sgemm(a, b)
    (plan,) = gpu.prepared.values()
    names = [step.kernel.name for step in plan.steps]
    if gpu.name == "NVIDIA H200":
        assert names.count("fastsgemm_pipelined") == 2
    exact = a.double() @ b.double()
    assert float((c - exact).norm() / exact.norm()) < 2e-6
