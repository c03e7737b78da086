import json
import math
import multiprocessing
import os
import re
import warnings

import entries
import pytest
from check_records import faults_of_file
from entries import DEVICE
from msgspec import structs
from quick_configs import quick_configs

from fastsgemm import resources, rungs
from fastsgemm.errors import FastsgemmError, RecordError
from fastsgemm.heuristics import database, database_entries
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.curve_fit import fit, numbers_of
from fastsgemm.heuristics.database_entries import LISTS, Content, HandPicked, line_of, points_of, tflops
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.heuristics.products import Product
from fastsgemm.problem import Problem

FILES = sorted(path.stem for path in resources.folder("tuning_db").glob("*.json"))
MOST_BYTES = 300_000  # of a file: it stays readable
ONE, TWO = quick_configs("warptiled")[:2]
LINES_OF_H200 = database.shipped_path("sm_90").read_text().splitlines()
FITTED_LINE = next(line.rstrip(",") for line in LINES_OF_H200 if '"numbers"' in line)
PROBLEM = Problem(64, 64, 64)
POINTS = points_of([(PROBLEM, 0.01)])

PUBLISHED = {
    "rung": "autotuned",
    "device": "NVIDIA RTX A6000",
    "problem": {"M": 4096, "N": 4096, "K": 4096, "layout": "NN"},
    "constants": {"BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 8},
    "origin": "published",
    "source": "a page",
}
MEASURED = {key: value for key, value in PUBLISHED.items() if key != "source"} | {
    "origin": "measured",
    "ms": 10.0,
    "tflops": 13.744,
    "cublas_ratio": 0.7,
    "driver": "580.0",
    "nvrtc": "13.0",
    "date": "2026-01-01",
}
CURVE = {
    "rung": "autotuned",
    "device": DEVICE,
    "multiprocessors": 132,
    "constants": {"BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 8},
    "blocks_per_sm": 2,
    "points": {"NN": [[128, 128, 1024, 0.5]]},
    "driver": "580.0",
    "nvrtc": "13.0",
    "date": "2026-01-01",
}


def record(problem=PROBLEM, config=ONE, ms=0.01, device=DEVICE, rung="warptiled"):
    return entries.measured(rung, config, problem, ms, 0.9, device)


def curve(config=ONE, device=DEVICE, points=POINTS):
    return entries.curve("warptiled", config, 2, points, device)


def content(*records, curves=()):
    return Content("sm_90", 232448, records, curves)


def file_text(records=(), curves=(), **header):
    head = {"schema": database_entries.SCHEMA, "arch": "sm_90", "shared_limit": 232448} | header
    return json.dumps(head | {"records": list(records), "curves": list(curves)})


def read_curve(line):
    return LISTS["curves"].decode(json.dumps(line))


def without(line, *names):
    return {name: value for name, value in line.items() if name not in names}


# What is shipped


@pytest.mark.parametrize("arch", FILES)
def test_a_shipped_file_is_faultless(arch):
    text = database.shipped_path(arch).read_text(encoding="utf-8")
    assert faults_of_file(text, arch) == []
    assert len(text) < MOST_BYTES


@pytest.mark.parametrize("arch", FILES)
def test_a_shipped_file_is_written_as_the_program_writes_it(arch):
    assert database.dumps(database.shipped(arch)) == database.shipped_path(arch).read_text(encoding="utf-8")


def test_every_rung_has_a_record_that_holds_everywhere():
    found = database.load(database_entries.GENERIC)
    everywhere = [entry for entry in found.records if entry.problem is None]
    assert {entry.rung for entry in everywhere if not entry.config.segment} == {rung.name for rung in rungs.IEEE}
    assert {entry.rung for entry in everywhere if entry.config.segment} == {"pipelined", "skinny_in_order"}
    assert found.shared_limit == 48 * 1024


@pytest.mark.parametrize(
    ("arch", "device", "rung", "constants"),
    [
        ("sm_86", "NVIDIA RTX A6000", "autotuned", (128, 128, 16, 8, 8)),
        ("sm_80", "NVIDIA A100-SXM4-40GB", "autotuned", (64, 64, 16, 4, 4)),
        ("sm_86", "NVIDIA RTX A6000", "warptiled", (128, 128, 16, 8, 4, 64, 64, 4, 0, 0, 1, 1)),
        ("sm_80", "NVIDIA A100-SXM4-40GB", "warptiled", (64, 128, 16, 4, 4, 32, 64, 1, 0, 0, 1, 1)),
    ],
)
def test_published_winners_name_their_source(arch, device, rung, constants):
    found = [entry for entry in database.shipped(arch).records if (entry.device, entry.rung) == (device, rung)]
    assert [tuple(entry.config.constants.values()) for entry in found] == [constants]
    assert found[0].origin == "published" and "siboehm.com" in found[0].source


# The strict check

SYMMETRIC = MEASURED | {"problem": MEASURED["problem"] | {"layout": "NT", "symmetric": True}}


@pytest.mark.parametrize("line", [PUBLISHED, MEASURED, MEASURED | {"cublas_ratio": None}, SYMMETRIC])
def test_a_good_record_has_no_faults(line):
    assert faults_of_file(file_text([line]).replace("[{", "[\n{"), "sm_90") == []


def test_a_good_curve_has_no_faults():
    assert faults_of_file(file_text(curves=[CURVE]).replace("[{", "[\n{"), "sm_90") == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (PUBLISHED | {"origin": "guessed"}, "origin"),
        (PUBLISHED | {"rung": "fastest"}, "unknown rung"),
        (PUBLISHED | {"speed": 1}, "speed"),
        (without(PUBLISHED, "source"), "source"),
        (without(PUBLISHED, "device"), "device"),
        (PUBLISHED | {"device": ""}, "device"),
        (PUBLISHED | {"source": None}, "source"),
        (PUBLISHED | {"problem": {"M": 1, "N": 1, "K": 1}}, "layout"),
        (PUBLISHED | {"problem": {"M": 1, "N": 1, "K": 1.5, "layout": "NN"}}, "problem.K"),
        (PUBLISHED | {"problem": {"M": 1, "N": 1, "K": 1, "layout": "XX"}}, "layout"),
        (PUBLISHED | {"problem": PUBLISHED["problem"] | {"batch": 0}}, "problem.batch"),
        (PUBLISHED | {"problem": PUBLISHED["problem"] | {"batch": 65535**2 + 1}}, "problem.batch"),
        (PUBLISHED | {"problem": PUBLISHED["problem"] | {"batch": True}}, "problem.batch"),
        (PUBLISHED | {"problem": PUBLISHED["problem"] | {"batch": [8]}}, "problem.batch"),
        (MEASURED | {"problem": MEASURED["problem"] | {"batch": 8}}, "10.0 ms are 109.951 TFLOP/s, not 13.744"),
        (PUBLISHED | {"constants": [128, 128, 16, 8, 8]}, "constants"),
        (
            PUBLISHED | {"constants": {"BM": 128, "BN": 128, "BK": 16, "TM": 8}},
            "constants ['TN'] of VectorizedConfig are missing",
        ),
        (PUBLISHED | {"constants": PUBLISHED["constants"] | {"XX": 1}}, "unknown constants"),
        (PUBLISHED | {"constants": PUBLISHED["constants"] | {"BM": "128"}}, "Expected `int`, got `str`"),
        (PUBLISHED | {"constants": PUBLISHED["constants"] | {"BM": 100}}, "BM must be a multiple of TM = 8, got 100"),
        (PUBLISHED | {"constants": PUBLISHED["constants"] | {"BK": 1024}}, "shared memory of a block"),
        (MEASURED | {"ms": -1.0}, "1e-06 - at `$.ms`"),
        (MEASURED | {"ms": True}, "Expected `float`, got `bool` - at `$.ms`"),
        (MEASURED | {"tflops": 14.5}, "TFLOP/s"),
        (MEASURED | {"cublas_ratio": 0}, "cublas_ratio"),
        (MEASURED | {"date": "yesterday"}, "date"),
        (MEASURED | {"driver": 580}, "driver"),
        (MEASURED | {"device": None}, "device"),
        (MEASURED | {"problem": None}, "problem"),
        (without(MEASURED, "nvrtc"), "nvrtc"),
        ([1, 2, 3], "Expected `object`, got `array`"),
        (None, "Expected `object`, got `null`"),
    ],
)
def test_a_bad_record_is_named(line, fault):
    found = faults_of_file(file_text([line]), "sm_90")
    assert found and fault in found[0]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (CURVE | {"multiprocessors": 0}, "multiprocessors"),
        (CURVE | {"blocks_per_sm": 1.5}, "blocks_per_sm"),
        (CURVE | {"points": {"NN": [[1, 2, 3]]}}, "point"),
        (CURVE | {"points": {"NN": {}}}, "point"),
        (CURVE | {"points": {"XX": [[1, 2, 3, 0.5]]}}, "Invalid enum value 'XX'"),
        (CURVE | {"points": {"NN": [[1, 2, 3, 0]]}}, "1e-06 - at `$.points"),
        (without(CURVE, "driver"), "driver"),
        ("a curve", "Expected `object`, got `str`"),
    ],
)
def test_a_bad_curve_is_named(line, fault):
    found = faults_of_file(file_text(curves=[line]), "sm_90")
    assert found and fault in found[0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        (file_text(schema=1), "schema"),
        (file_text(arch="sm_80"), "sm_80"),
        (file_text(shared_limit=0), "shared_limit"),
        (file_text(shared_limit="48 KB"), "shared_limit"),
        (file_text(comment="hand made"), "comment"),
        (file_text([PUBLISHED, PUBLISHED]).replace('{"rung', '\n{"rung'), "more than one entry"),
        (file_text([PUBLISHED]), "a line"),
        ('{"schema": 6, "arch": "sm_90", "shared_limit": 1}', "keys"),
        (
            '{"schema": 6, "arch": "sm_90", "shared_limit": 1, "records": {}, "curves": []}',
            "`array`, got `object` - at `$.records`",
        ),
    ],
)
def test_a_bad_file_is_named(text, fault):
    assert fault in faults_of_file(text, "sm_90")[0]


