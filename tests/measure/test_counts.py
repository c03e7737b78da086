"""The counts that are stored for the documentation, as tables."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import convert

from fastsgemm.measure.counts import Table

KEPT = Path(__file__).resolve().parents[2] / "docs" / "data" / "counts.json"


@pytest.fixture(scope="module")
def stored():
    if not KEPT.exists():
        pytest.skip("docs/ is part of a checkout only")
    return json.loads(KEPT.read_text())


@pytest.fixture
def table(stored):
    return convert(stored, Table)


def test_json_is_plain_data_and_comes_back(table, stored):
    assert json.loads(json.dumps(table.json())) == stored
    assert stored["ok"] is True


def test_text_names_the_device_the_rungs_and_their_constants(table, stored):
    text = table.text()
    assert text.startswith("128 x 256 x 128 with the constants for") and "NVIDIA H200 (sm_90)" in " ".join(text.split())
    traffic, arithmetic = [line for line in text.splitlines() if line.startswith("1 naive  ") and "BM" not in line]
    row = stored["rows"][0]
    sectors = [row[name]["sectors"] / row[name]["requests"] for name in ("loads_a", "loads_b", "stores_c")]
    assert traffic.split()[2:5] == [f"{one:.1f}" for one in sectors]
    assert arithmetic.split()[-1] == f"{row['occupancy']:.0%}"
    assert f"8 warptiled     BM={stored['rows'][7]['constants']['BM']} " in text
    assert f"the {len(stored['rows'])} rungs are the same bits" in text


def test_the_text_fits_a_terminal_and_ends_with_what_was_learned(table):
    lines = table.text().splitlines()
    assert max(map(len, lines)) <= 80
    first, last = table.rows[0], table.rows[-1]
    per_fma = 32 * (first.loads_a.sectors + first.loads_b.sectors) / (128 * 256 * 128)
    assert " ".join(lines[-2:]).startswith(f"from naive to {last.name}, an FMA costs {per_fma:.3g} -> ")
    backwards = replace(table, rows=table.rows[::-1])
    assert " ".join(backwards.text().splitlines()[-2:]).startswith("from naive to ")
    alone = replace(table, rows=table.rows[:1])
    assert alone.text().splitlines()[-1].startswith("naive: ")


def test_a_wrong_result_is_named_and_nothing_is_learned_from_it(table):
    wrong = replace(table, rows=(replace(table.rows[0], mismatch="C[0, 3] is 1, expected 2"), *table.rows[1:]))
    assert not wrong.ok
    assert "naive is WRONG: C[0, 3] is 1, expected 2" in wrong.text() and "an FMA costs" not in wrong.text()
