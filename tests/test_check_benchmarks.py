"""The program that fails where a figure fell, on runs that are made up."""

import copy
import json

import pytest

checks = pytest.importorskip("check_benchmarks", reason="tools/ is part of a checkout only")


def made_up_run():
    """A run of two named shapes, one random problem, a rung and a call."""
    problem = {"M": 16, "N": 32, "K": 64, "layout": "NN", "batch": 1, "lda": 64, "ldb": 32, "ldc": 32, "load_bytes": 16}
    problem |= {"size": "launch-bound", "rung": "pipelined", "rule": "exact", "ms": 1.0, "cublas_ms": 0.8}
    problem |= {"percent": 80.0, "noise": 0.01, "error": 1e-7, "cublas_error": 1e-7}
    groups = {
        "shapes": [problem, problem | {"M": 17, "percent": 180.0}],
        "random": [problem],
        "ladder": [
            {"number": 8, "name": "warptiled", "percent": 80.0, "noise": 0.001},
            {"number": None, "name": "cuBLAS", "percent": 100.0},
        ],
        "host cost of 100 calls": [{"call": "sgemm, C given", "kind": "PyTorch", "us_per_call": 6.5, "noise": 0.0}],
    }
    machine = {"devices": [{"name": "NVIDIA X"}], "driver": "580.1 (CUDA 13.0)", "nvrtc": "13.0"}
    return {
        "datetime": "2026-01-02T03:04:05",
        "machine_info": {"fastsgemm": machine, "packages": {}, "sizes": {}},
        "benchmarks": [
            {"group": group, "extra_info": dict(row), "fullname": f"{group}::{number}"}
            for group, rows in groups.items()
            for number, row in enumerate(rows)
        ],
    }


@pytest.fixture
def root(tmp_path):
    (tmp_path / "docs" / "data").mkdir(parents=True)
    stored = checks.reduce(made_up_run())
    (tmp_path / "docs" / "data" / "benchmarks.json").write_text(json.dumps(stored))
    return tmp_path


@pytest.fixture
def never_again(monkeypatch):
    monkeypatch.setattr(checks, "measure_again", lambda tests: pytest.fail("nothing had to be measured again"))


def slower(run, group, factor):
    """Return the run with one problem's ratio multiplied."""
    run = copy.deepcopy(run)
    row = next(one for one in run["benchmarks"] if one["group"] == group)["extra_info"]
    row["percent"] *= factor
    return run


def write(root, run):
    path = root / "run.json"
    path.write_text(json.dumps(run))
    return [str(path)]


def test_the_stored_run_has_not_fallen(root, never_again, capsys):
    assert checks.main(write(root, made_up_run()), root) == 0
    assert "0 of " in capsys.readouterr().out


def test_a_fall_that_stays_fails(root, monkeypatch, capsys):
    run = slower(made_up_run(), "shapes", 0.85)
    asked = []
    monkeypatch.setattr(
        checks, "measure_again", lambda tests: asked.append([*tests]) or checks.figures(checks.reduce(run))
    )
    assert checks.main(write(root, run), root) == 1
    out = capsys.readouterr().out
    assert "shapes 16,32,64,NN ld 64,32,32: 0.680, stored 0.800 (-15.0%)" in out
    assert asked[0] == ["shapes::0", "shapes::1"]  # the mean of the set fell as well, so all of it is measured again
    assert len(asked) == checks.REPEATS


def test_a_fall_that_does_not_come_back_is_noise(root, monkeypatch):
    good = checks.figures(checks.reduce(made_up_run()))
    monkeypatch.setattr(checks, "measure_again", lambda tests: good)
    assert checks.main(write(root, slower(made_up_run(), "shapes", 0.85)), root) == 0


def test_what_cannot_be_measured_again_counts_as_fallen(root, monkeypatch):
    monkeypatch.setattr(checks, "measure_again", lambda tests: {})
    assert checks.main(write(root, slower(made_up_run(), "shapes", 0.85)), root) == 1


@pytest.mark.parametrize(("factor", "noise", "falls"), [(0.94, 0.0, True), (0.96, 0.0, False), (0.94, 0.01, False)])
def test_the_limit_is_5_percent_beyond_the_noise(factor, noise, falls):
    stored = {"one": checks.Figure(1.2, noise, ())}
    assert checks.fallen(stored, {"one": checks.Figure(1.2 * factor, noise, ())}) == (["one"] if falls else [])


def test_the_mean_of_many_problems_has_less_noise_than_one():
    run = made_up_run()
    rows = [one for one in run["benchmarks"] if one["group"] == "random"]
    run["benchmarks"] += [one | {"extra_info": one["extra_info"] | {"M": 100 + i}} for i, one in enumerate(50 * rows)]
    found = checks.figures(checks.reduce(run))
    assert found["geometric mean of random"].noise < 0.002
    assert found["random 16,32,64,NN ld 64,32,32"].noise == 0.01


def test_rungs_and_calls_are_figures_too():
    run = made_up_run()
    call = {"call": "torch.mm(out=)", "kind": "PyTorch", "us_per_call": 13.0, "noise": 0.03}
    run["benchmarks"].append({"group": "host cost of 100 calls", "extra_info": call, "fullname": "calls::1"})
    found = checks.figures(checks.reduce(run))
    assert found["rung warptiled"].ratio == 0.8
    assert found["host time of sgemm, C given, PyTorch"] == checks.Figure(
        2.0, 0.03, ("host cost of 100 calls::0", "calls::1")
    )


def test_a_run_is_compared_with_that_of_the_same_device(root, never_again, capsys):
    run = made_up_run()
    run["machine_info"]["fastsgemm"]["devices"][0]["name"] = "NVIDIA Y"
    with pytest.raises(SystemExit, match="2"):
        checks.main(write(root, run), root)
    assert "benchmarks-NVIDIA-Y.json" in capsys.readouterr().err
    own = root / "docs" / "data" / "benchmarks-NVIDIA-Y.json"
    own.write_text(json.dumps(checks.reduce(run)))
    assert checks.main(write(root, run), root) == 0


def test_the_kept_run_is_one_that_can_be_compared():
    found = checks.figures(json.loads((checks.ROOT / "docs" / "data" / "benchmarks.json").read_text()))
    assert "shapes 4096,4096,4096,NN ld 4096,4096,4096" in found and "rung pipelined" in found


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"benchmarks": [{"group": "ladder"}]}', '{"shapes": []}'])
def test_another_file_is_a_line_and_code_2(root, tmp_path, capsys, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(SystemExit) as ended:
        checks.main([str(tmp_path / "other.json")], root)
    assert ended.value.code == 2 and "other.json is no JSON of make bench" in capsys.readouterr().err
