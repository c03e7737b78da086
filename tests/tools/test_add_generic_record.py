"""The tool that writes the generic record of a rung."""

import add_generic_record
import pytest
from msgspec import structs

from fastsgemm import rungs
from fastsgemm.config import VectorizedConfig, constant
from fastsgemm.errors import ConfigError
from fastsgemm.heuristics import database
from fastsgemm.heuristics.database_entries import GENERIC
from fastsgemm.jit import source


@pytest.fixture
def shipped():
    return database.shipped(GENERIC)


def test_the_defaults_of_the_file_become_the_record(shipped, monkeypatch):
    monkeypatch.setattr(source, "defaults", lambda file: {"BM": 64, "BN": 64, "BK": 16, "TM": 4, "TN": 4, "VEC_A": 1})
    new = structs.replace(rungs.find("vectorized"), name="not_on_the_ladder", number=len(rungs.RUNGS) + 1)
    monkeypatch.setitem(rungs._BY_KEY, new.name, new)
    content = add_generic_record.with_record(shipped, new, "to try")
    *others, record = content.records
    assert tuple(others) == shipped.records
    assert (record.rung, record.device, record.problem) == ("not_on_the_ladder", None, None)
    assert record.config == VectorizedConfig(64, 64, 16, 4, 4)
    assert (record.origin, record.source) == ("hand-picked", "to try")


def test_a_record_that_is_there_is_replaced_and_the_file_is_canonical(shipped, tuning_folder):
    path = database.shipped_path(GENERIC)
    path.write_text("{}")
    content = add_generic_record.with_record(shipped, rungs.find("smem_tiled"), "again")
    add_generic_record.database.write(path, content)
    lines = [line for line in path.read_text().splitlines() if line.startswith('{"rung": "smem_tiled"')]
    constants = '{"BM": 32, "BN": 32, "BK": 32}'
    assert lines == [
        f'{{"rung": "smem_tiled", "device": null, "problem": null, "constants": {constants}, '
        '"origin": "hand-picked", "source": "again"},'
    ]
    assert len(content.records) == len(shipped.records)


def test_defaults_that_some_architecture_cannot_run_are_refused(shipped, monkeypatch):
    monkeypatch.setattr(source, "defaults", lambda file: {"BM": 128, "BN": 128, "BK": 64, "TM": 8, "TN": 8})
    with pytest.raises(ConfigError, match=f"at most {constant.STATIC_SHARED} bytes.*, got 65536"):
        add_generic_record.with_record(shipped, rungs.find("blocktile_2d"), "too large")
