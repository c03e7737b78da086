"""What docs/tuning.md says of the time of a run is what the tuner does."""

import pytest

from fastsgemm.tuning import tuner

tuning = pytest.importorskip("page_tables.tuning", reason="tools/ is part of a checkout only")


def test_the_limits_are_those_of_the_tuner():
    text = tuning.texts(None)["tuning-limits"]
    assert f"at most {tuner.QUICK_SECONDS:g} seconds" in text and f"set {tuner.STANDARD_SECONDS:g}," in text


def test_a_run_on_another_device_is_compared_with_the_shipped_configs():
    rows = [{"rung": "pipelined", "times_shipped": each} for each in (1.0, 1.21)]
    run = {"device": "NVIDIA X", "date": "2026-01-02", "seconds": 9, "shipped": "NVIDIA Y"}
    run["rows"] = [*rows, {"rung": "skinny", "times_shipped": 1.5}, {"rung": "naive", "times_shipped": 9.0}]
    text = tuning.texts(run)["own-records"]
    assert "is 1.100 for rung `pipelined` on 2 problems and 1.500 for rung `skinny` on 1 problems." in text
    assert "One NVIDIA X was tuned" in text and "in 9 seconds, 2026-01-02" in text and "of an NVIDIA Y" in text
