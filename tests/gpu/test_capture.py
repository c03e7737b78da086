"""CUDA graph capture: what was called before is captured and replays; what is new is refused, and nothing breaks."""

import pytest

from fastsgemm import BlockConfig, prepare, sgemm
from fastsgemm.errors import CaptureError
from fastsgemm.rungs import IEEE

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_a_graph_replays_with_new_inputs(torch, rung):
    A, B, C = (torch.zeros(130, 130, device="cuda") for _ in range(3))
    sgemm(A, B, 2.0, 1.0, C, rung=rung.number)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sgemm(A, B, 2.0, 1.0, C, rung=rung.number)
    for value in (1.0, 3.0):
        A.fill_(value)
        B.fill_(2.0)
        C.fill_(5.0)
        graph.replay()
        graph.replay()  # beta = 1: each replay adds
        torch.cuda.synchronize()
        added = 2 * 130 * value * 2
        assert C.unique().tolist() == [5 + 2 * added]


@pytest.mark.parametrize("size", [(8, 333, 333), (100, 333, 333), (5, 7, 20000), (300, 300, 20000)], ids=str)
def test_what_was_prepared_can_be_captured_at_once(torch, size):
    M, N, K = size
    prepare(M, N, K, progress=False)
    A, B, C = torch.ones(M, K, device="cuda"), torch.ones(K, N, device="cuda"), torch.zeros(M, N, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sgemm(A, B, C=C)
    graph.replay()
    torch.cuda.synchronize()
    assert (C == K).all()


@pytest.mark.parametrize("source", ["matrix", "row", "column"])
@pytest.mark.parametrize("size", [(8, 340, 333), (300, 300, 20000)], ids=str)
def test_what_was_prepared_for_out_can_be_captured_at_once(torch, size, source):
    M, N, K = size
    prepare(M, N, K, source=source, progress=False)
    A, B, D = torch.ones(M, K, device="cuda"), torch.ones(K, N, device="cuda"), torch.zeros(M, N, device="cuda")
    C = torch.ones({"matrix": (M, N), "row": (N,), "column": (M, 1)}[source], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sgemm(A, B, 1.0, 1.0, C, out=D)
    graph.replay()
    torch.cuda.synchronize()
    assert (D == K + 1).all()


def test_a_new_result_inside_a_graph(torch):
    A = torch.ones(64, 64, device="cuda")
    sgemm(A, A)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        C = sgemm(A, A)
        D = C + 1
    A.fill_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert (D == 4 * 64 + 1).all()


def test_an_explicit_stream_that_is_captured(torch):
    A, C = torch.ones(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
    sgemm(A, A, C=C)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        sgemm(A, A, C=C, stream=stream)
    A.fill_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert (C == 4 * 64).all()


def test_operands_that_are_packed_inside_a_graph(torch):
    A, B = (torch.ones(80, 120, device="cuda")[::2, ::3] for _ in range(2))
    C = torch.zeros(80, 80, device="cuda")[::2, ::2]
    sgemm(A, B.T, C=C)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sgemm(A, B.T, C=C)
    for value in (2.0, 3.0):
        A.fill_(value)
        C.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert C.unique().tolist() == [40 * value]


def test_graphs_that_pack_are_replayed_in_turns_without_waiting(torch):
    graphs = []
    for size in (300, 500):
        A = torch.ones(size, 2 * size, device="cuda")
        C = torch.zeros(2 * size, 2 * size, device="cuda")[::2, ::2]
        sgemm(A[:, ::2], A[:, ::2], 1.0, 1.0, C)
        C.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            sgemm(A[:, ::2], A[:, ::2], 1.0, 1.0, C)
        graphs.append((graph, A, C))  # A too: beginning a capture, torch gives freed memory back to the driver
    for _ in range(50):
        for graph, _, _ in graphs:
            graph.replay()
    sgemm(A[:, ::2], A[:, ::2], 1.0, 1.0, C)  # beside what the graphs hold
    torch.cuda.synchronize()
    assert [C.unique().tolist() for _, _, C in graphs] == [[50 * 300], [51 * 500]]


@pytest.mark.parametrize("new", ["kernel", "packing"])
def test_a_first_call_inside_a_capture_is_refused_and_later_calls_work(torch, gpu, new):
    A = torch.ones(72, 72, device="cuda")
    C = torch.full((72, 72), 7.5, device="cuda")
    config = BlockConfig(16, 8)  # of no other test
    gpu.kernels.clear()
    gpu.forget_problems()
    first = A if new == "kernel" else torch.ones(72, 144, device="cuda")[:, ::2]
    if new == "packing":
        sgemm(A, A, rung=1, config=config)
    beside = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        beside += 1
        with pytest.raises(CaptureError, match="call sgemm once"):
            sgemm(first, A, C=C, rung=1, config=config)
    graph.replay()  # the capture around the refusal is whole
    torch.cuda.synchronize()
    assert (beside == 1).all() and (C == 7.5).all()
    sgemm(first, A, C=C, rung=1, config=config)
    assert (C == 72).all()
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        sgemm(first, A, C=C, rung=1, config=config)
    C.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert (C == 72).all()
