import json
import re
from pathlib import Path

import pytest
from page_tables.markdown import NOT_MEASURED

from fastsgemm.config import PipelinedConfig
from fastsgemm.rungs import IEEE, RUNGS

ROOT = Path(__file__).resolve().parents[2]
# Of docs/benchmarks.md.
PLACES = ("run", "speed", "sizes", "shapes", "layouts", "batches", "random", "losses", "ladder", "calls", "first-use")

tables = pytest.importorskip("write_tables", reason="tools/ is part of a checkout only")
machine_code = pytest.importorskip("page_tables.machine_code", reason="tools/ is part of a checkout only")
simulation = pytest.importorskip("page_tables.simulation", reason="tools/ is part of a checkout only")


def made_up_run():
    extents = {"M": 4096, "N": 4096, "K": 4096}
    rows = [
        {"number": rung.number, "name": rung.name, "ms": 100.0 / rung.number, "tflops": 1.5 * rung.number, **extents}
        | {"percent": 10.0 * rung.number, "error": 1.1e-6, "constants": {}}
        for rung in reversed(IEEE)
    ]
    rows.append({**rows[0], "number": None, "name": "cuBLAS", "percent": 100.0})
    common = {"ms": 1.0, "rung": "pipelined", "error": 3e-7, "cublas_error": 2e-7, "noise": 0.01, "load_bytes": 4}
    lost = {"M": 16, "N": 32, "K": 64, "layout": "NN", "percent": 80.0, "cublas_ms": 0.8, **common}
    won = {"M": 17, "N": 33, "K": 65, "layout": "TN", "percent": 180.0, "cublas_ms": 1.8, **common}
    shapes = [
        lost | {"lda": 64, "ldb": 32, "ldc": 32, "rule": "exact", "size": "launch-bound"},
        won | {"lda": 17 + 2, "ldb": 33 + 3, "ldc": 33, "rule": "predicted", "size": "compute-bound"},
    ]
    groups = {
        "ladder": rows,
        "shapes": shapes,
        "layouts": shapes[1:],
        "narrow": shapes[:1],
        "batches": [shapes[0] | {"batch": 100, "M": 20}],
        "random": [row | {"constants": {"BM": 16}} for row in shapes],
        "large": shapes[1:],
        "host cost of 100 calls": [{"call": "sgemm, C given", "kind": "PyTorch", "us_per_call": 6.5}],
        "first result": [{"first": "sgemm, warm cache", "ms": 80.0}, {"first": "sgemm, unknown device", "ms": 16400.0}],
        "host parts": [{}],
    }
    device = {"devices": [{"name": "NVIDIA X"}], "driver": "580.1 (CUDA 13.0)", "nvrtc": "13.0"}
    return {
        "datetime": "2026-01-02T03:04:05",
        "machine_info": {
            "fastsgemm": device,
            "packages": {"torch": "2.9"},
            "sizes": {"launch-bound": "short", "memory-bound": "thin", "compute-bound": "fat"},
        },
        "benchmarks": [
            {"group": group, "extra_info": extra, "fullname": f"{group}::{number}"}
            for group, extras in groups.items()
            for number, extra in enumerate(extras)
        ],
    }


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    known = tables.headline.known_devices.known() | {"NVIDIA X": "sm_90"}
    monkeypatch.setattr(tables.headline.known_devices, "known", lambda: known)
    (tmp_path / "docs" / "data").mkdir(parents=True)
    for name in ("literature.json", "counts.json"):
        (tmp_path / "docs" / "data" / name).write_text((ROOT / "docs" / "data" / name).read_text())
    places = [
        f"<!-- {name}:begin -->\nold\n<!-- {name}:end -->" for name in ("headline", "headline-table", "supported")
    ]
    (tmp_path / "README.md").write_text("before\n" + "\nbetween\n".join(places) + "\nafter\n")
    places = [f"<!-- {name}:begin -->\nold\n<!-- {name}:end -->" for name in PLACES]
    (tmp_path / "docs" / "benchmarks.md").write_text("\n".join(places))
    (tmp_path / "docs" / "ladder.md").write_text("<!-- counts:begin -->\n<!-- counts:end -->\n")
    (tmp_path / "run.json").write_text(json.dumps(made_up_run()))
    return tmp_path