# At run time


def test_a_bad_line_is_one_warning_and_costs_no_other(tuning_folder):
    bad = [without(PUBLISHED, "source"), None, PUBLISHED | {"rung": "fastest"}]
    (tuning_folder / "sm_90.json").write_text(file_text([PUBLISHED, *bad], [CURVE | {"device": 1}]))
    with pytest.warns(RuntimeWarning, match=r"4 line\(s\).*left out") as caught:
        found = database.load("sm_90")
    assert len(caught) == 1
    assert len(found.records) == 1 and found.curves == ()


@pytest.mark.parametrize(
    "text", ["{", "[]", file_text(schema=1), file_text(schema=99), file_text(arch="sm_80"), "\0", ""]
)
def test_a_bad_file_is_one_warning_and_a_miss(tuning_folder, text):
    (tuning_folder / "sm_90.json").write_text(text)
    with pytest.warns(RuntimeWarning, match="left out") as caught:
        found = [database.load("sm_90") for _ in range(2)]
    assert len(caught) == 1 and found[0].records == ()


def test_a_file_that_is_not_text_is_a_miss(tuning_folder):
    (tuning_folder / "sm_90.json").write_bytes(b"\xff\xfe\x00")
    with pytest.warns(RuntimeWarning, match="left out"):
        assert database.load("sm_90").records == ()


