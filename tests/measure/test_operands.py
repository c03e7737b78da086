"""Operands on the host: stored as the layout says, and refused where they do not fit into memory."""

import pytest

from fastsgemm.errors import ShapeError
from fastsgemm.measure import operands
from fastsgemm.measure.operands import host_operands, refuse_too_large
from fastsgemm.problem import Problem


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_operands_are_stored_as_the_layout_says(layout):
    a, b, c = host_operands(Problem(3, 4, 5, layout))
    assert (a.shape, b.shape, c.shape) == ((3, 5), (5, 4), (3, 4))
    flags = [x.flags.f_contiguous for x in (a, b, c)]
    assert flags == [layout[0] == "T", layout[1] == "T", False]


def test_what_does_not_fit_into_memory_is_refused_with_both_figures(monkeypatch):
    monkeypatch.setattr(operands, "_available", lambda: 1e6)
    with pytest.raises(ShapeError, match=r"1000,1000,1000 needs about 0.0447 GiB .*, 0.000931 GiB are available"):
        refuse_too_large(Problem(1000, 1000, 1000), 4.0)
    refuse_too_large(Problem(100, 100, 100), 4.0)


def test_what_is_available_is_a_share_of_this_machine():
    assert 1e6 < operands._available() < 1e14
