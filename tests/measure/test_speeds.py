"""What sums up speeds."""

import pytest

from fastsgemm.measure import speeds


def test_the_summary_counts_losses_and_shares():
    rows = [{"percent": percent} for percent in (50.0, 97.0, 100.0, 200.0)]
    assert speeds.of_rows(rows) == [0.5, 0.97, 1.0, 2.0]
    mean = pytest.approx(0.97**0.25)
    assert speeds.summary([0.5, 0.97, 1.0, 2.0]) == speeds.Summary(4, mean, 0.5, lost=2, ahead=0.5, near=0.75)
