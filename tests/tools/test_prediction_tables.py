import json
from pathlib import Path

import pytest

prediction = pytest.importorskip("page_tables.prediction", reason="tools/ is part of a checkout only")

WHERE = {"device": "NVIDIA H200", "date": "2026-01-02"}
SIZE = "512,512,512"


def row(n, ms, cublas_ms, size="launch-bound"):
    return {"M": n, "N": n, "K": n, "layout": "NN", "batch": 1, "ms": ms, "cublas_ms": cublas_ms, "size": size}


def stored(**changed):
    """A run in which one problem of 32 is alone with its ratio, and a program."""
    rows = [row(n, 0.8, 1.0) for n in range(64, 95)]
    kinds = {"random": [*rows[:3], row(95, 0.4, 1.0)], "large": rows[3:4], "narrow": rows[4:5], "batches": rows[5:]}
    step = {"PyTorch": 100.0, "null": 100.5, "ieee": 95.0, "fp16x3": 90.0}
    case = {"what": "a program", "limit": "device", "calls": {"ieee": 10}, "device_ms": step, **changed}
    us = {"PyTorch": 100.0, "null": 120.0, "ieee": 80.0}
    steps = [{"step": "mm", "products": 2, "step_us": us}, {"step": "mm, passed on", "products": 2, "step_us": us}]
    programs = {"x on NVIDIA H200": WHERE | {"cases": [case]}, "calls on NVIDIA H200": WHERE | {"steps": steps}}
    run = WHERE | {"sizes": {"launch-bound": ""}, **kinds}
    return {"benchmarks": run, "pytorch": programs, "program_sizes": {"a program": {SIZE: 10}}}


def test_ratios_are_those_of_all_problems_and_of_calls_that_were_replaced():
    found = json.loads(prediction.ratios(stored()))
    run = found["runs"]["NVIDIA H200"]
    assert len(run["ratios"]) == 32 and run["ratios"]["64,64,64"] == 0.8 and run["ratios"]["95,95,95"] == 0.4
    assert (found["host"], found["host_us"]) == ("one NVIDIA H200, 2026-01-02", [15.0])


def test_a_problem_is_predicted_from_the_others():
    table = prediction.texts(stored())["prediction-sizes"].splitlines()
    assert table[2:] == [
        "| launch-bound | NVIDIA H200 | 4 | 25% | 75% |",  # three are exact, one is 0.4 and not 0.8
        "| 1 to 300 GFLOP | NVIDIA H200 | 1 | 0% | 100% |",
        "| narrow results | NVIDIA H200 | 1 | 0% | 100% |",
        "| batches | NVIDIA H200 | 26 | 0% | 100% |",
    ]


def test_a_step_is_predicted_by_its_products_alone():
    (device,) = (prediction.info_of(prediction.known_devices.find("NVIDIA H200")),)
    ours = prediction.prediction.predict(device, [(SIZE, 10)])
    median = 1 - (ours.cublas_ms.median - ours.ms("ieee")) / 100
    text = prediction.texts(stored())["prediction-programs"]
    assert f"| a program | 100.00 | 0.95 | {median:.2f} (" in text
    assert "In these 1 programs" in text


@pytest.mark.parametrize(
    "changed",
    [
        {"limit": "unknown"},
        {"calls": {"ieee": 9}},
        {"device_ms": {"PyTorch": 100.0, "null": 110.0, "ieee": 95.0, "fp16x3": 90.0}},
    ],
)
def test_a_program_whose_time_or_products_are_not_known_is_left_out(changed):
    assert prediction.texts(stored(**changed))["prediction-programs"].startswith("*Not measured yet")


def test_the_pages_compare_at_least_ten_programs():
    page = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text()
    section = page.partition("<!-- prediction-programs:begin -->")[2].partition("<!-- prediction-programs:end -->")[0]
    assert section.count("\n| ") > 11
