"""What docs/tuning.md says of the time of a run is what the tuner does."""

import pytest

from fastsgemm.tuning import tuner

tuning = pytest.importorskip("page_tables.tuning", reason="tools/ is part of a checkout only")


def test_the_limits_are_those_of_the_tuner():
    text = tuning.texts()["tuning-limits"]
    assert f"at most {tuner.QUICK_SECONDS:g} seconds" in text and f"set {tuner.STANDARD_SECONDS:g}," in text
