"""Opening a device: an unknown one is tuned once, wherever stderr goes, and never while a stream is captured."""

import os
import re
import sys
import threading
import warnings
from contextlib import contextmanager

import pytest
from in_threads import run_all
from msgspec import structs

from fastsgemm import device, rungs
from fastsgemm.errors import ConfigError, TuningError
from fastsgemm.heuristics import database, device_database
from fastsgemm.heuristics.choice import PREDICTED, choose_config
from fastsgemm.problem import Problem
from fastsgemm.progress import Bar
from fastsgemm.tuning import first_use, tuner
from fastsgemm.tuning.plan import plan_run

ORDINAL, STREAM = 7, 5
WARP = rungs.find("warptiled")


def file_of(gpu, rung):
    """The architecture of the file that the choice for a problem rests on."""
    return database.origin_of(choose_config(gpu, rung, Problem(64, 64, 64)).evidence, gpu.arch)[0]


class Gpu:
    """A device of an architecture that the tuning database does not know."""

    ordinal, name, arch, shared_limit, multiprocessors = ORDINAL, "Fake 9000", "sm_42", 232448, 132

    def __init__(self):
        self.capturing = set()
        self.entered = 0

    def enter(self):
        self.entered += 1
        return True

    def leave(self):
        self.entered -= 1


@pytest.fixture
def gpu(evaluator, data_folder, monkeypatch):
    """An unknown device: the database has nothing for its architecture, and its evaluator is a fake."""
    gpu = Gpu()
    evaluator.device = structs.replace(evaluator.device, arch=gpu.arch)

    @contextmanager
    def on_fake(opened):
        assert opened is gpu and gpu.entered
        yield evaluator

    monkeypatch.setitem(device.gpus, ORDINAL, gpu)
    monkeypatch.setattr(first_use, "opened", {})
    monkeypatch.setattr(tuner, "evaluating", on_fake)
    monkeypatch.setattr(device, "is_capturing", lambda stream: stream in gpu.capturing)
    monkeypatch.delenv("FASTSGEMM_TUNE", raising=False)
    first_use.allowed.cache_clear()
    yield gpu
    first_use.allowed.cache_clear()


def open_device():
    return first_use.open_device(ORDINAL, lambda: STREAM)


def test_an_unknown_device_is_tuned_once_and_then_known(gpu, evaluator, capsys):
    assert open_device() is gpu
    err = capsys.readouterr().err
    assert "Fake 9000 (sm_42) is not in the tuning database" in err and "FASTSGEMM_TUNE=off" in err
    assert re.search(r"fastsgemm: corrected the times of 37 configs of NVIDIA H200 in .* s: .* [0-9.]+% faster", err)
    assert device_database.knows(gpu)
    assert choose_config(gpu, None, Problem(1000, 2000, 3000)).rule == PREDICTED
    timed = len(evaluator.timed)
    assert timed > 0 and gpu.entered == 0
    assert open_device() is gpu
    first_use.opened.clear()  # another process
    assert open_device() is gpu
    assert len(evaluator.timed) == timed
    assert capsys.readouterr().err == ""


