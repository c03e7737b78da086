"""A contributed file holds what makes it believable, and a file that is not believable is refused with the reason."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from fastsgemm import device
from fastsgemm.errors import DeviceError, RecordError
from fastsgemm.heuristics import database, fp16x3_rates
from fastsgemm.measure import machine
from fastsgemm.tuning import contribution, tuner

ROOT = Path(__file__).resolve().parents[2]
TUNE = ("--rung", "autotuned", "--no-progress", "--size", "512,512,512")
CONTRIBUTED = sorted((ROOT / "contributions").glob("*.json"))


@pytest.fixture
def exported(cli, evaluator, tmp_path, monkeypatch):
    """A contribution of a tuning run on the fake device, and a function that verifies a changed one."""
    monkeypatch.setattr(machine, "clocks", lambda gpu: (1980.0, 3201.0, None))
    monkeypatch.setattr(contribution, "library", lambda: "torch 2.11.0")
    evaluator.baseline_ms, evaluator.cublas_error = 0.05, 3e-7
    path = tmp_path / "contribution.json"
    code, _, err = cli(*TUNE, "--size", "1024,1024,1024,TN", "--export", str(path))
    assert code == 0 and "exported" in err and "refused" not in err
    return json.loads(path.read_text())


@pytest.fixture
def verify(cli, tmp_path, monkeypatch):
    def absent(name):
        raise DeviceError(f"this machine has no device {name!r}")

    monkeypatch.setattr(device, "ordinal", absent)

    def call(data, *options):
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(data))
        return cli("--verify", str(path), *options)

    return call


def test_the_caller_of_cublas_is_named_with_both_versions(monkeypatch):
    monkeypatch.setattr(
        contribution, "sys", SimpleNamespace(modules={"cupy": SimpleNamespace(__name__="cupy", __version__="14")})
    )
    monkeypatch.setattr(contribution.cublas, "version", lambda: "13.1.0")
    assert contribution.library() == "cupy 14, cuBLAS 13.1.0"


def test_a_file_says_where_it_is_from(exported):
    assert exported["machine"] == {
        "device": "Fake 9000",
        "arch": "sm_90",
        "multiprocessors": 132,
        "clock_mhz": 1980.0,
        "memory_clock_mhz": 3201.0,
        "power_limit_w": None,
        "driver": "580.0",
        "nvrtc": "13.0",
        "cublas": "torch 2.11.0",
        "date": "2026-01-01",
    }
    assert {one["problem"] for one in exported["checks"]} == {"512,512,512", "1024,1024,1024,TN"}
    assert all(len(one["ms"]) == len(one["cublas_ms"]) == contribution.REPEATS for one in exported["checks"])


def test_a_whole_file_is_in_order(exported, verify):
    code, out, _ = verify(exported)
    assert code == 0, out
    assert "records: 2" in out and "no device 'Fake 9000'" in out


def test_a_batch_is_exported_and_verified_as_such(cli, evaluator, tmp_path, verify, monkeypatch):
    evaluator.baseline_ms, evaluator.cublas_error = 0.05, 3e-7
    monkeypatch.setattr(device, "ordinal", lambda name: 0)
    path = tmp_path / "contribution.json"
    code, _, err = cli(*TUNE, "--size", "512,512,512,x8", "--size", "512,512,512,x9", "--export", str(path))
    data = json.loads(path.read_text())
    assert code == 0 and "refused" not in err
    assert {one["problem"] for one in data["checks"]} == {"512,512,512", "512,512,512,x8", "512,512,512,x9"}
    assert [one["problem"].get("batch") for one in data["content"]["records"]] == [None, 8, 9]
    code, out, _ = verify(data)
    assert code == 0 and out.count(" OK") == 3 and "autotuned 512,512,512,x8 " in out
    data["content"]["records"][1]["problem"]["batch"] = 9
    code, out, err = verify(data)
    assert code == 2 and "TFLOP/s, not" in err  # the rate is that of another batch
    del data["content"]["records"][1]
    code, out, err = verify(data)
    assert code == 1 and "refused: autotuned 512,512,512,x8: there is no such record" in out


def test_json_is_all_of_stdout(exported, verify, evaluator, monkeypatch):
    data = json.loads(verify(exported, "--json")[1])
    assert data["machine"] == exported["machine"] and (data["records"], data["checks"]) == (2, 2)
    assert data["in_order"] and data["faults"] == data["timed_again"] == [] and "Fake 9000" in data["not_timed"]
    monkeypatch.setattr(device, "ordinal", lambda name: 0)
    data = json.loads(verify(exported, "--json")[1])
    assert data["in_order"] and len(data["timed_again"]) == 2 and data["not_timed"] is None
    monkeypatch.setattr(type(evaluator), "formula", lambda self, config, problem: 9.0)
    code, out, _ = verify(exported, "--json")
    assert code == 1 and not json.loads(out)["in_order"]
    code, out, _ = verify(exported | {"checks": []}, "--json")
    data = json.loads(out)
    assert code == 1 and not data["in_order"] and "not checked" in data["faults"][0] and data["timed_again"] == []


def spread(data):
    data["checks"][0]["ms"] = [0.1 * (1 + place) for place in range(9)]


def shifted(data):
    data["checks"][0]["ms"] = [2.0 * ms for ms in data["checks"][0]["ms"]]


def tf32(data):
    data["checks"][0]["error"] = 3e-4


def illegal(data):
    data["content"]["records"][0]["constants"]["TM"] = 7


def of_another_device(data):
    data["machine"]["device"] = "NVIDIA X"


def without_checks(data):
    data["checks"] = []


def without_cublas(data):
    for record in data["content"]["records"]:
        record["cublas_ratio"] = None


def hand_picked(data):
    record = data["content"]["records"][0]
    for field in ("ms", "tflops", "cublas_ratio", "driver", "nvrtc", "date"):
        del record[field]
    record.update(origin="hand-picked", source="nobody")


def more_shared_memory(data):
    data["content"]["shared_limit"] *= 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (spread, "repeats spread by"),
        (shifted, "but the record has"),
        (tf32, "the error is 3.00e-04, the limit is"),
        (illegal, "TM"),
        (of_another_device, "not of NVIDIA X"),
        (without_checks, "not checked"),
        (without_cublas, "no speed relative to cuBLAS"),
        (hand_picked, "a record is hand-picked, not measured"),
        (more_shared_memory, "464896 bytes of shared memory per block, sm_90 has 232448"),
    ],
)
def test_a_file_that_is_not_believable_is_refused(exported, verify, change, reason):
    change(exported)
    code, out, err = verify(exported)
    assert code == 1
    assert reason in out + err and "refused: " in out


def test_rates_of_rung_11_are_read_and_must_be_of_the_device(exported, verify):
    rates = json.loads(fp16x3_rates.dumps(fp16x3_rates.load("sm_90")))
    code, out, _ = verify(exported | {"rates": rates | {"device": "Fake 9000"}})
    assert code == 0 and "rates of rung fp16x3" in out
    code, out, _ = verify(exported | {"rates": rates})
    assert code == 1 and "its rates of rung fp16x3 are of NVIDIA H200" in out
    code, _, err = verify(exported | {"rates": rates | {"tiles": []}})
    assert code == 2 and "length >= 1 - at `$.tiles`" in err


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(schema=99),
        lambda data: data.update(extra=1),
        lambda data: data["machine"].pop("driver"),
        lambda data: data["content"]["records"][0].update(ms="fast"),
        lambda data: data["content"].update(arch="sm_80"),
        lambda data: data["machine"].update(device="X\nthe file is in order"),
        lambda data: data["machine"].update(driver="\x1b[2J"),
        lambda data: data["checks"][0].update(problem="\x9b2J"),
    ],
)
def test_a_file_of_another_format_is_one_line(exported, verify, change):
    change(exported)
    code, _, err = verify(exported)
    assert code == 2 and err.count("\n") == 1


@pytest.mark.parametrize("key", ['"seconds"', '"constants"', '"layout"'])
def test_a_key_that_is_there_twice_is_refused(exported, cli, tmp_path, key):
    """A reader of the file may see the first value, and this program would take the last."""
    text = json.dumps(exported)
    (tmp_path / "twice.json").write_text(text.replace(key, f"{key}: 1, {key}", 1))
    code, out, err = cli("--verify", str(tmp_path / "twice.json"))
    assert code == 2 and out == "" and f"an object has the key {key} twice" in err.replace("'", '"')


@pytest.mark.parametrize("arch", ["../outside", "generic", "sm_90\n", "sm_90/../../outside", ""])
def test_the_name_of_an_architecture_is_no_path(exported, verify, tmp_path, monkeypatch, arch):
    add_contribution = pytest.importorskip("add_contribution", reason="tools/ is part of a checkout only")
    (tmp_path / "db").mkdir()
    monkeypatch.setattr(database, "shipped_path", lambda arch: tmp_path / "db" / f"{arch}.json")
    exported["machine"]["arch"] = exported["content"]["arch"] = arch
    code, out, err = verify(exported)
    assert code == 2 and out == "" and err.count("\n") == 1 and "$.machine.arch" in err
    before = sorted(tmp_path.rglob("*"))
    assert add_contribution.main([str(tmp_path / "changed.json")]) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_file_is_one_line(cli, tmp_path):
    code, _, err = cli("--verify", str(tmp_path / "none.json"))
    assert code == 2 and err.count("\n") == 1 and "none.json cannot be read: No such file" in err


@pytest.mark.parametrize("text", ["# no JSON", '{"date": 1}'])
def test_another_file_is_named(cli, tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    code, _, err = cli("--verify", str(tmp_path / "other.json"))
    assert code == 2 and err.count("\n") == 1
    assert "other.json is no file that fastsgemm tune --export has written" in err


def test_on_its_device_a_sample_is_timed_again(exported, verify, evaluator, monkeypatch):
    monkeypatch.setattr(device, "ordinal", lambda name: 0)
    code, out, _ = verify(exported)
    assert code == 0 and out.count(" OK") == 2
    monkeypatch.setattr(type(evaluator), "formula", lambda self, config, problem: 9.0)
    code, out, _ = verify(exported)
    assert code == 1 and out.count(" DIFFERS") == 2


def test_a_sample_has_the_quickest_and_the_slowest_record():
    records = database.shipped("sm_90").records
    found = contribution.sample(records)
    times = [one.ms for one in records if one.ms is not None]
    assert len(found) == contribution.SAMPLE
    assert found[0].ms == min(times) and found[-1].ms == max(times)


def test_every_contributed_file_is_in_order():
    wrong = {path.name: contribution.faults(*contribution.read(path)) for path in CONTRIBUTED}
    assert [name for name, found in wrong.items() if found] == []


def test_a_file_that_cannot_be_written_is_an_error(tmp_path, evaluator):
    outcome = tuner.Outcome(evaluator.device, evaluator.tools)
    with pytest.raises(RecordError, match="cannot be written"):
        contribution.write(tmp_path / "none" / "x.json", outcome, [], (None, None, None))


def test_rates_of_a_further_device_get_a_file_of_their_own(tmp_path, monkeypatch):
    add_contribution = pytest.importorskip("add_contribution", reason="tools/ is part of a checkout only")
    monkeypatch.setattr(database, "shipped_path", lambda arch: tmp_path / f"{arch}.json")
    (tmp_path / "fp16x3").mkdir()
    shipped = fp16x3_rates.load("sm_90")
    both = [shipped, structs.replace(shipped, device="NVIDIA H100 80GB HBM3")]
    for rates in both * 2:
        add_contribution._file_of(rates).write_text(fp16x3_rates.dumps(rates))
    paths = [tmp_path / "fp16x3" / name for name in ("sm_90.json", "NVIDIA-H100-80GB-HBM3.json")]
    assert [fp16x3_rates.parse(path, path.read_bytes()) for path in paths] == both


def test_rates_that_would_replace_those_of_another_device_are_refused(exported, tmp_path, monkeypatch, capsys):
    """Their names give the same name of a file. Nothing is written then."""
    add_contribution = pytest.importorskip("add_contribution", reason="tools/ is part of a checkout only")
    shipped = fp16x3_rates.load("sm_90")
    shipped = [shipped, structs.replace(shipped, device="NVIDIA H100 80GB HBM3")]
    monkeypatch.setattr(database, "shipped_path", lambda arch: tmp_path / f"{arch}.json")
    (tmp_path / "fp16x3").mkdir()
    for rates in shipped:
        add_contribution._file_of(rates).write_text(fp16x3_rates.dumps(rates))
    alike = structs.replace(shipped[1], device="NVIDIA H100-80GB HBM3")
    monkeypatch.setattr(add_contribution.contribution, "faults", lambda given, content: [])
    monkeypatch.setattr(add_contribution.contribution, "rates_of", lambda given: alike)
    assert add_contribution.main([str(tmp_path / "contribution.json")]) == 1
    assert "HBM3.json is of NVIDIA H100 80GB HBM3 (sm_90), not of NVIDIA H100-80GB HBM3" in capsys.readouterr().err
    assert not (tmp_path / "sm_90.json").exists()


def test_a_believable_file_can_be_added_to_the_shipped_database(exported, tmp_path, monkeypatch, capsys):
    add_contribution = pytest.importorskip("add_contribution", reason="tools/ is part of a checkout only")
    shipped = database.shipped("sm_90")
    monkeypatch.setattr(database, "shipped_path", lambda arch: tmp_path / f"{arch}.json")
    database.write(tmp_path / "sm_90.json", shipped)
    path = tmp_path / "contribution.json"
    assert add_contribution.main([str(path)]) == 0
    text = (tmp_path / "sm_90.json").read_text()
    assert contribution.faults_of_file(text, "sm_90") == []
    content = database.parse(text.encode(), "sm_90")
    assert len(content.records) == len(shipped.records) + 2
    assert content.fitted == shipped.fitted and len(content.curves) == len(shipped.curves)
    illegal(exported)
    path.write_text(json.dumps(exported))
    assert add_contribution.main([str(path)]) == 1
    assert "TM" in capsys.readouterr().err
