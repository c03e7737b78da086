"""CUDA graph capture: calls replay, first calls too; memory that would outlive a replay is refused."""

import pytest

from fastsgemm import BlockConfig, prepare, sgemm, split
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


@pytest.mark.parametrize("new", ["kernel", "packing", "parts of k"])
def test_a_first_call_inside_a_capture(torch, gpu, new):
    """Its kernels are compiled and loaded then, and its workspace belongs to the graph."""
    K = 20000 if new == "parts of k" else 72
    A, B = torch.ones(72, 2 * K, device="cuda")[:, ::2], torch.ones(K, 72, device="cuda")
    C = torch.full((72, 72), 7.5, device="cuda")
    if new != "packing":
        A = A.contiguous()
    how = {} if new == "parts of k" else {"rung": 1, "config": BlockConfig(16, 8)}  # of no other test
    gpu.forget_problems()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sgemm(A, B, C=C, **how)
    assert (C == 7.5).all()
    for value in (1.0, 2.0):
        A.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert (value * K == C).all()
    sgemm(A, B, C=C, **how)
    assert (C == 2 * K).all()


def test_a_split_inside_a_capture_is_refused_and_the_capture_goes_on(torch):
    W, beside = torch.ones(64, 64, device="cuda"), torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        beside += 1
        with pytest.raises(CaptureError, match="memory does not outlive a replay"):
            split(W)
    graph.replay()
    torch.cuda.synchronize()
    assert (beside == 1).all()
