"""Device time of every rung and of cuBLAS at one size, with the L2 flushed.

`extra_info` has the results of the ladder: medians taken in turns with cuBLAS, after all results were checked. The
statistics of pytest-benchmark are from further runs of the rung alone, and show the scatter.
"""

from contextlib import closing

import pytest

from fastsgemm import device
from fastsgemm.measure import contenders, timed_ladder
from fastsgemm.measure.stopwatch import Stopwatch, standard_error
from fastsgemm.problem import Problem
from fastsgemm.rungs import IEEE

pytestmark = pytest.mark.gpu


RUNGS = tuple(rung for rung in IEEE if rung.suits(4096, 4096))  # of a large square


@pytest.fixture(scope="module")
def place(size):
    with contenders.on_device(Problem(size, size, size), RUNGS) as place:
        yield place


@pytest.fixture(scope="module")
def climbed(place):
    return timed_ladder.climb(place)


@pytest.fixture(scope="module")
def stopwatch(place):
    with closing(Stopwatch(device.open_gpu(0))) as stopwatch:
        yield stopwatch


def fill(reported, rounds, stopwatch, climbed, product, row):
    assert climbed.identical
    assert row.ms is not None
    benchmark = reported("ladder", lambda: stopwatch.once(product.work) / 1e3, rounds(20))
    row_of = climbed.json()["rows"][climbed.rows.index(row)]
    if benchmark.enabled:
        benchmark.extra_info["noise"] = standard_error(benchmark.stats.stats.data)
    benchmark.extra_info.update(row_of, M=climbed.M, N=climbed.N, K=climbed.K, baseline=climbed.baseline)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_rung(rung, reported, rounds, stopwatch, climbed, place):
    i = RUNGS.index(rung)
    fill(reported, rounds, stopwatch, climbed, place.products[i], climbed.rows[i])


def test_cublas(reported, rounds, stopwatch, climbed, place):
    if climbed.baseline is None:
        pytest.skip("neither PyTorch nor CuPy multiplies in FP32 on the device here")
    fill(reported, rounds, stopwatch, climbed, place.baseline, climbed.rows[-1])