def between(text, name):
    return text[text.index(f"<!-- {name}:begin") : text.index(f"<!-- {name}:end")]


@pytest.fixture
def page(checkout):
    """Return the page of a run; the made-up one if none is given."""

    def made(run=None):
        if run is not None:
            (checkout / "run.json").write_text(json.dumps(run))
        assert tables.main([str(checkout / "run.json")], root=checkout) == 0
        return (checkout / "docs" / "benchmarks.md").read_text()

    return made


def test_without_data_the_tables_say_so(checkout):
    assert tables.main([], root=checkout) == 0
    text = (checkout / "README.md").read_text()
    assert text.count("Not measured yet") == 2
    assert "| sm_75, Turing | Tesla T4 | no device |" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert (checkout / "docs" / "benchmarks.md").read_text().count("Not measured yet") == len(PLACES)


def test_a_run_becomes_tables_and_kept_data(checkout, page):
    text = page()
    assert "one NVIDIA X, driver 580.1 (CUDA 13.0), NVRTC 13.0, torch 2.9, 2026-01-02" in text
    assert "| 1 naive | 100 | 1.5 | 10.0 | 1.3 |" in text
    assert text.index("1 naive") < text.index("8 warptiled") < text.index("| cuBLAS |")
    assert "| `sgemm, C given` | PyTorch | 6.50 |" in text
    assert "host parts" not in (checkout / "docs" / "data" / "benchmarks.json").read_text()


def test_a_run_says_its_cublas_and_the_limits_of_its_device_where_it_has_them(checkout, page):
    run = made_up_run()
    run["machine_info"]["facts"] = {"cublas": "13.1.0", "clock_mhz": 1980.0, "power_limit_w": 700.0}
    words = "torch 2.9, cuBLAS 13.1.0, SM clock up to 1980 MHz, power limit 700 W, 2026-01-02"
    assert words in between(page(run), "run")
    assert json.loads((checkout / "docs" / "data" / "benchmarks.json").read_text())["cublas"] == "13.1.0"


def test_times_to_the_first_result_are_kept_with_their_date():
    before = {"device": "X", "date": "2030-01-01", "first": [{"first": "sgemm, warm cache", "ms": 5.0}], "calls": []}
    data = {"device": "X", "date": "2030-02-02", "first": [], "calls": []}
    other = dict(data)
    tables.benchmarks.keep_first_results(data, before)
    assert "| first result in a fresh process, 2030-01-01 | ms |" in tables.benchmarks.calls_table(data)
    tables.benchmarks.keep_first_results(other, before | {"device": "Y"})
    assert other["first"] == []


def test_there_is_a_mean_for_each_kind_of_problem(page):
    whole = page()
    text = between(whole, "speed")
    assert "| named shapes, tuned | 1 | 1 | 0.80 | 0% | 0% | 0.80 |" in text
    assert "| named shapes, predicted | 1 | 0 | 1.80 | 100% | 100% | 1.80 |" in text
    assert "| random, launch-bound | 1 | 1 | 0.80 | 0% | 0% | 0.80 |" in text
    assert "| random, 1 to 300 GFLOP | 1 | 0 | 1.80 | 100% | 100% | 1.80 |" in text
    assert (
        text.index("named shapes, tuned") < text.index("named shapes, predicted") < text.index("random, launch-bound")
    )
    took = "This took 16 s on one NVIDIA X, measured with its records removed from the database."
    assert took in between(whole, "first-use")


def test_another_device_has_its_speeds_and_its_losses_below(checkout, page):
    page()
    run = made_up_run()
    run["machine_info"]["fastsgemm"]["devices"][0]["name"] = "NVIDIA H100 80GB HBM3"
    text = page(run)
    for name in ("speed", "losses"):
        first, second = between(text, name).split("\n\nOn one NVIDIA H100 80GB HBM3, 2026-01-02:\n\n")
        assert second.strip() in first
    assert "NVIDIA H100" not in between(text, "shapes")


