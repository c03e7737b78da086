"""The tuning run: open the device, tune each rung, store the results. Its entry point is `tune`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING

from fastsgemm import arguments, resources
from fastsgemm.device import current, relaxed_capture
from fastsgemm.errors import ArgumentError, DeviceMemoryError, RecordError, TuningError
from fastsgemm.heuristics import database
from fastsgemm.problem import Problem
from fastsgemm.progress import Bar
from fastsgemm.rungs import Rung
from fastsgemm.tuning.checkpoint import Checkpoint
from fastsgemm.tuning.correction import predicted_gain
from fastsgemm.tuning.evaluator import Evaluator
from fastsgemm.tuning.outcome import Outcome
from fastsgemm.tuning.plan import RunPlan, plan_run
from fastsgemm.tuning.rung_tuning import RungTuning
from fastsgemm.tuning.search import Sweep

if TYPE_CHECKING:
    from fastsgemm.device import DeviceInfo, Gpu

# Shares of the remaining time for the first rung and for each following one; the last rung gets all of it.
_FIRST_RUNG, _NEXT_RUNG = 0.65, 0.5
QUICK_SECONDS, STANDARD_SECONDS = 18.0, 465.0  # the default budgets of a quick run and of the standard set


def tune(
    shapes: Iterable[str | Sequence[int] | Problem] | None = None,
    *,
    rung: str | int | Rung | None = None,
    quick: bool = False,
    budget: float | None = None,
    device: int | str = 0,
    store: bool = True,
    progress: bool = True,
) -> Outcome:
    """Search for the fastest config of each problem on a device, and store the results for `sgemm`.

    Parameters
    ----------
    shapes : iterable, optional
        Problems as ``(M, N, K)``, ``(M, N, K, layout)`` or ``"M,N,K,LAYOUT"``, batches as ``"M,N,K,LAYOUT,xCOUNT"``.
        Default: the standard set of each rung; then curves are measured too, from which the cost model predicts other
        problems.
    rung : str or int, optional
        The rung to tune. Default: every rung that has a search space; in a quick run and for a batch, the rungs that
        `sgemm` uses by default.
    quick : bool
        Whether to try only a few good candidates on the problems; without problems, to correct the curves and rates of
        another device by a few times on this one. Either takes seconds.
    budget : float, optional
        Seconds that the run may take. Default: 18 for a quick run, 465 for the standard set, otherwise unlimited.
    device : int or str
        CUDA's number of the device in this machine, ``cuda:1``, or its name or architecture.
    store : bool
        Whether to store the results in the user's data folder.
    progress : bool
        Whether to show a progress bar on stderr.

    Returns
    -------
    Outcome

    Raises
    ------
    TuningError
        Another process is tuning this device, or a candidate broke the CUDA context.
    DeviceError, ConfigError, UnknownRungError, ShapeError
    ArgumentError
        Another argument has a wrong type.
    """
    from fastsgemm.device import open_gpu, ordinal

    quick, store = arguments.switch("quick", quick), arguments.switch("store", store)
    bar = Bar(arguments.switch("progress", progress))
    if budget is not None and not (isinstance(budget, Real) and budget >= 0):
        raise ArgumentError(f"budget must be a number of seconds, 0 or more, got {budget!r}")
    with evaluating(open_gpu(ordinal(device))) as evaluator, exclusive_lock(evaluator.device):
        plan = plan_run(evaluator.device, shapes, rung, quick)
        return run_plan(plan, evaluator, bar, budget, store=store)


@contextmanager
def evaluating(gpu: Gpu) -> Iterator[Evaluator]:
    """Give the evaluator of a device, with the device current. On exit, unload the kernels that were tried."""
    with current(gpu), relaxed_capture():  # else waiting for the device would end captures of other threads
        evaluator = Evaluator(gpu)
        try:
            yield evaluator
        finally:
            evaluator.close()
            database.forget()


def run_plan(
    plan: RunPlan,
    evaluator: Evaluator,
    bar: Bar,
    budget: float | None = None,
    *,
    store: bool = True,
) -> Outcome:
    """Carry out a plan on its device, for at most `budget` seconds; see `tune`.

    Results so far are stored even if the run ends by an exception or Ctrl-C.

    Raises
    ------
    TuningError
        No problem could be tuned, or a candidate broke the CUDA context.
    RecordError
        The checkpoint or the results cannot be written.
    """
    began = evaluator.clock()
    if budget is None and (plan.quick or not plan.problems):
        budget = QUICK_SECONDS if plan.quick else STANDARD_SECONDS
    outcome = Outcome(evaluator.device, evaluator.tools)
    path = database.folder_to_write("tuning") / f"{database.file_name(evaluator.device.name)}.jsonl"
    with Checkpoint(path, _stamp(evaluator)) as checkpoint:
        if checkpoint.found:
            bar.note(f"resuming from {checkpoint.found} measurements in {path}")
        sweep = Sweep(evaluator, checkpoint, bar, began + (math.inf if budget is None else budget))
        try:
            if plan.rates and not (plan.quick and plan.spaces):
                _measure_rates(plan, sweep, outcome)
            share = _FIRST_RUNG
            for space in plan.spaces:
                with sweep.within(1.0 if space is plan.spaces[-1] else share):
                    RungTuning(plan, space, sweep, outcome).tune()
                share = _NEXT_RUNG
            if plan.rates and plan.quick and plan.spaces and not sweep.late:  # after what every product needs
                _measure_rates(plan, sweep, outcome)
            if outcome.transferred:
                outcome.gain = predicted_gain(outcome)
        finally:
            bar.end()
            outcome.seconds = evaluator.clock() - began
            if store and (outcome.tuned or outcome.curves or outcome.rates):
                outcome.path = database.save(outcome.content)
        if outcome.complete:
            checkpoint.finish()
    if not outcome.tuned and outcome.rates is None and not outcome.curves:
        raise TuningError(f"nothing was tuned: {_main_failure(outcome)}")
    return outcome


def _measure_rates(plan: RunPlan, sweep: Sweep, outcome: Outcome) -> None:
    """Measure the rates of rung 11. A quick run corrects those of another device, unless this one's were measured."""
    device = sweep.evaluator.device
    own = (rates for rates in database.own(device.arch).rates if rates.device == device.name)
    if plan.quick and any(rates.transferred_from is None for rates in own):
        return
    sweep.progress.note("measuring the tiles and rates of rung fp16x3")
    try:
        outcome.rates = sweep.evaluator.fp16x3_rates(plan.quick)
    except DeviceMemoryError as error:
        if not plan.spaces:
            raise
        sweep.progress.note(f"rung fp16x3 is left out: {error}")
        outcome.failures[str(error)] = 1


