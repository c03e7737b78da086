"""What README.md says first, from runs that are made up."""

import pytest

tables = pytest.importorskip("write_tables", reason="tools/ is part of a checkout only")
headline = pytest.importorskip("page_tables.headline", reason="tools/ is part of a checkout only")
NOT_MEASURED = pytest.importorskip("page_tables.markdown", reason="tools/ is part of a checkout only").NOT_MEASURED

X, H100 = {"device": "NVIDIA H200", "date": "2026-01-02"}, {"device": "NVIDIA H100 80GB HBM3", "date": "2026-01-03"}


def run(about, small=200.0):
    random = [
        {"size": size, "percent": percent}
        for size, percent in [("launch-bound", small), ("memory-bound", 150.0), ("compute-bound", 90.0)]
    ]
    return about | {"random": random, "large": [{"percent": 50.0}, {"percent": 200.0}]}


def split(about):
    return about | {"large": [{"times_cublas": 4.0}, {"times_cublas": 0.25}, {"times_cublas": 8.0}]}


def test_the_sentence_has_every_class_and_its_losses():
    text = headline.texts({"benchmarks": run(X), "fp16x3": split(X)})["headline"]
    assert "**2.00** times the speed of cuBLAS FP32 if they are small, **1.50** times" in text
    assert "**0.90** times if they are compute-bound, and **1.00** times from 1 to 300 GFLOP" in text
    assert "faster on 2 of these 5." in text and "it has **2.00** times that speed" in text
    assert "faster on 1 of 3." in text and text.endswith("on one NVIDIA H200, 2026-01-02.")


def test_the_sentence_names_the_cublas_whose_heuristics_chose():
    text = headline.texts({"benchmarks": run(X) | {"cublas": "13.1.0"}, "fp16x3": split(X)})["headline"]
    assert text.endswith("2026-01-02; the heuristics of cuBLAS 13.1.0 chose its kernels.")


def test_figures_of_two_devices_are_kept_apart():
    data = {"benchmarks": run(X), "benchmarks-h100": run(H100, small=100.0), "fp16x3": split(H100)}
    texts = headline.texts(data)
    rows = texts["headline-table"].splitlines()
    assert "| small | 1 | cuBLAS FP32 | 2.00 | 0 | 2.00 | NVIDIA H200, 2026-01-02 |" in rows
    assert "| small | 1 | cuBLAS FP32 | 1.00 | 0 | 1.00 | NVIDIA H100 80GB HBM3, 2026-01-03 |" in rows
    assert texts["headline"].endswith(
        "on one NVIDIA H200, 2026-01-02, and with fp16x3 on one NVIDIA H100 80GB HBM3, 2026-01-03."
    )


def test_programs_and_symmetric_results_have_a_row_each():
    ms = {"cuBLAS": 2.0, "ieee": 1.0}
    symmetric = H100 | {"sizes": [{"ms": ms}], "random": [{"ms": ms | {"ieee": 2.5}}]}
    steps = {"cases": [{"ms": {"PyTorch": 4.0, "ieee": 5.0, "fp16x3": 2.0}}]}
    text = headline.texts({"symmetric": symmetric, "pytorch": {"MLP": X | steps}})["headline-table"]
    assert "| `sgemm(A, A.T)` | 2 | cuBLAS FP32 | 1.26 | 1 | 0.80 | NVIDIA H100 80GB HBM3, 2026-01-03 |" in text
    assert "| other PyTorch programs, `ieee` | 1 | PyTorch | 0.80 | 1 | 0.80 | NVIDIA H200, 2026-01-02 |" in text
    assert "| other PyTorch programs, `fp16x3` | 1 | PyTorch | 2.00 | 0 | 2.00 |" in text


HOPPER = (
    "| sm_90, Hopper | NVIDIA H200; NVIDIA H100 80GB HBM3 | "
    "NVIDIA H100 80GB HBM3, 2026-01-03; NVIDIA H200, 2026-01-02 |"
)


def test_an_architecture_was_measured_where_some_data_has_its_device():
    none = headline.texts({})
    assert none["headline"] == none["headline-table"] == NOT_MEASURED
    assert none["supported"].count("| no device |") == 11
    order = {"cost": X, "proof": X | {"date": "2025-01-01"}}
    data = {"symmetric": H100 | {"sizes": [], "random": []}, "order": order}
    text = headline.texts(data)["supported"]
    assert HOPPER in text
    assert text.count("| no device |") == 10


def test_a_device_of_an_unknown_architecture_is_refused():
    with pytest.raises(ValueError, match="add NVIDIA Y to"):
        headline.texts({"order": {"cost": X | {"device": "NVIDIA Y"}}})


def test_the_stored_data_has_a_row_for_each_kind():
    text = headline.texts(tables.read_data(tables.ROOT))["headline-table"]
    kinds = (
        "small",
        "memory-bound",
        "compute-bound",
        "large",
        "`fp16x3`",
        "16-bit",
        "`sgemm(A, A.T)`",
        "PyTorch programs",
    )
    assert all(f"| {kind}" in text for kind in kinds)
    assert text.count("| NVIDIA H") == text.count("\n") - 1