def test_an_unknown_architecture_is_empty(tuning_folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert database.load("sm_42") == Content("sm_42", 0)


def test_curves_keep_their_order(tuning_folder):
    """Of two configs that are about as fast the first is used."""
    for configs in ((ONE, TWO), (TWO, ONE)):
        database.write(tuning_folder / "sm_90.json", content(curves=tuple(curve(one) for one in configs)))
        database.forget()
        assert tuple(found.config for found in database.load("sm_90").curves) == configs


def test_the_users_own_come_first(tuning_folder):
    database.write(tuning_folder / "sm_90.json", content(record(config=ONE)))
    database.save(content(record(config=TWO)))
    assert [entry.config for entry in database.load("sm_90").records] == [TWO, ONE]
    found = [database.origin_of(entry, "sm_90") for entry in database.load("sm_90").records]
    assert found == [("sm_90", True), ("sm_90", False)]


# Writing


def fitted_line(**change):
    """Return a line of the shipped file with stored numbers, as a dict with these changes."""
    return json.loads(FITTED_LINE) | change


@pytest.mark.parametrize("arch", FILES)
def test_stored_numbers_are_those_of_the_points(arch):
    for one in database.shipped(arch).curves:
        assert (one.numbers is not None) is (rungs.find(one.rung) in rungs.DEFAULTS)
        assert one.numbers is None or one.numbers == numbers_of(one)


def test_numbers_of_other_points_are_a_fault_of_a_shipped_file():
    shipped = database.shipped("sm_90")
    one = next(one for one in shipped.curves if one.numbers)
    text = database.dumps(structs.replace(shipped, records=(), curves=(one,)))
    assert faults_of_file(text, "sm_90") == []
    bandwidth = one.numbers.bandwidth
    changed = text.replace(json.dumps(bandwidth), json.dumps([2 * bandwidth[0], *bandwidth[1:]]))
    (fault,) = faults_of_file(changed, "sm_90")
    assert "numbers are not those of the points" in fault


def test_the_numbers_of_rounded_points_are_stored(tuning_folder):
    """A reader fits the points that are written, not those that were measured."""
    one = read_curve(fitted_line())
    points = points_of((problem, ms * (1 + 3e-6)) for problem, ms in one.times.items())
    database.write(tuning_folder / "sm_90.json", content(curves=(structs.replace(one, points=points),)))
    (found,) = database.shipped("sm_90").curves
    assert found.numbers == numbers_of(found)


TAIL, LINES, LAYOUTS, BANDWIDTH, GUARD, SHARED = range(6)  # the places of the numbers


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        (TAIL, [-1.0, 0.0], ">= 0.0"),
        (LINES, [[], []], "lines twice, one per load, got"),
        (LINES, [[[0.1]] * 3] * 2, "length 2 to 4"),
        (LAYOUTS, [], "length 3"),
        (BANDWIDTH, [0] * 4, ">= 1e-30"),
        (BANDWIDTH, [1e999] * 4, "out of range"),
        (BANDWIDTH, [1.0, 1.0, 1.0, 1e-31], ">= 1e-30"),
        (BANDWIDTH, [1e31, 1.0, 1.0, 1.0], "<= 1e+30"),
        (BANDWIDTH, [1.0] * 3, "length 4"),
        (LAYOUTS, [[[1.0, 1.0]] * 2] * 3, "length 3"),
        (TAIL, [1e308, 1e308], "<= 1e+30"),
        (LINES, [[[0.1, 1e308]] * 3] * 2, "<= 1e+30"),
        (LINES, [[[0.1, 0.1, 1.0, -1e308]] * 3] * 2, ">= -1e+30"),
        (GUARD, 1e308, "<= 1e+30"),
        (GUARD, 0.5, ">= 1.0"),
        (SHARED, "none", "Expected `float`, got `str`"),
        (SHARED + 1, 1.0, "length 6"),
    ],
    ids=str,
)
def test_a_curve_with_damaged_numbers_is_one_warning_and_a_miss(tuning_folder, place, value, fault):
    line = fitted_line()
    line["numbers"][place : place + 1] = [value]
    path = tuning_folder / "sm_90.json"
    path.write_text(file_text(curves=[fitted_line(), line]).replace("Infinity", "1e999"))
    with pytest.warns(RuntimeWarning, match="1 line.s. of tuning file .* left out") as warned:
        found = database.load("sm_90")
    assert len(found.curves) == len(warned) == 1 and fault in str(warned[0].message)


