"""Tuning data that is damaged, hostile or from a later version: one warning, and nothing of it is lost."""

import json
import os
import stat
import warnings

import entries
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick_configs import quick_configs

from fastsgemm.errors import RecordError
from fastsgemm.heuristics import database, database_entries
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.curve_fit import fit
from fastsgemm.heuristics.curve_problems import problems_of
from fastsgemm.heuristics.database_entries import Content, points_of
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.heuristics.products import Product
from fastsgemm.problem import Problem
from fastsgemm.tuning.checkpoint import Checkpoint

LIMIT = 232448  # bytes of shared memory a block, of an H200
PROBLEM = Problem(64, 64, 64)
CONFIG = quick_configs("warptiled")[0]
STAMP = {"device": "Fake 9000", "driver": "580.0"}
NESTED = b"[" * 100_000
HUGE = int("9" * 400)
EXAMPLES = 150  # of a property
CURVES = 50  # of made-up times

RECORD = {
    "rung": "warptiled",
    "device": "Fake 9000",
    "problem": {"M": 64, "N": 64, "K": 64, "layout": "NN"},
    "constants": CONFIG.constants,
    "origin": "measured",
    "ms": 0.01,
    "tflops": 0.052429,
    "cublas_ratio": 0.9,
    "driver": "580.0",
    "nvrtc": "13.0",
    "date": "2026-01-01",
}
CURVE = {
    "rung": "warptiled",
    "device": "Fake 9000",
    "multiprocessors": 132,
    "constants": CONFIG.constants,
    "blocks_per_sm": 2,
    "points": {"NN": [[128, 128, 1024, 0.5]]},
    "driver": "580.0",
    "nvrtc": "13.0",
    "date": "2026-01-01",
}


@pytest.fixture
def path(data_folder):
    """The user's file of sm_90, which is not there yet, in its folder, which is."""
    data_folder.mkdir(mode=0o700)
    found = database.user_folder() / "tuning_db" / "sm_90.json"
    found.parent.mkdir(mode=0o700)
    return found


def text(records=(), curves=(), **more):
    head = {"schema": database_entries.SCHEMA, "arch": "sm_90", "shared_limit": LIMIT}
    return json.dumps(head | more | {"records": list(records), "curves": list(curves)}).encode()


def new(problem=PROBLEM):
    record = entries.measured("warptiled", CONFIG, problem, 0.01, 0.9)
    return Content("sm_90", LIMIT, (record,))


def own():
    """What there is of the user's, read anew."""
    database.forget()
    found = database.own("sm_90")
    return [*found.records, *found.curves]


def one_warning(look):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = look()
    assert len(seen) == 1 and seen[0].category is RuntimeWarning, [str(one.message) for one in seen]
    return found, str(seen[0].message)


# Files that are no database

