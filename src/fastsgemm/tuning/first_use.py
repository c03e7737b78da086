"""A device that the database does not know: tuned quickly by the first `sgemm` that meets it.

``FASTSGEMM_TUNE=off`` forbids it, ``auto`` (the default) allows it.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

from fastsgemm import device, rungs
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import ConfigError, FastsgemmError
from fastsgemm.heuristics import choose
from fastsgemm.rungs import Rung

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_WAIT_SECONDS = 60.0  # for another process that is tuning the same kind of device

_lock = threading.Lock()
_met: set[tuple[int, str | None]] = set()  # devices, and rungs of them, that need no more thought in this process


@cache
def allowed() -> bool:
    """Whether unknown devices are tuned. ``FASTSGEMM_TUNE`` is read once per process.

    Raises
    ------
    ConfigError
        It is neither ``auto`` nor ``off``.
    """
    value = os.environ.get("FASTSGEMM_TUNE", "").strip().lower() or "auto"
    if value not in ("auto", "off"):
        raise ConfigError(f"FASTSGEMM_TUNE must be auto or off, got {value!r}")
    return value == "auto"


def meet(gpu: Gpu, stream: Any, rung: Rung | None) -> None:
    """Tune `rung`, or what `sgemm` uses, where the database knows nothing of it for the architecture; else do nothing.

    Whatever goes wrong is one warning: the generic constants serve as well as before.

    Parameters
    ----------
    gpu : Gpu
        Current in this thread.
    stream : cuda.core.Stream
        Where the product is to run; while it is being captured into a graph nothing is tuned.
    rung : Rung or None
    """
    key = (gpu.ordinal, None if rung is None else rung.name)
    if key in _met:
        return
    if not allowed() or choose.knows(gpu, rung):
        _met.add(key)
        return
    if not _tunable(rung) or not _stderr_wanted() or _capturing(gpu, stream):
        return
    with _lock:
        if key not in _met:
            try:
                _tune(gpu, rung)
            finally:
                _met.add(key)


def _tunable(rung: Rung | None) -> bool:
    from fastsgemm.tuning import search_spaces

    return rung is None or search_spaces.default_space(rung.name) is not None


def _capturing(gpu: Gpu, stream: Any) -> bool:
    """Whether this stream, or another one that tuning would disturb, is being captured."""
    return device.is_capturing(stream) or device.is_capturing(gpu.stream(LEGACY_STREAM))


def _stderr_wanted() -> bool:
    """Whether somebody may see the progress: there is a stderr, and it is not the null device."""
    if sys.stderr is None or sys.stderr.closed:
        return False
    try:
        return os.fstat(sys.stderr.fileno()).st_rdev != os.stat(os.devnull).st_rdev
    except (OSError, ValueError):  # a replacement with no file behind it, as in a notebook
        return True


def _tune(gpu: Gpu, rung: Rung | None) -> None:
    from fastsgemm.progress import Bar
    from fastsgemm.tuning import tuner
    from fastsgemm.tuning.plan import plan_run

    bar = Bar()
    what = f"rung {rung.name}" if rung else " and ".join(found.name for found in rungs.DEFAULTS)
    bar.note(
        f"fastsgemm: {gpu.name} ({gpu.arch}) is not in the tuning database for {what}; tuning that for about "
        f"{tuner.QUICK_SECONDS:.0f} s, once. FASTSGEMM_TUNE=off switches this off."
    )
    try:
        with tuner.evaluating(gpu) as evaluator, tuner.alone(evaluator.device, _WAIT_SECONDS):
            choose.forget()
            if not choose.knows(gpu, rung):  # another process may have done it meanwhile
                tuner.carry_out(plan_run(evaluator.device, rung=rung, quick=True), evaluator, bar)
    except FastsgemmError as error:
        warnings.warn(
            f"{gpu.name} could not be tuned, generic constants are used: {error}", RuntimeWarning, stacklevel=2
        )
