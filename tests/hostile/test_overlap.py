"""Strides chosen so that it is hard to say whether C shares an element with A: the answer is right, or a refusal.

The worst-case time is bounded by counting the steps of the search, not by a clock; `MOST_OVERLAP_WORK` is that bound.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsgemm import sgemm
from fastsgemm.call import checks
from fastsgemm.errors import OverlapError
from fastsgemm.geometry import layout

extents = st.integers(0, 9)
shapes = st.tuples(extents, extents)
strides = st.tuples(st.integers(-60, 60), st.integers(-60, 60))


def places(shape, strides, first=0):
    """Every byte of the matrix."""
    rows, columns = (np.arange(extent) * 4 * stride for extent, stride in zip(shape, strides, strict=True))
    return {int(first + r + c + byte) for r in rows for c in columns for byte in range(4)}


@given(st.integers(-2000, 2000), shapes, strides, shapes, strides)
@settings(max_examples=500)
def test_small_matrices_against_every_byte(tried, distance, shape, steps, other_shape, other_steps):
    expected = bool(places(shape, steps) & places(other_shape, other_steps, distance))
    assert layout.overlap(distance, shape, steps, other_shape, other_steps) is expected
    tried("overlap: small matrices, any strides")


@given(
    st.integers(1, 40_000), st.integers(1, 40_000), st.integers(1, 8), st.integers(1, 8),
    st.integers(1, 3000), st.integers(0, 3000), st.booleans(),
)  # fmt: skip
@settings(max_examples=300)
def test_views_of_one_buffer_are_always_decided(tried, rows, others, times, other_times, ld, cut, turned):
    """Two slices of a row-major buffer, each of every `times`-th row, left and right of a cut: they never share."""
    cut = min(cut, ld)
    one = (rows, cut), (times * ld, 1)
    two = (others, ld - cut), (other_times * ld, 1)
    if turned:
        two = two[0][::-1], two[1][::-1]
    assert layout.overlap(4 * cut, *one, *two) is False
    if cut:
        assert layout.overlap(0, *one, *one) is True
    tried("overlap: slices of one buffer", 2)


UNDECIDED = (1598170775704, (25352, 482), (3632495, 2549446907), (16462, 787), (212561, 2154148354))
HARD = [
    UNDECIDED,
    (4 * 7919, (39774, 814), (39774, 2), (39774, 2659), (39776, 2)),
    (4, (814, 39774), (39774, 2), (2659, 39774), (39772, 2)),
    (4, (30011, 30013), (30014, 6), (30029, 30047), (30056, 10)),
    (4 * 123457, (50000, 50000), (99991, 99989), (50000, 50000), (99971, 99961)),
    (4 * 10**9, (2**20, 2**20), (2**21 + 7, 2**20 + 3), (2**20, 2**20), (2**21 + 9, 2**20 + 1)),
    (4 * 10**11, (2**30, 2**30), (15, 10), (2**30, 2**30), (21, 14)),
    (2, (2**30, 2**30), (0, 1), (2**30, 2**30), (1, 0)),
    (4 * 10**15, (2**31 - 1024, 2**31 - 1024), (2**60, 2**40), (2**31 - 1024, 2**31 - 1024), (2**60, 2**40)),
]


@pytest.mark.parametrize("case", HARD, ids=str)
def test_no_question_takes_more_than_the_bound(case, monkeypatch, tried):
    """The search is NumPy's, and it is never asked without a bound on its work."""
    asked = []
    real = np.shares_memory

    def shares_memory(one, two, max_work=None):
        asked.append(max_work)
        return real(one, two, max_work=max_work)

    monkeypatch.setattr(np, "shares_memory", shares_memory)
    layout.overlap.cache_clear()
    answer = layout.overlap(*case)
    assert answer in (True, False, None) and (answer is None or case is not UNDECIDED)
    assert all(work == layout.MOST_OVERLAP_WORK for work in asked)
    tried("overlap: strides chosen to be slow")


@given(st.data())
@settings(max_examples=300)
def test_hard_questions_are_answered_right_or_not_at_all(tried, data):
    """Random leading dimensions and steps, and a shared element put there on purpose: never 'no'."""
    shape, other_shape = (data.draw(st.tuples(st.integers(2, 40_000), st.integers(2, 40_000))) for _ in range(2))
    steps, other_steps = (data.draw(st.tuples(st.integers(2, 99_999), st.integers(2, 999))) for _ in range(2))
    at = [data.draw(st.integers(0, extent - 1)) for extent in (*shape, *other_shape)]
    distance = 4 * (at[0] * steps[0] + at[1] * steps[1] - at[2] * other_steps[0] - at[3] * other_steps[1])
    assert layout.overlap(distance, shape, steps, other_shape, other_steps) is not False
    tried("overlap: strides chosen to be slow")


def test_what_is_not_decided_is_refused_on_every_path(on_host, device, on_device, monkeypatch, tried):
    """Views that are multiplied are refused where the search gives up on them."""
    buffer = np.zeros((8, 8), np.float32)
    A, C = np.ones((2, 2), np.float32), buffer[::3, ::3][:2, :2]
    near = buffer[1::4, 1::5][:2, :2]
    sgemm(A, near, C=C)

    def hard(one, two, max_work):
        raise np.exceptions.TooHardError("exceeded max_work")

    monkeypatch.setattr(np, "shares_memory", hard)
    layout.overlap.cache_clear()
    buffer[:] = 7.5
    for operands, out in (((A, near), C), (tuple(map(on_device, (A, near))), on_device(C))):
        with pytest.raises(OverlapError, match=r"whether C shares an element with [AB] could not be decided within"):
            sgemm(*operands, C=out)
        tried("overlap: undecided and refused")
    assert (buffer == 7.5).all() and device.launched == []
    layout.overlap.cache_clear()


def test_the_three_answers():
    checks.apart("A", False)
    with pytest.raises(OverlapError, match=r"^C shares memory with A; pass a copy of A"):
        checks.apart("A", True)
    with pytest.raises(OverlapError, match=r"^whether C shares an element with B could not be decided .* pass a copy"):
        checks.apart("B", None)
