"""What README.md says first, from runs that are made up."""

import pytest

tables = pytest.importorskip("write_tables", reason="tools/ is part of a checkout only")
headline = pytest.importorskip("page_tables.headline", reason="tools/ is part of a checkout only")
NOT_MEASURED = pytest.importorskip("page_tables.markdown", reason="tools/ is part of a checkout only").NOT_MEASURED

X, H100 = {"device": "NVIDIA H200", "date": "2026-01-02"}, {"device": "NVIDIA H100 80GB HBM3", "date": "2026-01-03"}


def run(about):
    random = [
        {"size": size, "percent": percent}
        for size, percent in [("launch-bound", 200.0), ("memory-bound", 150.0), ("compute-bound", 90.0)]
    ]
    return about | {"random": random, "large": [{"percent": 50.0}, {"percent": 200.0}]}


def split(about):
    return about | {"large": [{"times_cublas": 4.0}, {"times_cublas": 0.25}, {"times_cublas": 8.0}]}


def symmetric(about, ieee=1.0):
    ms = {"cuBLAS": 2.0, "ieee": ieee, "fp16x3": 0.25}
    return about | {"sizes": [{"ms": ms}], "random": [{"ms": ms | {"ieee": 2.5}}]}


def test_the_sentence_has_the_default_and_its_losses():
    text = headline.texts({"benchmarks": run(X), "symmetric": symmetric(X)})["headline"]
    assert "has 1.22 times the speed of cuBLAS FP32 on 5 random problems" in text
    assert "1.26 times on `sgemm(A, A.T)` (one NVIDIA H200, 2026-01-02)" in text
    assert text.endswith("**cuBLAS is faster on 2 of the 5**; on the worst of them the speed is 0.50.")


def test_the_sentence_names_both_devices():
    text = headline.texts({"benchmarks": run(X), "symmetric": symmetric(H100)})["headline"]
    assert "(one NVIDIA H200, 2026-01-02, and one NVIDIA H100 80GB HBM3, 2026-01-03)" in text


def test_each_row_of_the_first_table_names_its_comparison_and_its_range():
    us = {"cast, cuBLAS FP32": 6.0, "fp16x3": 2.0}
    order = {"rows": [{"dtype": dtype, "ms": {"cublas": 0.9, "order": 1.0}} for dtype in ("bfloat16", "float32")]}
    data = {"fp16x3": split(X), "symmetric": symmetric(X), "half": H100 | {"rows": [{"us": us}]}}
    rows = headline.texts(data | {"tensor_order": X | order})["headline-table"].splitlines()[2:]
    assert [row.split(" | ")[2] for row in rows] == [
        "**2.00** times cuBLAS FP32",
        "**8.00** times cuBLAS FP32",
        "**3.00** times a cast and cuBLAS FP32",
        "**0.90** times cuBLAS BF16",
    ]
    assert rows[0].endswith("| 0.25 to 8.00 | NVIDIA H200, 2026-01-02 |")
    assert "| 1 layers | " in rows[2] and rows[2].endswith("| NVIDIA H100 80GB HBM3, 2026-01-03 |")
    assert len(headline.texts(data)["headline-table"].splitlines()) == 5


def test_figures_of_two_devices_are_kept_apart():
    rows = headline.texts({"fp16x3": split(X), "fp16x3-h100": split(H100)})["other-speeds"].splitlines()
    line = "| `fp16x3`, 1 to 300 GFLOP | 3 | cuBLAS FP32 | 2.00 | 1 | 0.25 | "
    assert f"{line}NVIDIA H200, 2026-01-02 |" in rows and f"{line}NVIDIA H100 80GB HBM3, 2026-01-03 |" in rows


def test_programs_and_symmetric_results_have_a_row_each():
    steps = {"cases": [{"ms": {"PyTorch": 4.0, "ieee": 5.0, "fp16x3": 2.0}}]}
    text = headline.texts({"symmetric": symmetric(H100), "pytorch": {"MLP": X | steps}})["other-speeds"]
    assert "| `sgemm(A, A.T)`, `ieee` | 2 | cuBLAS FP32 | 1.26 | 1 | 0.80 | NVIDIA H100 80GB HBM3, 2026-01-03 |" in text
    assert "| `sgemm(A, A.T)`, `fp16x3` | 2 | cuBLAS FP32 | 8.00 | 0 | 8.00 |" in text
    assert "| other PyTorch programs, `ieee` | 1 | PyTorch | 0.80 | 1 | 0.80 | NVIDIA H200, 2026-01-02 |" in text
    assert "| other PyTorch programs, `fp16x3` | 1 | PyTorch | 2.00 | 0 | 2.00 |" in text


HOPPER = (
    "| sm_90, Hopper | NVIDIA H200; NVIDIA H100 80GB HBM3 | "
    "NVIDIA H100 80GB HBM3, 2026-01-03; NVIDIA H200, 2026-01-02 |"
)


def test_an_architecture_was_measured_where_some_data_has_its_device():
    none = headline.texts({})
    assert none["headline"] == none["headline-table"] == none["other-speeds"] == NOT_MEASURED
    assert none["supported"].count("| no device |") == 11
    order = {"cost": X, "proof": X | {"date": "2025-01-01"}}
    data = {"symmetric": symmetric(H100), "order": order}
    text = headline.texts(data)["supported"]
    assert HOPPER in text
    assert text.count("| no device |") == 10


def test_a_device_of_an_unknown_architecture_is_refused():
    with pytest.raises(ValueError, match="add NVIDIA Y to"):
        headline.texts({"order": {"cost": X | {"device": "NVIDIA Y"}}})


def test_the_stored_data_has_a_row_for_each_kind():
    texts = headline.texts(tables.read_data(tables.ROOT))
    text = texts["other-speeds"]
    kinds = ("`fp16x3`", "16-bit", "`sgemm(A, A.T)`, ", "PyTorch programs")
    assert all(f"| {kind}" in text for kind in kinds)
    assert text.count("| NVIDIA H") == text.count("\n") - 1
    assert texts["headline-table"].count("| NVIDIA H") == texts["headline-table"].count("\n") - 1 == 4
