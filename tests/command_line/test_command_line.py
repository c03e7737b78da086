import json
import os
import re
import subprocess
import sys
import warnings
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import kernel_texts
import numpy as np
import pytest

from fastsgemm import __version__, progress
from fastsgemm import command_line as command
from fastsgemm.__main__ import main as program
from fastsgemm.command_line import info, main
from fastsgemm.errors import NoNvrtcError
from fastsgemm.measure import simulated_ladder, stored_run
from fastsgemm.measure.operands import host_operands
from fastsgemm.measure.problem_sets import SETS
from fastsgemm.problem import Problem
from fastsgemm.rungs import IEEE, RUNGS
from fastsgemm.tuning import first_use, tuner


@pytest.fixture(scope="module")
def climb_once():
    """`simulated_ladder.climb`, which runs each ladder once for all tests."""
    tables, climb = {}, simulated_ladder.climb

    def once(problem, chosen, machine, overrides):
        asked = (problem, tuple(chosen), machine.device.name, str(overrides))
        if asked not in tables:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(simulated_ladder.ragged, "mismatch", lambda *question: None)  # which has tests of its own
                tables[asked] = climb(problem, chosen, machine, overrides=overrides)
        return tables[asked]

    return once


@pytest.fixture(autouse=True)
def small(monkeypatch, climb_once):
    monkeypatch.setattr(command, "DEFAULT_SIZE", Problem(64, 64, 64))
    monkeypatch.setattr(command, "SIMULATED_SIZE", Problem(32, 32, 32))
    monkeypatch.setattr(simulated_ladder, "climb", climb_once)


