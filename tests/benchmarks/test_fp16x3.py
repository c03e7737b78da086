"""precision="fp16x3" beside cuBLAS FP32 and what others offer: speed, error, and operands that were split before.

`pytest tests/benchmarks/test_fp16x3.py --benchmark-enable --benchmark-json=fp16x3.json` makes the whole table in under
three minutes on an H200. Splitting is counted except where a group says pre-split. Times are medians taken in turns,
with a cold L2, of the device alone: all kernels of a call are queued before the first begins. What a call takes on the
host is measured in test_host_cost.py.
"""

from contextlib import closing

import peers
import pytest

from fastsgemm import device, sgemm, split
from fastsgemm.geometry.variants import dense_operands
from fastsgemm.heuristics.choice import choose
from fastsgemm.measure.problem_sets import LAYOUTS, NAMED, large
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.measure.versus import Versus, errors_against_float64
from fastsgemm.problem import Problem
from fastsgemm.request import Request, resolve

pytestmark = pytest.mark.gpu
SQUARES = (1024, 2048, 4096, 8192, 16384)
INFERENCE = tuple((M, n) for n in (4096, 8192) for M in (16, 64, 128, 256, 512))
PEERED = (4096, 8192)
_SETS = {"fp16x3 shapes": NAMED, "fp16x3 layouts": LAYOUTS, "fp16x3 large": large(80)}
_SECONDS = {"fp16x3 shapes": 0.25, "fp16x3 layouts": 0.3, "fp16x3 large": 0.1}
_READ_TB_S, _TFLOPS = 4.2, 200.0  # what the time of a pre-split product is held against
_FLUSHES = 3  # keep the device busy until the host has launched all kernels of a call
_CHECKED = 512  # rows of C
_TRIED, _SMALL = 3, 10**10  # where the benchmarks only have to run


@pytest.fixture(scope="module")
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("PyTorch cannot use the device")
    found.backends.cuda.matmul.allow_tf32 = False
    return found


@pytest.fixture(scope="module")
def stopwatch(torch):
    with closing(Stopwatch(device.open_gpu(0))) as made:
        yield made


@pytest.mark.parametrize(
    ("group", "number", "sample"),
    [
        pytest.param(group, number, sample, id=f"{group}-{sample}")
        for group, samples in _SETS.items()
        for number, sample in enumerate(samples)
    ],
)
def test_sample(group, number, sample, torch, stopwatch, measured, reported):
    problem = sample.problem
    if not measured and (number >= _TRIED or problem.flops > _SMALL):
        pytest.skip("run by make bench")
    gpu = device.open_gpu(0)
    tensors = Versus(torch, "cuda", gpu, stopwatch, sgemm)
    torch.manual_seed(0)
    a, b = (tensors.tensor(torch.randn, operand) for operand in sample.operands[:2])
    c, plain, theirs = (tensors.tensor(tensors.nan, sample.operands[2]) for _ in range(3))
    works = [
        lambda: sgemm(a, b, C=c, precision="fp16x3"),
        lambda: sgemm(a, b, C=plain),
        peers.cublas(torch, a, b, theirs, tf32=False),
    ]
    ms, ieee_ms, cublas_ms = stopwatch.medians(works, _SECONDS[group] if measured else 0.0, _FLUSHES)
    choice = choose(gpu, resolve(precision="fp16x3"), *sample.described)
    errors = [*map(errors_against_float64(torch, a, b, _CHECKED), (c, plain, theirs))]
    assert errors[0] <= max(1.05 * errors[1], 2.0**-23)
    row = {
        "problem": str(sample), "config": tile_of(choice), "why": choice.why, "predicted_ms": choice.ms,
        "ms": ms, "ieee_ms": ieee_ms, "cublas_ms": cublas_ms, "times_cublas": cublas_ms / ms,
        "times_ieee": ieee_ms / ms, "error": errors[0], "ieee_error": errors[1], "cublas_error": errors[2],
    }  # fmt: skip
    reported(group, lambda: ms / 1e3, 1).extra_info.update(row)


def tile_of(choice):
    """Return the config of rung 11 as a row has it."""
    return str(choice.config if choice.tensor_cores else None)