def test_a_problem_is_spelled_as_a_command_takes_it(page):
    text = page()
    assert "| 16,32,64 | 6.55e-05 | 0.80 |\n| 17,33,65,TN+2+3+0 | 7.29e-05 | 1.80 |" in between(text, "shapes")
    assert "2 problems, 1 tuned: mean 1.20; cuBLAS is faster on 1, the slowest has 0.80; the error is" in text
    assert "- **memory-bound**: thin\n" in text


def test_problems_in_several_layouts_have_a_column_for_each(page):
    assert "| 17 x 33 x 65 |  |  | 1.80 |  |\n| 16 x 32 x 64 | 0.80 |  |  |  |" in between(page(), "layouts")


def test_batches_have_a_mean_and_their_size_in_the_losses(checkout, page):
    text = page()
    assert "| batches | 1 | 1 | 0.80 | 0% | 0% | 0.80 |" in between(text, "speed")
    assert "| 20,32,64,x100 | 0.80 |" in between(text, "losses")
    assert "1 problems, 1 tuned: mean 0.80; cuBLAS is faster on 1" in between(text, "batches")
    kept = json.loads((checkout / "docs" / "data" / "benchmarks.json").read_text())
    assert [row["batch"] for name in ("shapes", "batches") for row in kept[name]] == [1, 1, 100]


def test_a_run_from_before_there_were_batches_gives_the_other_tables(checkout, page):
    page()
    path = checkout / "docs" / "data" / "benchmarks.json"
    kept = json.loads(path.read_text())
    del kept["batches"]
    path.write_text(json.dumps(kept))
    tables.main([], root=checkout)
    text = (checkout / "docs" / "benchmarks.md").read_text()
    assert NOT_MEASURED in between(text, "batches")
    assert "| batches |" not in between(text, "speed")


def test_every_loss_is_shown_and_a_mean_for_each_size_and_layout(page):
    run = made_up_run()
    template = next(one for one in run["benchmarks"] if one["group"] == "random")
    run["benchmarks"] += [
        template
        | {"extra_info": template["extra_info"] | {"M": M, "lda": M, "ldb": 64, "percent": 99.0, "layout": "TT"}}
        for M in range(1000, 1040)
    ]
    text = page(run)
    lost = between(text, "losses")
    assert "<summary>The 44 of 48 problems on which cuBLAS is faster, slowest first</summary>" in lost
    assert all(f"| {M},32,64,TT | 0.99 |" in lost for M in range(1000, 1040))
    assert "4 of the 44 losses and 4 of the 4 gains exceed two standard errors" in lost
    assert lost.index("| 16,32,64 | 0.80 |") < lost.index("| 1000,32,64,TT")
    assert "| random, launch-bound | 41 | 41 | 0.98 | 0% | 98% | 0.80 |" in between(text, "speed")
    random = between(text, "random")
    assert "| random problems | launch-bound | compute-bound | 1 to 300 GFLOP |" in random
    assert "| TT | 0.99 (0.99) |  |  |" in random
    assert "| loads of 4 bytes | 0.98 (0.80) | 1.80 (1.80) | 1.80 (1.80) |" in random


def test_what_a_run_did_not_measure_is_left_out(page):
    run = made_up_run()
    run["benchmarks"] = [one for one in run["benchmarks"] if one["group"] not in ("large", "first result")]
    text = page(run)
    assert "300 GFLOP" not in text and "tunes the device once." in text and "This took" not in text


def test_check_finds_a_table_edited_by_hand(checkout, capsys):
    tables.main([str(checkout / "run.json")], root=checkout)
    assert tables.main(["--check"], root=checkout) == 0
    page = checkout / "docs" / "benchmarks.md"
    edited = page.read_text().replace("100 | 1.5", "90 | 1.5")
    page.write_text(edited)
    assert tables.main(["--check"], root=checkout) == 1
    assert "benchmarks.md" in capsys.readouterr().err
    assert page.read_text() == edited


