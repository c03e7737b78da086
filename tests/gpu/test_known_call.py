"""A known call on tensors, beside the same call on the general way: bits, memory, devices, threads and graphs."""

import pytest
from in_threads import run_all

from fastsgemm import gemm, sgemm
from fastsgemm.call import arrays

pytestmark = pytest.mark.gpu


@pytest.fixture
def on_the_general_way(monkeypatch):
    """Return a function that makes a call as if nothing were known."""

    def run(call, *operands):
        with monkeypatch.context() as patch:
            patch.setattr(arrays, "known", {})
            return call(*operands)

    return run


@pytest.fixture
def nothing_else(monkeypatch):
    """Return a function after which a call on the general way fails."""

    def refuse(*given, **more):
        raise AssertionError("this call was not known")

    return lambda: monkeypatch.setattr(gemm, "multiply", refuse)


CALLS = {
    "C": lambda A, B, C: sgemm(A, B, C=C),
    "new": lambda A, B, C: sgemm(A, B),
    "alpha and beta": lambda A, B, C: sgemm(A, B, 0.3, -2.0, C),
    "alpha 0": lambda A, B, C: sgemm(A, B, 0.0, 0.5, C),
    "rung 1": lambda A, B, C: sgemm(A, B, C=C, rung=1),
    "batch-invariant": lambda A, B, C: sgemm(A, B, batch_invariant=True),
    "fp16x3": lambda A, B, C: sgemm(A, B, precision="fp16x3"),
    "rung fp16x3": lambda A, B, C: sgemm(A, B, 1.0, 1.0, C, rung="fp16x3"),
    "packed": lambda A, B, C: sgemm(A.repeat_interleave(2, 1)[:, ::2], B, C=C),
    "column-major": lambda A, B, C: sgemm(A, B.t().contiguous().t(), C=C.t().contiguous().t()),
    "batch": lambda A, B, C: sgemm(A.expand(3, *A.shape), B, C=C.repeat(3, 1, 1)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("size", [(64, 64, 64), (33, 45, 70), (300, 300, 5000)], ids=str)
def test_the_bits_are_those_of_the_general_way(torch, on_the_general_way, nothing_else, call, size):
    M, N, K = size
    A, B, C = (torch.randn(*shape, device="cuda") for shape in ((M, K), (K, N), (M, N)))
    if call is CALLS["rung fp16x3"] and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("rung 11 needs sm_80")
    given = [C.clone() for _ in range(2)]
    wanted = on_the_general_way(call, A, B, given[0])
    nothing_else()
    for _ in range(3):
        given[1].copy_(C)
        version = given[1]._version
        found = call(A, B, given[1])
        assert torch.equal(found, wanted) and torch.equal(given[1], given[0])
        assert given[1]._version == version + (found is given[1])


def test_new_results_are_plain_tensors_of_their_own(torch, nothing_else):
    A, B = torch.randn(64, 32, device="cuda"), torch.randn(32, 48, device="cuda")
    first = sgemm(A, B)
    nothing_else()
    results = [sgemm(A, B) for _ in range(4)]
    assert len({x.data_ptr() for x in (first, *results)}) == 5
    for x in results:
        assert x.stride() == (48, 1) and x.device == A.device and x._version == 0 and not x.requires_grad
    with torch.inference_mode():
        assert sgemm(A, B).is_inference()


def test_a_result_that_does_not_fit_is_pytorchs_error(torch):
    A = torch.zeros(1, 1, device="cuda").expand(1 << 20, 1)
    with pytest.raises(torch.OutOfMemoryError):
        sgemm(A, A.t())


def test_a_thread_that_has_not_used_cuda(torch, nothing_else):
    from cuda.bindings import driver

    A = torch.randn(64, 64, device="cuda")
    C, wanted, found, contexts = torch.empty_like(A), sgemm(A, A), [], []
    sgemm(A, A, C=C)
    torch.cuda.synchronize()
    nothing_else()

    def work(i):
        contexts.append(int(driver.cuCtxGetCurrent()[1]))
        found.extend([sgemm(A, A, C=C), sgemm(A, A)])

    run_all(work, 1)
    assert contexts == [0] and len(found) == 2
    assert all(torch.equal(each, wanted) for each in found)


def test_a_side_stream_that_is_met_later(torch, make_busy):
    A, B, C = (torch.ones(96, 96, device="cuda") for _ in range(3))
    sgemm(A, B, C=C)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        make_busy(stream.cuda_stream)
        A.fill_(2)
        for _ in range(2):
            sgemm(A, B, C=C)
        new = sgemm(A, B)
        waited = stream.query()
    stream.synchronize()
    assert not waited and (C == 192).all() and (new == 192).all()


def test_a_graph_of_known_calls(torch, nothing_else):
    A, B, C = (torch.ones(64, 64, device="cuda") for _ in range(3))
    sgemm(A, B, C=C)
    sgemm(A, B)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        nothing_else()  # a stream that is new makes no difference
        sgemm(A, B, C=C)
        sgemm(A, C, C=B)
        new = sgemm(A, B)
    A.fill_(2)
    B.fill_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert (B == 128 * 128).all() and (new == 128**3).all()


def test_each_of_two_devices_whichever_is_current(torch, nothing_else):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is only one device")
    given = [[torch.randn(64, 64, device=f"cuda:{i}") for _ in range(3)] for i in range(2)]
    for A, B, C in given:
        sgemm(A, B, C=C)
        sgemm(A, B)
    nothing_else()
    for current in range(2):
        with torch.cuda.device(current):
            for A, B, C in given:
                new = sgemm(A, B)
                assert sgemm(A, B, C=C) is C and new.device == A.device and torch.equal(new, C)
            assert torch.cuda.current_device() == current
