"""The table of 16-bit operands, from a run that is made up."""

import pytest

half = pytest.importorskip("page_tables.half", reason="tools/ is part of a checkout only")


def row(name, us, errors=(2e-7, 1e-7)):
    kinds = ("cast, cuBLAS FP32", "ieee", "fp16x3", "fp16x3, split", "cuBLAS 16 bits")
    return {
        "set": name,
        "us": dict(zip(kinds, us, strict=False)),
        "errors": dict(zip(("cast, cuBLAS FP32", "fp16x3"), errors, strict=True)),
    }


def test_each_set_has_its_mean_its_least_and_its_largest_error():
    rows = [row("router", (40, 20, 10, 8)), row("router", (10, 5, 10, 4), (1e-7, 3e-7)), row("head", (90, 9, 9, 9, 3))]
    text = half.texts({"half": {"device": "NVIDIA X", "torch": "2", "date": "2030-01-01", "rows": rows}})["half"]
    assert "On one NVIDIA X, torch 2, 2030-01-01." in text
    assert "| router | 2 | 2.00, 2.00 | 2.00, 1.00 | 3.54, 2.50 | - | 3.00 |" in text
    assert "| head | 1 | 10.00, 10.00 | 10.00, 10.00 | 10.00, 10.00 | 0.33, 0.33 | 0.50 |" in text


def test_nothing_measured_says_what_to_run():
    assert "tests/benchmarks/half.py" in half.texts({})["half"]
