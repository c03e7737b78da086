import importlib.util
import json
from pathlib import Path

import pytest

from fastsgemm.rungs import RUNGS

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(not (ROOT / "tools").is_dir(), reason="tools/ is part of a checkout only")


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("write_tables", ROOT / "tools" / "write_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_up_run():
    extents = {"M": 4096, "N": 4096, "K": 4096}
    rows = [
        {"number": rung.number, "name": rung.name, "ms": 100.0 / rung.number, "tflops": 1.5 * rung.number, **extents}
        | {"percent": 10.0 * rung.number, "error": 1.1e-6, "constants": {}}
        for rung in reversed(RUNGS)
    ]
    rows.append({**rows[0], "number": None, "name": "cuBLAS", "percent": 100.0})
    common = {"ms": 1.0, "rung": "pipelined", "error": 3e-7, "cublas_error": 2e-7}
    shapes = [
        {"M": 16, "N": 32, "K": 64, "layout": "NN", "percent": 80.0, "cublas_ms": 0.8, **common},
        {"M": 17, "N": 33, "K": 65, "layout": "TN", "percent": 180.0, "cublas_ms": 1.8, **common},
    ]
    groups = {
        "ladder": rows,
        "shapes": shapes,
        "layouts": shapes[1:],
        "random": [row | {"constants": {"BM": 16}} for row in shapes],
        "host cost of 100 calls": [{"call": "sgemm, C given", "kind": "PyTorch", "us_per_call": 6.5}],
        "first result": [{"first": "sgemm, warm cache", "ms": 80.0}],
        "host parts": [{}],
    }
    device = {"devices": [{"name": "NVIDIA X"}], "driver": "580.1 (CUDA 13.0)", "nvrtc": "13.0"}
    return {
        "datetime": "2026-01-02T03:04:05",
        "machine_info": {"fastsgemm": device, "packages": {"torch": "2.9"}},
        "benchmarks": [{"group": group, "extra_info": extra} for group, extras in groups.items() for extra in extras],
    }


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "docs" / "data").mkdir(parents=True)
    for name in ("literature.json", "counts.json"):
        (tmp_path / "docs" / "data" / name).write_text((ROOT / "docs" / "data" / name).read_text())
    places = [f"<!-- {name}:begin -->\nold\n<!-- {name}:end -->" for name in ("ladder", "losses", "calls")]
    (tmp_path / "README.md").write_text("before\n" + "\nbetween\n".join(places) + "\nafter\n")
    places = [f"<!-- {name}:begin -->\nold\n<!-- {name}:end -->" for name in ("shapes", "layouts", "random")]
    (tmp_path / "docs" / "benchmarks.md").write_text("\n".join(places))
    (tmp_path / "docs" / "ladder.md").write_text(
        "<!-- counts:begin -->\n<!-- counts:end -->\n<!-- counts-naive:begin -->\n<!-- counts-naive:end -->\n"
    )
    (tmp_path / "run.json").write_text(json.dumps(made_up_run()))
    return tmp_path


def test_without_data_the_tables_say_so(tables, checkout):
    assert tables.main([], root=checkout) == 0
    text = (checkout / "README.md").read_text()
    assert text.count("Not measured yet") == 3
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")


def test_a_run_becomes_tables_and_kept_data(tables, checkout):
    assert tables.main([str(checkout / "run.json")], root=checkout) == 0
    text = (checkout / "README.md").read_text()
    assert "one NVIDIA X, driver 580.1 (CUDA 13.0), NVRTC 13.0, torch 2.9, 2026-01-02" in text
    assert "| 1 naive | 100 | 1.5 | 10.0 | 1.3 | 1.10e-06 |" in text
    assert text.index("1 naive") < text.index("8 warptiled") < text.index("| cuBLAS |")
    assert "cuBLAS is faster on 1 of the 2 shapes tried" in text
    assert "16 x 32 x 64 (80 %)" in text
    assert "| `sgemm, C given` | PyTorch | 6.50 |" in text
    page = (checkout / "docs" / "benchmarks.md").read_text()
    line = "| 17 | 33 | 65 | TN | pipelined | 1 | 1.8 | 7.29e-05 | 180.0 | 1.50 |"
    assert page.count(line) == 2  # shapes and layouts; what is kept of random problems has no layout
    assert page.count("Geometric mean over 2 problems: 1.200 times cuBLAS's speed; at least as fast on 50%") == 2
    assert "Error: at most 1.50 times cuBLAS's" in page and "Deciles" in page
    assert "host parts" not in (checkout / "docs" / "data" / "benchmarks.json").read_text()


