"""Which operands are packed: what the copy costs against what it gains."""

from dataclasses import replace

import pytest

from fastsgemm import rungs
from fastsgemm.config import PipelinedConfig
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Stored
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import choose, database, packing
from fastsgemm.heuristics.cost_model import CLOSE
from fastsgemm.heuristics.database_entries import Fitted
from fastsgemm.problem import Problem

CONFIG = PipelinedConfig(BM=64, BN=64, BK=32, TM=4, TN=4, WM=32, WN=64, WNITER=2)


class Device:
    name, arch, shared_limit, multiprocessors = "NVIDIA H200", "sm_90", 232448, 132


def operand(rows, columns, layout="N", padding=0, misalignment=0):
    trans = layout == "T"
    return Operand((rows, columns), Stored(trans, (rows if trans else columns) + padding), misalignment)


@pytest.fixture
def times(monkeypatch):
    """Let the heuristics predict these times by layout, for the operands' widths, and copying cost 1 ms per operand."""
    found = {}

    def answer(device, rung, problem, only=None):
        ms = found.get((problem.layout, problem.M % 4 == 0), 100.0)
        return choose.Choice(rung or rungs.find("pipelined"), CONFIG, choose.PREDICTED, None, ms)

    monkeypatch.setattr(choose, "choose", answer)
    rate = 8.0 * 1000 * 1000  # bytes a ms: an operand of 1000 x 1000 takes 1 ms
    monkeypatch.setattr(database, "fitted", lambda arch: Fitted(packing_ms=0.5, packing_bytes_per_ms=rate))
    return found


SQUARE = (1000, 1000)


def test_an_operand_is_packed_where_the_product_gains_more_than_the_copy_costs(times):
    odd = operand(*SQUARE, padding=1)
    times |= {("NN", True): 100.0, ("TN", True): 98.0}
    found = packing.select(Device, odd, operand(*SQUARE), operand(*SQUARE))
    assert (found.packed, found.ms, found.choice.ms) == ((True, False), 1.5, 98.0)
    times["TN", True] = 98.6
    assert packing.select(Device, odd, operand(*SQUARE), operand(*SQUARE)).packed == (False, False)


@pytest.mark.parametrize(("padding", "most"), [(0, 100.0), (1, 102.0)], ids=["whole vectors", "odd lines"])
def test_operands_that_are_read_in_whole_vectors_are_packed_only_for_a_gain_of_two_percent(times, padding, most):
    a, b, c = operand(*SQUARE, padding=padding), operand(*SQUARE), operand(*SQUARE)
    for packed in (False, True):
        times |= {("NN", True): 102.0, ("TN", True): most - 1.5 + (-0.1 if packed else 0.1)}  # the copy takes 1.5
        assert packing.select(Device, a, b, c).packed == (packed, False)


def test_a_record_is_given_up_only_for_a_clear_gain(times, monkeypatch):
    answer = choose.choose

    def measured(device, rung, problem, only=None):
        found = answer(device, rung, problem)
        return replace(found, rule=choose.EXACT) if rung is None else found

    monkeypatch.setattr(choose, "choose", measured)
    times |= {("NN", True): 100.0, ("TN", True): 93.0}
    assert packing.select(Device, operand(*SQUARE), operand(*SQUARE), operand(*SQUARE)).packed == (False, False)
    times["TN", True] = 92.0
    assert packing.select(Device, operand(*SQUARE), operand(*SQUARE), operand(*SQUARE)).packed == (True, False)


def test_a_record_is_given_up_for_a_better_one_of_the_packed_layout(times, monkeypatch):
    answer = choose.choose
    monkeypatch.setattr(choose, "choose", lambda *given: replace(answer(*given), rule=choose.EXACT))
    times |= {("NN", True): 100.0, ("TN", True): 100 / CLOSE - 1.4}  # the copy takes 1.5
    assert packing.select(Device, operand(*SQUARE), operand(*SQUARE), operand(*SQUARE)).packed == (False, False)
    times["TN", True] -= 0.2
    assert packing.select(Device, operand(*SQUARE), operand(*SQUARE), operand(*SQUARE)).packed == (True, False)


