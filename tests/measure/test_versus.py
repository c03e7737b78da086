"""The comparison with cuBLAS, tested on the host: PyTorch's CPU product replaces cuBLAS, and the times are made up."""

from dataclasses import replace

import pytest

from fastsgemm.command_line.info import DeviceRow
from fastsgemm.gemm import sgemm
from fastsgemm.jit import compiler
from fastsgemm.measure.problem_sets import Sample
from fastsgemm.measure.versus import Versus, WrongResultError, compile_ahead
from fastsgemm.problem import Problem

H200 = DeviceRow(0, "NVIDIA H200", "sm_90", 132, 227 * 1024)
PADDED = Sample(Problem(33, 17, 40, "TN"), (3, 4, 5))


class GivenTimes:
    """A stopwatch that runs the work once and returns fixed times."""

    def samples(self, works, seconds):
        for work in works:
            work()
        return [[2.0, 2.0, 2.1, 1.9, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0]]


@pytest.fixture
def versus(torch, on_host):
    return Versus(torch, "cpu", H200, GivenTimes(), sgemm)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_a_row_says_what_was_measured(versus, layout):
    row = versus.row(Sample(Problem(33, 17, 40, layout), (3, 4, 5)), 0.0)
    assert (row["M"], row["N"], row["K"], row["layout"], row["size"]) == (33, 17, 40, layout, "launch-bound")
    assert row["percent"] == 50.0 and row["ms"] == 2.0 and row["cublas_ms"] == 1.0
    assert row["rule"] == "predicted" and row["load_bytes"] == 4
    assert row["lda"] == (33 if layout[0] == "T" else 40) + 3 and row["ldc"] == 17 + 5
    assert 0 < row["noise"] < 0.05
    assert 0 < row["error"] < 1e-6


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_a_row_of_a_batch_has_its_size(versus, layout):
    row = versus.row(Sample(Problem(33, 17, 40, layout, 5)), 0.0)
    assert (row["M"], row["N"], row["K"], row["layout"], row["batch"]) == (33, 17, 40, layout, 5)
    assert row["tflops"] == pytest.approx(5 * 2e-9 * 33 * 17 * 40 / 2.0)
    assert row["rule"] == "predicted" and row["packed"] == ""
    assert row["ldb"] == (40 if layout[1] == "T" else 17) and 0 < row["error"] < 1e-6


@pytest.mark.parametrize("number", [0, 4])
def test_every_product_of_a_batch_is_checked(versus, monkeypatch, number):
    wrong = replace(versus, sgemm=lambda a, b, C: C.copy_(a @ b)[number, 1, 1].mul_(1.5))
    monkeypatch.setattr(GivenTimes, "samples", lambda *_: pytest.fail("it was timed"))
    with pytest.raises(WrongResultError, match="33,17,40,TN,x5"):
        wrong.row(Sample(Problem(33, 17, 40, "TN", 5)), 0.0)


def test_a_tuned_problem_is_marked(versus):
    assert versus.row(Sample(Problem(1, 1024, 1024)), 0.0)["rule"] == "exact"


@pytest.mark.parametrize(
    "fault",
    [
        lambda a, b, C: C.copy_(a @ b)[1, 1].mul_(1.5),
        lambda a, b, C: C[1:].copy_((a @ b)[1:]),  # a row is left as it was
        lambda a, b, C: C.as_strided((33, 22), (22, 1)).fill_(0.0) is C.copy_(a @ b),  # the padding is written
    ],
    ids=["wrong", "left out", "beyond a row"],
)
def test_a_wrong_result_is_not_timed(versus, monkeypatch, fault):
    monkeypatch.setattr(GivenTimes, "samples", lambda *_: pytest.fail("it was timed"))
    with pytest.raises(WrongResultError, match=r"33,17,40,TN\+3\+4\+5"):
        replace(versus, sgemm=fault).row(PADDED, 0.0)


def test_the_kernels_of_batches_are_compiled(monkeypatch):
    sources = []
    monkeypatch.setattr(compiler, "cubin", lambda *one: sources.append(one[0]))
    assert compile_ahead(H200, [Sample(Problem(512, 512, 512, batch=8))]) == 1
    assert "constexpr int BATCHED = 1;" in sources[0]


def test_kernels_are_compiled_once_each(monkeypatch):
    compiled = []
    monkeypatch.setattr(compiler, "cubin", lambda *one: compiled.append(one))
    samples = [Sample(Problem(4096, 4096, 4096)), Sample(Problem(4096, 4096, 4096)), Sample(Problem(1, 4096, 4096))]
    assert compile_ahead(H200, samples) == len(set(compiled)) == 2
    kernels = {(kernel, arch) for _, kernel, arch, _ in compiled}
    assert kernels == {("fastsgemm_pipelined", "sm_90"), ("fastsgemm_skinny", "sm_90")}
