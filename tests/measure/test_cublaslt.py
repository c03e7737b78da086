"""The program that times cublasLt's algorithms, on the host: a fake library multiplies column-major matrices."""

import ctypes
import math

import numpy as np
import pytest

from fastsgemm.measure.problem_sets import LAYOUTS, NAMED
from fastsgemm.problem import Problem

cublaslt = pytest.importorskip("cublaslt", reason="tests/benchmarks is part of a checkout only")

NOT_SUPPORTED = 15


class Library:
    """cublasLt as ctypes calls it. Algorithm 7 is right, 8 errs, 9 is refused, 10 writes nothing, 11 has no config."""

    def __init__(self):
        self.made = []  # what was created; a handle is a place in it
        self.asked = []  # the algorithms that the heuristics were asked for, or None

    def _create(self, handle, what):
        self.made.append(what)
        handle._obj.value = len(self.made)
        return 0

    def _at(self, handle):
        return self.made[handle.value - 1]

    def cublasLtCreate(self, handle):
        return self._create(handle, "library")

    def cublasLtMatmulDescCreate(self, handle, compute, scale):
        assert (compute, scale) == (68, 0)
        return self._create(handle, {})

    def cublasLtMatmulPreferenceCreate(self, handle):
        return self._create(handle, {})

    def cublasLtMatrixLayoutCreate(self, handle, dtype, rows, columns, leading):
        assert dtype == 0
        return self._create(handle, (rows.value, columns.value, leading.value))

    def cublasLtMatmulDescSetAttribute(self, handle, attribute, value, size):
        assert size.value == 4
        self._at(handle)[attribute] = value._obj.value
        return 0

    def cublasLtMatmulPreferenceSetAttribute(self, handle, attribute, value, size):
        assert size.value == {0: 4, 1: 8}[attribute]
        self._at(handle)[attribute] = value._obj.value
        return 0

    def cublasLtMatmulAlgoGetIds(self, library, compute, scale, a, b, c, d, most, numbers, count):
        assert self._at(library) == "library" and (compute, scale, a, b, c, d) == (68, 0, 0, 0, 0, 0)
        numbers[:5] = (7, 10, 8, 9, 11)
        count._obj.value = 5
        return 0

    def cublasLtMatmulAlgoInit(self, library, compute, scale, a, b, c, d, number, algorithm):
        algorithm._obj.data[0] = number
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, library, product, a, b, c, d, preference, most, results, count):
        chosen = self._at(preference)
        assert chosen[1] == 64 << 20 and c is d
        limited = chosen.get(0) == 1
        self.asked.append(results[0].algorithm.data[0] if limited else None)
        assert len({bytes(result.algorithm) for result in results}) == 1
        if limited and results[0].algorithm.data[0] == 11:
            return NOT_SUPPORTED
        for place, tile in enumerate((0, 1)):
            number = results[0].algorithm.data[0] if limited else 7
            results[place].algorithm.data[:2] = (number, tile)
        results[2].state = NOT_SUPPORTED
        count._obj.value = 3
        return 0

    def cublasLtMatmul(
        self, library, product, alpha, b, of_b, a, of_a, beta, c, of_c, d, of_d, algorithm, workspace, size, stream
    ):
        assert self._at(library) == "library" and c is d and of_c is of_d
        assert (alpha._obj.value, beta._obj.value, size.value, stream.value) == (1.0, 0.0, 64 << 20, None)
        transposed = self._at(product)
        first, second = self._matrix(b, of_b, transposed[3]), self._matrix(a, of_a, transposed[4])
        number = algorithm._obj.data[0]
        if number == 9:
            return NOT_SUPPORTED
        if number != 10:
            self._matrix(c, of_c)[...] = first @ second * (1.001 if number == 8 else 1.0)
        return 0

    def _matrix(self, address, of, transposed=0):
        """Return the column-major matrix at an address."""
        rows, columns, leading = self._at(of)
        assert leading >= rows
        memory = np.ctypeslib.as_array((ctypes.c_float * (leading * columns)).from_address(address.value))
        matrix = memory.reshape(columns, leading)[:, :rows].T
        return matrix.T if transposed else matrix


class GivenTimes:
    """A stopwatch that runs the work and returns times in turn."""

    def __init__(self, *times):
        self.times = [*times]

    def once(self, work, flushes):
        work()
        return self.times.pop(0)

    def medians(self, works, seconds, flushes):
        self.timed = len(works)
        return [self.once(work, flushes) for work in works]


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_every_config_computes_the_product_of_the_layout(torch, layout):
    a, b = cublaslt.one_order.operands(torch, Problem(33, 17, 40, layout), "cpu")
    c = torch.full((33, 17), math.nan)
    library = Library()
    works = cublaslt.CublasLt(library, 0).works(a, b, c)
    assert library.asked == [None, 7, 10, 8, 9, 11]
    assert len(works) == 8  # the two that the product gets are the two of algorithm 7
    works[0]()
    torch.testing.assert_close(c, a @ b)
    with pytest.raises(cublaslt.Refused, match="cublasLtMatmul returned status 15"):
        works[-1]()


def row(torch, monkeypatch, stopwatch, seconds=60.0, product=None):
    monkeypatch.setattr(cublaslt, "sgemm", product or (lambda a, b, C: torch.mm(a, b, out=C)))
    return cublaslt.row(torch, cublaslt.CublasLt(Library(), 0), stopwatch, Problem(33, 17, 40, "NT"), seconds, "cpu")


def test_only_right_configs_are_timed_and_the_best_counts(torch, monkeypatch):
    stopwatch = GivenTimes(5.0, 4.0, 4.5, 6.0, 5.0, 9.0, 2.0, 1.0, 3.0, 2.5)  # the second config takes twice as long
    found = row(torch, monkeypatch, stopwatch)
    assert (found["M"], found["N"], found["K"], found["layout"]) == (33, 17, 40, "NT")
    assert found["configs"] == 8 and found["first_pass_ms"] == [4.0, 9.0]
    assert (found["cublas_ms"], found["ms"], found["lt_ms"], stopwatch.timed) == (2.0, 1.0, 2.5, 4)
    shown = cublaslt.line(found)
    assert shown.split() == ["33,17,40,NT", "2000.0", "2500.0", "1000.0", "2.00", "2.50", "2", "of", "8"]


def test_a_wrong_result_of_ours_or_no_time_for_any_config_is_an_error(torch, monkeypatch):
    with pytest.raises(ValueError, match="33,17,40,NT: a result is wrong"):
        row(torch, monkeypatch, GivenTimes(*[1.0] * 99), product=lambda a, b, C: C.copy_(a @ b * 1.001))
    with pytest.raises(ValueError, match="or cublasLt has no algorithm"):
        row(torch, monkeypatch, GivenTimes(), seconds=-1.0)


def test_the_ten_problems_are_of_the_benchmark():
    samples = {sample.problem for sample in (*NAMED, *LAYOUTS)}
    assert len({*cublaslt.PROBLEMS}) == 10 and {*cublaslt.PROBLEMS} <= samples


def test_the_structures_are_as_large_as_those_of_cublaslt_h():
    assert ctypes.sizeof(cublaslt.Algorithm) == 64 and ctypes.sizeof(cublaslt.Result) == 96
    assert (cublaslt.Result.workspace.offset, cublaslt.Result.state.offset) == (64, 72)
