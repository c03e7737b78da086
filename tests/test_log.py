"""What FASTSGEMM_LOG lets the package tell."""

import numpy as np
import pytest

from fastsgemm import ConfigError, log
from fastsgemm.call.product import plan_of
from fastsgemm.device import DeviceInfo
from fastsgemm.geometry import variants
from fastsgemm.jit import compiler
from fastsgemm.problem import Problem
from fastsgemm.request import resolve

H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
SOURCE = 'extern "C" __global__ void told() {}'


@pytest.fixture
def level(monkeypatch):
    """Return a function that sets the level."""

    def set_level(name, path=""):
        monkeypatch.setenv("FASTSGEMM_LOG", name)
        monkeypatch.setenv("FASTSGEMM_LOG_FILE", str(path))
        log._level.cache_clear()
        log._warn_of_file.cache_clear()

    yield set_level
    log._level.cache_clear()


def work(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path / "cache"))
    for _ in range(2):
        compiler.cubin(SOURCE, "told", "sm_90")
    plan_of(H200, resolve(precision="fp16x3"), variants.dense(Problem(64, 64, 40, "NT")))


@pytest.mark.parametrize(("name", "lines"), [("", 0), ("off", 0), ("info", 2), ("debug", 3)])
def test_what_is_told_at_each_level(level, name, lines, tmp_path, monkeypatch, capsys):
    level(name)
    work(tmp_path, monkeypatch)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines and all(line.startswith("fastsgemm ") for line in said)
    text = "\n".join(said)
    assert ("compiled told for sm_90 in " in text) is (lines > 0)
    assert ("found told for sm_90 in the kernel cache" in text) is (name == "debug")
    assert ("chose rung pipelined for 64,64,40,NT: BM=" in text) is (lines > 0)
    assert ("the IEEE kernel of rung pipelined is quicker" in text) is (lines > 0)


def test_the_lines_go_to_a_file(level, tmp_path, monkeypatch, capsys):
    level("debug", tmp_path / "log.txt")
    work(tmp_path, monkeypatch)
    assert capsys.readouterr().err == "" and len((tmp_path / "log.txt").read_text().splitlines()) == 3


def test_a_file_that_cannot_be_written_is_one_warning(level, tmp_path):
    level("info", tmp_path / "none" / "log.txt")
    with pytest.warns(RuntimeWarning, match="FASTSGEMM_LOG_FILE names another file"):
        log.info(lambda: "lost")
    log.info(lambda: "lost")  # no second warning, which would be an error


def test_another_level_is_an_error(level):
    level("loud")
    with pytest.raises(ConfigError, match="FASTSGEMM_LOG must be one of off, info, debug, got 'loud'"):
        log.info(lambda: "")


@pytest.mark.usefixtures("on_host")
def test_a_switch_tells_each_decision_once(level, capsys):
    torch = pytest.importorskip("torch")
    import fastsgemm.torch

    level("info")
    x = torch.from_numpy(np.ones((6, 40), np.float32))
    with fastsgemm.torch.enabled(device="cpu"):
        for _ in range(3):
            x @ x.T
            x.double() @ x.T.double()
    said = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines() if "mm of" in line]
    assert said == ["replaces mm of 6,6,40,SYM", "passes on mm of float64 and float64: dtype float64"]
