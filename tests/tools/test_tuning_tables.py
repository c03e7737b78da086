"""What docs/tuning.md says of the time of a run is what the tuner does."""

import pytest

from fastsgemm.tuning import tuner

tuning = pytest.importorskip("page_tables.tuning", reason="tools/ is part of a checkout only")


def test_the_limits_are_those_of_the_tuner():
    text = tuning.texts({})["tuning-limits"]
    assert f"at most {tuner.QUICK_SECONDS:g} seconds" in text and f"set {tuner.STANDARD_SECONDS:g}," in text


def test_a_run_on_another_device_is_compared_with_the_shipped_configs():
    found = [("pipelined", 1.0), ("pipelined", 1.21), ("pipelined", None), ("skinny", 1.5), ("naive", 9.0)]
    run = {"device": "NVIDIA X", "arch": "sm_90", "date": "2026-01-02", "seconds": 8.6, "complete": True}
    run["results"] = [{"rung": rung, "of_shipped": speed} for rung, speed in found]
    text = tuning.texts({"own_records": run})["own-records"]
    assert "is 1.100 for rung `pipelined` on 2 problems and 1.500 for rung `skinny` on 1 problems." in text
    assert "One NVIDIA X was tuned" in text and "set, 2026-01-02" in text and "of an NVIDIA H200" in text
    assert "after 9 seconds. " in text
    assert (
        "after 9 seconds, its budget, before" in tuning.texts({"own_records": run | {"complete": False}})["own-records"]
    )
