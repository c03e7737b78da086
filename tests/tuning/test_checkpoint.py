import json
from dataclasses import replace

import pytest
from quick_configs import quick_configs

from fastsgemm.errors import RecordError
from fastsgemm.problem import Problem
from fastsgemm.tuning.checkpoint import Checkpoint

PROBLEM = Problem(100, 200, 300, "TN")
ONE, TWO = quick_configs("warptiled")[:2]
STAMP = {"device": "Fake 9000", "driver": "580.0"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "checkpoint.jsonl"


def test_what_was_put_is_there_in_the_next_run(path):
    with Checkpoint(path, STAMP) as checkpoint:
        assert checkpoint.found == 0
        checkpoint.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
        checkpoint.put(PROBLEM, "warptiled", TWO, "prepare", "it spills")
    with Checkpoint(path, STAMP) as checkpoint:
        assert checkpoint.found == 2
        assert checkpoint.get(PROBLEM, "warptiled", ONE, "grid.0.0") == 1.25
        assert checkpoint.get(PROBLEM, "warptiled", TWO, "prepare") == "it spills"
        assert checkpoint.get(PROBLEM, "warptiled", ONE, "grid.0.1") is None
        assert checkpoint.get(PROBLEM, "autotuned", ONE, "grid.0.0") is None


def test_divisions_of_k_are_told_apart(path):
    one, four = (replace(quick_configs("pipelined")[0], SPLIT_K=parts) for parts in (1, 4))
    with Checkpoint(path, STAMP) as checkpoint:
        checkpoint.put(PROBLEM, "pipelined", one, "grid.0.0", 1.25)
        checkpoint.put(PROBLEM, "pipelined", four, "grid.0.0", 0.5)
        checkpoint.put(PROBLEM, "pipelined", one.kernel, "prepare", "it spills")  # of the kernel, whatever the grid
    with Checkpoint(path, STAMP) as checkpoint:
        assert checkpoint.get(PROBLEM, "pipelined", one, "grid.0.0") == 1.25
        assert checkpoint.get(PROBLEM, "pipelined", four, "grid.0.0") == 0.5
        assert checkpoint.get(PROBLEM, "pipelined", four.kernel, "prepare") == "it spills"


def test_batches_are_told_apart(path):
    sizes = (1, 8, 9)
    with Checkpoint(path, STAMP) as checkpoint:
        for size in sizes:
            checkpoint.put(replace(PROBLEM, batch=size), "warptiled", ONE, "grid.0.0", 0.5 * size)
    with Checkpoint(path, STAMP) as checkpoint:
        found = [checkpoint.get(replace(PROBLEM, batch=size), "warptiled", ONE, "grid.0.0") for size in (*sizes, 10)]
    assert found == [0.5, 4.0, 4.5, None]


def test_symmetric_results_are_told_apart(path):
    whole, symmetric = Problem(64, 64, 64, "NT"), Problem(64, 64, 64, "NT", symmetric=True)
    with Checkpoint(path, STAMP) as checkpoint:
        checkpoint.put(symmetric, "warptiled", ONE, "grid", 1.0)
        checkpoint.put(whole, "warptiled", ONE, "grid", 2.0)
    with Checkpoint(path, STAMP) as checkpoint:
        assert [checkpoint.get(one, "warptiled", ONE, "grid") for one in (symmetric, whole)] == [1.0, 2.0]


def test_a_line_is_on_disk_at_once(path):
    checkpoint = Checkpoint(path, STAMP)
    checkpoint.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
    assert "1.25" in path.read_text()


def test_another_driver_starts_anew(path):
    with Checkpoint(path, STAMP) as checkpoint:
        checkpoint.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
    with Checkpoint(path, STAMP | {"driver": "590.0"}) as checkpoint:
        assert checkpoint.found == 0


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
    with Checkpoint(path, STAMP) as checkpoint:
        checkpoint.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
    with path.open("ab") as file:
        file.write(damage)
    with Checkpoint(path, STAMP) as checkpoint:
        checkpoint.put(PROBLEM, "warptiled", ONE, "grid.0.1", 1.5)
    with Checkpoint(path, STAMP) as checkpoint:
        assert checkpoint.found == 2


@pytest.mark.parametrize("reason", ["", None, 7, [], "\n"])
def test_a_failure_has_a_reason(path, reason):
    """The first line of it is counted in the outcome of the run."""
    with Checkpoint(path, STAMP) as checkpoint:
        checkpoint.put(PROBLEM, "warptiled", ONE, "grid.0.0", "it spills")
    path.write_bytes(path.read_bytes().replace(b'"it spills"', json.dumps(reason).encode()))
    with Checkpoint(path, STAMP) as checkpoint:
        assert checkpoint.found == 0


def test_a_finished_checkpoint_is_gone(path):
    with Checkpoint(path, STAMP) as checkpoint:
        checkpoint.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
        checkpoint.finish()
    assert not path.exists()


def test_what_another_run_has_left_stays(path):
    """An interrupted run goes on even if another one was finished in between."""
    with Checkpoint(path, STAMP) as checkpoint:
        checkpoint.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
        checkpoint.put(PROBLEM, "warptiled", TWO, "grid.0.0", 1.5)
    with Checkpoint(path, STAMP) as checkpoint:
        assert checkpoint.get(PROBLEM, "warptiled", TWO, "grid.0.0") == 1.5
        checkpoint.put(PROBLEM, "warptiled", TWO, "decide.0.0", 1.75)
        checkpoint.finish()
    with Checkpoint(path, STAMP) as checkpoint:
        assert checkpoint.found == 1
        assert checkpoint.get(PROBLEM, "warptiled", ONE, "grid.0.0") == 1.25


def test_a_full_disk_is_an_error_of_ours(path, monkeypatch):
    """So a first call on an unknown device warns, and goes on with the generic configs."""
    with Checkpoint(path, STAMP) as checkpoint, open("/dev/full", "ab", buffering=0) as full:
        checkpoint._file.close()
        monkeypatch.setattr(checkpoint, "_file", full)
        with pytest.raises(RecordError, match="No space left on device"):
            checkpoint.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)


def test_a_checkpoint_may_keep_nothing():
    with Checkpoint(None, STAMP) as checkpoint:
        checkpoint.put(PROBLEM, "warptiled", ONE, "grid.0.0", 1.25)
        assert checkpoint.get(PROBLEM, "warptiled", ONE, "grid.0.0") == 1.25
        checkpoint.finish()
