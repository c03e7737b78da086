"""`sgemm` as it comes beside cuBLAS over problems of many shapes, those that it loses included.

`extra_info` holds medians taken in turns, and the errors of both against float64. cuBLAS is called through PyTorch.
"""

import random
from contextlib import closing

import pytest

from fastsgemm import device, problem, sgemm
from fastsgemm.geometry import variants
from fastsgemm.heuristics import choose
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.problem import Problem, spell
from fastsgemm.tuning import tuner
from fastsgemm.tuning.evaluator import job_of

pytestmark = pytest.mark.gpu

SHAPES = [
    *(Problem(n, n, n) for n in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 1000, 3000)),
    Problem(4095, 4097, 4093),
    Problem(333, 777, 555),
    Problem(4096, 4096, 128),
    Problem(8192, 8192, 64),
    Problem(65536, 64, 64),
    Problem(100000, 96, 96),
    Problem(128, 4096, 4096),
    Problem(16, 4096, 4096),
    Problem(4096, 32, 4096),
    Problem(1, 4096, 4096),
    Problem(4096, 1, 4096),
    Problem(2048, 11008, 4096),
    Problem(64, 64, 65536),
    Problem(256, 256, 16384),
    Problem(32, 32, 262144),
]
LAYOUTS = [Problem(4096, 4096, 4096, layout) for layout in problem.LAYOUTS]
SEED, COUNT, LARGEST = 1, 300, 8192
_CHECKED_ROWS = 2048  # of C, at most
_SECONDS = {"shapes": 0.3, "layouts": 0.5, "random": 0.06}  # of timing, each of the two


def draw():
    """Return random problems, each extent uniform in its logarithm."""
    generator = random.Random(SEED)

    def extent():
        return round(LARGEST ** generator.random())

    return [Problem(extent(), extent(), extent()) for _ in range(COUNT)]


class Versus:
    """Times `sgemm` and `torch.mm` on the same tensors."""

    def __init__(self, torch, gpu, stopwatch):
        self._torch, self._gpu, self._stopwatch = torch, gpu, stopwatch

    def row(self, problem, seconds):
        torch = self._torch
        torch.manual_seed(0)
        a, b = (
            torch.randn(shape[::-1] if letter == "T" else shape, device="cuda")
            for shape, letter in zip(((problem.M, problem.K), (problem.K, problem.N)), problem.layout, strict=True)
        )
        a, b = (x.t() if letter == "T" else x for x, letter in zip((a, b), problem.layout, strict=True))
        c, theirs = (torch.full((problem.M, problem.N), torch.nan, device="cuda") for _ in range(2))
        sgemm(a, b, C=c)
        torch.mm(a, b, out=theirs)
        rows = torch.randperm(problem.M, device="cuda")[:_CHECKED_ROWS]
        exact = a[rows].double() @ b.double()
        error, cublas_error = (self._error(x[rows].double(), exact) for x in (c, theirs))
        assert not torch.isnan(c).any() and error < 1e-5, f"wrong result, error {error}"
        ms, cublas_ms = self._stopwatch.medians([lambda: sgemm(a, b, C=c), lambda: torch.mm(a, b, out=theirs)], seconds)
        choice = choose.choose(self._gpu, None, variants.dense_call(problem).problem)
        return {
            "M": problem.M,
            "N": problem.N,
            "K": problem.K,
            "layout": problem.layout,
            "rung": choice.rung.name,
            "rule": choice.rule,
            "constants": choice.config.constants,
            "ms": ms,
            "tflops": 2e-9 * problem.M * problem.N * problem.K / ms,
            "cublas_ms": cublas_ms,
            "percent": 100 * cublas_ms / ms,
            "error": error,
            "cublas_error": cublas_error,
        }

    def _error(self, found, exact):
        return float((found - exact).norm() / exact.norm())


@pytest.fixture(scope="module")
def versus(request):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch cannot use the device")
    torch.set_float32_matmul_precision("highest")
    gpu = device.open_gpu(0)
    if request.config.getoption("benchmark_enable"):
        _compile_ahead(gpu, [*SHAPES, *LAYOUTS, *draw()])
    with closing(Stopwatch(gpu)) as stopwatch:
        yield Versus(torch, gpu, stopwatch)


def _compile_ahead(gpu, wanted):
    """Compile on all cores what the calls would compile one by one."""
    jobs = []
    for problem in (variants.dense_call(p).problem for p in wanted):
        choice = choose.choose(gpu, None, problem)
        jobs.append(job_of(choice.rung, choice.config, problem))
    with tuner.evaluating(gpu) as bench:
        for _ in bench.compile(list(dict.fromkeys(jobs))):
            pass


def fill(group, problem, versus, reported, request):
    large = max(problem.M, problem.N, problem.K) > 4096
    if large and not request.config.getoption("benchmark_enable"):
        pytest.skip("large; run by make bench")
    row = versus.row(problem, _SECONDS[group])
    reported(group, lambda: row["ms"] / 1e3, 1).extra_info.update(row)


@pytest.mark.parametrize("problem", SHAPES, ids=spell)
def test_shape(problem, versus, reported, request):
    fill("shapes", problem, versus, reported, request)


@pytest.mark.parametrize("problem", LAYOUTS, ids=spell)
def test_layout(problem, versus, reported, request):
    fill("layouts", problem, versus, reported, request)


@pytest.mark.parametrize("problem", draw(), ids=spell)
def test_random(problem, versus, reported, request):
    fill("random", problem, versus, reported, request)