def test_the_counts_of_the_simulated_device_are_written(checkout):
    assert tables.main([], root=checkout) == 0
    text = (checkout / "docs" / "ladder.md").read_text()
    assert "128 x 256 x 128" in text and "NVIDIA H200" in text
    assert "| 1 naive | 32.0 | 1.0 | 32.0 |" in text
    for block in text.split("\n\n"):
        assert len({line.count("|") for line in block.splitlines() if line.startswith("|")}) <= 1


def test_check_finds_a_count_edited_by_hand(checkout, capsys):
    tables.main([], root=checkout)
    assert tables.main(["--check"], root=checkout) == 0
    page = checkout / "docs" / "ladder.md"
    page.write_text(page.read_text().replace("| 1 naive | 32.0 |", "| 1 naive | 4.0 |"))
    assert tables.main(["--check"], root=checkout) == 1
    assert "ladder.md" in capsys.readouterr().err


def test_check_finds_counts_that_the_page_does_not_have(checkout):
    tables.main([], root=checkout)
    kept = checkout / "docs" / "data" / "counts.json"
    counts = json.loads(kept.read_text())
    counts["rows"][0]["loads_a"]["sectors"] *= 2
    kept.write_text(json.dumps(counts))
    assert tables.main(["--check"], root=checkout) == 1


def test_a_run_without_a_device_is_refused(checkout, capsys):
    run = made_up_run()
    run["benchmarks"] = run["benchmarks"][-1:]
    (checkout / "run.json").write_text(json.dumps(run))
    with pytest.raises(SystemExit, match="2"):
        tables.main([str(checkout / "run.json")], root=checkout)
    assert "has no ladder" in capsys.readouterr().err


def test_the_literature_knows_every_rung():
    literature = json.loads((ROOT / "docs" / "data" / "literature.json").read_text())
    assert set(literature["percent_of_cublas"]) >= {rung.name for rung in IEEE if rung.number <= 8}


def test_a_rung_that_the_literature_does_not_have_has_no_figure_of_it(checkout):
    tables.main([str(checkout / "run.json")], root=checkout)
    lines = between((checkout / "docs" / "benchmarks.md").read_text(), "ladder").splitlines()
    cells = {line.split("|")[1].strip(): line.split("|")[5].strip() for line in lines if line.count("|") == 6}
    assert cells["8 warptiled"] == "93.7" and cells["9 pipelined"] == "" and cells["cuBLAS"] in ("100", "100.0")


CONFIG = PipelinedConfig(64, 128, 8, 8, 4, 32, 64, 1)


def made_up_sass():
    counts = {"instructions": 80, "ffma": 70, "ffma2": 0, "barriers": 1, "registers": 140, "spilled_bytes": 0}
    counts |= {"lds": {"128": 4}, "copies": {"STS.32": 2, "LDG.128": 1}, "others": {"MOV": 1, "BRA": 1}, "reuse": 60}
    rows = [
        {"problem": problem, "layout": layout, "constants": CONFIG.constants} | counts
        for problem, layout in (("4096,4096,4096", "NN"), ("4096,4096,4096,TN", "TN"))
    ]
    by_arch = {"sm_90": counts, "sm_100": counts | {"instructions": 46, "ffma2": 34}}
    about = {"arch": "sm_90", "device": "NVIDIA X", "nvrtc": "13.5", "nvdisasm": "13.1"}
    return about | {"rows": rows, "architectures": by_arch}


def made_up_ncu(*metrics):
    rows = [{"layout": layout, "constants": CONFIG.constants, "metrics": dict(metrics)} for layout in ("NN", "NT")]
    about = {"date": "2026-01-02", "device": "NVIDIA X", "driver": "580.1", "nvrtc": "13.5", "ncu": "2025.4"}
    return about | {"M": 4096, "N": 4096, "K": 4096, "rows": rows}


@pytest.fixture
def sass_page(checkout):
    path = checkout / "docs" / "sass.md"
    path.write_text("".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in ("sass", "ncu-pipe")))
    return path


def test_without_machine_code_and_profile_the_page_says_so(checkout, sass_page):
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert text.count("Not written yet: run `make sass`") == 1
    assert text.count("Not measured yet: run `tools/ncu_pipe.py`") == 1


