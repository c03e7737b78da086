"""The benchmark's problems have the sizes, layouts and padding that its tables state."""

from collections import Counter

import numpy as np
import pytest

from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Meta
from fastsgemm.heuristics import database
from fastsgemm.measure.problem_sets import (
    BATCHES,
    NAMED,
    NARROW,
    SIZES,
    Sample,
    all_sizes,
    large,
    sample_of,
    size_class,
)
from fastsgemm.measure.problem_sets import LAYOUTS as SQUARES
from fastsgemm.problem import LAYOUTS, Problem, as_data
from fastsgemm.tuning.spaces import SPACES

DRAWN = {"all sizes": all_sizes(), "large": large()}


@pytest.mark.parametrize(
    ("problem", "size"),
    [
        (Problem(368, 368, 368), "launch-bound"),  # 0.0997 GFLOP
        (Problem(369, 369, 369), "compute-bound"),  # 0.1005 GFLOP, 61 FLOP a byte
        (Problem(16, 4096, 4096), "memory-bound"),  # 8 FLOP a byte
        (Problem(4096, 4096, 30), "memory-bound"),  # 14.8 FLOP a byte
        (Problem(4096, 4096, 32), "compute-bound"),  # 15.8 FLOP a byte
        (Problem(64, 64, 64, batch=190), "launch-bound"),  # 0.0996 GFLOP
        (Problem(64, 64, 64, batch=191), "memory-bound"),  # 10.7 FLOP a byte, as of one product
        (Problem(128, 128, 128, batch=100), "compute-bound"),  # 21.3 FLOP a byte
    ],
)
def test_size_classes(problem, size):
    assert size_class(problem) == size


def test_random_problems_come_in_all_sizes_layouts_and_alignments_in_equal_numbers():
    drawn = DRAWN["all sizes"]
    assert len(drawn) == 300
    assert Counter((size_class(one.problem), one.problem.layout) for one in drawn) == {
        (size, layout): 25 for size in SIZES for layout in LAYOUTS
    }


@pytest.mark.parametrize("drawn", DRAWN.values(), ids=DRAWN)
def test_random_problems_are_padded_and_odd_as_well(drawn):
    padded = [one for one in drawn if any(one.padding)]
    odd = [one for one in drawn if one.leading_dimensions[0] % 2 or one.leading_dimensions[1] % 2]
    assert len(padded) == pytest.approx(len(drawn) / 2, rel=0.05)
    assert len(odd) > len(drawn) / 4
    assert {one.load_bytes for one in drawn} == {4, 8, 16}


def test_large_problems_are_of_1_to_300_gigaflop():
    drawn = DRAWN["large"]
    assert len(drawn) == 200
    assert all(1e9 <= one.problem.flops <= 3e11 for one in drawn)
    assert Counter(one.problem.layout for one in drawn) == dict.fromkeys(LAYOUTS, 50)


def test_the_seed_is_fixed():
    assert all_sizes() == DRAWN["all sizes"] and large() == DRAWN["large"]
    assert len({str(one) for drawn in DRAWN.values() for one in drawn}) == 500


def test_a_tuned_problem_is_not_drawn():
    tuned = {variants.dense_call(one).problem for space in SPACES.values() for one in (*space.problems, *space.anchors)}
    tuned |= {sample.call.problem for sample in (*NAMED, *SQUARES, *NARROW)}
    assert not [str(one) for drawn in DRAWN.values() for one in drawn if one.call.problem in tuned]


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
def test_no_random_problem_has_a_record(arch):
    recorded = {record.problem for record in database.load(arch).records if record.problem}
    assert recorded
    assert not [str(one) for drawn in DRAWN.values() for one in drawn if one.call.problem in recorded]


def test_batches_are_of_all_kinds():
    problems = [one.problem for one in BATCHES]
    assert all(problem.batch > 1 for problem in problems) and len(set(problems)) == len(problems)
    assert {problem.layout for problem in problems} == {"NN", "NT", "TN"}
    assert {size_class(problem) for problem in problems} == {*SIZES}


@pytest.mark.parametrize("padding", [(0, 0, 0), (1, 2, 3)])
def test_a_batch_has_the_strides_of_whole_matrices(padding):
    sample = Sample(Problem(3, 4, 5, "TN", 7), padding)
    p, q, r = padding
    memory = [np.zeros((7, 5, 3 + p))[..., :3].swapaxes(1, 2), np.zeros((7, 5, 4 + q))[..., :4]]
    memory.append(np.zeros((7, 3, 4 + r))[..., :4])
    assert sample.operands == tuple(Meta(x.shape, tuple(stride // 8 for stride in x.strides)) for x in memory)
    assert sample.leading_dimensions == (3 + p, 4 + q, 4 + r)
    assert sample.call.problem.batch == sample.call.batch.count == 7 and sample.call.variant.layout == "TN"


@pytest.mark.parametrize("sample", [*NAMED, *SQUARES, *NARROW, *DRAWN["large"][:16]], ids=str)
def test_operands_do_not_overlap_themselves_and_have_the_layout(sample):
    problem = sample.problem
    shapes = [operand.shape for operand in sample.operands]
    assert shapes == [(problem.M, problem.K), (problem.K, problem.N), (problem.M, problem.N)]
    for operand, letter, padding in zip(sample.operands, (*problem.layout, "N"), sample.padding, strict=True):
        shape, strides = operand.shape, operand.strides
        line, step = (shape[0], strides[1]) if letter == "T" else (shape[1], strides[0])
        assert min(strides) == 1 and step == line + padding


@pytest.mark.parametrize("sample", [*NAMED, *NARROW, *BATCHES, *DRAWN["all sizes"][:32]], ids=str)
def test_a_row_of_results_is_read_back_as_its_sample(sample):
    row = as_data(sample.problem) | dict(zip(("lda", "ldb", "ldc"), sample.leading_dimensions, strict=True))
    assert sample_of(row | {"ms": 1.0}) == sample


def test_a_padded_sample_is_the_view_that_it_says():
    sample = Sample(Problem(3, 4, 5, "TN"), (1, 2, 3))
    memory = [np.zeros((5, 4))[:, :3].T, np.zeros((5, 6))[:, :4], np.zeros((3, 7))[:, :4]]
    assert sample.operands == tuple(Meta(x.shape, tuple(stride // 8 for stride in x.strides)) for x in memory)
    assert str(sample) == "3,4,5,TN+1+2+3"
