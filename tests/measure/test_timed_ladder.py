import json

import numpy as np
import pytest

from fastsgemm.measure import reference, timed_ladder
from fastsgemm.measure.contenders import Contenders, Product
from fastsgemm.problem import Problem


class Desk:
    """A bench whose products are Python functions of C and whose clock says what it is told."""

    def __init__(self, a, b, times):
        self.a, self.b = a, b
        self.times = times
        self.c = np.empty((a.shape[0], b.shape[1]), np.float32)
        self.timed = []

    def result(self, work):
        self.c.fill(np.nan)
        work()
        return self.c

    def medians(self, works):
        self.timed.append(len(works))
        return [self.times[work] for work in works]

    def contenders(self, products, baseline=None):
        problem = Problem(self.a.shape[0], self.b.shape[1], self.a.shape[1])
        return Contenders(
            problem, "a desk", "made-up time", self.a, self.b, products, baseline, self.result, self.medians
        )


@pytest.fixture
def desk(random):
    return Desk(random(40, 30), random(30, 20), {})


def product(desk, number, write, ms=1.0, name="rung", precision="ieee", **constants):
    def work():
        write(desk.c)

    desk.times[work] = ms
    return Product(name, number, {"BM": 32, **constants}, work, precision)


def right(desk):
    exact = desk.a @ desk.b
    return lambda c: np.copyto(c, exact)


def test_right_products_are_timed_in_turns_with_cublas(desk):
    rungs = (product(desk, 1, right(desk), 4.0), product(desk, 2, right(desk), 2.0))
    cublas = product(desk, None, right(desk), 1.0, "cuBLAS through something")
    climbed = timed_ladder.climb(desk.contenders(rungs, cublas))
    assert climbed.ok
    assert desk.timed == [2, 2]
    assert [row.percent for row in climbed.rows] == [25.0, 50.0, 100.0]
    assert climbed.rows[0].tflops == pytest.approx(2 * 40 * 30 * 20 / 4e-3 / 1e12)
    assert "cuBLAS through something, FP32 without TF32" in climbed.text()
    assert "the results of the 2 rungs are the same bits" in climbed.text()


def test_without_cublas_there_is_no_percentage(desk):
    climbed = timed_ladder.climb(desk.contenders((product(desk, 1, right(desk)),)))
    assert climbed.rows[0].percent is None
    assert "not compared with cuBLAS" in climbed.text()
    assert "% of cuBLAS" not in climbed.text()


def test_an_element_that_is_not_written_is_wrong_and_not_timed(desk):
    exact = desk.a @ desk.b

    def forget_a_corner(c):
        c[:] = exact
        c[-1, -1] = np.nan

    climbed = timed_ladder.climb(desk.contenders((product(desk, 1, forget_a_corner),)))
    assert not climbed.ok
    assert desk.timed == []
    assert f"rung is WRONG: C[39, 19] is nan, expected {exact[-1, -1]:.4f}"[:-2] in climbed.text()
    assert "; 1 of 800 elements are wrong, in row 39 and column 19" in climbed.text()
    assert json.loads(json.dumps(climbed.json(), allow_nan=False))["rows"][0]["error"] is None


def test_a_wrong_sum_is_not_timed(desk):
    exact = desk.a @ desk.b
    climbed = timed_ladder.climb(desk.contenders((product(desk, 1, lambda c: np.copyto(c, exact * 1.001)),)))
    assert not climbed.ok
    assert climbed.rows[0].error == pytest.approx(1e-3, rel=0.01)
    assert "rung is WRONG: C[0, 0] is " in climbed.text() and climbed.json()["rows"][0]["mismatch"] in climbed.text()


def test_a_last_bit_that_differs_is_told(desk):
    exact = desk.a @ desk.b
    off = exact.copy()
    off[3, 4] = np.nextafter(off[3, 4], np.float32(np.inf))
    rungs = (product(desk, 1, right(desk)), product(desk, 2, lambda c: np.copyto(c, off)))
    climbed = timed_ladder.climb(desk.contenders(rungs))
    assert not climbed.ok
    assert not climbed.identical
    assert "NOT the same bits" in climbed.text()


def test_a_rung_that_adds_up_parts_of_k_may_differ_in_the_last_bits_but_not_be_wrong(desk):
    exact = desk.a @ desk.b
    off = np.nextafter(exact, np.float32(np.inf))
    rungs = [product(desk, number, right(desk), SPLIT_K=1) for number in (1, 2)]
    for place in (0, 2):
        parts = product(desk, 9, lambda c: np.copyto(c, off), name="pipelined", SPLIT_K=4)
        climbed = timed_ladder.climb(desk.contenders((*rungs[:place], parts, *rungs[place:])))
        assert climbed.ok
        assert "the results of the 2 rungs are the same bits" in climbed.text()
        assert "own bits: pipelined sums in several chains here" in climbed.text()
    wrong = product(desk, 9, lambda c: np.copyto(c, off + 1), name="pipelined", SPLIT_K=4)
    assert not timed_ladder.climb(desk.contenders((*rungs, wrong))).ok


def test_rung_11_shows_its_own_error_and_bits(desk):
    exact = desk.a @ desk.b
    off = np.nextafter(exact, np.float32(np.inf))
    rungs = [product(desk, number, right(desk)) for number in (1, 2)]
    tensor = product(desk, 11, lambda c: np.copyto(c, off), name="fp16x3", precision="fp16x3")
    climbed = timed_ladder.climb(desk.contenders((*rungs, tensor)))
    assert climbed.ok and climbed.rows[2].error != climbed.rows[0].error
    line = next(line for line in climbed.text().splitlines() if line.startswith("11 fp16x3"))
    assert line.split()[-2:] == [f"{climbed.rows[2].error:.2g}", "own"]
    assert "own bits: fp16x3 sums products of FP16 pairs on tensor cores" in climbed.text()
    assert "the results of the 2 rungs are the same bits" in climbed.text()
    assert climbed.json()["rows"][2]["precision"] == "fp16x3"


def test_cublas_in_tf32_is_not_compared_with(desk):
    rough = (desk.a @ desk.b) * np.float32(1.0003)
    cublas = product(desk, None, lambda c: np.copyto(c, rough), 0.1)
    climbed = timed_ladder.climb(desk.contenders((product(desk, 1, right(desk)),), cublas))
    assert climbed.ok
    assert climbed.baseline is None
    assert climbed.rows[0].percent is None


def test_a_product_on_the_host_is_in_gflops(desk):
    text = timed_ladder.climb(desk.contenders((product(desk, None, right(desk), name="NumPy"),))).text()
    assert "GFLOP/s" in text
    assert "cuBLAS" not in text


def test_the_footer_says_how_many_rows_were_compared(desk, monkeypatch):
    monkeypatch.setattr(reference, "_MOST_FLOPS", 2 * 30 * 20 * 7)
    text = timed_ladder.climb(desk.contenders((product(desk, 1, right(desk)),))).text()
    assert "compared on 7 of the 40 rows" in text
