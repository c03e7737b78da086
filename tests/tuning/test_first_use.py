import dataclasses
import os
import sys
import threading
import time
import warnings
from contextlib import contextmanager

import pytest

from fastsgemm import device, rungs
from fastsgemm.errors import ConfigError, TuningError
from fastsgemm.heuristics import choose
from fastsgemm.problem import Problem
from fastsgemm.progress import Bar
from fastsgemm.tuning import first_use, tuner
from fastsgemm.tuning.plan import plan_run

WARP = rungs.find("warptiled")


class Gpu:
    """What `autotune.meet` looks at of a device that nobody knows."""

    ordinal, name, arch, shared_limit, multiprocessors = 7, "Fake 9000", "sm_42", 232448, 132

    def __init__(self):
        self.capturing = set()

    def stream(self, handle):
        return handle


@pytest.fixture
def gpu(evaluator, data_folder, monkeypatch):
    """An unknown device: the database has nothing for its architecture, and its bench is a fake."""
    device_info = Gpu()
    evaluator.device = dataclasses.replace(evaluator.device, arch=device_info.arch)

    @contextmanager
    def on_fake(opened):
        assert opened is device_info
        yield evaluator

    monkeypatch.setattr(tuner, "evaluating", on_fake)
    monkeypatch.setattr(device, "is_capturing", lambda stream: stream in device_info.capturing)
    monkeypatch.delenv("FASTSGEMM_TUNE", raising=False)
    first_use.allowed.cache_clear()
    first_use._met.clear()
    yield device_info
    first_use.allowed.cache_clear()
    first_use._met.clear()


def meet(gpu, stream=5, rung=WARP):
    first_use.meet(gpu, stream, rung)


def test_an_unknown_device_is_tuned_once_and_then_known(gpu, evaluator, capsys):
    meet(gpu)
    err = capsys.readouterr().err
    assert "Fake 9000 (sm_42) is not in the tuning database" in err and "FASTSGEMM_TUNE=off" in err
    assert choose.knows(gpu, WARP)
    assert choose.choose(gpu, WARP, Problem(1000, 2000, 3000)).rule == choose.PREDICTED
    timed = len(evaluator.timed)
    assert timed > 0
    meet(gpu)
    first_use._met.clear()  # another process
    meet(gpu)
    assert len(evaluator.timed) == timed
    assert capsys.readouterr().err == ""


def test_a_known_architecture_is_not_tuned(gpu, evaluator, monkeypatch):
    monkeypatch.setattr(gpu, "arch", "sm_86", raising=False)
    meet(gpu)
    assert evaluator.timed == []


def test_where_only_other_rungs_are_known_what_sgemm_uses_is_tuned(gpu, evaluator, monkeypatch):
    """Published constants of rungs 7 and 8 say nothing of rungs 9 and 10."""
    monkeypatch.setattr(gpu, "arch", "sm_86", raising=False)
    evaluator.device = dataclasses.replace(evaluator.device, arch="sm_86")
    assert choose.knows(gpu, WARP) and not choose.knows(gpu)
    meet(gpu)
    assert evaluator.timed == []
    meet(gpu, rung=None)
    assert evaluator.timed and choose.knows(gpu)
    timed = len(evaluator.timed)
    first_use._met.clear()
    meet(gpu, rung=None)
    assert len(evaluator.timed) == timed


@pytest.mark.parametrize("value", ["off", "OFF", " off "])
def test_it_can_be_switched_off(gpu, evaluator, monkeypatch, value, capsys):
    monkeypatch.setenv("FASTSGEMM_TUNE", value)
    meet(gpu)
    assert evaluator.timed == [] and capsys.readouterr().err == ""
    assert choose.choose(gpu, WARP, Problem(64, 64, 64)).arch == "generic"


def test_auto_is_the_default_by_name(gpu, evaluator, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_TUNE", "auto")
    meet(gpu)
    assert evaluator.timed


def test_another_value_is_an_error(gpu, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_TUNE", "maybe")
    with pytest.raises(ConfigError, match="must be auto or off, got 'maybe'"):
        meet(gpu)


def test_the_environment_is_read_once(gpu, monkeypatch):
    assert first_use.allowed()
    monkeypatch.setenv("FASTSGEMM_TUNE", "off")
    assert first_use.allowed()


def test_a_rung_without_a_search_space_is_not_tuned(gpu, evaluator):
    meet(gpu, rung=rungs.find("naive"))
    assert evaluator.timed == []


@pytest.mark.parametrize("captured", [5, device.LEGACY_STREAM])
def test_never_inside_a_capture_but_at_the_next_call(gpu, evaluator, captured):
    gpu.capturing = {captured}
    meet(gpu)
    assert evaluator.timed == []
    gpu.capturing = set()
    meet(gpu)
    assert evaluator.timed


def test_never_without_a_stderr(gpu, evaluator, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    meet(gpu)
    assert evaluator.timed == []


def test_never_with_a_stderr_that_nobody_sees(gpu, evaluator, monkeypatch):
    with open(os.devnull, "w") as null:
        monkeypatch.setattr(sys, "stderr", null)
        meet(gpu)
    meet(gpu)  # closed
    assert evaluator.timed == []


def test_what_goes_wrong_is_one_warning(gpu, evaluator, monkeypatch):
    def broken(*_, **__):
        raise TuningError("a candidate broke the CUDA context")

    monkeypatch.setattr(tuner, "carry_out", broken)
    with pytest.warns(RuntimeWarning, match="generic constants are used: a candidate broke"):
        meet(gpu)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meet(gpu)


def test_a_folder_that_cannot_be_written_is_found_out_before_the_sweep(gpu, evaluator, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTSGEMM_DATA_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="could not be tuned"):
        meet(gpu)
    assert evaluator.timed == []


def test_a_second_process_waits_for_the_first_and_uses_its_answer(gpu, evaluator, monkeypatch):
    planned = plan_run(evaluator.device, rung=WARP, quick=True)
    held, done = threading.Event(), threading.Event()

    def first():
        with tuner.alone(evaluator.device):
            held.set()
            time.sleep(0.3)
            tuner.carry_out(planned, evaluator, Bar(False), clock=lambda: evaluator.now)
            evaluator.timed = []
            done.set()

    thread = threading.Thread(target=first)
    thread.start()
    held.wait(10)
    meet(gpu)
    assert done.is_set() and evaluator.timed == [] and choose.knows(gpu, WARP)
    thread.join()


def test_a_first_process_that_takes_too_long_is_not_waited_for(gpu, evaluator, monkeypatch):
    monkeypatch.setattr(first_use, "_WAIT_SECONDS", 0.1)
    with tuner.alone(evaluator.device), pytest.warns(RuntimeWarning, match="another process is tuning"):
        meet(gpu)
    assert evaluator.timed == []
    assert choose.choose(gpu, WARP, Problem(64, 64, 64)).arch == "generic"


def test_threads_wait_for_the_one_that_tunes(gpu, evaluator, monkeypatch):
    known, made = [], []
    workbench = tuner.evaluating
    monkeypatch.setattr(tuner, "evaluating", lambda opened: made.append(opened) or workbench(opened))

    def call():
        meet(gpu)
        known.append(choose.knows(gpu, WARP))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert known == [True] * 4 and made == [gpu]
    assert len(evaluator.compiled) == len(set(evaluator.compiled))


def test_ctrl_c_ends_the_call(gpu, evaluator):
    evaluator.interrupt_after = 10
    with pytest.raises(KeyboardInterrupt):
        meet(gpu)
