"""A tuning run from end to end: open the device, tune each rung, store. `tune` is its entry."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastsgemm import resources
from fastsgemm.errors import RecordError, TuningError
from fastsgemm.heuristics import choose, database
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung
from fastsgemm.tuning.checkpoint import Checkpoint
from fastsgemm.tuning.outcome import Outcome
from fastsgemm.tuning.plan import RunPlan, plan_run
from fastsgemm.tuning.rung_tuning import RungTuning
from fastsgemm.tuning.search import Sweep

if TYPE_CHECKING:
    from pathlib import Path

    from fastsgemm.device import DeviceInfo, Gpu
    from fastsgemm.tuning.evaluator import Evaluator
    from fastsgemm.tuning.search import Progress

# Shares of the time left, for the first rung and for each next one; the last has the rest.
_FIRST_RUNG, _NEXT_RUNG = 0.65, 0.5
QUICK_SECONDS, STANDARD_SECONDS = 18.0, 465.0  # the budgets of a quick run and of the standard set, if none is named


def tune(
    shapes: Iterable[str | Sequence[int] | Problem] | None = None,
    *,
    rung: str | int | Rung | None = None,
    space: str | None = None,
    quick: bool = False,
    budget: float | None = None,
    device: int | str = 0,
    store: bool = True,
    progress: bool = True,
) -> Outcome:
    """Search the constants that are fastest on a device, and remember them.

    Parameters
    ----------
    shapes : iterable, optional
        Problems as ``(M, N, K)``, ``(M, N, K, layout)`` or ``"M,N,K,LAYOUT"``. Default: the standard set, which also
        measures the curves that untuned problems are predicted from.
    rung : str or int, optional
        The rung to tune. Default: every rung that has a search space; in a quick run those that `sgemm` uses.
    space : str, optional
        The search space, by name. Default: that of the rung.
    quick : bool
        A few good candidates only, in seconds.
    budget : float, optional
        Seconds that the run may take. Default: 18 for a quick run, 465 for the standard set, else as long
        as it takes.
    device : int or str
        CUDA's number of the device in this machine, ``cuda:1``, or its name or architecture.
    store : bool
        Whether to keep the result in the user's data folder.
    progress : bool
        Whether to show on stderr how far it is.

    Returns
    -------
    Outcome

    Raises
    ------
    TuningError
        Another process is tuning this device, or a candidate broke the CUDA context.
    DeviceError, ConfigError, UnknownRungError, ShapeError
    """
    from fastsgemm.device import open_gpu, ordinal
    from fastsgemm.progress import Bar

    began = time.monotonic()
    with evaluating(open_gpu(ordinal(device))) as evaluator, alone(evaluator.device):
        return carry_out(
            plan_run(evaluator.device, shapes, rung, space, quick),
            evaluator,
            Bar(progress),
            budget,
            store=store,
            began=began,
        )


@contextmanager
def evaluating(gpu: Gpu) -> Iterator[Evaluator]:
    """Make ready to tune a device. Afterwards nothing that was loaded or chosen for the trials is left."""
    from fastsgemm.tuning.evaluator import DeviceEvaluator

    switched = gpu.enter()
    try:
        evaluator = DeviceEvaluator(gpu)
        try:
            yield evaluator
        finally:
            evaluator.close()
            choose.forget()
    finally:
        if switched:
            gpu.leave()


def carry_out(
    planned: RunPlan,
    evaluator: Evaluator,
    bar: Progress,
    budget: float | None = None,
    *,
    store: bool = True,
    began: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Carry out a plan with an evaluator. What was found is stored also if it ends by an exception or Ctrl-C."""
    began = clock() if began is None else began
    if budget is None and (planned.quick or not planned.problems):
        budget = QUICK_SECONDS if planned.quick else STANDARD_SECONDS
    outcome = Outcome(evaluator.device, evaluator.tools)
    with Checkpoint(_checkpoint_path(evaluator.device), _stamp(evaluator)) as checkpoint:
        if checkpoint.found:
            bar.note(f"going on from {checkpoint.found} measurements in {checkpoint.path}")
        sweep = Sweep(evaluator, checkpoint, bar, began + (math.inf if budget is None else budget), clock)
        try:
            share = _FIRST_RUNG
            for space in planned.spaces:
                with sweep.within(1.0 if space is planned.spaces[-1] else share):
                    RungTuning(planned, space, sweep, outcome).run()
                share = _NEXT_RUNG
        finally:
            bar.end()
            outcome.seconds = clock() - began
            if store and (outcome.tuned or outcome.curves):
                outcome.path = database.save(outcome.content)
                choose.forget()
        if outcome.complete:
            checkpoint.finish()
    if not outcome.tuned:
        raise TuningError(f"nothing could be measured in the time: {_most(outcome.failures)}")
    return outcome


def _most(failures: dict[str, int]) -> str:
    if not failures:
        return "no candidate was reached"
    reason = max(failures, key=lambda text: failures[text])
    return f"{sum(failures.values())} candidates failed, most of them because {reason}"


@contextmanager
def alone(device_info: DeviceInfo, wait: float = 0.0) -> Iterator[None]:
    """Keep other processes from tuning the same kind of device: they would disturb each other's times.

    Parameters
    ----------
    device : Device
    wait : float
        Seconds to wait for another process.

    Raises
    ------
    TuningError
        It goes on for longer, or the user's data folder cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        path = database.folder_to_write("tuning") / f"{_slug(device_info.name)}.lock"
    except RecordError as error:
        raise TuningError(str(error)) from error
    try:
        lock = FileLock(path, timeout=wait)
        lock.acquire()
    except Timeout:
        raise TuningError(f"another process is tuning {device_info.name} (it holds {path})") from None
    except OSError as error:
        raise TuningError(
            f"{path.parent} cannot be written ({error}); FASTSGEMM_DATA_DIR names another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _checkpoint_path(device_info: DeviceInfo) -> Path:
    return database.folder_to_write("tuning") / f"{_slug(device_info.name)}.jsonl"


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def _stamp(evaluator: Evaluator) -> dict[str, str]:
    """Return what a measurement holds for: the kernels are part of it."""
    digest = hashlib.sha256()
    for path in sorted(resources.folder("cuda_src").rglob("*.cu*")):
        digest.update(path.read_bytes())
    return {
        "device": evaluator.device.name,
        "driver": evaluator.tools.driver,
        "nvrtc": evaluator.tools.nvrtc,
        "kernels": digest.hexdigest()[:16],
    }
