"""Host time of a call on 64 x 64 operands, for `sgemm`, PyTorch and CuPy. Launches are queued and not waited for."""

import pytest

from fastsgemm import sgemm
from fastsgemm.measure.stopwatch import standard_error

pytestmark = pytest.mark.gpu

CALLS = 100  # in a round: few enough not to fill the launch queue, which would measure the device


def torch_case(name):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch cannot use the device")
    A, B, C = (torch.rand(64, 64, device="cuda") for _ in range(3))
    calls = {
        "sgemm, C given": lambda: sgemm(A, B, C=C),
        "torch.mm(out=)": lambda: torch.mm(A, B, out=C),
        "sgemm, rung fp16x3, C given": lambda: sgemm(A, B, C=C, rung="fp16x3"),
        "sgemm, new result": lambda: sgemm(A, B),
        "torch.mm": lambda: torch.mm(A, B),
    }
    return calls[name], torch.cuda.synchronize


def cupy_case(name):
    cupy = pytest.importorskip("cupy")
    A, B, C = (cupy.random.random((64, 64), dtype="float32") for _ in range(3))
    calls = {
        "sgemm, C given": lambda: sgemm(A, B, C=C),
        "cupy.matmul(out=)": lambda: cupy.matmul(A, B, out=C),
        "sgemm, new result": lambda: sgemm(A, B),
        "cupy.matmul": lambda: cupy.matmul(A, B),
    }
    return calls[name], cupy.cuda.Device().synchronize


CASES = [
    (
        "PyTorch",
        torch_case,
        ["sgemm, C given", "torch.mm(out=)", "sgemm, rung fp16x3, C given", "sgemm, new result", "torch.mm"],
    ),
    ("CuPy", cupy_case, ["sgemm, C given", "cupy.matmul(out=)", "sgemm, new result", "cupy.matmul"]),
]


@pytest.mark.parametrize(
    ("kind", "case", "name"),
    [pytest.param(kind, case, name, id=f"{kind}-{name}") for kind, case, names in CASES for name in names],
)
def test_call(kind, case, name, benchmark, rounds):
    call, wait = case(name)

    def many():
        for _ in range(CALLS):
            call()

    benchmark.group = f"host cost of {CALLS} calls"
    benchmark.pedantic(many, setup=wait, rounds=rounds(200), warmup_rounds=3)
    benchmark.extra_info.update(kind=kind, call=name)
    if benchmark.enabled:
        stats = benchmark.stats.stats
        benchmark.extra_info.update(us_per_call=stats.median / CALLS * 1e6, noise=standard_error(stats.data))
