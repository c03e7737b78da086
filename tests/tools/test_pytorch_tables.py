"""The tables of docs/pytorch.md, from runs that are made up."""

import json

import pytest

tables = pytest.importorskip("write_tables", reason="tools/ is part of a checkout only")
pytorch = pytest.importorskip("page_tables.pytorch", reason="tools/ is part of a checkout only")

ABOUT = {"device": "NVIDIA X", "torch": "2.11", "date": "2026-01-02"}
TIMES = {"PyTorch": 10.0, "ieee": 9.0, "fp16x3": 12.5}


def timed(what, **about):
    difference, share = {"ieee": 1e-6, "fp16x3": 2e-7}, {"ieee": 0.5, "fp16x3": 0.5}
    device_ms = {"PyTorch": 5.0, "ieee": 4.5, "fp16x3": 7.5}
    case = {"what": what, "ms": TIMES, "device_ms": device_ms, "difference": difference, "share": share}
    return {"cases": [case]} | ABOUT | about


def test_calls_show_their_time_between_other_operators():
    host = {name: {"alone": 1.0, "between": us} for name, us in TIMES.items()}
    slower = host | {"ieee": {"between": 30.0}}
    rows = [("mm 64", host), ("bmm", slower), ("dot", slower), ("mm of float64, which is passed on", slower)]
    rows = [{"call": name, "host_us": us} for name, us in rows]
    calls = {"calls": rows, "operator_us": {"fastsgemm.sgemm": 9.0}}
    texts = pytorch.texts({"calls on NVIDIA X": calls | ABOUT | {"remark": "It was warm."}})
    text = texts["pytorch-calls"]
    assert text.startswith("On one NVIDIA X, torch 2.11, 2026-01-02.\n")
    assert "| replaced | 3 | 0.90 to 3.00 (median 3.00) | 1.25 |\n| passed on | 1 | 3.00 | 1.25 |\n" in text
    assert text.endswith("| `fastsgemm.sgemm` | 9.0 |\n\nIt was warm.")
    assert texts["pytorch-programs"] == texts["pytorch-gpus"] == pytorch.NOT_MEASURED


def test_programs_say_where_and_when_they_ran_and_show_what_is_relative_to_pytorch():
    found = {
        "encoder on NVIDIA X": timed("BERT"),
        "decoder on NVIDIA X": timed("wide"),
        "compiled on NVIDIA A": timed("MLP", device="NVIDIA A"),
    }
    texts = pytorch.texts(found)
    row = "| 10.00 | 0.90 | 1.25 | 0.90 | 1.50 |"
    first, second = texts["pytorch-programs"].split("\n\nOn ")
    assert first.startswith("On one NVIDIA X, torch 2.11, 2026-01-02.\n")
    assert f"| BERT {row}\n| wide {row}\n\nThe results differ from PyTorch's by at most 1e-06 and 2e-07 of" in first
    assert first.endswith("at least 50.0% of the FLOPs of products were replaced.")
    assert second.startswith("one NVIDIA A, torch 2.11, 2026-01-02.") and f"| MLP {row}\n" in second
    found |= {"pca on NVIDIA X": timed("PCA"), "neighbours on NVIDIA X": timed("ten")}
    x, a = "NVIDIA X, 2026-01-02", "NVIDIA A, 2026-01-02"
    other, symmetric = "other PyTorch programs", "PyTorch programs with A Aᵀ"
    expected = [((x, symmetric), [TIMES] * 2), ((x, other), [TIMES] * 2), ((a, other), [TIMES])]
    assert list(pytorch.step_times(found).items()) == expected


def test_samples_of_pytorch_are_summed_up():
    rows = [{"samples": 3, "replaced": 4, "worst": worst} for worst in (1e-7, 0.0)]
    text = pytorch.texts({"opinfo on NVIDIA X": ABOUT | {"tolerance": 1e-5, "operators": rows}})["pytorch-opinfo"]
    assert "All 6 samples, with 8 calls that were replaced, agree to 1e-05;" in text and text.endswith(" 1.0e-07.")


def test_scaling_is_compared_with_one_device_and_says_what_limits():
    def run(devices, ms):
        times = dict.fromkeys(TIMES, ms)
        shares = {"ieee": {"products": 0.75, "NCCL": 0.125, "waiting": 0.0625}} if devices > 1 else {}
        works = {name: {"ms": times, "shares": shares} for name in ("8^3, rows", "8 rows per device")}
        return {"devices": devices, "works": works}

    several = {"scaling": [run(1, 8.0), run(4, 2.5)]}
    several["differences"] = {"bits": {"4": []}, "losses": {"ieee": 1e-7, "fp16x3": 0.0}}
    text = pytorch.texts({"several_gpus on NVIDIA X": ABOUT | several})["pytorch-gpus"]
    assert "| 8^3, rows | 1 | 8.0 | 1.00 | 1.00 | 100.0% |  |  |" in text
    assert "| 8^3, rows | 4 | 2.5 | 1.00 | 1.00 | 80.0% | 12.5% | 6.2% |" in text
    assert "| 8 rows per device | 4 | 2.5 | 1.00 | 1.00 | 320.0% |" in text
    assert "in one order are the same on every number of devices" in text and text.endswith("ieee 1e-07, fp16x3 0.")
    several["differences"]["bits"] = {"4": ["rows"], "2": []}
    assert "differ on 4 devices" in pytorch.texts({"several_gpus on NVIDIA X": ABOUT | several})["pytorch-gpus"]


def test_the_stored_runs_have_tables():
    stored = json.loads((tables.ROOT / "docs" / "data" / "pytorch.json").read_text())
    ran = {name.partition(" on ")[0] for name, program in stored.items() if "cases" not in program}
    assert ran == {program for program, _ in pytorch._TABLES.values()}
    assert pytorch.NOT_MEASURED not in pytorch.texts(stored).values()


def test_heads_and_routers_have_a_line_for_each_way():
    place = {"device": "NVIDIA X", "torch": "2", "date": "2030-01-01"}
    mixture = place | {"tokens": 8, "width": 64, "experts": 4, "ms": {"linear_fp32": 1.25}}
    head = place | {"tokens": 8, "vocabulary": 1000, "ms": {"bfloat16": 2.0}, "errors": {"bfloat16": 0.004}}
    texts = pytorch.texts({"mixture on NVIDIA X": mixture, "log_probability on NVIDIA X": head})
    other = mixture | {"device": "NVIDIA Y"}
    several = pytorch.texts({"mixture on NVIDIA Y": other, "mixture on NVIDIA X": mixture, "pca on NVIDIA X": place})
    first, second = several["pytorch-mixture"].split("\n\nOn ")
    assert first.startswith("On one NVIDIA Y, ") and f"On {second}" == texts["pytorch-mixture"]
    assert "4 experts of width 64, 8 tokens" in texts["pytorch-mixture"]
    assert "| linear_fp32 | 1.2 |" in texts["pytorch-mixture"]
    assert "| bfloat16 | 2.00 | 4e-03 |" in texts["pytorch-log-probability"]
