"""What is shipped and contributed may be in the tuning database; a file that may not be is named with the reason."""

import json
import os
import re
import shutil

import check_records
import entries
import pytest
from msgspec import structs
from quick_configs import quick_configs

from fastsgemm.heuristics import database
from fastsgemm.heuristics.database_entries import Content, points_of
from fastsgemm.problem import Problem

CONTRIBUTED = check_records.ROOT / "contributions"
CONFIG, LIMIT = quick_configs("autotuned")[0], 232448
LINES = {"records": "ms", "curves": "points", "rates": "times"}  # each list and a field of its lines alone


@pytest.fixture
def made():
    """What a tuning run on a made-up device has found."""
    record = entries.measured("autotuned", CONFIG, Problem(64, 64, 64), 0.01, 0.9)
    curve = entries.curve("autotuned", CONFIG, 2, points_of([(Problem(64, 64, 64), 0.01)]))
    rates = structs.replace(database.rates("sm_90"), device="Fake 9000")
    return Content("sm_90", LIMIT, (record,), (curve,), rates=(rates,))


@pytest.fixture
def file(tmp_path, made):
    """Its file, in a folder that looks like that of a user."""
    path = tmp_path / "tuning_db" / "sm_90.json"
    path.parent.mkdir()
    database.write(path, made)
    return path


def check(path, capsys):
    code = check_records.main([str(path)])
    return code, capsys.readouterr().out


def changed(file, change):
    data = json.loads(file.read_text())
    change(data)
    parts = re.sub(r'(\{"rung|\{"device": "Fake 9000", "multi)', r"\n\1", json.dumps(data))  # a line each
    file.write_text(parts)


def test_what_is_shipped_and_contributed_is_in_order(capsys):
    assert check_records.main([]) == 0, capsys.readouterr().out
    names = {path.relative_to(check_records.ROOT).as_posix() for path in check_records.files()}
    assert {"tuning_db/sm_90.json", "tuning_db/generic.json"} < names
    assert f"files in order: {len(names)}" in capsys.readouterr().out


def test_every_contribution_is_listed_with_the_command_that_made_it():
    text = (CONTRIBUTED / "README.md").read_text()
    rows = re.findall(r"^\| `([\w.-]+)/` \| [^|]+ \| `fastsgemm tune[^`|]*` \|", text, re.MULTILINE)
    assert {*rows} == {path.relative_to(CONTRIBUTED).parts[0] for path in CONTRIBUTED.rglob("*.json")}


def test_a_file_of_a_run_is_in_order(file, capsys):
    assert check(file, capsys) == (0, "files in order: 1\n")


@pytest.mark.parametrize("field", ["device", "driver", "nvrtc", "date"])
@pytest.mark.parametrize("key", LINES)
def test_a_measured_line_says_on_and_with_what_it_was_measured(file, capsys, key, field):
    changed(file, lambda data: data[key][0].pop(field))
    code, out = check(file, capsys)
    assert code == 1 and f"missing required field `{field}`" in out and f'"{LINES[key]}"' in out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data.update(schema=99), "its schema is 99"),
        (lambda data: data.update(extra=1), "its keys are"),
        (lambda data: data.update(arch="sm_80"), "it is for 'sm_80', not sm_90"),
        (lambda data: data["records"][0].update(ms="fast"), "Expected `float`, got `str`"),
        (lambda data: data["records"][0]["constants"].update(TM=7), "TM"),
        (lambda data: data["curves"][0].update(speed=1), "unknown field `speed`"),
        (lambda data: data.update(shared_limit=2 * LIMIT), "464896 bytes of shared memory per block, sm_90 has 232448"),
        (lambda data: data["records"].append(data["records"][0]), "more than one entry"),
        (lambda data: data["rates"].append(data["rates"][0]), "more than one entry"),
        (lambda data: data["rates"][0].update(tiles=[]), "length >= 1 - at `$.tiles`"),
    ],
)
def test_a_file_that_may_not_be_added_is_refused_with_the_reason(file, capsys, change, reason):
    changed(file, change)
    code, out = check(file, capsys)
    assert code == 1 and out.startswith(f"{file}: ") and reason in out and out.count("\n") == 1


@pytest.mark.parametrize("key", ['"schema"', '"constants"', '"layout"'])
def test_a_key_that_is_there_twice_is_refused(file, capsys, key):
    """A reader of the file may see the first value, and the loader takes the last."""
    file.write_text(file.read_text().replace(key, f"{key}: 1, {key}", 1))
    code, out = check(file, capsys)
    assert code == 1 and f"an object has the key {key} twice" in out.replace("'", '"')


@pytest.mark.parametrize("content", [b"# no JSON", b'{"date": 1}', b"\xff", b"[" * 100_000, b'{"x": ' + b"[" * 100_000])
def test_another_file_is_one_line(tmp_path, capsys, content):
    path = tmp_path / "sm_90.json"
    path.write_bytes(content)
    code, out = check(path, capsys)
    assert code == 1 and out.count("\n") == 1 and out.startswith(f"{path}: ")


def test_what_cannot_be_read_is_one_line_and_no_wait(tmp_path, capsys):
    os.mkfifo(tmp_path / "sm_90.json")
    for path, reason in ((tmp_path / "none.json", "No such file"), (tmp_path / "sm_90.json", "not a regular file")):
        code, out = check(path, capsys)
        assert code == 1 and reason in out and out.count("\n") == 1


def test_a_text_of_the_file_cannot_write_lines_or_obey(file, capsys):
    changed(file, lambda data: data["records"][0].update(origin="\x9b2J\nin order"))
    file.write_text(file.read_text().replace("\\u009b", "\x9b"))
    code, out = check(file, capsys)
    assert code == 1 and out.count("\n") == 1 and "\x9b" not in out


def test_what_contributing_says_adds_a_file_to_the_database(file, made, tmp_path, monkeypatch):
    (program,) = re.findall(
        r"^ *```python\n(.*?)^ *```", (check_records.ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL
    )
    shipped = database.shipped("sm_90")
    monkeypatch.setattr(database, "shipped_path", lambda arch: tmp_path / f"{arch}.json")
    database.write(tmp_path / "sm_90.json", shipped)
    target = tmp_path / re.search(r'"(contributions/[^"]+)"', program)[1].replace("sm_89", "sm_90")
    target.parent.mkdir(parents=True)
    shutil.copy(file, target)
    monkeypatch.chdir(tmp_path)
    database.forget()
    exec(program.replace("sm_89", "sm_90"), {})
    assert check_records.faults(tmp_path / "sm_90.json") == []
    content = database.parse((tmp_path / "sm_90.json").read_bytes(), "sm_90")
    assert len(content.records) == len(shipped.records) + 1 and content.fitted == shipped.fitted
    assert len(content.curves) == len(shipped.curves) + 1
    database.forget()
