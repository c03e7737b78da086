"""`fastsgemm bench` on made-up results: the report, and a verdict for every figure that changed beyond the noise."""

import copy
import json
from pathlib import Path

import pytest

from fastsgemm import command_line
from fastsgemm.command_line import bench_command
from fastsgemm.errors import DeviceError
from fastsgemm.measure.problem_sets import SETS, SETS_OF_A_RUN

ROOT = Path(__file__).resolve().parents[2]
FACTS = {"schema": 1, "date": "2026-01-02", "device": "NVIDIA X", "driver": "580.1", "nvrtc": "13.0", "packages": {}}
FACTS |= {"ladder": [], "calls": []}
EXTENTS = {"M": 1, "N": 1, "K": 1, "layout": "NN", "batch": 1, "lda": 1, "ldb": 1, "ldc": 1, "noise": 0.01}
TIMELESS = {"kind": "CuPy", "us_per_call": 0.0, "noise": 0.0}
CALLS = ("sgemm, C given", "cupy.matmul(out=)")


def row(M, percent, noise=0.01):
    found = EXTENTS | {"M": M, "N": 32, "K": 64, "lda": 64, "ldb": 32, "ldc": 32, "load_bytes": 16}
    found |= {"size": "launch-bound", "rung": "pipelined", "rule": "exact", "ms": 1.0, "cublas_ms": percent / 100}
    return found | {"percent": percent, "noise": noise, "error": 1e-7, "cublas_error": 1e-7}


@pytest.fixture
def results():
    """Results as `suite.run` returns them."""
    known = FACTS | {"packages": {"torch": "2.11"}, "sizes": {}, "first": []}
    return known | {name: [] for name in SETS_OF_A_RUN} | {"shapes": [row(16, 80.0), row(17, 180.0), row(18, 120.0)]}


@pytest.fixture
def bench(tmp_path, capsys):
    def call(*arguments, **files):
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
        given = [str(tmp_path / one[1:]) if one.startswith("@") else one for one in arguments]
        return (command_line.main(["bench", *given]), *capsys.readouterr())

    return call


def test_a_report_has_every_set_and_every_loss(bench, results):
    code, out, _ = bench("--input", "@new.json", new=results)
    assert code == 0
    assert "| named shapes | 3 | 1.200 | 67% | 67% | 0.80 |" in out
    assert "## The 1 of 3 problems on which cuBLAS is faster" in out and "| 16,32,64 |" in out


def test_every_change_beyond_the_noise_has_a_verdict(bench, results, tmp_path):
    new = copy.deepcopy(results)
    new["shapes"] = [row(16, 70.0), row(17, 200.0), row(18, 115.0), row(19, 90.0)]
    code, out, _ = bench("--input", "@new.json", "--compare", "@old.json", new=new, old=results)
    assert code == 1
    assert "1 slower, 1 faster" in out and "1 new" in out
    assert "| shapes 16,32,64,NN ld 64,32,32 | 0.800 | 0.700 | -12.5% | 1.4% | slower |" in out
    assert "| shapes 17,32,64,NN ld 64,32,32 | 1.800 | 2.000 | +11.1% | 1.4% | faster |" in out
    assert "shapes 18" not in out.split("## Compared")[1]


def test_a_change_within_the_noise_is_none(bench, results):
    old, new = (results | {"shapes": [row(16, percent, noise=0.1)]} for percent in (100.0, 80.0))
    code, out, _ = bench("--input", "@new.json", "--compare", "@old.json", new=new, old=old)
    assert code == 0 and "2 same" in out and "| figure |" not in out


def test_the_rule_is_stated_as_it_is(bench, results):
    """A loss of 6 % is more than 5 % and more than two standard errors, 2.8 %, but not more than both together."""
    old, new = (results | {"shapes": [row(16, percent)]} for percent in (100.0, 94.0))
    code, out, _ = bench("--input", "@new.json", "--compare", "@old.json", new=new, old=old)
    assert code == 0 and "2 same" in out
    assert "by more than 5 % and two standard errors of both runs together" in out.replace("\n", " ")
    new["shapes"] = [row(16, 92.0)]
    assert bench("--input", "@new.json", "--compare", "@old.json", new=new, old=old)[0] == 1


def test_json_has_the_verdicts(bench, results):
    old, new = (results | {"shapes": [row(16, percent)]} for percent in (100.0, 80.0))
    code, out, _ = bench("--input", "@new.json", "--compare", "@old.json", "--json", new=new, old=old)
    found = {one["name"]: one for one in json.loads(out)["compared"]}
    one = found["shapes 16,32,64,NN ld 64,32,32"]
    assert code == 1 and (one["old"], one["new"], one["verdict"]) == (1.0, 0.8, "slower")
    assert "compared" not in json.loads(bench("--input", "@new.json", "--json", new=new)[1])


def test_batches_are_told_apart(bench, results):
    new = copy.deepcopy(results)
    new["batches"] = [row(64, 90.0) | {"batch": size} for size in (8, 9)]
    code, out, _ = bench("--input", "@new.json", "--compare", "@old.json", new=new, old=results)
    assert code == 0 and "2 new" in out and "gone" not in out
    assert "| batches | 2 |" in out and "| 64,32,64,x8 | 64, 32, 32 |" in out and "| 64,32,64,x9 |" in out
    slower = copy.deepcopy(new)
    slower["batches"][0]["percent"] = 45.0
    code, out, _ = bench("--input", "@new.json", "--compare", "@old.json", new=slower, old=new)
    assert code == 1 and "| batches 64,32,64,NN,x8 ld 64,32,32 | 0.900 | 0.450 |" in out


