"""`sgemm` with default settings against cuBLAS, on many shapes.

`extra_info` has medians taken in turns and the errors of both against float64. cuBLAS is called through PyTorch.
"""

from contextlib import closing

import pytest

from fastsgemm import device, sgemm
from fastsgemm.measure.problem_sets import SETS
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.measure.versus import Versus, compile_ahead

pytestmark = pytest.mark.gpu

_TRIED = 4  # samples of each set, if nothing is measured
_SMALL = 10**11  # FLOP; larger samples are skipped if nothing is measured


@pytest.fixture(scope="module")
def versus(request, measured):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch cannot use the device")
    torch.set_float32_matmul_precision("highest")
    gpu = device.open_gpu(0)
    if measured:
        here = (item for item in request.session.items if item.parent is request.node)
        compile_ahead(gpu, [item.callspec.params["sample"] for item in here])
    with closing(Stopwatch(gpu)) as stopwatch:
        yield Versus(torch, "cuda", gpu, stopwatch, sgemm)


def cases():
    """Every sample with its set and its number in the set."""
    for group, of_group in SETS.items():
        for number, sample in enumerate(of_group.samples()):
            yield pytest.param(group, number, sample, id=f"{group}-{sample}")


@pytest.mark.parametrize(("group", "number", "sample"), list(cases()))
def test_sample(group, number, sample, versus, measured, reported):
    if not measured and (number >= _TRIED or sample.problem.flops > _SMALL):
        pytest.skip("run by make bench")
    row = versus.row(sample, SETS[group].seconds if measured else 0.0)
    reported(group, lambda: row["ms"] / 1e3, 1).extra_info.update(row)
