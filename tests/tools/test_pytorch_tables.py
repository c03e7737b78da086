"""The tables of docs/pytorch.md, from runs that are made up."""

import json

import pytest

tables = pytest.importorskip("write_tables", reason="tools/ is part of a checkout only")
pytorch = pytest.importorskip("page_tables.pytorch", reason="tools/ is part of a checkout only")

ABOUT = {"device": "NVIDIA X", "torch": "2.11", "date": "2026-01-02"}
KINDS = {"PyTorch": 100.0, "ieee": 80.0}


def test_each_program_says_where_and_when_it_ran():
    calls = {"host_us": {"torch.mm": {"PyTorch": 10.0, "fastsgemm": 12.5}}, "operator_us": {"fastsgemm.sgemm": 9.0}}
    compiled = {"ms": {"64": {"PyTorch": 1.0, "fastsgemm": 0.5}}, "remark": "It was warm."}
    texts = pytorch.texts({"calls": calls | ABOUT, "compiled": compiled | ABOUT | {"date": "2026-03-04"}})
    assert texts["pytorch-calls"].startswith("On one NVIDIA X, torch 2.11, 2026-01-02.\n")
    assert "| `torch.mm` | 10.0 | 12.5 | 1.25 |" in texts["pytorch-calls"]
    assert texts["pytorch-compiled"].startswith("On one NVIDIA X, torch 2.11, 2026-03-04.\n")
    assert texts["pytorch-compiled"].endswith("| batch 64 | 1.000 | 0.500 | 0.50 |\n\nIt was warm.")
    assert texts["pytorch-gpt2"] == texts["pytorch-gpus"] == pytorch.NOT_MEASURED


def test_programs_show_their_time_beside_their_difference():
    both = ABOUT | {"difference": {"ieee": 1e-6}, "share": {"ieee": 0.5}}
    runs = [
        both | {"batch": batch, "ms": KINDS, "losses": {"PyTorch": [11.0, first], "ieee": [11.0 + 2.0**-20, 1.5]}}
        for batch, first in (([4, 256], 1.0), ([8, 512], 1.5))
    ]
    runs[0]["compared"] = "gradients"
    gpt2 = ABOUT | {"steps": 2, "runs": runs}
    process = both | {"n": 64, "iterations": 3, "cg_tolerance": 1e-4, "seconds": KINDS}
    texts = pytorch.texts({"gpt2": gpt2, "gaussian_process": process})
    assert "| GPT-2 (124M), 4 x 256 tokens, a step | PyTorch | 100.0 ms |  |  |" in texts["pytorch-gpt2"]
    assert "4 x 256 tokens, a step | ieee | 80.0 ms | gradients 1.0e-06 | 50.0% |" in texts["pytorch-gpt2"]
    assert "8 x 512 tokens, a step | ieee | 80.0 ms | loss, 1 ulp | 50.0% |" in texts["pytorch-gpt2"]
    assert "| 2 | 1.000000 | 1.500000 |" in texts["pytorch-losses"]
    assert (
        "steps, CG tolerance 0.0001 | ieee | 80.00 s | hyperparameters 1.0e-06 |" in texts["pytorch-gaussian-process"]
    )


def test_work_on_several_devices_is_compared_with_one():
    dtensor = {"size": 512, "devices": 2, "ms": {"one device": 10.0, "rows": 6.25}, "same bits": {"rows": True}}
    mlp = {"width": 64, "batch": 32, "devices": 2, "ms": {"one device": 8.0, "all devices": 5.0}}
    mlp["difference"] = {"result": 2e-6, "gradient": 1e-6}
    text = pytorch.texts({"several_gpus": ABOUT | {"dtensor": dtensor, "mlp": mlp}})["pytorch-gpus"]
    assert text.startswith("On 2 NVIDIA X,")
    assert "| 512^3, one device | 10.0 |  |  |" in text and "| 512^3, rows | 6.2 | 80.0% | yes |" in text
    assert "forward and backward, all devices | 5.0 | 80.0% | to 2e-06 |" in text


def test_the_stored_runs_have_tables():
    stored = json.loads((tables.ROOT / "docs" / "data" / "pytorch.json").read_text())
    assert {name for name, (program, _) in pytorch._TABLES.items() if program in stored} == {
        name for name, text in pytorch.texts(stored).items() if text != pytorch.NOT_MEASURED
    }
    assert {*stored} <= {program for program, _ in pytorch._TABLES.values()}
