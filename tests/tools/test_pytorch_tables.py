"""The tables of docs/pytorch.md, from runs that are made up."""

import json

import pytest

tables = pytest.importorskip("write_tables", reason="tools/ is part of a checkout only")
pytorch = pytest.importorskip("page_tables.pytorch", reason="tools/ is part of a checkout only")

ABOUT = {"device": "NVIDIA X", "torch": "2.11", "date": "2026-01-02"}
TIMES = {"PyTorch": 10.0, "null": 10.1, "ieee": 9.0, "fp16x3": 12.5}


def shown(programs):
    return pytorch.texts({"pytorch": programs})


def timed(what, **about):
    difference, share = {"ieee": 1e-6, "fp16x3": 2e-7}, {"ieee": 0.5, "fp16x3": 0.5}
    case = {"what": what, "ms": TIMES, "limit": "device", "difference": difference, "share": share}
    return {"cases": [case | {name: about.pop(name) for name in ("ms", "limit") if name in about}]} | ABOUT | about


def test_calls_show_what_each_product_adds_and_calls_their_time():
    steps = [
        {
            "step": "mm 8 x 8 x 8",
            "products": 10,
            "launches": {"PyTorch": 1, "ieee": 2, "fp16x3": None},
            "step_us": {"PyTorch": 200.0, "null": 201.0, "ieee": 150.0, "fp16x3": 230.0},
        }
    ]
    us = {
        "torch.mm(out=)": 10.0, "torch.mm(out=), null": 11.0, "fastsgemm.sgemm, C given": 6.0, "torch.mm": 20.0,
        "torch.mm, null": 19.0, "fastsgemm.sgemm": 5.0, "torch.ops.fastsgemm.sgemm": 30.0,
    }  # fmt: skip
    calls = [{"size": [8, 8, 8], "rung": None, "us": us}, {"size": [8, 8, 8], "rung": "fp16x3", "us": us}]
    about = ABOUT | {"remark": "It was warm."}
    texts = shown({"calls on NVIDIA X": {"steps": steps, "calls": calls} | about})
    text = texts["pytorch-calls"]
    assert text.startswith("On one NVIDIA X, torch 2.11, 2026-01-02.\n")
    assert "| mm 8 x 8 x 8 | 10 | 1 / 2 / ? | 20.0 | +0.1 | -5.0 | +3.0 |\n" in text
    assert "| `torch.mm(out=)`, 8 x 8 x 8 | 10.0 |  |\n| `torch.mm(out=), null`, 8 x 8 x 8 | 11.0 | 1.10 |\n" in text
    assert "| `fastsgemm.sgemm, C given`, 8 x 8 x 8 | 6.0 | 0.60 |\n" in text
    assert "| `fastsgemm.sgemm`, 8 x 8 x 8, rung fp16x3 | 5.0 | 0.25 |\n" in text
    assert "| `torch.ops.fastsgemm.sgemm`, 8 x 8 x 8 | 30.0 | 1.50 |\n" in text and text.endswith("\n\nIt was warm.")
    assert texts["pytorch-programs"] == texts["pytorch-gpus"] == pytorch.NOT_MEASURED


def test_programs_say_where_and_when_they_ran_and_show_what_is_relative_to_pytorch():
    found = {
        "encoder on NVIDIA X": timed("BERT"),
        "decoder on NVIDIA X": timed("wide", ms=TIMES | {"null": 9.0, "fp16x3": 10.2}, limit="host"),
        "compiled on NVIDIA A": timed("MLP", device="NVIDIA A"),
    }
    texts = shown(found)
    row = "| 10.00 | 1.01 | 0.90 | 1.25 | device |"
    first, second = texts["pytorch-programs"].split("\n\nOn ")
    assert first.startswith("On one NVIDIA X, torch 2.11, 2026-01-02.\n")
    assert f"| BERT {row}\n| wide | 10.00 | 0.90 | 0.90 | 1.02 | host |\n\nGeometric means of all 2: " in first
    assert "all 2: 0.900 ieee, 1.129 fp16x3. Of the 1 that the host limits: 0.900 ieee, 1.020 fp16x3." in first
    assert "than the null run differs: 0 with ieee and 1 with fp16x3. The results differ" in first
    assert "differ from PyTorch's by at most 1e-06 and 2e-07 of their norm, with ieee and with fp16x3; at" in first
    assert first.endswith("at least 50.0% of the FLOPs of products were replaced.")
    assert second.startswith("one NVIDIA A, torch 2.11, 2026-01-02.") and f"| MLP {row}\n" in second
    found |= {"pca on NVIDIA X": timed("PCA"), "neighbours on NVIDIA X": timed("ten")}
    x, a = "NVIDIA X, 2026-01-02", "NVIDIA A, 2026-01-02"
    other, symmetric = "other PyTorch programs", "PyTorch programs with A Aᵀ"
    wide = found["decoder on NVIDIA X"]["cases"][0]["ms"]
    expected = [((x, symmetric), [TIMES] * 2), ((x, other), [TIMES, wide]), ((a, other), [TIMES])]
    assert list(pytorch.step_times(found).items()) == expected