def test_a_finaliser_that_multiplies_while_the_device_is_tuned_gets_the_device(gpu, monkeypatch):
    """Python may run it at any step, in the thread that tunes: it must neither wait for that nor tune again."""
    inside = []
    monkeypatch.setattr(first_use, "_tune", lambda opened: inside.append(open_device()))
    thread = threading.Thread(target=open_device, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive() and inside == [gpu]


def test_the_second_opening_is_a_look_up(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "arch", "sm_90", raising=False)
    open_device()
    monkeypatch.setattr(device_database, "knows", lambda *given: pytest.fail("looked at the database again"))
    monkeypatch.setattr(device, "open_gpu", lambda ordinal: pytest.fail("opened again"))
    assert open_device() is gpu is first_use.opened[ORDINAL]


def test_a_known_architecture_is_not_tuned(gpu, evaluator, monkeypatch):
    monkeypatch.setattr(gpu, "arch", "sm_90", raising=False)
    open_device()
    assert evaluator.timed == []


def test_where_only_other_rungs_are_known_what_sgemm_uses_is_tuned(gpu, evaluator, monkeypatch):
    """Published constants of rungs 7 and 8 say nothing of rungs 9 and 10."""
    monkeypatch.setattr(gpu, "arch", "sm_86", raising=False)
    evaluator.device = structs.replace(evaluator.device, arch="sm_86")
    assert file_of(gpu, WARP) == "sm_86" and not device_database.knows(gpu)
    open_device()
    assert evaluator.timed and device_database.knows(gpu)


def test_a_named_rung_without_records_uses_the_generic_one(gpu, evaluator):
    open_device()
    assert {job.rung.name for job in evaluator.compiled} <= {rung.name for rung in rungs.DEFAULTS}
    assert file_of(gpu, WARP) == "generic"


@pytest.mark.parametrize("value", ["off", "OFF", " off "])
def test_it_can_be_switched_off(gpu, evaluator, monkeypatch, value, capsys):
    monkeypatch.setenv("FASTSGEMM_TUNE", value)
    open_device()
    assert evaluator.timed == [] and capsys.readouterr().err == ""
    assert file_of(gpu, None) == "sm_90"  # whose curves are carried over


def test_auto_is_the_default_by_name(gpu, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_TUNE", "auto")
    assert first_use.allowed()


def test_another_value_is_an_error(gpu, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_TUNE", "maybe")
    with pytest.raises(ConfigError, match="must be auto or off, got 'maybe'"):
        open_device()


def test_the_environment_is_read_once(gpu, monkeypatch):
    assert first_use.allowed()
    monkeypatch.setenv("FASTSGEMM_TUNE", "off")
    assert first_use.allowed()


@pytest.mark.parametrize("captured", [STREAM, pytest.param(device.LEGACY_STREAM, marks=pytest.mark.slow)])
def test_never_inside_a_capture_but_at_the_next_call(gpu, evaluator, captured):
    gpu.capturing = {captured}
    assert open_device() is gpu
    assert evaluator.timed == [] and first_use.opened == {} and gpu.entered == 0
    gpu.capturing = set()
    open_device()
    assert evaluator.timed


@pytest.mark.parametrize(
    "where", ["none", *(pytest.param(where, marks=pytest.mark.slow) for where in ("null device", "closed"))]
)
def test_a_device_is_tuned_wherever_stderr_goes(gpu, evaluator, monkeypatch, where):
    with open(os.devnull, "w") as null:
        monkeypatch.setattr(sys, "stderr", None if where == "none" else null)
        if where == "closed":
            null.close()
        open_device()
    assert evaluator.timed and device_database.knows(gpu)


def test_what_goes_wrong_is_one_warning(gpu, evaluator, monkeypatch):
    def broken(*_, **__):
        raise TuningError("a candidate broke the CUDA context")

    monkeypatch.setattr(tuner, "run_plan", broken)
    with pytest.warns(RuntimeWarning, match="predicted from another device: a candidate broke"):
        open_device()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_device()


def test_where_results_cannot_be_stored_no_process_tunes(gpu, evaluator, monkeypatch, data_folder):
    """Else each process would do it anew."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write everywhere
    for _ in range(2):
        first_use.opened.clear()  # another process
        with pytest.warns(RuntimeWarning, match="Fake 9000 could not be tuned.*you may not write") as seen:
            open_device()
        open_device()  # without a second warning, which would be an error
        assert len(seen) == 1
    assert evaluator.timed == [] and file_of(gpu, None) == "sm_90"


def test_a_folder_that_cannot_be_written_is_found_before_anything_is_timed(gpu, evaluator, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTSGEMM_DATA_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="could not be tuned"):
        open_device()
    assert evaluator.timed == []


def test_a_second_process_waits_for_the_first_and_uses_its_answer(gpu, evaluator, monkeypatch):
    """A file lock stands between two threads with locks of their own as it does between two processes."""
    alone = tuner.exclusive_lock

    @contextmanager
    def arriving(device_info, wait):
        arrived.set()
        with alone(device_info, wait):
            yield

    held, arrived, done = threading.Event(), threading.Event(), threading.Event()

    def first():
        try:
            with alone(evaluator.device):
                held.set()
                arrived.wait()
                tuner.run_plan(plan_run(evaluator.device, quick=True), evaluator, Bar(False))
                evaluator.timed = []
                done.set()
        finally:
            held.set()  # otherwise a failure here would hang the test

    monkeypatch.setattr(tuner, "exclusive_lock", arriving)
    monkeypatch.setattr(first_use, "WAIT_SECONDS", -1)  # without limit
    thread = threading.Thread(target=first)
    thread.start()
    held.wait()
    try:
        open_device()
    finally:
        arrived.set()
        thread.join()
    assert done.is_set() and evaluator.timed == [] and device_database.knows(gpu)


def test_a_first_process_that_takes_too_long_is_not_waited_for(gpu, evaluator, monkeypatch):
    monkeypatch.setattr(first_use, "WAIT_SECONDS", 0)
    with tuner.exclusive_lock(evaluator.device), pytest.warns(RuntimeWarning, match="another process is tuning"):
        open_device()
    assert evaluator.timed == []
    assert file_of(gpu, None) == "sm_90"


def test_threads_wait_for_the_one_that_tunes(gpu, evaluator, monkeypatch):
    known, made = [], []
    evaluating = tuner.evaluating
    monkeypatch.setattr(tuner, "evaluating", lambda opened: made.append(opened) or evaluating(opened))

    def call(i):
        open_device()
        known.append(device_database.knows(gpu))

    run_all(call, 4)
    assert known == [True] * 4 and made == [gpu]


def test_ctrl_c_ends_the_call_and_the_next_one_does_not_tune(gpu, evaluator):
    evaluator.interrupt_after = 10
    with pytest.raises(KeyboardInterrupt):
        open_device()
    assert gpu.entered == 0
    compiled = len(evaluator.compiled)
    assert open_device() is gpu
    assert len(evaluator.compiled) == compiled and len(evaluator.timed) == 10
