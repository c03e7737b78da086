"""The tables of precision="fp16x3", from a run that is made up."""

import json

import pytest

tables = pytest.importorskip("write_tables", reason="tools/ is part of a checkout only")
fp16x3 = pytest.importorskip("page_tables.fp16x3", reason="tools/ is part of a checkout only")
NOT_MEASURED = pytest.importorskip("page_tables.markdown", reason="tools/ is part of a checkout only").NOT_MEASURED


def made_up_run():
    sample = {"config": "", "why": "quicker", "predicted_ms": 1.0, "ms": 0.5, "ieee_ms": 1.5, "cublas_ms": 2.0}
    sample |= {"times_cublas": 4.0, "times_ieee": 3.0, "error": 2e-7, "ieee_error": 1e-6, "cublas_error": 1e-6}
    lost = sample | {"config": "None", "times_cublas": 0.9}
    square = {"n": 4096, "ms": 0.75, "cublas_ms": 2.7, "tflops": 183.0, "times_cublas": 3.6}
    few = {"M": 64, "n": 4096, "config": "BN=16", "ms": 0.04, "cublas_ms": 0.06, "times_cublas": 1.5}
    peers = {
        "fastsgemm fp16x3": {"ms": 1.0, "tflops": 180.0, "error": 2e-7},
        "cuBLAS TF32": {"tflops": 330.0, "error": 3e-4},
        "Y BF16 X9": {"tflops": 150.0, "error": 2.9e-4},
    }
    groups = {
        "fp16x3 squares": [square],
        "fp16x3 layouts": [sample | {"problem": "4096,4096,4096,TT"}],
        "fp16x3 large": [
            sample | {"problem": "1000,1000,1000+3+7+10"}, lost | {"problem": "2000,2000,2000,NT"},
            sample | {"problem": "5000,5000,1000"},
        ],
        "fp16x3 shapes": [lost | {"problem": "128,128,128"}, sample | {"problem": "900,900,900", "times_ieee": 0.97}],
        "fp16x3 pre-split": [
            few, few | {"n": 8192, "ms": 0.09, "times_cublas": 1.2}, few | {"M": 128, "ms": 0.05, "times_cublas": 1.6},
        ],
        "fp16x3 peers": [{"n": 4096, "peers": peers}, {"n": 8192, "peers": dict(list(peers.items())[:1])}],
    }  # fmt: skip
    device = {"devices": [{"name": "NVIDIA X"}], "driver": "580.1", "nvrtc": "13.0"}
    return {
        "datetime": "2026-01-02T03:04:05",
        "machine_info": {"fastsgemm": device, "packages": {"torch": "2.9"}},
        "benchmarks": [
            {"group": group, "extra_info": row, "fullname": f"{group}::{number}"}
            for group, rows in groups.items()
            for number, row in enumerate(rows)
        ],
    }


def test_every_group_has_a_table_with_its_losses():
    texts = fp16x3.texts({"fp16x3": fp16x3.reduce(made_up_run())})
    groups = {*fp16x3.GROUPS} - {"layouts", "shapes"} | {"run", "losses"}
    assert set(texts) == {f"fp16x3-{group}" for group in groups}
    assert texts["fp16x3-run"] == "Measured on one NVIDIA X, driver 580.1, NVRTC 13.0, torch 2.9, 2026-01-02."
    assert "| 4096 | 0.75 | 183 | 2.7 | 3.60 |" in texts["fp16x3-squares"]
    assert "| 1 to 10 GFLOP | 1 | 1 | 4.00 | 0 | 4.00 |" in texts["fp16x3-large"]
    assert "| 10 to 100 GFLOP | 2 | 1 | 1.90 | 1 | 0.90 |" in texts["fp16x3-large"]
    losses, _, errors = texts["fp16x3-losses"].rpartition("\n\n")
    assert errors == "Rung 11 computed 4 of all 6, with at most 0.20 times the error of cuBLAS."
    losses = losses.splitlines()[2:]
    assert [line.split(" | ")[0] for line in losses] == ["| 2000,2000,2000,NT", "| 128,128,128", "| 900,900,900"]
    assert losses[0].endswith("| 0.5 | 1.5 | 2 | 0.90 | 2.0e-07 | 1.0e-06 | IEEE |")
    assert "| 64 | 0.04 | 1.50 | 0.09 | 1.20 |\n| 128 | 0.05 | 1.60 |  |  |" in texts["fp16x3-pre-split"]
    assert "| cuBLAS TF32 | 330 | 3.0e-04 |  |  |" in texts["fp16x3-peers"]
    assert "X9" not in texts["fp16x3-peers"]  # what ran under this name was TF32


def test_no_losses_are_a_sentence():
    run = fp16x3.reduce(made_up_run())
    run["shapes"], run["large"] = [], run["large"][:1]
    text = "There are none.\n\nRung 11 computed 2 of all 2, with at most 0.20 times the error of cuBLAS."
    assert fp16x3.texts({"fp16x3": run})["fp16x3-losses"] == text


def test_what_the_pages_say_of_accuracy_is_so_in_every_row():
    stored = json.loads((tables.ROOT / "docs" / "data" / "fp16x3.json").read_text())
    rows = [row for group in ("layouts", "large", "shapes") for row in stored[group]]
    rung_11 = [row for row in rows if row["config"] != "None"]
    assert len(rung_11) > 50 and all(row["error"] < row["cublas_error"] for row in rung_11)
    assert len(rows) > len(rung_11) and all(row["error"] < 2 * row["cublas_error"] for row in rows)


def test_a_run_of_these_alone_updates_only_their_data(tmp_path, monkeypatch):
    known = tables.headline.known_devices.known() | {"NVIDIA X": "sm_90"}
    monkeypatch.setattr(tables.headline.known_devices, "known", lambda: known)
    assert fp16x3.reduce({"benchmarks": []}) is None
    (tmp_path / "docs" / "data").mkdir(parents=True)
    (tmp_path / "README.md").write_text("")
    for name in ("literature.json", "counts.json"):
        (tmp_path / "docs" / "data" / name).write_text((tables.ROOT / "docs" / "data" / name).read_text())
    page = tmp_path / "docs" / "fp16x3.md"
    page.write_text("<!-- fp16x3-squares:begin -->\n<!-- fp16x3-squares:end -->\n")
    assert tables.main([], root=tmp_path) == 0
    assert NOT_MEASURED in page.read_text()
    (tmp_path / "run.json").write_text(json.dumps(made_up_run()))
    assert tables.main([str(tmp_path / "run.json")], root=tmp_path) == 0
    assert "| 4096 | 0.75 |" in page.read_text()
    assert not (tmp_path / "docs" / "data" / "benchmarks.json").exists()
    kept = json.loads((tmp_path / "docs" / "data" / "fp16x3.json").read_text())
    assert "why" not in kept["large"][0] and kept["device"] == "NVIDIA X"


def test_a_run_on_another_device_leaves_those_of_the_pages(tmp_path):
    (tmp_path / "fp16x3.json").write_text('{"device": "NVIDIA Y Z"}')
    tables._keep(made_up_run(), tmp_path)
    assert json.loads((tmp_path / "fp16x3.json").read_text()) == {"device": "NVIDIA Y Z"}
    assert json.loads((tmp_path / "fp16x3-NVIDIA-X.json").read_text())["device"] == "NVIDIA X"
