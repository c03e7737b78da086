"""Plans as graphs on a device: the same bits as single launches, streams, threads, captures and memory."""

import threading

import pytest

from fastsgemm import release_workspace, sgemm
from fastsgemm.call import driver

pytestmark = pytest.mark.gpu

# M, N, K: one kernel; split-K; a narrow result; a packed one.
SIZES = [(64, 64, 64), (256, 256, 8192), (8, 1024, 4096), (3000, 1111, 1500)]
WAYS = [{}, {"precision": "fp16x3"}, {"batch_invariant": True}]


def operands(torch, M, N, K, count):
    """Return weights and some inputs, all but one of them contiguous."""
    inputs = [torch.randn(M, K, device="cuda") for _ in range(count)]
    inputs[0] = torch.randn(K, 2 * M, device="cuda")[:, ::2].t()
    return inputs, torch.randn(N, K, device="cuda").t()


@pytest.fixture
def single(gpu, monkeypatch):
    """Return a function that returns results of single launches."""

    def results(inputs, B, **how):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "AFTER", 1 << 60)
            gpu.forget_problems()
            return [sgemm(A, B, **how) for A in inputs]

    yield results
    gpu.forget_problems()


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_same_bits_as_single_launches(torch, gpu, single, size, how):
    inputs, B = operands(torch, *size, 4)
    expected = single(inputs, B, **how)
    gpu.forget_problems()
    for _ in range(100 // len(inputs)):
        for A, one in zip(inputs, expected, strict=True):
            assert torch.equal(sgemm(A, B, **how), one)
    assert gpu.graphs > 0


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_two_streams_and_four_threads(torch, gpu, single, how):
    inputs, B = operands(torch, 256, 256, 8192, 8)
    expected = single(inputs, B, **how)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    wrong = []

    def work(number):
        with torch.cuda.stream(streams[number % 2]):
            for _ in range(50):
                results = [sgemm(A, B, **how) for A in inputs]
                if not all(torch.equal(a, b) for a, b in zip(results, expected, strict=True)):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not wrong


def test_a_captured_graph_replays_right_after_the_workspace_has_grown_and_gone(torch, single):
    inputs, B = operands(torch, 256, 256, 8192, 2)
    expected = single(inputs, B)
    A, C = inputs[1].clone(), torch.empty(256, 256, device="cuda")
    for _ in range(4):
        sgemm(A, B, C=C)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sgemm(A, B, C=C)
    large = torch.randn(1024, 16384, device="cuda")
    for _ in range(4):
        sgemm(large, large.t(), precision="fp16x3")
    release_workspace()
    junk = torch.full((1 << 24,), float("nan"), device="cuda")
    C.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(C, expected[1]) and bool(junk.isnan().all())


def test_nothing_leaks(torch, gpu):
    inputs, B = operands(torch, 64, 64, 4096, 40)
    C = torch.empty(64, 64, device="cuda")

    def calls(times):
        for _ in range(times):
            for A in inputs:
                sgemm(A, B, C=C)
        torch.cuda.synchronize()

    calls(20)
    graphs, taken = gpu.graphs, []
    while len(taken) < 100 and min(taken, default=8 << 20) >= 8 << 20:  # a leak shows each time, what others take not
        free = torch.cuda.mem_get_info()[0]
        calls(100)
        taken.append(free - torch.cuda.mem_get_info()[0])
    assert gpu.graphs == graphs
    assert min(taken) < 8 << 20
    gpu.forget_problems()
    assert gpu.graphs == 0
