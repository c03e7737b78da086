import pytest

from fastsgemm import problems
from fastsgemm.errors import ShapeError
from fastsgemm.plan import MAX_EXTENT, Problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [("1,2,3", Problem(1, 2, 3)), ("4096, 32 ,7,tn", Problem(4096, 32, 7, "TN")), ("1,1,1,NN", Problem(1, 1, 1))],
)
def test_a_problem_is_read(text, problem):
    assert problems.parse(text) == problem


@pytest.mark.parametrize("text", ["", "1,2", "1,2,3,4", "1,2,3,NX", "1,2,x", "-1,2,3", "1.5,2,3", "1,2,3,NN,4"])
def test_what_is_no_problem_is_refused(text):
    with pytest.raises(ShapeError, match="M,N,K"):
        problems.parse(text)


@pytest.mark.parametrize("extents", [(0, 1, 1), (1, MAX_EXTENT + 1, 1)])
def test_extents_have_limits(extents):
    with pytest.raises(ShapeError, match=str(MAX_EXTENT)):
        problems.checked(Problem(*extents))


def test_text_is_read_back():
    for problem in problems.STANDARD:
        assert problems.parse(problems.text(problem)) == problem


def test_the_standard_set_is_asked_for_as_it_is_written():
    for problem in problems.STANDARD:
        assert problems.call(problem).problem == problem
    assert len(set(problems.STANDARD)) == len(problems.STANDARD)
    assert {problem.layout for problem in problems.STANDARD} == set(problems.LAYOUTS)


def test_a_column_is_computed_as_a_row():
    assert problems.call(Problem(4096, 1, 4096)).problem == Problem(1, 4096, 4096, "NT")


def test_anchors_need_one_kernel_a_candidate():
    assert len({problems.call(problem).variant for problem in problems.ANCHORS}) == 1