UNREADABLE = {
    "nested brackets": NESTED,
    "nested objects": b'{"a":' * 100_000,
    "nested brackets in a line": text()[:-3] + NESTED + b"]" * 100_000 + b"]}",
    "nested brackets that close, in an unknown key": b'{"schema": 6, "x": ' + NESTED + b"]" * 100_000 + b"}",
    "NaN as a time": text([RECORD | {"ms": float("nan")}]),
    "infinity as a time": text([RECORD | {"ms": float("inf")}]),
    "no UTF-8": b"\xff\xfe\x00",
    "no UTF-8 in a line": text([RECORD]).replace(b"warptiled", b"warp\xff"),
    "no UTF-8 in an unknown key": b'{"schema": 6, "arch": "sm_90", "shared_limit": 1, "x": "\xff"}',
    "an unpaired surrogate": b'{"schema": "\\ud800"}',
    "an int of 10,000 digits as schema": b'{"schema": ' + b"1" * 10_000 + b"}",
    "True as schema": b'{"schema": true, "arch": "sm_90", "shared_limit": 1}',
    "shared memory of 400 digits": text(shared_limit=HUGE),
    "records that are an object": text(records={}).replace(b'"records": []', b'"records": {}'),
    "zeros": bytes(1000),
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_file_is_one_warning_and_is_kept_aside(path, content, tried):
    path.write_bytes(content)
    found, said = one_warning(own)
    assert found == [] and "is left out" in said
    with pytest.warns(RuntimeWarning, match="is left out"):
        database.save(new())
    assert path.with_suffix(".json.unreadable").read_bytes() == content
    assert len(own()) == 1
    tried("database file that is no database", 1)


def test_no_unreadable_file_takes_the_place_of_another(path, tried):
    contents = [f"{{ file {number}".encode() for number in range(4)]
    for content in contents:
        path.write_bytes(content)
        with pytest.warns(RuntimeWarning, match="left out"):
            database.save(new())
    aside = [path.with_name(f"sm_90.json.unreadable{suffix}") for suffix in ("", ".2", ".3", ".4")]
    assert [file.read_bytes() for file in aside] == contents
    tried("several unreadable database files in turn", len(contents))


def test_a_fifo_as_the_database_does_not_block(path, tried):
    os.mkfifo(path)
    found, said = one_warning(own)
    assert found == [] and "not a regular file" in said
    with pytest.warns(RuntimeWarning, match="regular"):
        database.save(new())
    assert stat.S_ISFIFO(path.with_suffix(".json.unreadable").stat().st_mode) and len(own()) == 1
    tried("FIFO as the database", 1)


def test_a_file_too_large_to_be_one_is_not_read(path, tried):
    path.touch()
    os.truncate(path, 2**40)
    assert "the limit is" in one_warning(own)[1]
    tried("database file of 1 TiB", 1)


# Lines that are no record

BAD_RECORDS = [
    {"ms": HUGE},
    {"ms": 0},
    {"ms": -0.0},
    {"ms": 1e300},
    {"ms": 5e-324},
    {"ms": None},
    {"ms": "fast"},
    {"tflops": HUGE},
    {"cublas_ratio": HUGE},
    {"problem": {"M": HUGE, "N": 1, "K": 1, "layout": "NN"}},
    {"problem": {"M": 1, "N": 1, "K": 1, "layout": []}},
    *({"problem": RECORD["problem"] | {"batch": batch}} for batch in (HUGE, 0, -1, 1.5, "8", None, [8], 8)),
    {"rung": []},
    {"rung": {}},
    {"device": 5},
    {"origin": []},
    {"constants": None},
    {"constants": {"BM": HUGE}},
    {"a field of a later version": 1},
]
BAD_CURVES = [
    {"multiprocessors": HUGE},
    {"multiprocessors": 10**9},
    {"blocks_per_sm": HUGE},
    {"blocks_per_sm": 33},
    {"points": {"NN": [[1, 1, 1, HUGE]]}},
    {"points": {"NN": [[HUGE, 1, 1, 1.0]]}},
    {"points": [1]},
]


@pytest.mark.parametrize(
    "content",
    [text([RECORD | bad, RECORD]) for bad in BAD_RECORDS] + [text([RECORD], [CURVE | bad]) for bad in BAD_CURVES],
    ids=[str(bad)[:50] for bad in BAD_RECORDS + BAD_CURVES],
)
def test_a_bad_line_costs_no_other_and_stays_in_the_file(path, content, tried):
    path.write_bytes(content)
    found, said = one_warning(own)
    assert len(found) == 1 and "1 line(s)" in said
    with pytest.warns(RuntimeWarning, match="left out"):
        database.save(new(Problem(65, 65, 65)))
    before, after = json.loads(content), json.loads(path.read_bytes())
    for key in ("records", "curves"):
        assert all(line in after[key] for line in before[key])
    assert len(after["records"]) == len(before["records"]) + 1
    with pytest.warns(RuntimeWarning, match="left out"):
        database.save(new(Problem(65, 65, 65)))
    assert json.loads(path.read_bytes()) == after  # they do not become more
    tried("database line that is no record", 1)


def test_what_a_later_version_wrote_stays(path):
    later = {"rung": "tensor", "device": "Fake 9000", "shape": [1, 2, 3], "note": "ü \n 1e-07"}
    path.write_bytes(text([RECORD, later], [later], written_by={"version": "9.9"}))
    with pytest.warns(RuntimeWarning, match=r"2 line\(s\)"):
        database.save(new(Problem(65, 65, 65)))
    found = json.loads(path.read_bytes())
    assert found["written_by"] == {"version": "9.9"} and found["curves"] == [later]
    assert len(found["records"]) == 3 and found["records"][-1] == later


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("line", [RECORD, CURVE], ids=["record", "curve"])
def test_any_json_in_any_field_is_read_or_left_out_and_never_lost(path, line, tried):
    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None)
    @given(st.sampled_from(list(line)), VALUES)
    def look(name, value):
        changed = line | {name: value}
        key = "records" if line is RECORD else "curves"
        path.write_bytes(text(**{key: [changed]}))
        database.forget()
        found = database._read(path, "sm_90", True)
        assert len(found.records) + len(found.curves) + len(found.unread) == 1
        assert not found.unread or json.loads(found.unread[0].text) == changed

    look()
    tried("any JSON in a field of a database line", EXAMPLES)