def test_check_finds_a_table_edited_by_hand(tables, checkout, capsys):
    tables.main([str(checkout / "run.json")], root=checkout)
    assert tables.main(["--check"], root=checkout) == 0
    readme = checkout / "README.md"
    edited = readme.read_text().replace("100 | 1.5", "90 | 1.5")
    readme.write_text(edited)
    assert tables.main(["--check"], root=checkout) == 1
    assert "README.md" in capsys.readouterr().err
    assert readme.read_text() == edited


def test_the_counts_of_the_simulated_device_are_written(tables, checkout):
    assert tables.main([], root=checkout) == 0
    text = (checkout / "docs" / "ladder.md").read_text()
    assert "128 x 128 x 128" in text and "NVIDIA H200" in text
    assert "| 1 naive | 32.0 | 1.0 | 32.0 |" in text
    assert "> BM=32 BN=32: sectors: 32 a load of A, 1 a load of B, 32 a store of C; 2 global loads an FMA; no" in text


def test_check_finds_a_count_edited_by_hand(tables, checkout, capsys):
    tables.main([], root=checkout)
    assert tables.main(["--check"], root=checkout) == 0
    page = checkout / "docs" / "ladder.md"
    page.write_text(page.read_text().replace("32 a load of A", "4 a load of A"))
    assert tables.main(["--check"], root=checkout) == 1
    assert "ladder.md" in capsys.readouterr().err


def test_check_finds_counts_that_the_page_does_not_have(tables, checkout):
    tables.main([], root=checkout)
    kept = checkout / "docs" / "data" / "counts.json"
    counts = json.loads(kept.read_text())
    counts["rows"][0]["loads_a"]["sectors"] *= 2
    kept.write_text(json.dumps(counts))
    assert tables.main(["--check"], root=checkout) == 1


def test_a_run_without_a_device_is_refused(tables, checkout, capsys):
    run = made_up_run()
    run["benchmarks"] = run["benchmarks"][-1:]
    (checkout / "run.json").write_text(json.dumps(run))
    with pytest.raises(SystemExit, match="2"):
        tables.main([str(checkout / "run.json")], root=checkout)
    assert "holds no ladder" in capsys.readouterr().err


def test_the_literature_knows_every_rung():
    literature = json.loads((ROOT / "docs" / "data" / "literature.json").read_text())
    assert set(literature["percent_of_cublas"]) >= {rung.name for rung in RUNGS if rung.number <= 8}


def test_a_rung_that_the_literature_does_not_have_has_no_figure_of_it(tables, checkout):
    tables.main([str(checkout / "run.json")], root=checkout)
    lines = (checkout / "README.md").read_text().splitlines()
    cells = {line.split("|")[1].strip(): line.split("|")[5].strip() for line in lines if line.count("|") == 7}
    assert cells["8 warptiled"] == "93.7" and cells["9 pipelined"] == "" and cells["cuBLAS"] in ("100", "100.0")


def made_up_sass(lines=3):
    constants = {"BM": 64, "BN": 128, "BK": 8}
    rows = [
        {"problem": problem, "layout": layout, "constants": constants, "instructions": 80, "ffma": 70, "barriers": 1}
        | {"lds": {"128": 4}, "copies": {"STS.32": 2, "LDG.128": 1}, "others": {"MOV": 1, "BRA": 1}, "reuse": 60}
        | {"registers": 140, "spilled_bytes": 0}
        for problem, layout in (("4096,4096,4096", "NN"), ("4096,4096,4096,TN", "TN"))
    ]
    loop = [".L_x_2:", *(f"FFMA R{number}, R1.reuse, R2, R3" for number in range(lines - 2)), "@P0 BRA `(.L_x_2)"]
    return {"arch": "sm_90", "device": "NVIDIA X", "nvrtc": "13.5", "nvdisasm": "13.1", "rows": rows, "loop": loop}


def made_up_ncu(*metrics):
    rows = [{"layout": layout, "constants": {"BM": 64, "BN": 128}, "metrics": dict(metrics)} for layout in ("NN", "NT")]
    about = {"date": "2026-01-02", "device": "NVIDIA X", "driver": "580.1", "nvrtc": "13.5", "ncu": "2025.4"}
    return about | {"M": 4096, "N": 4096, "K": 4096, "rows": rows}


@pytest.fixture
def sass_page(checkout):
    path = checkout / "docs" / "sass.md"
    path.write_text(
        "".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in ("sass", "sass-loop", "ncu-pipe"))
    )
    return path


def test_without_machine_code_and_profile_the_page_says_so(tables, checkout, sass_page):
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert text.count("Not written yet: run `make sass`") == 2
    assert text.count("Not measured yet: run `tools/ncu_pipe.py`") == 1


