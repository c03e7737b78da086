"""The figures show their data, both themes differ, and a figure of old data is found without drawing it."""

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

figures = pytest.importorskip("draw_figures", reason="tools/ is part of a checkout only")


@pytest.fixture(scope="module")
def selected():
    files = figures.read_data(ROOT)
    return {name: one.select(files) for name, one in figures.FIGURES.items()}


@pytest.fixture
def checkout(tmp_path):
    shutil.copytree(ROOT / "docs" / "data", tmp_path / "docs" / "data")
    shutil.copytree(ROOT / "docs" / "figures", tmp_path / "docs" / "figures")
    (tmp_path / "tuning_db").mkdir()
    shutil.copy(ROOT / "tuning_db" / "sm_90.json", tmp_path / "tuning_db")
    return tmp_path


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg.encode()).iter("{http://www.w3.org/2000/svg}text")]


def test_the_figures_of_this_checkout_are_up_to_date(capsys):
    assert figures.main(["--check"]) == 0, capsys.readouterr().err


def test_a_figure_of_other_data_is_found_and_no_other(checkout, capsys):
    path = checkout / "docs" / "data" / "benchmarks.json"
    bench = json.loads(path.read_text())
    bench["ladder"][0]["tflops"] += 0.1
    bench["ladder"][0]["error"] *= 2  # in no figure
    path.write_text(json.dumps(bench))
    assert figures.main(["--check"], root=checkout) == 1
    found = capsys.readouterr().err
    assert "ladder-light.svg" in found and "ladder-dark.svg" in found and "rooflines-dark.svg" in found
    assert "random" not in found and "curves" not in found


def test_data_that_are_in_no_figure_change_nothing(checkout):
    path = checkout / "docs" / "data" / "benchmarks.json"
    bench = json.loads(path.read_text())
    bench["calls"] = []
    path.write_text(json.dumps(bench))
    assert figures.main(["--check"], root=checkout) == 0


def test_a_missing_figure_is_found(checkout, capsys):
    (checkout / "docs" / "figures" / "random-dark.svg").unlink()
    assert figures.main(["--check"], root=checkout) == 1
    assert "random-dark.svg" in capsys.readouterr().err


def test_without_a_benchmark_its_figures_are_left_out():
    files = figures.read_data(ROOT) | {"benchmarks": None}
    missing = [name for name, one in figures.FIGURES.items() if one.select(files) is None]
    assert missing == ["ladder", "random", "sizes", "rooflines"]


def test_every_problem_is_a_point_and_losses_are_counted(selected):
    bench = json.loads((ROOT / "docs" / "data" / "benchmarks.json").read_text())
    points = selected["random"]["points"]
    assert len(points) == len(bench["random"]) + len(bench["large"])
    assert sum(speed < 1 for _, speed in points) == sum(
        row["percent"] < 100 for row in bench["random"] + bench["large"]
    )


def test_no_rung_is_faster_than_the_roof_of_shared_memory(selected):
    data = selected["rooflines"]
    rungs = [row for row in data["rungs"] if row[2] is not None]
    assert len(rungs) > 5
    assert [number for number, _, intensity, rate in rungs if rate > 1.05 * data["shared"] * intensity] == []


def test_squares_become_lines_where_they_are_measured():
    pytest.importorskip("matplotlib")
    files = figures.read_data(ROOT)
    row = next(row for row in files["benchmarks"]["large"] if row["layout"] == "TT")
    squares = [row | {"M": size, "N": size, "K": size} for size in (512, 1024)]
    bench = files["benchmarks"] | {"squares": squares}
    data = figures.select_sizes(files | {"benchmarks": bench})
    assert [place for place, _, _ in data["squares"]["TT"]] == [512.0, 1024.0]
    assert "sgemm, square" in texts(figures.svg("sizes", data, figures.THEMES["light"]))


def test_drawing_twice_gives_the_same_file_and_the_other_theme_another(selected):
    pytest.importorskip("matplotlib")
    light, again, dark = (
        figures.svg("ladder", selected["ladder"], figures.THEMES[one]) for one in ("light", "light", "dark")
    )
    assert light == again
    assert light != dark
    assert texts(light) == texts(dark)
    assert "9 pipelined" in texts(light)


def test_speed_against_error_is_that_of_the_largest_square(selected):
    pytest.importorskip("matplotlib")
    assert selected["precision"]["title"].startswith("8192 x 8192 x 8192, one NVIDIA H200")
    own, other = {"tflops": 180.0, "error": 2e-7}, {"tflops": 50.0, "error": 1e-6}
    tf32 = {"tflops": 300.0, "error": 3e-4}
    largest = {"fastsgemm fp16x3": own, "cuBLAS FP32": other, "cuBLAS TF32": tf32, "Y BF16 X9": tf32}
    peers = [{"n": 8192, "peers": largest}, {"n": 512, "peers": {"old": own}}]
    data = figures.select_precision({"fp16x3": {"device": "NVIDIA X", "date": "2026-01-02", "peers": peers}})
    shown = texts(figures.svg("precision", data, figures.THEMES["dark"]))
    assert {"fastsgemm fp16x3", "cuBLAS FP32", "cuBLAS TF32"} <= {*shown} and "old" not in shown
    assert "Y BF16 X9" not in shown  # what ran under this name was TF32


def test_a_figure_is_as_wide_as_a_phone_shows_it_with_text_of_11_pixels(selected):
    pytest.importorskip("matplotlib")
    svg = figures.svg("random", selected["random"], figures.THEMES["light"])
    width = float(re.search(r'width="([\d.]+)pt"', svg)[1])
    assert 10 * 350 / width > 11
    said = " ".join(one for one in texts(svg) if one.strip())
    for words in ("sgemm is at least as fast:", "FLOP:", "one NVIDIA H200"):
        assert words in said, words
