"""The table of grouped products, from measurements that are made up."""

import pytest

grouped = pytest.importorskip("page_tables.grouped", reason="tools/ is part of a checkout only")


def test_each_problem_is_a_line_beside_other_ways():
    us = {"grouped_mm": 100.0, "PyTorch": 250.0, "dense": 80.0, "padded": None}
    row = {"product": "forward", "T": 9, "groups": 2, "K": 3, "N": 4, "longest": 6, "us": us, "tflops": 22.39}
    run = {"device": "NVIDIA X", "torch": "2.11", "date": "2026-01-02", "rows": [row]}
    text = grouped.texts({"grouped": run})["grouped"]
    assert "On one NVIDIA X, torch 2.11, 2026-01-02." in text
    assert "| forward | 9 x 2 x 3 x 4 | 100 | 22.4 | 2.50 |  | 0.80 |" in text


def test_without_data_it_says_so():
    assert grouped.texts({})["grouped"] == grouped.NOT_MEASURED