def test_no_command_shows_the_shipped_result_and_what_the_host_does(on_host, capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    shipped, rows = stored_run.run(), {row["name"]: row for row in stored_run.run()["ladder"]}
    assert f"Measured on one {shipped['device']}, {shipped['date']}: 4096 x 4096 x 4096\nTFLOP/s\n" in out
    assert re.search(rf"^9 pipelined +█+[▏▎▍▌▋▊▉]? {rows['pipelined']['tflops']:.3g}$", out, re.MULTILINE)
    assert re.search(rf"^cuBLAS +█+[▏▎▍▌▋▊▉]? {rows['cuBLAS']['tflops']:.3g}$", out, re.MULTILINE)
    speeds = [row["percent"] for name in SETS for row in shipped[name]]
    said = " ".join(out.split())
    assert f"On {len(speeds)} other problems" in said
    assert f"cuBLAS is faster on {sum(speed < 100 for speed in speeds)}." in said
    assert "NumPy's product through sgemm, 64 x 64 x 64: " in out


def test_without_a_device_the_counts_are_explained(no_driver, capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    said = " ".join(out.split())
    assert "Here no NVIDIA driver was found, so NumPy multiplies host arrays." in said and "note" not in out
    assert "Counted just now on a simulated NVIDIA H200 (sm_90): 32 x 32 x 32" in out
    assert "1 naive 32 sectors of 32 bytes in the busiest load: a warp reads a column of A" in said
    assert "2 coalesced 4 sectors of 32 bytes in the busiest load, 32 before: neighbouring threads" in said
    assert f"The {len(IEEE) - 1} rungs that sum in one chain" in out  # rung 10 shares K out
    assert max(map(len, out.splitlines())) <= 80


def test_a_wrong_choice_of_device_is_said_once(fresh_machine, monkeypatch, capsys):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "tpu")
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert "Measured on" not in out and "tpu" in err


class Timed:
    """A ladder of two rungs and cuBLAS, timed by NumPy's own product on the host."""

    def __init__(self, monkeypatch):
        self.asked = []
        self.info = info.Info(
            fastsgemm=__version__, python="3", numpy="2", backend="cuda", simulated=None, driver="580", nvrtc="13.0",
            pytorch=None, devices=(info.DeviceRow(0, "NVIDIA X", "sm_90", 132, 232448),), cache_folder=None,
            cache_kernels=0, cache_bytes=0, packages=(), choice=None, notes=(),
        )  # fmt: skip
        monkeypatch.setattr(command.info, "collect", lambda problem: self.info)
        monkeypatch.setattr(command.device, "host_backend", cache(lambda: "cuda"))
        monkeypatch.setattr(command.contenders, "on_device", contextmanager(self.on_device))

    def on_device(self, problem, chosen, ordinal, tried):
        self.asked.append(problem)
        a, b, c = host_operands(Problem(64, 64, 64))

        def work():
            np.matmul(a, b, out=c)

        def result(work):
            c.fill(np.nan)
            work()
            return c

        ms = iter([[4.0, 2.0], [1.0, 2.0]])
        products = [command.contenders.Product(rung.name, rung.number, {}, work) for rung in (RUNGS[0], RUNGS[8])]
        beside = command.contenders.Product("cuBLAS through X", None, {}, work)
        yield command.contenders.Contenders(
            Problem(64, 64, 64),
            "NVIDIA X",
            "device time",
            a,
            b,
            tuple(products),
            beside,
            result,
            lambda works: next(ms),
        )


def test_with_a_device_its_ladder_stands_beside_the_shipped_one(monkeypatch, capsys):
    timed = Timed(monkeypatch)
    assert main([]) == 0
    out = capsys.readouterr().out
    assert timed.asked == [stored_run.problem()] == [Problem(4096, 4096, 4096)]
    there = {row["name"]: row for row in stored_run.run()["ladder"]}
    lines = out[out.index("TFLOP/s here and on one NVIDIA H200") :].splitlines()
    flops = 2 * 64**3
    for line, name, ms, percent in zip(
        lines[2:], ("naive", "pipelined", "cuBLAS"), (4, 1, 2), (50, 200, 100), strict=False
    ):
        *_, here, own, other, others = line.split()
        assert float(here) == pytest.approx(flops / ms / 1e9, rel=1e-3) and float(own) == percent
        assert float(other) == pytest.approx(there[name]["tflops"], rel=1e-3)
        assert float(others) == pytest.approx(there[name]["percent"], abs=0.05)
    assert "sm_90 is in the tuning database, so no call tunes." in out


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        (True, "sm_75 is not in the tuning database: the first call tunes for about 18 s, once. All rungs"),
        (False, "sm_75 is not in the tuning database, and FASTSGEMM_TUNE=off: generic constants are used. All rungs"),
    ],
)
def test_an_unknown_device_is_told_how_long_its_first_tuning_takes(monkeypatch, capsys, allowed, words):
    timed = Timed(monkeypatch)
    timed.info = replace(timed.info, devices=(replace(timed.info.devices[0], arch="sm_75"),))
    monkeypatch.setattr(first_use, "allowed", lambda: allowed)
    assert main([]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert words in said and said.endswith("with this device's own constants: fastsgemm tune, about 8 minutes.")


def test_without_nvrtc_there_is_only_the_host(no_driver, monkeypatch, capsys):
    def missing():
        raise NoNvrtcError("install fastsgemm[cu13]")

    monkeypatch.setattr(command.info, "nvrtc_text", missing)
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "NumPy's product" in out and "install fastsgemm[cu13]" in out
    assert "Below is what this version reached on a device." in " ".join(out.split())
    assert "simulated NVIDIA" not in out


def test_a_wrong_simulated_result_is_an_exit_code(on_host, monkeypatch, capsys):
    monkeypatch.setattr("fastsgemm.measure.simulated_ladder.Table.ok", False)
    assert main([]) == 1


def test_constants_can_be_tried(fresh_machine, capsys):
    assert main(["ladder", "--device", "sim", "--rung", "5", "--rung", "6", "--config", "BM=64, BN=64"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "with the constants for 4096 x 4096 x 4096 but BM=64 BN=64 on a simulated" in shown
    assert "5 blocktile_2d BM=64 BN=64 BK=8 TM=8 TN=8 6 vectorized BM=64 BN=64 BK=8 TM=8 TN=8" in shown


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("BM=64,BX=3", "unknown constants ['BX']; ThreadTileConfig has ['BM', 'BN', 'BK', 'TM', 'TN']"),
        ("BM=100", "illegal config for rung blocktile_2d (BM=100 BN=128 BK=8 TM=8 TN=8): BM must be a multiple of TM"),
    ],
)
def test_constants_that_a_rung_cannot_take_are_an_error(config, message, fresh_machine, capsys):
    assert main(["ladder", "--device", "sim", "--rung", "5", "--config", config]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("config", ["64", "BM=", "BM=64;BN=64", "BM=64,BM=32", "BM=6.4", ""])
def test_what_names_no_constants_is_refused(config, capsys):
    with pytest.raises(SystemExit):
        main(["ladder", "--config", config])
    assert "expected NAME=NUMBER,..., each name once, such as BM=64,BN=64" in capsys.readouterr().err


def test_constants_without_their_rung_are_refused(fresh_machine, capsys):
    assert main(["ladder", "--device", "sim", "--config", "BM=64"]) == 2
    assert "--config names constants of one kernel; name that, too" in capsys.readouterr().err


def test_the_host_has_no_constants_to_try(on_host, capsys):
    assert main(["ladder", "--config", "BM=64"]) == 2
    assert "--config tries constants of kernels, which do not run on the host" in capsys.readouterr().err


def test_nvrtcs_log_keeps_its_lines(fresh_machine, monkeypatch, capsys):
    kernel_texts.change(monkeypatch, lambda text: '#line 1 "mine.cu"\nfloat x = y;\n')
    assert main(["ladder", "--device", "sim", "--rung", "1"]) == 2
    shown = capsys.readouterr().err.splitlines()
    line = shown.index('mine.cu(1): error: identifier "y" is undefined')
    assert shown[line + 1].strip() == "float x = y;" and shown[line + 2].strip() == "^"
    assert shown[line + 2].index("^") == shown[line + 1].index("y")


def test_the_simulated_device_alone(fresh_machine, monkeypatch, capsys):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    assert main(["--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["info"]["backend"] == "sim"
    assert [row["name"] for row in data["ladder"]["rows"]] == [rung.name for rung in IEEE]
    assert "simulated" not in data


@pytest.mark.parametrize(("arguments", "extents"), [([], (32, 32, 32)), (["--size", "9,8,7"], (9, 8, 7))])
def test_the_ladder_on_the_simulated_device(fresh_machine, monkeypatch, capsys, arguments, extents):
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", "sm_80")
    assert main(["ladder", "--device", "sim", "--json", "--rung", "2", "--rung", "naive", *arguments]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert (data["M"], data["N"], data["K"]) == extents
    assert data["device"] == "NVIDIA A100-SXM4-40GB"
    assert [row["name"] for row in data["rows"]] == ["coalesced", "naive"]
    assert err == ""


def test_a_device_that_cannot_be_simulated_is_one_line(fresh_machine, monkeypatch, capsys):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", "sm_11")
    assert main(["ladder"]) == 2
    assert "nothing is known of a device 'sm_11'" in capsys.readouterr().err


def test_no_device_is_said_and_is_no_failure(no_driver, capsys):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if "no NVIDIA driver was found" in line]
    assert err == "fastsgemm: running every rung on a simulated device, for about a minute\n"


def test_a_warning_is_one_line_of_the_program(no_driver, capsys, monkeypatch):
    """The line of the caller that Python shows with a warning would be one of a script that pip made."""
    monkeypatch.setattr(command, "main", lambda arguments: progress.warn("two\nlines") or 0)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert program([]) == 0
    assert capsys.readouterr().err == "fastsgemm: warning: two lines\n"


def test_the_help_says_what_a_command_takes(capsys):
    for name, batches in (("ladder", False), ("explain", True), ("prepare", True), ("bench", True)):
        with pytest.raises(SystemExit):
            main([name, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert "it is SYM: NT, and B is A transposed" in shown and (",xCOUNT after it" in shown) is batches


def test_json_of_everything(on_host, capsys):
    assert main(["--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["info"]["backend"] == "host"
    assert data["ladder"]["rows"][0]["name"] == "NumPy"
    assert data["simulated"]["rows"][0]["name"] == "naive"


@pytest.mark.parametrize("arguments", [["info", "--json"], ["--json", "info"]], ids=" ".join)
def test_json_of_info(on_host, capsys, arguments):
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["fastsgemm"] == __version__


def test_info_for_people(on_host, capsys):
    assert main(["info", "--size", "100"]) == 0
    assert f"fastsgemm     {__version__}" in capsys.readouterr().out


@pytest.mark.parametrize(("size", "extents"), [("100", (100, 100, 100)), ("31,17,65", (31, 17, 65))])
def test_ladder_of_a_size(on_host, capsys, size, extents):
    assert main(["ladder", "--json", "--size", size]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["M"], data["N"], data["K"]) == extents
    assert data["ok"]


@pytest.mark.parametrize("size", ["-4", "3,4", "1,2,3,4", "big", "1.5", ""])
def test_a_size_that_is_none(capsys, size):
    with pytest.raises(SystemExit, match="2"):
        main(["ladder", f"--size={size}"])
    assert "a problem is written N or M,N,K[,LAYOUT]" in capsys.readouterr().err


def test_an_unknown_rung_lists_those_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["ladder", "--rung", "fastest"])
    assert "8 warptiled" in capsys.readouterr().err


@pytest.mark.parametrize("rung", ["3", "smem_tiled"])
def test_a_rung_without_a_device_is_one_line(on_host, capsys, rung):
    assert main(["ladder", "--rung", rung]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "needs an NVIDIA GPU" in err


def test_a_forced_device_that_is_missing_is_one_line(no_driver, monkeypatch, capsys):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")  # --device comes first
    assert main(["ladder", "--device", "cuda"]) == 2
    assert capsys.readouterr().err.startswith("fastsgemm: no NVIDIA driver was found")


def test_the_host_can_be_forced(fresh_machine, monkeypatch, capsys):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    monkeypatch.setattr("fastsgemm.host._through_simulation", lambda *given: pytest.fail("simulated"))
    assert main(["ladder", "--device", "host", "--size", "32"]) == 0
    out, err = capsys.readouterr()
    assert "NumPy" in out and "fastsgemm ladder --device sim" in out and err == ""
    assert os.environ["FASTSGEMM_DEVICE"] == "sim" and command.device.host_backend() == "sim"


def test_a_wrong_result_is_an_exit_code(on_host, monkeypatch, capsys):
    monkeypatch.setattr("fastsgemm.measure.timed_ladder.Reference.error", lambda self, c: 1.0)
    assert main(["ladder", "--size", "8"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_the_cache_is_shown_and_cleared(tmp_path, monkeypatch, capsys):
    from fastsgemm.jit import cache

    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path))
    cache.write(b"a key", b"a cubin")
    assert main(["cache", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["folder"], shown["kernels"], shown["cleared"]) == (str(tmp_path), 1, False)
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}: removed 1 kernel")
    assert cache.entries() == (0, 0)


def test_a_cache_that_cannot_be_cleared_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path / "file"))
    assert main(["cache", "--clear"]) == 2
    assert "could not be emptied" in capsys.readouterr().err


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(
        name in out for name in ("info", "ladder", "explain", "tune", "cache", "--json", "M,N,K,LAYOUT", "sm_90")
    )


def test_as_a_program():
    environment = os.environ | {"FASTSGEMM_DEVICE": "host"}
    done = subprocess.run(
        [sys.executable, "-m", "fastsgemm", "ladder", "--size", "64", "--json"],
        env=environment, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stderr == ""
    assert json.loads(done.stdout)["ok"]


def test_a_layout_is_run_as_it_is_stored(on_host, monkeypatch, capsys):
    places = []
    climb = command.timed_ladder.climb
    monkeypatch.setattr(command.timed_ladder, "climb", lambda place: places.append(place) or climb(place))
    assert main(["ladder", "--json", "--size", "31,17,65,TN"]) == 0
    assert json.loads(capsys.readouterr().out)["layout"] == "TN"
    assert places[0].a.T.flags.c_contiguous and places[0].a.shape == (31, 65) and places[0].b.flags.c_contiguous


@pytest.mark.parametrize("device", ["sm_86", "NVIDIA RTX A6000"])
def test_a_named_device_is_simulated(fresh_machine, capsys, device):
    assert main(["ladder", "--device", device, "--size", "8", "--rung", "naive", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "NVIDIA RTX A6000"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "0"])
def test_a_device_of_this_machine_is_opened(no_driver, monkeypatch, capsys, device):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")  # --device comes first
    assert main(["ladder", "--device", device]) == 2
    assert "no NVIDIA driver" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["host", "sim", "sm_86"])
def test_the_ladder_refuses_a_batch(fresh_machine, capsys, device):
    assert main(["ladder", "--device", device, "--size", "8,8,8,x3"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == "fastsgemm: the ladder compares rungs on one product, got the batch 8,8,8,x3\n"


def test_explain_takes_a_batch_as_a_problem(capsys):
    assert main(["explain", "--size", "256,256,4096,x1000", "--device", "sm_90", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["problem"] == {"M": 256, "N": 256, "K": 4096, "layout": "NN", "batch": 1000}
    assert shown["rule"] == "predicted"
    with pytest.raises(SystemExit):
        main(["explain", "--size", "256,256,4096,x0", "--device", "sm_90"])
    assert "a batch has 1 to" in capsys.readouterr().err


def test_explain_names_a_device_in_two_ways(capsys):
    texts = []
    for device in ("sm_86", "NVIDIA RTX A6000"):
        assert main(["explain", "--size", "4096,4096,4096,TT", "--device", device, "--rung", "warptiled"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and "4096 x 4096 x 4096, TT, on NVIDIA RTX A6000 (sm_86)" in texts[0]


def test_explain_says_whether_fp16x3_is_used_and_why(capsys):
    asked = ["--precision", "fp16x3", "--device", "NVIDIA H200"]
    assert main(["explain", "--size", "4096", *asked]) == 0
    out = capsys.readouterr().out
    assert "precision  fp16x3: quicker than the IEEE kernel of rung pipelined" in out
    assert "constants  BM=128 BN=" in out  # also those that are defaults
    assert main(["explain", "--size", "64", *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["precision"], found["rung"]) == ("fp16x3", "pipelined") and "is quicker" in found["why"]
    with pytest.raises(SystemExit):
        main(["explain", "--size", "64", "--precision", "fp64"])
    assert main(["explain", "--size", "64", *asked, "--rung", "naive"]) == 2
    assert "rung naive computes with precision 'ieee'" in capsys.readouterr().err


def test_explain_shows_the_config_of_one_order(capsys):
    asked = ["explain", "--size", "300,300,30000", "--device", "sm_90"]
    assert main([*asked, "--batch-invariant"]) == 0
    shown = capsys.readouterr().out
    assert "rung       pipelined" in shown and "SEGMENT=1024" in shown
    assert main([*asked, "--batch-invariant", "--rung", "warptiled"]) == 2
    assert "needs rung 9 pipelined or skinny_in_order, got 8 warptiled" in capsys.readouterr().err
    assert main([*asked, "--batch-invariant", "--precision", "fp16x3"]) == 0
    shown = capsys.readouterr().out
    assert "rung       fp16x3" in shown and "SPLIT_K=4" in shown  # parts of at most 8192 steps


def test_explain_without_a_device_names_the_argument(no_driver, capsys):
    assert main(["explain", "--size", "64"]) == 2
    err = capsys.readouterr().err
    assert "no NVIDIA driver" in err and "--device sm_90" in err and err.count("\n") == 1


def test_tune_is_a_command(monkeypatch, capsys):
    assert main(["tune", "--dry-run", "--device", "NVIDIA H200", "--size", "512,256,128,tn", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["problems"] == ["512,256,128,TN"]
    monkeypatch.setattr(tuner, "tune", lambda shapes, **options: "a table of the run")
    assert main(["tune", "--quick"]) == 0
    assert capsys.readouterr().out == "a table of the run\n"


@pytest.mark.gpu
def test_everything_on_the_device(fresh_machine, monkeypatch, capsys):
    monkeypatch.delenv("FASTSGEMM_DEVICE", raising=False)
    assert main(["--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["info"]["devices"]
    assert data["ladder"]["identical"]


def test_what_products_would_take_is_predicted_from_a_file(tmp_path, capsys):
    path = tmp_path / "sizes.txt"
    path.write_text("# 3 products, 90.0% of FLOPs\n--size=512\n# 7 products, 10.0% of FLOPs\n--size=64,64,64\n")
    assert main(["predict", str(path), "--device", "H100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "NVIDIA H100 80GB HBM3" and [size["calls"] for size in found["sizes"]] == [3, 7]
    assert (
        0.5 < found["ratios"]["ieee"]["low"] < found["ratios"]["ieee"]["median"] < found["ratios"]["ieee"]["high"] < 1
    )
    path.write_text("# 1 product, 100.0% of FLOPs\n--size=64,64\n")
    assert main(["predict", str(path), "--device", "H100"]) == 2
    assert "a problem is written" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "none"), "--device", "H100"]) == 2
    assert "cannot be read" in capsys.readouterr().err
