"""The tables of ``batch_invariant=True``, from measurements that are made up, and what the kept ones say."""

import json

import pytest

order = pytest.importorskip("page_tables.order", reason="tools/ is part of a checkout only")
tables = pytest.importorskip("write_tables", reason="tools/ is part of a checkout only")
NOT_MEASURED = pytest.importorskip("page_tables.markdown", reason="tools/ is part of a checkout only").NOT_MEASURED


def row(M, named, cublas_ms, default_ms):
    of = {"M": M, "N": 64, "K": 4096, "layout": "NT", "named": named}
    return of | {"ms": 2.0, "cublas_ms": cublas_ms, "default_ms": default_ms, "error": 5e-7}


def made_up():
    about = {"date": "2026-01-02", "device": "NVIDIA X", "driver": "580.1", "nvrtc": "13.0"}
    return {
        "proof": about
        | {
            "rows": {"calls": 825, "bad": 0, "K": 2500, "N": 192},
            "configs": {"calls": 7, "bad": 1},
            "simulated": {"calls": 12, "bad": 0},
        },
        "cost": about | {"rows": [row(1, True, 8.0, 2.0), row(2, True, 2.0, 1.8), row(3, False, 1.0, 1.8)]},
    }


def test_the_cost_has_its_means_and_every_loss():
    text = order.texts({"order": made_up()})["order-cost"]
    assert "On one NVIDIA X, driver 580.1, NVRTC 13.0, 2026-01-02." in text
    assert "| 3 | 1.26 | 0.50 | 1 | 0.93 | 0.90 |" in text
    assert "Slower than cuBLAS by 2 % or more, 1 of 3" in text and text.endswith("| 3,64,4096,NT | 0.50 | 0.90 |")
    assert "| 2,64" not in text


def test_the_proof_says_how_many_calls_were_wrong():
    text = order.texts({"order": made_up()})["order-proof"]
    assert "with N = 192 and K = 2500, each layout; against the reference | 825 | 0 |" in text
    assert "against the reference | 7 | 1 |" in text and "against the device | 12 | 0 |" in text


def test_without_data_the_tables_say_so():
    assert order.texts({}) == dict.fromkeys(("order-cost", "order-proof", "order-tensor"), NOT_MEASURED)


def test_the_order_on_tensor_cores_has_every_weight_and_its_means():
    about = {"date": "2026-01-02", "device": "NVIDIA X", "driver": "580.1", "nvrtc": "13.0"}
    rows = [
        {"dtype": "bfloat16", "M": 1, "N": 8, "K": 9, "ms": {"cublas": 1.0, "order": 2.0, "float32": 1.0}},
        {"dtype": "bfloat16", "M": 256, "N": 8, "K": 9, "ms": {"cublas": 2.0, "order": 1.0, "float32": 1.0}},
        {"dtype": "float32", "M": 1, "N": 7, "K": 9, "ms": {"cublas": 1.0, "order": 4.0, "split": 2.0, "usual": 9.0}},
        {"dtype": "float32", "M": 256, "N": 7, "K": 9, "ms": {"cublas": 3.0, "order": 1.0, "split": 1.0, "usual": 0.9}},
    ]
    run = about | {"bits": {"bad": 0, "calls": 77, "problems": 6}, "rows": rows}
    text = order.texts({"tensor_order": run, "tensor_order-NVIDIA-Y": run | {"device": "NVIDIA Y"}})["order-tensor"]
    assert text.count("0 of 77 results of 6 problems differ") == 2 and "On one NVIDIA Y," in text
    assert (
        "| bfloat16, 8 x 9 | 0.50 | 2.00 |" in text and "| float32, 7 x 9, weight split before | 0.50 | 3.00 |" in text
    )
    assert "the mean is 1.00, the least 0.50" in text and "at 0.90 of the speed" in text


def test_every_kept_comparison_agreed():
    kept = json.loads((tables.ROOT / "docs" / "data" / "order.json").read_text())
    assert {kept["proof"][name]["bad"] for name in order.COMPARED} == {0}
