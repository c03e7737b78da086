import dataclasses
import os
import sys
import threading
import time
import warnings
from contextlib import contextmanager

import pytest

from fastsgemm import autotune, choose, device, rungs, tuner
from fastsgemm.errors import ConfigError, TuningError
from fastsgemm.plan import Problem
from fastsgemm.progress import Bar

WARP = rungs.find("warptiled")


class Gpu:
    """What `autotune.meet` looks at of a card that nobody knows."""

    ordinal, name, arch, shared_limit, multiprocessors = 7, "Fake 9000", "sm_42", 232448, 132

    def __init__(self):
        self.capturing = set()

    def stream(self, handle):
        return handle


@pytest.fixture
def gpu(bench, data_folder, monkeypatch):
    """An unknown card: the database has nothing for its architecture, and its bench is a fake."""
    card = Gpu()
    bench.card = dataclasses.replace(bench.card, arch=card.arch)

    @contextmanager
    def on_fake(opened):
        assert opened is card
        yield bench

    monkeypatch.setattr(tuner, "workbench", on_fake)
    monkeypatch.setattr(device, "is_capturing", lambda stream: stream in card.capturing)
    monkeypatch.delenv("FASTSGEMM_TUNE", raising=False)
    autotune.allowed.cache_clear()
    autotune._met.clear()
    yield card
    autotune.allowed.cache_clear()
    autotune._met.clear()


def meet(gpu, stream=5, rung=WARP):
    autotune.meet(gpu, stream, rung)


def test_an_unknown_card_is_tuned_once_and_then_known(gpu, bench, capsys):
    meet(gpu)
    err = capsys.readouterr().err
    assert "Fake 9000 (sm_42) is not in the tuning database" in err and "FASTSGEMM_TUNE=off" in err
    assert choose.knows(gpu, WARP)
    assert choose.choose(gpu, WARP, Problem(1000, 2000, 3000)).rule == choose.PREDICTED
    timed = len(bench.timed)
    assert timed > 0
    meet(gpu)
    autotune._met.clear()  # another process
    meet(gpu)
    assert len(bench.timed) == timed
    assert capsys.readouterr().err == ""


def test_a_known_architecture_is_not_tuned(gpu, bench, monkeypatch):
    monkeypatch.setattr(gpu, "arch", "sm_86", raising=False)
    meet(gpu)
    assert bench.timed == []


def test_where_only_other_rungs_are_known_what_sgemm_uses_is_tuned(gpu, bench, monkeypatch):
    """Published constants of rungs 7 and 8 say nothing of rungs 9 and 10."""
    monkeypatch.setattr(gpu, "arch", "sm_86", raising=False)
    bench.card = dataclasses.replace(bench.card, arch="sm_86")
    assert choose.knows(gpu, WARP) and not choose.knows(gpu)
    meet(gpu)
    assert bench.timed == []
    meet(gpu, rung=None)
    assert bench.timed and choose.knows(gpu)
    timed = len(bench.timed)
    autotune._met.clear()
    meet(gpu, rung=None)
    assert len(bench.timed) == timed


@pytest.mark.parametrize("value", ["off", "OFF", " off "])
def test_it_can_be_switched_off(gpu, bench, monkeypatch, value, capsys):
    monkeypatch.setenv("FASTSGEMM_TUNE", value)
    meet(gpu)
    assert bench.timed == [] and capsys.readouterr().err == ""
    assert choose.choose(gpu, WARP, Problem(64, 64, 64)).arch == "generic"


def test_auto_is_the_default_by_name(gpu, bench, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_TUNE", "auto")
    meet(gpu)
    assert bench.timed


def test_another_value_is_an_error(gpu, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_TUNE", "maybe")
    with pytest.raises(ConfigError, match="must be auto or off, got 'maybe'"):
        meet(gpu)


def test_the_environment_is_read_once(gpu, monkeypatch):
    assert autotune.allowed()
    monkeypatch.setenv("FASTSGEMM_TUNE", "off")
    assert autotune.allowed()


def test_a_rung_without_a_search_space_is_not_tuned(gpu, bench):
    meet(gpu, rung=rungs.find("naive"))
    assert bench.timed == []


@pytest.mark.parametrize("captured", [5, device.LEGACY_STREAM])
def test_never_inside_a_capture_but_at_the_next_call(gpu, bench, captured):
    gpu.capturing = {captured}
    meet(gpu)
    assert bench.timed == []
    gpu.capturing = set()
    meet(gpu)
    assert bench.timed


def test_never_without_a_stderr(gpu, bench, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    meet(gpu)
    assert bench.timed == []


def test_never_with_a_stderr_that_nobody_sees(gpu, bench, monkeypatch):
    with open(os.devnull, "w") as null:
        monkeypatch.setattr(sys, "stderr", null)
        meet(gpu)
    meet(gpu)  # closed
    assert bench.timed == []


def test_what_goes_wrong_is_one_warning(gpu, bench, monkeypatch):
    def broken(*_, **__):
        raise TuningError("a candidate broke the CUDA context")

    monkeypatch.setattr(tuner, "run", broken)
    with pytest.warns(RuntimeWarning, match="generic constants are used: a candidate broke"):
        meet(gpu)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meet(gpu)


def test_a_folder_that_cannot_be_written_is_found_out_before_the_sweep(gpu, bench, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTSGEMM_DATA_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="could not be tuned"):
        meet(gpu)
    assert bench.timed == []


def test_a_second_process_waits_for_the_first_and_uses_its_answer(gpu, bench, monkeypatch):
    planned = tuner.plan(bench.card, rung=WARP, quick=True)
    held, done = threading.Event(), threading.Event()

    def first():
        with tuner.alone(bench.card):
            held.set()
            time.sleep(0.3)
            tuner.run(planned, bench, Bar(False), clock=lambda: bench.now)
            bench.timed = []
            done.set()

    thread = threading.Thread(target=first)
    thread.start()
    held.wait(10)
    meet(gpu)
    assert done.is_set() and bench.timed == [] and choose.knows(gpu, WARP)
    thread.join()


def test_a_first_process_that_takes_too_long_is_not_waited_for(gpu, bench, monkeypatch):
    monkeypatch.setattr(autotune, "_WAIT_SECONDS", 0.1)
    with tuner.alone(bench.card), pytest.warns(RuntimeWarning, match="another process is tuning"):
        meet(gpu)
    assert bench.timed == []
    assert choose.choose(gpu, WARP, Problem(64, 64, 64)).arch == "generic"


def test_threads_wait_for_the_one_that_tunes(gpu, bench, monkeypatch):
    known, made = [], []
    workbench = tuner.workbench
    monkeypatch.setattr(tuner, "workbench", lambda opened: made.append(opened) or workbench(opened))

    def call():
        meet(gpu)
        known.append(choose.knows(gpu, WARP))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert known == [True] * 4 and made == [gpu]
    assert len(bench.compiled) == len(set(bench.compiled))


def test_ctrl_c_ends_the_call(gpu, bench):
    bench.interrupt_after = 10
    with pytest.raises(KeyboardInterrupt):
        meet(gpu)
