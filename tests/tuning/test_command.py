import json
import subprocess
import sys

import pytest

from fastsgemm import progress
from fastsgemm.heuristics import database
from fastsgemm.tuning import tuner
from fastsgemm.tuning.candidates import of_space
from fastsgemm.tuning.spaces import AUTOTUNED


def run(*arguments, env=None):
    return subprocess.run([sys.executable, "-m", "fastsgemm.tune", *arguments], capture_output=True, text=True, env=env)


QUICK = ("--quick", "--rung", "autotuned", "--no-progress", "--size", "512,512,512")


def test_a_run_prints_a_table(cli):
    code, out, err = cli(*QUICK)
    assert code == 0 and err == ""
    assert "512,512,512" in out and "shipped" in out and "cuBLAS" in out and "stored in" in out


def test_json_is_all_of_stdout(cli):
    code, out, _ = cli(*QUICK, "--json")
    assert code == 0
    assert json.loads(out)["results"][0]["problem"] == {
        "M": 512, "N": 512, "K": 512, "layout": "NN", "batch": 1
    }  # fmt: skip


def test_shapes_repeat_and_have_layouts(cli):
    _, out, _ = cli(*QUICK, "--size", "256,512,64,tn", "--json", "--no-store")
    data = json.loads(out)
    assert [row["problem"]["layout"] for row in data["results"]] == ["NN", "TN"]
    assert data["stored"] is None and not (database.user_folder() / "tuning_db" / "sm_90.json").exists()


def test_a_batch_is_tuned_and_explained(cli):
    asked = ("--size", "64,64,64,nt,x512", "--rung", "pipelined")
    code, out, _ = cli("--quick", "--no-progress", *asked)
    assert code == 0 and out.splitlines()[1].startswith("64,64,64,NT,x512 ")
    _, out, _ = cli(*asked, command="explain")
    assert "512 times 64 x 64 x 64, NT, on Fake 9000" in out and "exact: this problem was tuned" in out
    _, out, _ = cli("--size", "64,64,64,nt,x511", "--rung", "pipelined", command="explain")
    assert "exact" not in out and "x512" not in out


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_goes_to_stderr_if_it_is_a_terminal(cli, monkeypatch, terminal):
    monkeypatch.setattr(progress, "_is_terminal", lambda: terminal)
    _, out, err = cli("--quick", "--rung", "7", "--size", "512,512,512")
    assert ("autotuned 512,512,512 time" in err) is terminal and "it/s" not in out


def test_show_explains_what_was_tuned(cli):
    cli(*QUICK)
    code, out, _ = cli("--size", "512,512,512", "--rung", "autotuned", command="explain")
    assert code == 0
    assert "exact: this problem was tuned" in out and "measured record for Fake 9000 at 512,512,512 (yours" in out
    _, out, _ = cli("--json", "explain", "--size", "512,512,512,TT", "--rung", "autotuned", command=None)
    assert json.loads(out)["problem"]["layout"] == "TT"


def test_a_dry_run_does_nothing(cli, evaluator):
    code, out, _ = cli("--dry-run", "--rung", "autotuned")
    assert code == 0 and f"{len(of_space(AUTOTUNED, 232448))} candidates" in out
    assert evaluator.compiled == evaluator.timed == []
    _, out, _ = cli("--dry-run", "--json")
    assert set(json.loads(out)["candidates"]) == {"autotuned", "warptiled", "pipelined", "skinny"}


def test_the_options_reach_the_run(cli, monkeypatch):
    seen = {}
    monkeypatch.setattr(tuner, "tune", lambda shapes, **options: seen.update(options, shapes=shapes) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli("--budget", "3", "--rung", "autotuned", "--no-store", "--device", "cuda:2")
    assert (seen["budget"], seen["rung"].name, seen["store"], seen["device"]) == (3.0, "autotuned", False, "cuda:2")
    assert seen["shapes"] is None and not seen["quick"] and seen["progress"]


def test_ctrl_c_says_that_all_measurements_are_kept(cli, evaluator):
    evaluator.interrupt_after = 5
    code, _, err = cli(*QUICK)
    assert code == 130 and "run the same command again to resume" in err


def test_a_plot_is_drawn(cli, tmp_path):
    pytest.importorskip("matplotlib")
    code, _, _ = cli(*QUICK, "--plot", str(tmp_path / "sweep.png"))
    assert code == 0 and (tmp_path / "sweep.png").stat().st_size > 1000


def test_a_plot_without_matplotlib_is_refused_before_the_run(cli, evaluator, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = cli(*QUICK, "--plot", "sweep.png")
    assert code == 2 and "fastsgemm[plot]" in err and evaluator.timed == []


@pytest.mark.parametrize("given", ["--plot=x.png", "--budget=1", "--no-store"])
def test_an_option_that_would_be_ignored_is_refused(cli, evaluator, tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("--dry-run", "--device", "sm_90", given)
    assert code == 2 and out == "" and f"--dry-run has no use for {given.partition('=')[0]}" in err
    assert evaluator.timed == [] and [*tmp_path.iterdir()] == []


def test_a_plot_of_an_unknown_kind_is_one_line(cli, tmp_path):
    pytest.importorskip("matplotlib")
    code, _, err = cli(*QUICK, "--plot", str(tmp_path / "sweep.xyz"))
    assert code == 2 and "xyz" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--size", "1,2"), "M,N,K"),
        (("--rung", "fastest"), "unknown rung"),
        (("--budget", "-1"), "positive"),
        (("--budget", "soon"), "positive"),
        (("--rung", "naive", "--dry-run", "--device", "sm_90"), "no search space"),
        (("--dry-run", "--device", "sm_42"), "nothing is known of a device 'sm_42'"),
        (("--size", "0,1,1"), "must be ints from 1 to"),
        (("--size", "64,64,64,x0"), "a batch has 1 to 4294836225 products, got 0"),
        (("--size", "64,64,64,x"), "a problem is written N or M,N,K"),
        (("--size", "64,64,64,x512", "--rung", "naive", "--dry-run", "--device", "sm_90"), "no search space"),
    ],
)
def test_mistakes_are_one_line_and_code_2(cli, evaluator, arguments, message):
    code, out, err = cli(*arguments)
    assert code == 2 and message in err
    assert out == "" and evaluator.compiled == []


def test_without_a_device_it_says_so(tmp_path):
    done = run()
    if done.returncode == 0:
        pytest.skip("there is a device")
    assert done.returncode == 2
    assert done.stderr.startswith("fastsgemm: no NVIDIA driver") and done.stderr.count("\n") == 1
    assert "--dry-run --device sm_90" in done.stderr


def test_a_simulated_device_is_refused_with_the_command_that_works(cli):
    code, _, err = cli("--device", "sim")
    assert code == 2 and "simulated device cannot be tuned" in err and "--dry-run --device sm_90" in err


def test_a_dry_run_needs_no_device():
    assert run("--dry-run", "--device", "sm_90", "--quick").returncode == 0


def test_json_may_stand_before_the_command(cli):
    before = cli("--json", "explain", "--size", "64", "--device", "sm_86", command=None)
    after = cli("--size", "64", "--device", "sm_86", "--json", command="explain")
    assert before == after and json.loads(before[1])["arch"] == "sm_86"


def test_help_names_every_option():
    text = run("--help").stdout
    for option in ("--size", "--rung", "--budget", "--quick", "--dry-run", "--device", "--json", "--plot"):
        assert option in text