def test_a_run_without_a_null_run_leaves_its_cell_empty():
    times = {name: ms for name, ms in TIMES.items() if name != "null"}
    text = shown({"encoder on NVIDIA X": timed("BERT", ms=times, limit="")})["pytorch-programs"]
    assert "| BERT | 10.00 |  | 0.90 | 1.25 |  |" in text and "0 with ieee and 1 with fp16x3" in text


def test_samples_of_pytorch_are_summed_up():
    rows = [{"samples": 3, "replaced": 4, "worst": worst} for worst in (1e-7, 0.0)]
    text = shown({"opinfo on NVIDIA X": ABOUT | {"tolerance": 1e-5, "operators": rows}})["pytorch-opinfo"]
    assert "All 6 samples, with 8 calls that were replaced, agree to 1e-05;" in text and text.endswith(" 1.0e-07.")


def test_scaling_is_compared_with_one_device_and_says_what_limits():
    def run(devices, ms):
        times = dict.fromkeys(("PyTorch", "ieee", "fp16x3"), ms)
        shares = {"ieee": {"products": 0.75, "NCCL": 0.125, "waiting": 0.0625}} if devices > 1 else {}
        works = {name: {"ms": times, "shares": shares} for name in ("8^3, rows", "8 rows per device")}
        return {"devices": devices, "works": works}

    several = {"scaling": [run(1, 8.0), run(4, 2.5)]}
    several["differences"] = {"bits": {"4": []}, "losses": {"ieee": 1e-7, "fp16x3": 0.0}}
    text = shown({"several_gpus on NVIDIA X": ABOUT | several})["pytorch-gpus"]
    assert "| 8^3, rows | 1 | 8.0 | 1.00 | 1.00 | 100.0% |  |  |" in text
    assert "| 8^3, rows | 4 | 2.5 | 1.00 | 1.00 | 80.0% | 12.5% | 6.2% |" in text
    assert "| 8 rows per device | 4 | 2.5 | 1.00 | 1.00 | 320.0% |" in text
    assert "in one order are the same on every number of devices" in text and text.endswith("ieee 1e-07, fp16x3 0.")
    several["differences"]["bits"] = {"4": ["rows"], "2": []}
    assert "differ on 4 devices" in shown({"several_gpus on NVIDIA X": ABOUT | several})["pytorch-gpus"]


def test_the_stored_runs_have_tables():
    stored = json.loads((tables.ROOT / "docs" / "data" / "pytorch.json").read_text())
    ran = {name.partition(" on ")[0] for name, program in stored.items() if "cases" not in program}
    assert ran <= {program for program, _ in pytorch._TABLES.values()}
    texts = shown(stored)
    assert texts.pop("pytorch-programs") != pytorch.NOT_MEASURED
    for name, text in texts.items():
        assert (text != pytorch.NOT_MEASURED) == (pytorch._TABLES[name][0] in ran)


def test_heads_and_routers_have_a_line_for_each_way():
    place = {"device": "NVIDIA X", "torch": "2", "date": "2030-01-01"}
    mixture = place | {"tokens": 8, "width": 64, "experts": 4, "ms": {"linear_fp32": 1.25}}
    head = place | {"tokens": 8, "vocabulary": 1000, "ms": {"bfloat16": 2.0}, "errors": {"bfloat16": 0.004}}
    texts = shown({"mixture on NVIDIA X": mixture, "log_probability on NVIDIA X": head})
    other = mixture | {"device": "NVIDIA Y"}
    several = pytorch.texts(
        {"pytorch": {"mixture on NVIDIA Y": other, "mixture on NVIDIA X": mixture, "pca on NVIDIA X": place}}
    )
    first, second = several["pytorch-mixture"].split("\n\nOn ")
    assert first.startswith("On one NVIDIA Y, ") and f"On {second}" == texts["pytorch-mixture"]
    assert "4 experts of width 64, 8 tokens" in texts["pytorch-mixture"]
    assert "| linear_fp32 | 1.2 |" in texts["pytorch-mixture"]
    assert "| bfloat16 | 2.00 | 4e-03 |" in texts["pytorch-log-probability"]
