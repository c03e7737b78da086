from dataclasses import replace

import pytest

from fastsgemm.candidates import PIPELINED, REFINED
from fastsgemm.journal import Journal
from fastsgemm.plan import Problem

PROBLEM = Problem(100, 200, 300, "TN")
ONE, TWO = REFINED.quick[:2]
STAMP = {"device": "Fake 9000", "driver": "580.0"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "journal.jsonl"


def test_what_was_put_is_there_in_the_next_run(path):
    with Journal(path, STAMP) as journal:
        assert journal.found == 0
        journal.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
        journal.put(PROBLEM, "warptiled", TWO, "prepare", "it spills")
    with Journal(path, STAMP) as journal:
        assert journal.found == 2
        assert journal.get(PROBLEM, "warptiled", ONE, "grid.0.0") == 1.25
        assert journal.get(PROBLEM, "warptiled", TWO, "prepare") == "it spills"
        assert journal.get(PROBLEM, "warptiled", ONE, "grid.0.1") is None
        assert journal.get(PROBLEM, "autotuned", ONE, "grid.0.0") is None


def test_divisions_of_k_are_told_apart(path):
    one, four = (replace(PIPELINED.quick[0], SPLIT_K=parts) for parts in (1, 4))
    with Journal(path, STAMP) as journal:
        journal.put(PROBLEM, "pipelined", one, "grid.0.0", 1.25)
        journal.put(PROBLEM, "pipelined", four, "grid.0.0", 0.5)
        journal.put(PROBLEM, "pipelined", one.kernel, "prepare", "it spills")  # of the kernel, whatever the grid
    with Journal(path, STAMP) as journal:
        assert journal.get(PROBLEM, "pipelined", one, "grid.0.0") == 1.25
        assert journal.get(PROBLEM, "pipelined", four, "grid.0.0") == 0.5
        assert journal.get(PROBLEM, "pipelined", four.kernel, "prepare") == "it spills"


def test_a_line_is_on_disk_at_once(path):
    journal = Journal(path, STAMP)
    journal.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
    assert "1.25" in path.read_text()


def test_another_driver_starts_anew(path):
    with Journal(path, STAMP) as journal:
        journal.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
    with Journal(path, STAMP | {"driver": "590.0"}) as journal:
        assert journal.found == 0


@pytest.mark.parametrize(
    "damage",
    [
        b'{"device": "Fake 9000", "driver": "58',
        b"\xff\x00\xfe",
        b"[1, 2]",
        b"null",
        b'{"device": "Fake 9000", "driver": "580.0"}',
    ],
)
def test_damage_costs_no_other_line(path, damage):
    with Journal(path, STAMP) as journal:
        journal.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
    with path.open("ab") as file:
        file.write(damage)
    with Journal(path, STAMP) as journal:
        journal.put(PROBLEM, "warptiled", ONE, "grid.0.1", 1.5)
    with Journal(path, STAMP) as journal:
        assert journal.found == 2


def test_a_finished_journal_is_gone(path):
    with Journal(path, STAMP) as journal:
        journal.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
        journal.finish()
    assert not path.exists()


def test_a_journal_may_keep_nothing():
    with Journal(None, STAMP) as journal:
        journal.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
        assert journal.get(PROBLEM, "warptiled", ONE, "grid.0.0") == 1.25
        journal.finish()
