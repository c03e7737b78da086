from fastsgemm import rungs
from fastsgemm.geometry import variants
from fastsgemm.problem import LAYOUTS, Problem
from fastsgemm.tuning.spaces import pipelined, skinny, standard_set

BATCHES = (*pipelined.BATCHES, *skinny.NARROW_BATCHES)


def test_the_standard_set_is_asked_for_as_it_is_written():
    for problem in (*standard_set.STANDARD, *skinny.NARROW):
        assert variants.dense_call(problem).problem == problem
    assert len(set(standard_set.STANDARD)) == len(standard_set.STANDARD)
    assert {problem.layout for problem in standard_set.STANDARD} == set(LAYOUTS)


def test_a_column_is_computed_as_a_row():
    assert variants.dense_call(Problem(4096, 1, 4096)).problem == Problem(1, 4096, 4096, "NT")


def test_anchors_need_one_kernel_a_candidate():
    assert len({variants.dense_call(problem).variant for problem in standard_set.ANCHORS}) == 1


def test_batches_are_asked_for_as_they_are_written_and_suit_the_rung():
    assert all(variants.dense_call(problem).problem == problem and problem.batch > 1 for problem in BATCHES)
    narrow, square = rungs.find("skinny"), rungs.find("pipelined")
    assert all(narrow.suits(problem.M, problem.N) for problem in skinny.NARROW_BATCHES)
    assert all(square.suits(problem.M, problem.N) for problem in pipelined.BATCHES)
