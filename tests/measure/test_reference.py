import math

import numpy as np
import pytest

from fastsgemm.measure import reference
from fastsgemm.measure.reference import Reference


def test_the_reference_takes_every_row_of_a_small_problem(random):
    assert Reference(random(50, 10), random(10, 10)).rows.tolist() == list(range(50))


def test_the_reference_samples_the_rows_of_a_large_one(random, monkeypatch):
    monkeypatch.setattr(reference, "_MOST_FLOPS", 2 * 10 * 10 * 7)
    a, b = random(50, 10), random(10, 10)
    sampled = Reference(a, b)
    assert len(set(sampled.rows)) == 7
    assert sampled.error(a @ b) < sampled.limit
    unsampled = next(row for row in range(50) if row not in sampled.rows)
    c = a @ b
    c[unsampled, 0] = np.nan  # not among the rows compared, but poison shows anywhere
    assert math.isnan(sampled.error(c))
    assert f"C[{unsampled}, 0] is nan, expected" in sampled.mismatch(c)


@pytest.fixture
def product(random):
    """A reference, a right result, and the same in float64."""
    a, b = random(64, 100), random(100, 48)
    return Reference(a, b), a @ b, a.astype(np.float64) @ b.astype(np.float64)


def test_a_right_result_has_no_mismatch(product):
    expected, result, _ = product
    assert expected.mismatch(result) is None


def test_what_is_added_is_part_of_the_reference(product, random):
    a, b, c = random(9, 30), random(30, 7), random(9, 7)
    assert Reference(a, b, c).mismatch(a @ b + c) is None
    assert Reference(a, b, c).mismatch(a @ b).startswith("C[0, 0] is ")


@pytest.mark.parametrize(
    ("wrong", "first", "count", "where"),
    [
        (np.s_[5, 7], (5, 7), 1, "row 5 and column 7"),
        (np.s_[60:, :], (60, 0), 192, "rows 60-63 and columns 0-47"),
        (np.s_[:, [3, 4, 40]], (0, 3), 192, "rows 0-63 and columns 3-4, 40"),
        (np.s_[10:12, ::2], (10, 0), 48, "rows 10-11 and columns 0, 2, 4, 6 and 20 more"),
        (np.s_[::13, 1], (0, 1), 5, "rows 0, 13, 26, 39 and 1 more and column 1"),
    ],
)
def test_a_mismatch_names_the_first_element_and_rows_and_columns(product, wrong, first, count, where):
    expected, result, exact = product
    result[wrong] += 1
    i, j = first
    assert expected.mismatch(result) == (
        f"C[{i}, {j}] is {result[first]:.9g}, expected {exact[first]:.9g}; "
        f"{count} of 3072 elements are wrong, in {where}"
    )


def test_an_element_that_is_off_by_a_few_roundings_is_not_named(product):
    expected, result, _ = product
    result[0] += np.spacing(result[0])
    result[2, 2] = np.inf
    assert expected.mismatch(result).startswith("C[2, 2] is inf, expected ")
    assert expected.mismatch(result).endswith("1 of 3072 elements are wrong, in row 2 and column 2")


def test_of_small_errors_everywhere_the_largest_is_named(product):
    """Too large together, though each could be of roundings."""
    expected, result, exact = product
    result *= np.float32(1 + 1e-6)
    assert expected.error(result) > expected.limit / 2
    expected.limit /= 2
    i, j = np.unravel_index(np.argmax(np.abs(result - exact)), exact.shape)
    assert f"C[{i}, {j}] is {result[i, j]:.9g}, expected" in expected.mismatch(result)