@pytest.mark.parametrize("number", [1e30, 1e-30])
def test_the_most_extreme_numbers_give_a_time(number):
    line = fitted_line()
    count = len(line["numbers"][LINES][0])
    ragged = [[number, number, number, sign * number] for sign in (1, -1)]
    line["numbers"] = [
        [number, number], [[one] * count for one in ragged], [[[number] * 3] * 2] * 3, [number] * 4,
        max(1.0, number), 1.0,
    ]  # fmt: skip
    curve = read_curve(line)
    for problem in (Problem(1, 1, 1), Problem(4097, 333, 5000), Problem(*[2**31 - 2**16] * 3)):
        best = CostModel([fit(curve)], 132, 232448, Fitted()).predict([Product(problem, True)]).best()
        assert best is None or math.isfinite(best.ms)


@pytest.mark.parametrize(
    ("given", "costs", "written"),
    [
        (0, (0.0, 0.0, 0.0, 0.0), 0.0),
        (1.25, (1.25, 1.25, 1.25, 1.25), 1.25),
        ([1.25, 1.25, 1.25, 1.25], (1.25, 1.25, 1.25, 1.25), 1.25),
        ([1, 1.5, 10.0, 0], (1.0, 1.5, 10.0, 0.0), [1.0, 1.5, 10.0, 0.0]),
    ],
    ids=str,
)
def test_what_accumulators_cost_is_one_number_or_one_for_each_layout(tuning_folder, given, costs, written):
    path = tuning_folder / "sm_90.json"
    path.write_text(file_text(curves=[CURVE | {"accumulators_cost": given}]))
    (found,) = database.shipped("sm_90").curves
    assert found.costs == costs
    database.write(path, content(curves=(found,)))
    assert json.loads(path.read_text())["curves"][0]["accumulators_cost"] == written


