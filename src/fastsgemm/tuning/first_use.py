"""Open the device of a call, and tune it first where the database knows nothing of its architecture.

``FASTSGEMM_TUNE=off`` forbids tuning; ``auto``, the default, allows it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from fastsgemm import device, rungs
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import ConfigError, FastsgemmError
from fastsgemm.heuristics import choose

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_WAIT_SECONDS = 60.0  # for another process that is tuning a device of the same name

opened: dict[int, Gpu] = {}  # by ordinal, the devices on which nothing is left to do before a call
_lock = threading.Lock()


def _legacy_stream() -> int:
    return LEGACY_STREAM


def open_device(ordinal: int, stream: Callable[[], int] = _legacy_stream) -> Gpu:
    """Return the device with this number, opened and, if need be, tuned; once per process.

    A device is tuned where the database has neither records nor curves of its architecture for the rungs that `sgemm`
    uses by default. While a stream is being captured into a CUDA graph nothing is tuned, and the next call looks again.
    Every failure of the tuning run is one warning, and the generic constants are used.

    Parameters
    ----------
    ordinal : int
        CUDA's number of the device.
    stream : callable, optional
        Returns the raw handle of the stream of the call; called with the device current. Default: the legacy stream.

    Raises
    ------
    DeviceError
        The device cannot be opened; see `fastsgemm.device.open_gpu`.
    ConfigError
        ``FASTSGEMM_TUNE`` is neither ``auto`` nor ``off``.
    """
    if ordinal in opened:
        return opened[ordinal]
    gpu = device.open_gpu(ordinal)
    if allowed() and not choose.knows(gpu):
        switched = gpu.enter()
        try:
            if _capturing(gpu, stream()):
                return gpu
            with _lock:  # threads wait for the one that tunes
                if ordinal not in opened:
                    _tune(gpu)
        finally:
            if switched:
                gpu.leave()
    opened[ordinal] = gpu
    return gpu


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


def _capturing(gpu: Gpu, handle: int) -> bool:
    """Whether the stream of the call, or one that tuning would disturb, is being captured."""
    return any(device.is_capturing(gpu.stream(each)) for each in (handle, LEGACY_STREAM))


def _tune(gpu: Gpu) -> None:
    from fastsgemm.progress import Bar
    from fastsgemm.tuning import tuner

    bar = Bar()
    bar.note(
        f"fastsgemm: {gpu.name} ({gpu.arch}) is not in the tuning database; tuning rungs "
        f"{' and '.join(rung.name for rung in rungs.DEFAULTS)} for about {tuner.QUICK_SECONDS:.0f} s, once. "
        "FASTSGEMM_TUNE=off switches this off."
    )
    try:
        with tuner.evaluating(gpu) as evaluator, tuner.alone(evaluator.device, _WAIT_SECONDS):
            choose.forget()
            if not choose.knows(gpu):  # another process may have tuned it meanwhile
                tuner.run(tuner.plan(evaluator.device, quick=True), evaluator, bar)
    except FastsgemmError as error:
        warnings.warn(
            f"{gpu.name} could not be tuned, generic constants are used: {error}", RuntimeWarning, stacklevel=2
        )
    finally:  # also after Ctrl-C: the next call uses what was found
        opened[gpu.ordinal] = gpu
