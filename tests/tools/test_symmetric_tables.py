"""The tables of docs/symmetric.md, from a run that is made up."""

import pytest

symmetric = pytest.importorskip("page_tables.symmetric", reason="tools/ is part of a checkout only")

MS = {"cuBLAS": 2.0, "cublasSsyrk": 1.0, "ieee": 0.8, "ieee whole": 1.6, "fp16x3": 0.5, "fp16x3 whole": 0.45}


def test_times_are_relative_and_losses_are_listed():
    quick = MS | {"fp16x3": 0.25}
    run = {
        "device": "NVIDIA X", "torch": "2.11", "date": "2026-01-02",
        "sizes": [{"N": 64, "K": 32, "order": order, "ms": MS} for order in ("A A^T", "both")],
        "random": [{"N": n, "K": 8, "batch": 2, "ms": ms} for n, ms in ((5, MS), (6, quick))],
    }  # fmt: skip
    text = symmetric.texts({"symmetric": run})["symmetric"]
    assert text.count("| 64 x 32 | 2.0000 | 2.00 | 2.50 | 1.25 | 4.00 | 4.44 |") == 1
    assert text.endswith("| 5 x 8, 2 | 2.00 | 0.90 |") and "| 6 x 8" not in text
    assert "on one NVIDIA X, torch 2.11, 2026-01-02." in text
    assert symmetric.texts({}) == {"symmetric": symmetric.NOT_MEASURED}
    both = symmetric.texts({"symmetric": run, "symmetric-y": run | {"device": "NVIDIA Y"}})["symmetric"]
    assert both.startswith(text) and both.count("| 5 x 8, 2 |") == 2 and "on one NVIDIA Y" in both