def test_means_are_of_the_problems_that_both_runs_have(bench, results):
    old, new = (results | {"shapes": rows} for rows in ([row(16, 200.0), row(17, 100.0)], [row(16, 200.0)]))
    code, out, _ = bench("--input", "@new.json", "--compare", "@old.json", new=new, old=old)
    assert code == 0 and "2 same, 1 gone" in out
    other = results | {"shapes": [row(18, 100.0)]}
    code, out, _ = bench("--input", "@new.json", "--compare", "@old.json", new=other, old=new)
    assert code == 0 and "1 new, 1 gone" in out


def test_what_excludes_something_else_is_not_ignored(bench, capsys):
    for given in (["--size", "64", "--set", "narrow"], ["--input", "@new.json", "--set", "narrow"]):
        with pytest.raises(SystemExit):
            bench(*given, new={})
        assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (("--output", "@run", "--report", "@run"), "--output and --report"),
        (("--output", "@run", "--report", "@link"), "--output and --report"),
        (("--output", "@new", "--report", "@./new"), "--output and --report"),  # none of them is there yet
        (("--input", "@run", "--report", "@run"), "--report and --input"),
        (("--input", "@run", "--output", "@run"), "--output and --input"),
        (("--compare", "@run", "--report", "@run"), "--report and --compare"),
        (("--compare", "@run", "--output", "@link"), "--output and --compare"),
    ],
)
def test_a_file_that_is_named_twice_is_not_overwritten(bench, results, tmp_path, given, same):
    run = tmp_path / "run"
    run.write_text(json.dumps(results))
    (tmp_path / "link").symlink_to(run)
    code, _, err = bench(*given)
    assert code == 2 and f"{same} name the same file" in err
    assert json.loads(run.read_text()) == results and not (tmp_path / "new").exists()


def test_the_null_device_may_be_named_twice(bench, results):
    assert bench("--input", "@new.json", "--output", "/dev/null", "--report", "/dev/null", new=results)[0] == 0


def test_the_report_and_the_results_are_written(bench, results, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_command, "measure", lambda samples, place: results | {"asked": [*samples]})
    code, out, err = bench("--set", "shapes", "--set", "narrow", "--output", "@run.json", "--report", "@run.md")
    assert code == 0 and out == "" and err.count("written to") == 2
    assert json.loads((tmp_path / "run.json").read_text())["asked"] == ["shapes", "narrow"]
    assert (tmp_path / "run.md").read_text().startswith("# fastsgemm beside cuBLAS FP32 on one NVIDIA X\n")


def test_problems_can_be_given(bench, results, monkeypatch):
    seen = {}
    monkeypatch.setattr(bench_command, "measure", lambda samples, place: seen.update(samples) or results)
    assert bench("--size", "64,32,16,TN")[0] == 0
    assert [str(sample) for sample in seen["given"]] == ["64,32,16,TN"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"new": "[]"}, "new.json holds no results of bench: Expected `object`"),
        ({"new": "{}"}, "holds no results of bench"),
        ({"new": FACTS | {"schema": 2}}, "has schema 2"),
        ({"new": FACTS | {"shapes": [1]}}, "holds no results of bench: TypeError"),
        ({"new": FACTS | {"shapes": [{"percent": 50.0, **EXTENTS}]}}, "holds no results of bench: KeyError('rung')"),
        ({"new": FACTS | {"calls": [TIMELESS | {"call": call} for call in CALLS]}}, "ZeroDivisionError"),
    ],
)
def test_another_file_is_one_line(bench, files, said):
    code, out, err = bench("--input", "@new.json", **files)
    assert code == 2 and out == "" and err.count("\n") == 1 and said in err


def test_runs_of_two_devices_are_not_compared(bench, results):
    other = results | {"device": "NVIDIA Y"}
    code, _, err = bench("--input", "@new.json", "--compare", "@old.json", new=results, old=other)
    assert code == 2 and "NVIDIA Y" in err


def test_the_stored_run_can_be_compared_with(bench):
    stored = str(ROOT / "docs" / "data" / "benchmarks.json")
    if not Path(stored).exists():
        pytest.skip("docs/ is part of a checkout only")
    code, out, _ = bench("--input", stored, "--compare", stored)
    assert code == 0 and " same. " in out and "slower," not in out


def test_without_a_device_nothing_is_measured(monkeypatch, bench):
    def absent(place):
        raise DeviceError("this machine has no device")

    monkeypatch.setattr("fastsgemm.device.ordinal", absent)
    code, out, err = bench("--set", "shapes")
    assert code == 2 and out == "" and "no device" in err


def test_every_set_has_problems():
    assert all(one.samples() for one in SETS.values())


@pytest.mark.parametrize(
    "given",
    [("--device", "sim"), ("--device", "sm_90"), ("--size", "64"), ("--set", "narrow"), ("--output", "@out.json")],
)
def test_without_a_device_the_message_says_what_still_works(bench, no_driver, given):
    code, out, err = bench(*given)
    assert code == 2 and out == "" and err.count("\n") == 1
    assert "the report of the shipped run: fastsgemm bench, and of another: --input FILE" in err
    assert ("has counts and no times" in err) is ("sim" in given)


def test_without_a_device_the_shipped_report_is_shown_and_said_to_be_it(bench, no_driver):
    shipped = json.loads((ROOT / "docs" / "data" / "benchmarks.json").read_text())
    code, out, err = bench()
    assert code == 0 and out == bench("--input", str(ROOT / "docs" / "data" / "benchmarks.json"))[1]
    assert out.startswith(f"# fastsgemm beside cuBLAS FP32 on one {shipped['device']}\n")
    assert err == (
        "fastsgemm: no NVIDIA driver was found; this is the shipped report of one "
        f"{shipped['device']}, {shipped['date']}\n"
    )