@pytest.mark.parametrize("rung", ["pipelined", "skinny"])
def test_any_times_in_a_curve_give_a_prediction_or_a_value_error(rung, tried):
    """The choice turns that error into a warning and leaves the curve out."""
    config = next(r.config for r in database.shipped(database_entries.GENERIC).records if r.rung == rung)
    asked = problems_of(config, 2, 132).problems()

    @settings(max_examples=CURVES, derandomize=True, deadline=None, database=None)
    @given(st.lists(st.floats(1e-6, 1e9), min_size=len(asked), max_size=len(asked)))
    def look(times):
        points = points_of(zip(asked, times, strict=True))
        curve = entries.curve(rung, config, 2, points)
        try:
            known = fit(curve)
        except ValueError:
            return
        for problem in (PROBLEM, Problem(1, 4096, 4096), Problem(4097, 333, 5)):
            assert CostModel([known], 132, 232448, Fitted()).predict([Product(problem, True)]).best().ms >= 0

    look()
    tried("any times in a tuning curve", CURVES)


# Who may write


@pytest.mark.parametrize("which", ["data", "tuning_db", "file"])
def test_what_others_can_write_is_passed_over(data_folder, path, which, tried):
    path.write_bytes(text([RECORD]))
    assert len(own()) == 1
    {"data": data_folder, "tuning_db": path.parent, "file": path}[which].chmod(0o777)
    found, said = one_warning(lambda: (own(), database.load(database_entries.GENERIC))[0])
    assert found == [] and "other users can write" in said
    if which != "file":
        with pytest.raises(RecordError, match="other users can write"):
            database.save(new())
    tried("tuning data that others can write", 1)


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o777])
def test_nobody_else_writes_the_folders_whatever_the_umask(data_folder, mask, tried):
    before = os.umask(mask)
    try:
        path = database.save(new())
        with Checkpoint(database.folder_to_write("tuning") / "fake.jsonl", STAMP) as checkpoint:
            checkpoint.put(PROBLEM, "warptiled", CONFIG, "grid", 1.0)
    finally:
        os.umask(before)
    folders = (data_folder, path.parent, data_folder / "tuning")
    expected = 0o700 if os.geteuid() else 0o700 | (0o755 & ~mask)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [expected] * 3
    assert not stat.S_IMODE(path.stat().st_mode) & 0o022
    tried("umask", 1)


def test_without_a_home_results_cannot_be_stored_and_the_error_says_why(monkeypatch, fresh_machine):
    monkeypatch.setattr(database, "user_folder", lambda: None)
    with pytest.raises(RecordError, match="FASTSGEMM_DATA_DIR names one"):
        database.save(new())


# The checkpoint


@pytest.fixture
def checkpoint_path(tmp_path):
    return tmp_path / "tuning" / "fake.jsonl"