BAD_COSTS = (-0.1, 0.001, 0.999, 10.1, 1e999, "1.1", None, True, {"NN": 1.1})


@pytest.mark.parametrize(
    "given",
    [*BAD_COSTS, *([1.1, 1.1, 1.1, bad] for bad in BAD_COSTS), *([1.1] * count for count in (0, 1, 3, 5)), [[1.1] * 4]],
    ids=str,
)
def test_a_curve_with_another_cost_of_accumulators_is_one_warning_and_a_miss(tuning_folder, given):
    """With a cost of less than 1, more chains would take less time, and many of them less than none."""
    lines = [CURVE, CURVE | {"accumulators_cost": given}]
    (tuning_folder / "sm_90.json").write_text(file_text(curves=lines).replace("Infinity", "1e999"))
    with pytest.warns(RuntimeWarning, match="1 line.s. of tuning file .* left out") as warned:
        found = database.load("sm_90")
    assert len(found.curves) == len(warned) == 1
    assert "accumulators_cost" in str(warned[0].message)


def test_what_is_written_is_read_back(tuning_folder):
    published = entries.published("warptiled", TWO, kind=HandPicked)
    whole = content(
        record(ms=1 / 3), published, curves=(curve(), curve(TWO, points=points_of([(Problem(9, 8, 7, "TT"), 0.25)])))
    )
    database.write(tuning_folder / "sm_90.json", whole)
    found = database.shipped("sm_90")
    assert found.records[0] == published
    assert structs.replace(found.records[1], ms=1 / 3, tflops=tflops(PROBLEM, 1 / 3)) == record(ms=1 / 3)
    assert found.records[1].ms == pytest.approx(1 / 3, rel=1e-4)
    assert found.curves == whole.curves
    text = (tuning_folder / "sm_90.json").read_text()
    assert faults_of_file(text, "sm_90") == []
    assert database.dumps(found) == text


def test_a_batch_is_written_where_there_is_one_and_read_back(tuning_folder):
    batch = record(Problem(64, 32, 16, "NT", 512), ms=0.25)
    database.write(tuning_folder / "sm_90.json", content(batch, record(Problem(64, 32, 16, "NT"))))
    text = (tuning_folder / "sm_90.json").read_text()
    assert [json.loads(line.rstrip(","))["problem"] for line in text.splitlines() if line.startswith('{"rung')] == [
        {"M": 64, "N": 32, "K": 16, "layout": "NT"},
        {"M": 64, "N": 32, "K": 16, "layout": "NT", "batch": 512},
    ]
    assert line_of(batch) in map(line_of, database.shipped("sm_90").records) and faults_of_file(text, "sm_90") == []


def test_a_batch_of_one_may_be_written_too():
    line = MEASURED | {"problem": MEASURED["problem"] | {"batch": 1}}
    written, absent = (LISTS["records"].decode(json.dumps(one)) for one in (line, MEASURED))
    assert written == absent and written.problem.batch == 1


def test_records_of_batches_of_other_sizes_stay(data_folder):
    sizes = (1, 8, 9)
    database.save(content(*(record(Problem(64, 64, 64, batch=size), config=ONE) for size in sizes)))
    database.save(content(record(Problem(64, 64, 64, batch=8), config=TWO)))
    found = {one.problem.batch: one.config for one in database.own("sm_90").records}
    assert found == {1: ONE, 8: TWO, 9: ONE}


def test_a_new_record_takes_the_place_of_the_old_one(data_folder):
    other = record(Problem(1, 2, 3), config=TWO)
    database.save(content(record(config=ONE), other))
    database.save(content(record(config=TWO)))
    found = [(entry.problem, entry.config) for entry in database.own("sm_90").records]
    assert sorted(found, key=str) == [(Problem(1, 2, 3), TWO), (PROBLEM, TWO)]