def test_the_machine_code_is_counted(checkout, sass_page):
    (checkout / "docs" / "data" / "sass.json").write_text(json.dumps(made_up_sass()))
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert "For sm_90 (NVIDIA X), compiled by NVRTC 13.5, nvdisasm 13.1." in text
    assert "| 4096,4096,4096,TN | 70 | 87.5 | 4 LDS.128 | 2 STS.32, 1 LDG.128 | 1 | 2 | 60 | 140 |" in text
    assert "spilled" not in text
    assert tables.main(["--check"], root=checkout) == 0


def test_the_machine_code_of_each_architecture_is_counted_per_fma(checkout, sass_page):
    (checkout / "docs" / "data" / "sass.json").write_text(json.dumps(made_up_sass()))
    sass_page.write_text("<!-- sass-architectures:begin -->\n<!-- sass-architectures:end -->\n")
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert "| sm_90 | 1.000 | 0.000 | 0.057 | 0.086 | 1.143 | 140 |" in text
    assert "| sm_100 | 0.029 | 0.486 | 0.057 | 0.086 | 0.657 | 140 |" in text


def test_the_machine_code_of_rung_11_is_counted(checkout, sass_page):
    loop = [".L_x_1:", "HGMMA.64x128x16.F32 R24, gdesc[UR8], R24", "FADD R1, R1, R24", "@P0 BRA `(.L_x_1)"]
    opcodes = {"HGMMA": 12, "FADD": 64, "UMOV": 27, "SYNCS": 8}
    tensor = {"arch": "sm_90a", "problem": "4096,4096,4096", "constants": {"BM": 128, "BN": 128}, "registers": 168}
    tensor |= {"spilled_bytes": 0, "opcodes": opcodes, "loop": loop}
    (checkout / "docs" / "data" / "sass.json").write_text(json.dumps(made_up_sass() | {"fp16x3": tensor}))
    sass_page.write_text("<!-- sass-fp16x3:begin -->\n<!-- sass-fp16x3:end -->\n")
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert "For sm_90a, with 384 threads, 168 registers" in text
    assert "111 instructions: 12 `HGMMA`, 64 `FADD`, 8 `SYNCS`, 0 `WARPGROUP` and 27 others." in text


def test_check_finds_machine_code_that_the_page_does_not_have(checkout, sass_page, capsys):
    tables.main([], root=checkout)
    (checkout / "docs" / "data" / "sass.json").write_text(json.dumps(made_up_sass()))
    assert tables.main(["--check"], root=checkout) == 1
    assert "sass.md" in capsys.readouterr().err


def test_the_profile_is_written(checkout, sass_page):
    other = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
    found = made_up_ncu((other, 81.0), (machine_code.PIPE, 83.26), ("gpu__time_duration.sum", 2750000.0))
    (checkout / "docs" / "data" / "ncu.json").write_text(json.dumps(found))
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert "4096 x 4096 x 4096 on one NVIDIA X, driver 580.1, NVRTC 13.5, Nsight Compute 2025.4, 2026-01-02." in text
    assert f"FMA pipe: `{machine_code.PIPE}`; tensor pipe: ncu gave no figure." in text
    assert (
        "| pipelined, NT | FMA | 83.3 | 2.750 |" in text and "issue slots" not in text
    )  # which this ncu did not report


def test_the_issue_slots_are_written_where_they_were_measured(checkout, sass_page):
    found = made_up_ncu((machine_code.PIPE, 83.26), (machine_code.ISSUE, 91.0))
    (checkout / "docs" / "data" / "ncu.json").write_text(json.dumps(found))
    assert tables.main([], root=checkout) == 0
    assert "| pipelined, NN | FMA | 83.3 | 91.0 |  |" in sass_page.read_text()


def test_of_a_profile_without_the_usual_metric_the_first_of_the_pipe_is_shown(checkout, sass_page):
    other = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
    metrics = [("sm__throughput.avg.pct_of_peak_sustained_elapsed", 7.0), ("sm__inst_executed_pipe_fma.sum", 9.0)]
    metrics += [(other, 81.0), ("sm__cycles_active.avg", 5.0)]
    (checkout / "docs" / "data" / "ncu.json").write_text(json.dumps(made_up_ncu(*metrics)))
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert f"FMA pipe: `{other}`;" in text and "| pipelined, NN | FMA | 81.0 |  |" in text


