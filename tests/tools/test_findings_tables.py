"""The tables of the two findings, from measurements that are made up."""

import pytest

findings = pytest.importorskip("page_tables.findings", reason="tools/ is part of a checkout only")
NOT_MEASURED = pytest.importorskip("page_tables.markdown", reason="tools/ is part of a checkout only").NOT_MEASURED

X = {"device": "NVIDIA X", "date": "2026-01-02"}


def test_few_rows_are_shown_beside_the_time_of_their_bytes():
    times = {"cublas_ms": 0.09, "lt_ms": 0.0471, "ms": 0.0275, "layout": "NN", "batch": 1}
    rows = [times | {"M": M, "N": 4096, "K": 4096} for M in (16, 33)]
    data = {"cublaslt": X | {"rows": rows}, "cublaslt-Y": X | {"device": "Y", "rows": rows[:1]}}
    lines = findings.texts(data | {"roofs": {"NVIDIA X": {"copy_tb_s": 2.0}}})["few-rows"].splitlines()[2:]
    assert lines == [  # 4 (16 x 4096 + 4096^2 + 16 x 4096) bytes
        "| 16,4096,4096 | 90.0 | 47.1 | 27.5 | 33.8 | NVIDIA X, 2026-01-02 |",
        "| 16,4096,4096 | 90.0 | 47.1 | 27.5 |  | Y, 2026-01-02 |",
    ]


def test_programs_are_apart_by_what_limits_them():
    us = {"torch.mm": 18.0, "torch.mm, null": 20.0, "fastsgemm.sgemm": 9.0}
    calls = [{"size": [64, 64, n], "rung": rung, "us": us} for n in (64, 65) for rung in (None, "fp16x3")]
    ms = {"PyTorch": 6.0, "null": 5.0, "ieee": 4.0, "fp16x3": 3.0}
    cases = [{"ms": ms, "limit": "host"}, {"ms": ms | {"null": 8.0}, "limit": "host"}, {"ms": ms, "limit": "device"}]
    data = {
        "pytorch": {"calls on NVIDIA X": X | {"calls": calls}, "a on NVIDIA X": X | {"cases": [*cases, {"ms": ms}]}},
        "benchmarks": X | {"large": [{"percent": 110.0}]},
        "fp16x3": X | {"date": "2026-01-03", "large": [{"times_cublas": 4.0}, {"times_cublas": 1.0}]},
        "fp16x3-Y": X | {"device": "Y", "large": [{"times_cublas": 9.0}]},
    }
    what, _, *lines = (line for line in findings.texts(data)["one-call"].splitlines() if line)
    assert what == "On one NVIDIA X, relative to PyTorch or cuBLAS FP32."
    assert [line.split(" | ", 1)[1] for line in lines[1:]] == [
        "1 | 2.00 | 2.00 | 0.90 to 0.90 | 2026-01-02 |",
        "1 and 2 | 1.10 | 2.00 |  | 2026-01-02 and 2026-01-03 |",
        "1 | 1.50 | 2.00 | 1.20 to 1.20 | 2026-01-02 |",
        "2 | 1.50 | 2.00 | 0.75 to 1.20 | 2026-01-02 |",
    ]


def test_without_data_they_say_so():
    assert findings.texts({}) == {"few-rows": NOT_MEASURED, "one-call": NOT_MEASURED}