@pytest.mark.parametrize("n", SQUARES)
def test_squares(n, torch, stopwatch, measured, reported):
    if not measured and n > SQUARES[0]:
        pytest.skip("run by make bench")
    a, b = torch.randn(n, n, device="cuda"), torch.randn(n, n, device="cuda")
    c, theirs = torch.empty(n, n, device="cuda"), torch.empty(n, n, device="cuda")
    works = [lambda: sgemm(a, b, C=c, precision="fp16x3"), peers.cublas(torch, a, b, theirs, tf32=False)]
    ms, cublas_ms = stopwatch.medians(works, 1.0 if measured else 0.0, _FLUSHES)
    row = {"n": n, "ms": ms, "cublas_ms": cublas_ms, "tflops": 2e-9 * n**3 / ms, "times_cublas": cublas_ms / ms}
    reported("fp16x3 squares", lambda: ms / 1e3, 1).extra_info.update(row)


@pytest.mark.parametrize(("M", "n"), INFERENCE)
def test_pre_split(M, n, torch, stopwatch, measured, reported):
    if not measured and (M, n) != INFERENCE[0]:
        pytest.skip("run by make bench")
    a, b, c = torch.randn(M, n, device="cuda"), torch.randn(n, n, device="cuda"), torch.empty(M, n, device="cuda")
    theirs, weight = torch.empty_like(c), split(b)
    works = [lambda: sgemm(a, weight, C=c, precision="fp16x3"), peers.cublas(torch, a, b, theirs, tf32=False)]
    ms, cublas_ms = stopwatch.medians(works, 0.2 if measured else 0.0, _FLUSHES)
    least = max(4e-9 * n * n / _READ_TB_S, 2e-9 * M * n * n / _TFLOPS)
    request = Request(precision="fp16x3", split=(False, True))
    choice = choose(device.open_gpu(0), request, *dense_operands(Problem(M, n, n)))
    row = {
        "M": M, "n": n, "config": tile_of(choice), "ms": ms, "cublas_ms": cublas_ms,
        "times_cublas": cublas_ms / ms, "times_least": ms / least, "error": errors_against_float64(torch, a, b)(c),
    }  # fmt: skip
    reported("fp16x3 pre-split", lambda: ms / 1e3, 1).extra_info.update(row)


@pytest.mark.parametrize("n", PEERED)
def test_peers(n, torch, stopwatch, measured, reported):
    """Speed against error, everyone on the same operands. JAX's work includes waiting for the result."""
    if not measured and n > PEERED[0]:
        pytest.skip("run by make bench")
    n = n if measured else 256
    a, b, out = torch.randn(n, n, device="cuda"), torch.randn(n, n, device="cuda"), torch.empty(n, n, device="cuda")
    works = {
        "fastsgemm fp16x3": lambda: sgemm(a, b, C=out, precision="fp16x3"),
        "fastsgemm ieee": lambda: sgemm(a, b, C=out),
        "cuBLAS FP32": peers.cublas(torch, a, b, out, tf32=False),
        "cuBLAS TF32": peers.cublas(torch, a, b, out, tf32=True),
        "Triton tf32x3": peers.triton(a, b, out, "tf32x3"),
        "Triton bf16x6": peers.triton(a, b, out, "bf16x6"),
        "JAX BF16 X6": peers.jax(a, b, "BF16_BF16_F32_X6"),
        "JAX BF16 X9": peers.jax(a, b, "BF16_BF16_F32_X9"),
    }
    there = {name: work for name, work in works.items() if work is not None}
    error_of, rows = errors_against_float64(torch, a, b, n), {}
    times = stopwatch.medians(list(there.values()), 0.5 if measured else 0.0, _FLUSHES)
    for (name, work), ms in zip(there.items(), times, strict=True):
        found = work()
        values = found if isinstance(found, torch.Tensor) else torch.from_dlpack(found)
        rows[name] = {"ms": ms, "tflops": 2e-9 * n**3 / ms, "error": error_of(values)}
    ms = rows["fastsgemm fp16x3"]["ms"]
    reported("fp16x3 peers", lambda: ms / 1e3, 1).extra_info.update({"n": n, "peers": rows})