def test_both_are_packed_where_that_is_least(times):
    times |= {("NT", True): 100.0, ("NN", True): 97.0, ("TT", True): 97.0, ("TN", True): 90.0}
    found = packing.select(Device, operand(*SQUARE), operand(*SQUARE, "T"), operand(*SQUARE))
    assert (found.packed, found.ms) == ((True, True), 3.0)  # each has a launch


def test_an_operand_that_lies_as_a_packed_one_is_not_packed(times):
    times |= {("TN", True): 50.0, ("NN", True): 100.0}
    a, b = operand(*SQUARE, "T"), operand(*SQUARE)
    assert packing.select(Device, a, b, operand(*SQUARE)).packed == (False, False)
    odd = operand(*SQUARE, "T", padding=1)
    assert not packing.select(Device, odd, b, operand(*SQUARE)).packed[1]


def test_an_odd_leading_dimension_counts_as_narrow_loads(times):
    times |= {("TN", False): 80.0, ("TN", True): 60.0}
    found = packing.select(Device, operand(*SQUARE, "T", padding=1), operand(*SQUARE), operand(*SQUARE))
    assert (found.packed, found.choice.ms) == ((True, False), 60.0)


def test_a_c_that_is_stored_float_by_float_costs_more_where_its_columns_are_packed(times, monkeypatch):
    """The prediction for packed columns is that of a C that is stored 16 bytes at a time."""
    times |= {("NT", True): 100.0, ("NN", True): 96.0}
    a, b = operand(1000, 1000), operand(1000, 999, "T")
    assert packing.select(Device, a, b, operand(1000, 999)).packed == (False, True)
    rate = 4.0 * 1000 * 999  # C takes 1 ms
    slow = Fitted(packing_ms=0.5, packing_bytes_per_ms=8e6, odd_store_bytes_per_ms=rate)
    monkeypatch.setattr(database, "fitted", lambda arch: slow)
    assert packing.select(Device, a, b, operand(1000, 999)).packed == (False, False)


def test_nothing_is_packed_where_copying_was_not_measured(times, monkeypatch):
    times |= {("NN", True): 100.0, ("TN", True): 1.0}
    monkeypatch.setattr(database, "fitted", lambda arch: Fitted())
    assert packing.select(Device, operand(*SQUARE), operand(*SQUARE), operand(*SQUARE)).packed == (False, False)


def test_a_short_product_is_not_asked_about_twice(times, monkeypatch):
    asked = []
    answer = choose.choose
    monkeypatch.setattr(choose, "choose", lambda *how: asked.append(how) or answer(*how))
    times["NN", True] = 3.0
    packing.select(Device, operand(*SQUARE), operand(*SQUARE), operand(*SQUARE))
    assert len(asked) == 1


def test_a_column_major_c_has_its_operands_packed_as_a_row_major_one(times):
    """There the kernel computes C^T = B^T A^T; what it gets must be packed as its own A and B would be."""
    a, b = packing.operands((True, True), operand(20, 30, "N"), operand(30, 50, "T"))
    for c in (operand(20, 50), operand(20, 50, "T")):
        call = variants.call_for(a, b, c)
        assert (call.variant.layout, call.variant.vec_a, call.variant.vec_b) == ("TN", 4, 4)


def test_the_problem_of_a_call_has_its_loads():
    def asked(a, b):
        return variants.dense_problem(a, b, operand(a.shape[0], b.shape[1]))

    assert asked(operand(64, 32), operand(32, 48)) == Problem(64, 48, 32)
    assert asked(operand(64, 32, padding=4), operand(32, 48)) == Problem(64, 48, 32)  # as wide: the same record
    assert asked(operand(64, 32, padding=1), operand(32, 48)) == Problem(64, 48, 33)
    assert asked(operand(64, 32, padding=2), operand(32, 48)) == Problem(64, 48, 34)
    assert asked(operand(64, 32, misalignment=4), operand(32, 48)) == Problem(64, 48, 33)
    assert asked(operand(64, 32), operand(32, 48, "T", padding=1)) == Problem(64, 48, 33, "NT")  # K is both lines
    assert asked(operand(63, 31).packed(True), operand(31, 47).packed(False)) == Problem(64, 48, 31, "TN")