def test_records_of_other_devices_and_rungs_stay(data_folder):
    small = quick_configs("autotuned")[0]
    database.save(content(record(device="One"), record(rung="autotuned", config=small)))
    database.save(content(record(device="Two")))
    assert len(database.own("sm_90").records) == 3


def test_curves_of_one_run_replace_all_of_that_device_and_rung(data_folder):
    database.save(content(curves=(curve(ONE), curve(TWO), curve(ONE, device="Other"))))
    database.save(content(curves=(curve(TWO),)))
    own = database.own("sm_90").curves
    assert {(entry.device, entry.config) for entry in own} == {("Other", ONE), (DEVICE, TWO)}
    database.save(content(record()))
    assert len(database.own("sm_90").curves) == 2


@pytest.mark.parametrize("text", ["{", file_text(schema=1)])
def test_an_unreadable_file_of_the_user_is_kept_aside(data_folder, text):
    path = database.user_folder() / "tuning_db" / "sm_90.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.warns(RuntimeWarning, match="left out: .*; the next fastsgemm tune keeps it aside"):
        database.save(content(record()))
    assert path.with_suffix(".json.unreadable").read_text() == text
    assert faults_of_file(path.read_text(), "sm_90") == []


def test_a_failed_write_leaves_the_old_file(data_folder, monkeypatch):
    path = database.save(content(record()))
    before = path.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RecordError, match="No space left"):
        database.save(content(record(config=TWO)))
    assert path.read_text() == before
    assert [each.suffix for each in path.parent.iterdir() if each.suffix == ".part"] == []


def test_a_folder_that_cannot_be_made_is_an_error_of_ours(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTSGEMM_DATA_DIR", str(tmp_path / "file"))
    with pytest.raises(RecordError, match="FASTSGEMM_DATA_DIR"):
        database.save(content(record()))


def _save_many(folder, number):
    os.environ["FASTSGEMM_DATA_DIR"] = folder
    for step in range(10):
        database.save(content(record(Problem(number + 1, step + 1, 64))))
        database.forget()
        database.load("sm_90")


def test_many_writers_and_readers_lose_nothing(data_folder):
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    workers = [context.Process(target=_save_many, args=(str(data_folder), number)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    database.forget()
    assert len(database.own("sm_90").records) == 40
    assert faults_of_file((database.user_folder() / "tuning_db" / "sm_90.json").read_text(), "sm_90") == []


def test_the_folder_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTSGEMM_DATA_DIR", str(tmp_path))
    assert database.user_folder() == tmp_path
    monkeypatch.delenv("FASTSGEMM_DATA_DIR")
    assert "fastsgemm" in str(database.user_folder())


def test_errors_of_the_database_are_of_the_family():
    assert issubclass(RecordError, FastsgemmError) and issubclass(RecordError, ValueError)


def test_an_architecture_has_its_own_fitted_numbers_or_the_generic_ones():
    assert database.fitted("sm_90") == database.shipped("sm_90").fitted
    assert database.fitted("sm_89") == database.shipped(database_entries.GENERIC).fitted is not None
    assert database.shipped("sm_89").fitted is None


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"reduction_ms": "3 us"}, r"fitted numbers cannot be read: .*reduction_ms"),
        ({"reduction_us": 3}, "unknown field `reduction_us`"),
    ],
)
def test_fitted_numbers_that_cannot_be_read_are_named(changed, fault):
    text = (resources.folder("tuning_db") / "sm_90.json").read_text()
    line = next(line for line in text.splitlines() if line.startswith('"fitted"'))
    numbers = json.loads(f"{{{line.rstrip(',')}}}")["fitted"]
    broken = text.replace(line, f'"fitted": {json.dumps(numbers | changed)},')
    (found,) = faults_of_file(broken, "sm_90")
    assert re.search(fault, found)


def test_search_limits_that_cannot_be_read_are_named():
    text = database.shipped_path("generic").read_text()
    assert faults_of_file(text, "generic") == []
    for broken in (
        text.replace('"most_threads": 512', '"most_threads": "many"'),
        text.replace('"most_threads": 512, ', ""),
    ):
        assert "most_threads" in faults_of_file(broken, "generic")[0]
