from types import SimpleNamespace

import numpy as np
import pytest

from fastsgemm.errors import NoDriverError, ShapeError
from fastsgemm.gemm import sgemm
from fastsgemm.measure import contenders, operands, stopwatch, timed_ladder
from fastsgemm.problem import Problem
from fastsgemm.rungs import IEEE, RUNGS, find

RAGGED = Problem(67, 45, 129)


def on_the_host(rung, a, b, c):
    sgemm(a, b, C=c, rung=rung)


def test_on_the_host_there_is_one_product(on_host):
    with contenders.on_host(RAGGED, on_the_host) as place:
        [product] = place.products
        assert product.name == "NumPy"
        np.testing.assert_array_equal(place.result(product.work), place.a @ place.b)


@pytest.mark.parametrize("problem", [Problem(5, 6, 7, "TN"), Problem(1, 6, 7, "TT"), Problem(5, 1, 7, "NT")], ids=str)
def test_a_ladder_has_the_layout_that_was_asked_for(on_host, problem):
    with contenders.on_host(problem, on_the_host) as place:  # a matrix of one line is both row- and column-major
        assert timed_ladder.climb(place).layout == problem.layout


def test_what_a_product_forgets_to_write_is_nan(on_host):
    with contenders.on_host(RAGGED, on_the_host) as place:
        assert np.isnan(place.result(lambda: None)).all()


def test_on_the_host_a_rung_is_an_error(on_host):
    with pytest.raises(NoDriverError, match="3 smem_tiled"), contenders.on_host(RAGGED, on_the_host, [find(3)]):
        pass


def test_the_host_times_are_medians_in_milliseconds(on_host, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    seconds = iter([0.2, 0.002, 0.003, 0.004, 1.0])

    def work():
        clock.now += next(seconds)

    with contenders.on_host(RAGGED, on_the_host) as place:
        assert place.medians([work]) == [pytest.approx(4.0)]


@pytest.mark.parametrize(
    ("arch", "N", "left_out"), [("sm_90", 4096, {"skinny"}), ("sm_75", 4096, {"skinny", "fp16x3"}), ("sm_80", 8, set())]
)
def test_a_ladder_has_the_rungs_that_suit_c_and_the_device(arch, N, left_out):
    expected = [rung for rung in RUNGS if rung.name not in left_out]
    assert list(contenders.rungs_for(Problem(4096, N, 64), arch)) == expected


def test_without_a_driver_there_is_no_device(no_driver):
    with pytest.raises(NoDriverError), contenders.on_device(RAGGED, IEEE):
        pass


def test_what_does_not_fit_into_memory_is_refused(monkeypatch, on_host):
    monkeypatch.setattr(operands, "_available", lambda: 1e6)
    with (
        pytest.raises(ShapeError, match="choose a smaller size"),
        contenders.on_host(Problem(1000, 1000, 1000), on_the_host),
    ):
        pass


@pytest.mark.gpu
@pytest.mark.parametrize(
    "problem",
    [RAGGED, Problem(67, 45, 129, "TN"), Problem(1, 45, 129, "TT"), Problem(256, 256, 256), Problem(1, 300, 2)],
    ids=str,
)
def test_every_rung_is_right_on_the_device(problem):
    with contenders.on_device(problem, RUNGS) as place:
        climbed = timed_ladder.climb(place)
    assert [row.number for row in climbed.rungs] == [rung.number for rung in RUNGS]
    assert climbed.ok


@pytest.mark.gpu
def test_constants_are_tried_on_the_device():
    with contenders.on_device(Problem(256, 256, 256), [find("blocktile_2d")], overrides={"BM": 64, "BN": 64}) as place:
        climbed = timed_ladder.climb(place)
    assert climbed.ok and (climbed.rows[0].constants["BM"], climbed.rows[0].constants["BN"]) == (64, 64)


@pytest.mark.gpu
def test_cublas_is_compared_with_where_torch_has_the_device(torch):
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch cannot use the device")
    with contenders.on_device(Problem(256, 256, 256), [find("naive")]) as place:
        climbed = timed_ladder.climb(place)
    assert "PyTorch" in climbed.baseline
    assert climbed.rows[0].percent > 0
    assert climbed.rows[-1].name == "cuBLAS"