def line(**changed):
    good = {
        "problem": [64, 64, 64, "NN", 1],
        "rung": "warptiled",
        "constants": CONFIG.constants,
        "turn": "grid",
        "ms": 1.0,
    }
    return json.dumps(STAMP | good | changed).encode()


BAD_LINES = {
    "nested brackets": NESTED,
    "nested brackets in a field": line(ms="X").replace(b'"X"', NESTED + b"]" * 100_000),
    "a time of 400 digits": line(ms=HUGE),
    "a time of 10,000 digits": line(ms="X").replace(b'"X"', b"9" * 10_000),
    "NaN": line(ms=float("nan")),
    "infinity": line(ms=float("inf")),
    "zero": line(ms=0),
    "a time that is true": line(ms=True),
    "a time that is text": line(ms="1.0"),
    "a constant that is a list": line(constants={"BM": [1], "BN": 1}),
    "a constant out of range": line(constants=CONFIG.constants | {"GROUP_M": 2**32}),
    "an unknown rung": line(rung="fastest"),
    "a rung that is a list": line(rung=[]),
    "a turn that is a list": line(turn=[]),
    "a problem of nothing": line(problem=0),
    "a problem of lists": line(problem=[[], [], [], [], []]),
    "a problem out of range": line(problem=[2**40, 1, 1, "NN", 1]),
    "a problem without a batch": line(problem=[64, 64, 64, "NN"]),
    "a batch of nothing": line(problem=[64, 64, 64, "NN", 0]),
    "a batch out of range": line(problem=[64, 64, 64, "NN", 2**40]),
    "a batch that is text": line(problem=[64, 64, 64, "NN", "8"]),
    "no object": b"5",
}


@pytest.mark.parametrize("bad", BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_of_the_checkpoint_is_passed_over(checkpoint_path, bad, tried):
    with Checkpoint(checkpoint_path, STAMP) as checkpoint:
        checkpoint.put(PROBLEM, "warptiled", CONFIG, "good", 1.25)
    with checkpoint_path.open("ab") as file:
        file.write(bad + b"\n" + line(turn="after"))
    with Checkpoint(checkpoint_path, STAMP) as checkpoint:
        assert checkpoint.found == 2
        assert checkpoint.get(PROBLEM, "warptiled", CONFIG, "good") == 1.25
    tried("bad line of a checkpoint", 1)


def test_a_fifo_as_the_checkpoint_does_not_block(checkpoint_path, tried):
    checkpoint_path.parent.mkdir(mode=0o700)
    os.mkfifo(checkpoint_path)
    with pytest.raises(RecordError, match="not a regular file"):
        Checkpoint(checkpoint_path, STAMP)
    tried("FIFO as the checkpoint", 1)


@pytest.mark.parametrize("which", ["folder", "file"])
def test_a_checkpoint_that_others_can_write_is_refused(checkpoint_path, which, tried):
    Checkpoint(checkpoint_path, STAMP).__exit__()
    (checkpoint_path.parent if which == "folder" else checkpoint_path).chmod(0o777)
    with pytest.raises(RecordError, match="other users can write"):
        Checkpoint(checkpoint_path, STAMP)
    tried("checkpoint that others can write", 1)


@pytest.mark.parametrize("line", [line()], ids=["line"])
def test_any_json_in_any_field_of_the_checkpoint_is_passed_over_or_read(checkpoint_path, line, tried):
    good = json.loads(line)

    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None)
    @given(st.sampled_from(list(good)), VALUES)
    def look(name, value):
        checkpoint_path.parent.mkdir(mode=0o700, exist_ok=True)
        checkpoint_path.write_text(json.dumps(good | {name: value}))
        checkpoint_path.chmod(0o600)
        with Checkpoint(checkpoint_path, STAMP) as checkpoint:
            assert checkpoint.found <= 1
            found = checkpoint.get(PROBLEM, "warptiled", CONFIG, "grid")
            assert found is None or isinstance(found, str) or 0 < found <= 1e9

    look()
    tried("any JSON in a field of a checkpoint", EXAMPLES)