def test_the_profile_of_rung_11_is_of_the_tensor_pipe(checkout, sass_page):
    found = made_up_ncu((machine_code.PIPE, 83.26), ("gpu__time_duration.sum", 2750000.0))
    metrics = {machine_code.PIPE: 8.8, machine_code.TENSOR_PIPE: 89.91, "gpu__time_duration.sum": 550000.0}
    found["rows"].append({"rung": "fp16x3", "layout": "NN", "constants": {"BM": 128}, "metrics": metrics})
    (checkout / "docs" / "data" / "ncu.json").write_text(json.dumps(found))
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert f"tensor pipe: `{machine_code.TENSOR_PIPE}`." in text
    assert "| fp16x3, NN | tensor | 89.9 | 0.550 |" in text


def test_a_profile_without_any_metric_of_the_pipe_says_so(checkout, sass_page):
    (checkout / "docs" / "data" / "ncu.json").write_text(json.dumps(made_up_ncu(("gpu__time_duration.sum", 1e6))))
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert "FMA pipe: ncu gave no figure;" in text and "| pipelined, NN | FMA |  | 1.000 |" in text


def test_the_counters_are_written(checkout):
    page = checkout / "docs" / "simulated-device.md"
    page.write_text("<!-- counters:begin -->\n<!-- counters:end -->\n")
    assert tables.main([], root=checkout) == 0
    assert simulation.NOT_COUNTED in page.read_text()
    rows = [
        {"rung": "blocktile_2d", "metric": metric, "gated": gated, "sim": sim, "ncu": ncu, "percent": percent}
        for metric, gated, sim, ncu, percent in [
            ("thread FMAs", True, 99.0, 100.0, -1.0),
            ("shared store wavefronts", True, 8192.0, 8192.0, 0.0),
            ("of stores, with repeats", False, 8192.0, 8874.0, -7.7),
            ("instructions", False, 102.0, 100.0, 2.0),
        ]
    ]
    found = {"device": "NVIDIA X", "driver": "580.1", "date": "2026-01-02", "rows": rows}
    found["problem"] = {"M": 256, "N": 128, "K": 64}
    (checkout / "docs" / "data" / "counters.json").write_text(json.dumps(found))
    assert tables.main(["--check"], root=checkout) == 1
    assert tables.main([], root=checkout) == 0
    text = page.read_text()
    assert "256 x 128 x 64 on one NVIDIA X, driver 580.1, 2026-01-02: over 1 rungs, the largest difference is" in text
    assert "difference is 1.00 %. Instructions" in text
    assert "differ by +2.0 to +2.0 %." in text


def test_the_attacks_are_written(checkout):
    page = checkout / "docs" / "simulated-device.md"
    page.write_text("<!-- hostile:begin -->\nold\n<!-- hostile:end -->\n")
    assert tables.main([], root=checkout) == 0
    assert simulation.NOT_ATTACKED in page.read_text()
    (checkout / "docs" / "data" / "hostile.json").write_text(json.dumps({"strides": 12345, "bytes": 7}))
    assert tables.main(["--check"], root=checkout) == 1
    assert tables.main([], root=checkout) == 0
    assert page.read_text().splitlines()[1] == "The stored run tried 2 kinds of attack, 12,352 times in all."


def test_every_place_of_a_page_has_a_text_and_every_text_a_place():
    others = {"rooms", "steps"} | {f"rung-{rung.name}" for rung in RUNGS}  # of tools/draw_rooms.py and draw_ladder.py
    names = tables.contents(tables.read_data(ROOT)).keys() | {"commands", "variables"} | others
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = [re.findall(r"^<!-- ([\w-]+):(begin|end) -->$", path.read_text(), re.MULTILINE) for path in pages]
    places = [name for markers in found for name, side in markers if side == "begin"]
    assert [name for markers in found for name, side in markers if side == "end"] == places
    assert {*places} == {*names}