def test_the_machine_code_is_counted_and_listed(tables, checkout, sass_page):
    (checkout / "docs" / "data" / "sass.json").write_text(json.dumps(made_up_sass()))
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert "For sm_90 (NVIDIA X), compiled by NVRTC 13.5, nvdisasm 13.1." in text
    assert "| 4096 x 4096 x 4096, TN | 80 | 70 | 87.5 | 4 LDS.128 | 2 STS.32, 1 LDG.128 | 1 | 2 | 60 |" in text
    assert "| 4096 x 4096 x 4096, NN | 140 | 0 | 1 MOV, 1 BRA | BM=64 BN=128 BK=8 |" in text
    assert "<summary>The main loop for 4096 x 4096 x 4096, NN: 3 lines</summary>\n\n```\n.L_x_2:\n    FFMA R0" in text
    assert "    @P0 BRA `(.L_x_2)\n```\n\n</details>\n<!-- sass-loop:end -->" in text
    assert "more lines" not in text
    assert tables.main(["--check"], root=checkout) == 0


def test_a_listing_that_is_too_long_is_cut(tables, checkout, sass_page):
    (checkout / "docs" / "data" / "sass.json").write_text(json.dumps(made_up_sass(lines=705)))
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert text.count("FFMA R") == 699 and "    ... and 5 more lines\n```" in text


def test_check_finds_machine_code_that_the_page_does_not_have(tables, checkout, sass_page, capsys):
    tables.main([], root=checkout)
    (checkout / "docs" / "data" / "sass.json").write_text(json.dumps(made_up_sass()))
    assert tables.main(["--check"], root=checkout) == 1
    assert "sass.md" in capsys.readouterr().err


def test_the_profile_is_written(tables, checkout, sass_page):
    other = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
    found = made_up_ncu((other, 81.0), (tables.PIPE, 83.26), ("gpu__time_duration.sum", 2750000.0))
    (checkout / "docs" / "data" / "ncu.json").write_text(json.dumps(found))
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert "4096 x 4096 x 4096 on one NVIDIA X, driver 580.1, NVRTC 13.5, Nsight Compute 2025.4, 2026-01-02." in text
    assert f"FMA pipe: `{tables.PIPE}`." in text
    assert "| NT | 83.3 | 2.750 | BM=64 BN=128 |" in text


def test_of_a_profile_without_the_usual_metric_the_first_of_the_pipe_is_shown(tables, checkout, sass_page):
    other = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
    metrics = [("sm__throughput.avg.pct_of_peak_sustained_elapsed", 7.0), ("sm__inst_executed_pipe_fma.sum", 9.0)]
    metrics += [(other, 81.0), ("sm__cycles_active.avg", 5.0)]
    (checkout / "docs" / "data" / "ncu.json").write_text(json.dumps(made_up_ncu(*metrics)))
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert f"FMA pipe: `{other}`." in text and "| NN | 81.0 |  | BM=64 BN=128 |" in text


def test_a_profile_without_any_metric_of_the_pipe_says_so(tables, checkout, sass_page):
    (checkout / "docs" / "data" / "ncu.json").write_text(json.dumps(made_up_ncu(("gpu__time_duration.sum", 1e6))))
    assert tables.main([], root=checkout) == 0
    text = sass_page.read_text()
    assert "FMA pipe: ncu gave no figure." in text and "| NN |  | 1.000 | BM=64 BN=128 |" in text


def test_the_counters_are_written(tables, checkout):
    page = checkout / "docs" / "simulated-device.md"
    page.write_text("<!-- counters:begin -->\n<!-- counters:end -->\n")
    assert tables.main([], root=checkout) == 0
    assert tables.NOT_COUNTED in page.read_text()
    rows = [
        {"rung": "blocktile_2d", "metric": metric, "gated": gated, "sim": sim, "ncu": ncu, "percent": percent}
        for metric, gated, sim, ncu, percent in [
            ("thread FMAs", True, 99.0, 100.0, -1.0),
            ("shared store wavefronts", True, 8192.0, 8192.0, 0.0),
            (tables.REPEATED, False, 8192.0, 8874.0, -7.7),
            ("instructions", False, 102.0, 100.0, 2.0),
        ]
    ]
    found = {"device": "NVIDIA X", "driver": "580.1", "date": "2026-01-02", "rows": rows}
    found["problem"] = {"M": 256, "N": 128, "K": 64}
    (checkout / "docs" / "data" / "counters.json").write_text(json.dumps(found))
    assert tables.main(["--check"], root=checkout) == 1
    assert tables.main([], root=checkout) == 0
    text = page.read_text()
    assert "256 x 128 x 64 on one NVIDIA X, driver 580.1, 2026-01-02." in text
    assert "| blocktile_2d | 1.00 | 8192 | 8874 | +2.00 |" in text
