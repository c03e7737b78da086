"""The table of cublasLt's best algorithms, from runs that are made up."""

import pytest

cublaslt = pytest.importorskip("page_tables.cublaslt", reason="tools/ is part of a checkout only")


def run(device, **facts):
    of = {"M": 16, "N": 32, "K": 64, "cublas_ms": 0.03, "lt_ms": 0.02, "ms": 0.01, "configs": 2}
    rows = [
        of | {"layout": "NN", "first_pass_ms": [0.02, 0.1]},
        of | {"layout": "NT", "lt_ms": 0.009, "first_pass_ms": [0.02]},
    ]
    return {"device": device, "driver": "580", "nvrtc": "13.0", "date": "2030-01-01", **facts, "rows": rows}


def test_there_is_a_table_for_each_device():
    runs = {"cublaslt-nvidia-y": run("NVIDIA Y"), "half": None, "cublaslt": run("NVIDIA X", cublas="13.1.0")}
    text = cublaslt.texts(runs)["cublaslt"]
    assert text.count("| 16,32,64 | 30.0 | 20.0 | 2 | 10.0 | 3.00 | 2.00 |") == 2
    assert text.count("| 16,32,64,NT | 30.0 | 9.0 | 1 of 2 | 10.0 | 3.00 | 0.90 |") == 2
    assert "On one NVIDIA X, driver 580, NVRTC 13.0, cuBLAS 13.1.0, 2030-01-01:" in text
    assert text.index("NVIDIA X") < text.index("NVIDIA Y")


def test_nothing_measured_leaves_the_place_empty():
    assert cublaslt.texts({"cublaslt": None}) == {"cublaslt": ""}