def _main_failure(outcome: Outcome) -> str:
    failures = outcome.failures
    if not failures and outcome.complete:
        return "its curves and rates were measured in full; fastsgemm tune measures them again"
    if not failures:
        return "the budget was spent before a problem was decided"
    reason = max(failures, key=lambda text: failures[text])
    return f"{sum(failures.values())} candidates failed, most of them with: {reason}"


@contextmanager
def exclusive_lock(device_info: DeviceInfo, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock that keeps other processes from tuning devices of the same name, which would distort the times.

    Another process is waited for `wait` seconds.

    Raises
    ------
    TuningError
        Another process still holds the lock, or the user's data folder cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        path = database.folder_to_write("tuning") / f"{database.file_name(device_info.name)}.lock"
    except RecordError as error:
        raise TuningError(str(error)) from error
    try:
        lock = FileLock(path, timeout=wait)
        lock.acquire()
    except Timeout:
        raise TuningError(f"another process is tuning {device_info.name} (it holds {path})") from None
    except (OSError, NotImplementedError) as error:  # the latter: a file system without locks
        raise TuningError(
            f"{path.parent} cannot be written ({error}); FASTSGEMM_DATA_DIR names another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _stamp(evaluator: Evaluator) -> dict[str, str]:
    """Return what a measurement depends on: device, driver, NVRTC and a digest of the kernels' sources."""
    digest = hashlib.sha256()
    for path in sorted(resources.folder("cuda_src").rglob("*.cu*")):
        digest.update(path.read_bytes())
    return {
        "device": evaluator.device.name,
        "driver": evaluator.tools.driver,
        "nvrtc": evaluator.tools.nvrtc,
        "kernels": digest.hexdigest()[:16],
    }
