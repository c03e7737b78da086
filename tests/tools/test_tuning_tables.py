"""The fitted numbers of docs/tuning.md and the tiles of docs/fp16x3.md are those of the shipped files."""

import json

import pytest

tables = pytest.importorskip("write_tables", reason="tools/ is part of a checkout only")
tuning = pytest.importorskip("page_tables.tuning", reason="tools/ is part of a checkout only")

DATABASE = tables.ROOT / "tuning_db"


@pytest.fixture(scope="module")
def shipped():
    return json.loads((DATABASE / "sm_90.json").read_text())


@pytest.fixture(scope="module")
def texts():
    return tuning.texts()


def test_fitted_numbers_have_the_units_that_their_lines_state(texts, shipped):
    fitted, generic = shipped["fitted"], json.loads((DATABASE / "generic.json").read_text())["fitted"]
    lines = dict(line[2:-2].split(" | ", 1) for line in texts["tuning-fitted"].splitlines() if " | " in line)
    assert lines["fitted number"].startswith("NVIDIA H200 |")
    assert lines["packing an operand of no elements, µs"] == f"{1e3 * fitted['packing_ms']:g} | nothing is packed"
    rates = [f"{one['reduction_bytes_per_ms'] * 1e3 / 1e12:g}" for one in (fitted, generic)]
    assert lines["rate of that kernel, TB/s read and written"] == " | ".join(rates)


def test_chains_are_those_of_the_file(texts, shipped):
    sums = shipped["fitted"]["long_sums"]
    of_layouts, of_rows = (
        [line[2:-2].split(" | ") for line in table.splitlines()] for table in texts["tuning-chains"].split("\n\n")
    )
    assert of_layouts[0] == ["elements of C", "NN", "NT", "TN", "TT"] and len(of_layouts) - 2 == len(sums["NN"])
    assert of_rows[0][1:] == ["one row or column", "2 to 11 rows"] and len(of_rows) - 2 == len(sums["row"])
    assert of_layouts[2][0] == f"at most {sums['NN'][0][0]:,}" and of_layouts[-1][0] == of_rows[-1][0] == "more"
    steps, chains = sums["rows"][0][1][-1]
    assert 4096 < steps <= 16384 and of_rows[2][2].endswith(f" / {chains}")
    assert of_layouts[-1][2] == "1 / 1 / 1 / 1" and not sums["NT"][-1][1]  # one chain, however deep


def test_the_spread_of_the_curves_is_that_of_the_file(texts, shipped):
    curves = [one for one in shipped["curves"] if one["rung"] == "pipelined" and not one["constants"]["SEGMENT"]]
    least, *_, most = sorted(one["calibration"] for one in curves)
    assert f"the {len(curves)} configs" in texts["tuning-curves"]
    assert f"calibration is {least:.2f} to {most:.2f}." in texts["tuning-curves"]


def test_every_tile_of_rung_11_has_a_line(texts):
    tiles = json.loads((DATABASE / "fp16x3" / "sm_90.json").read_text())["tiles"]
    lines = texts["fp16x3-tiles"].splitlines()[4:]
    assert len(lines) == len(tiles)
    assert [line.split(" | ")[-2] for line in lines] == [f"{one['step_us']:g}" for one in tiles]
