import pytest

from fastsgemm.errors import ShapeError
from fastsgemm.geometry import variants
from fastsgemm.problem import LAYOUTS, MAX_EXTENT, Problem, checked, parse, spell
from fastsgemm.tuning import problem_sets


@pytest.mark.parametrize(
    ("text", "problem"),
    [("1,2,3", Problem(1, 2, 3)), ("4096, 32 ,7,tn", Problem(4096, 32, 7, "TN")), ("1,1,1,NN", Problem(1, 1, 1))],
)
def test_a_problem_is_read(text, problem):
    assert parse(text) == problem


@pytest.mark.parametrize("text", ["", "1,2", "1,2,3,4", "1,2,3,NX", "1,2,x", "-1,2,3", "1.5,2,3", "1,2,3,NN,4"])
def test_what_is_no_problem_is_refused(text):
    with pytest.raises(ShapeError, match="M,N,K"):
        parse(text)


@pytest.mark.parametrize("extents", [(0, 1, 1), (1, MAX_EXTENT + 1, 1)])
def test_extents_have_limits(extents):
    with pytest.raises(ShapeError, match=str(MAX_EXTENT)):
        checked(Problem(*extents))


def test_text_is_read_back():
    for problem in problem_sets.STANDARD:
        assert parse(spell(problem)) == problem


def test_the_standard_set_is_asked_for_as_it_is_written():
    for problem in problem_sets.STANDARD:
        assert variants.dense_call(problem).problem == problem
    assert len(set(problem_sets.STANDARD)) == len(problem_sets.STANDARD)
    assert {problem.layout for problem in problem_sets.STANDARD} == set(LAYOUTS)


def test_a_column_is_computed_as_a_row():
    assert variants.dense_call(Problem(4096, 1, 4096)).problem == Problem(1, 4096, 4096, "NT")


def test_anchors_need_one_kernel_a_candidate():
    assert len({variants.dense_call(problem).variant for problem in problem_sets.ANCHORS}) == 1
