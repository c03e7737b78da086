"""Every rung and cuBLAS side by side at one size, in device time with the L2 flushed.

`extra_info` holds what the ladder found: medians taken in turns with cuBLAS, after all results were checked. The
benchmark's own statistics are the device times of further runs of the rung alone, and show how they scatter.
"""

from contextlib import closing

import pytest

from fastsgemm import device
from fastsgemm.ladder import contenders, measured
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.problem import Problem
from fastsgemm.rungs import ladder as ladder_of

pytestmark = pytest.mark.gpu


RUNGS = ladder_of(4096, 4096)  # of a large square


@pytest.fixture(scope="module")
def place(size):
    with contenders.on_device(Problem(size, size, size), RUNGS) as place:
        yield place


@pytest.fixture(scope="module")
def climbed(place):
    return measured.climb(place)


@pytest.fixture(scope="module")
def stopwatch(place):
    with closing(Stopwatch(device.open_gpu(0))) as stopwatch:
        yield stopwatch


def fill(reported, rounds, stopwatch, climbed, product, row):
    assert climbed.identical
    assert row.ms is not None
    benchmark = reported("ladder", lambda: stopwatch.once(product.work) / 1e3, rounds(20))
    row_of = climbed.json()["rows"][climbed.rows.index(row)]
    benchmark.extra_info.update(row_of, M=climbed.M, N=climbed.N, K=climbed.K, baseline=climbed.baseline)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_rung(rung, reported, rounds, stopwatch, climbed, place):
    i = RUNGS.index(rung)
    fill(reported, rounds, stopwatch, climbed, place.products[i], climbed.rows[i])


def test_cublas(reported, rounds, stopwatch, climbed, place):
    if climbed.baseline is None:
        pytest.skip("neither PyTorch nor CuPy multiplies in FP32 on the device here")
    fill(reported, rounds, stopwatch, climbed, place.baseline, climbed.rows[-1])
