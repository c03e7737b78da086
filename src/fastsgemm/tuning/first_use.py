"""Open the device of a call; if the tuning database has nothing for its architecture, tune it first.

``FASTSGEMM_TUNE=off`` forbids tuning; ``auto``, the default, allows it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from fastsgemm import device, settings
from fastsgemm.call import streams
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import FastsgemmError
from fastsgemm.heuristics import database, device_database
from fastsgemm.progress import warn

if TYPE_CHECKING:
    from fastsgemm.call.arrays import Library
    from fastsgemm.device import Gpu

WAIT_SECONDS = 60.0  # how long to wait for another process that is tuning a device of the same name

opened: dict[int, Gpu] = {}  # by ordinal: the devices that are ready for calls
_tuning: set[int] = set()  # ordinals
_lock = threading.RLock()  # a finaliser may multiply while this thread tunes


def open_for(library: Library, ordinal: int, stream: Any) -> Gpu:
    """Open the device of a call, see `open_device`, on the caller's stream or else on the library's current one."""
    return open_device(
        ordinal, partial(library.current_stream, ordinal) if stream is None else partial(streams.handle_of, stream)
    )


def open_device(ordinal: int, stream: Callable[[], int] = lambda: LEGACY_STREAM) -> Gpu:
    """Open a device, and tune it if it is unknown. Later calls in this process only look it up.

    A device is unknown if the database has neither records nor curves of its architecture for the default rungs of
    `sgemm`. While the stream is being captured into a CUDA graph, the device is not tuned; the next call tries again.
    If tuning fails, one warning is issued and times are predicted from those of another architecture.

    `stream` returns the raw handle of the call's stream. It is called with the device current.

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
    if allowed() and not device_database.knows(gpu):
        with device.current(gpu):
            # The call's stream, or the legacy stream, on which tuning runs.
            if device.is_capturing(stream()) or device.is_capturing(LEGACY_STREAM):
                return gpu
            with _lock:  # one thread tunes; the others wait for it
                if ordinal in _tuning:  # by this thread, in which a finaliser multiplies
                    return gpu
                if ordinal not in opened:
                    _tuning.add(ordinal)
                    try:
                        _tune(gpu)
                    finally:
                        _tuning.remove(ordinal)
    opened[ordinal] = gpu
    return gpu


@cache
def allowed() -> bool:
    """Whether unknown devices are tuned, according to ``FASTSGEMM_TUNE``, which is read once per process.

    Raises
    ------
    ConfigError
        ``FASTSGEMM_TUNE`` is neither ``auto`` nor ``off``.
    """
    return settings.TUNE.read() == "auto"


def _tune(gpu: Gpu) -> None:
    from fastsgemm.progress import Bar
    from fastsgemm.tuning import tuner
    from fastsgemm.tuning.plan import plan_run

    bar = Bar()
    bar.note(
        f"fastsgemm: {gpu.name} ({gpu.arch}) is not in the tuning database; timing its kernels for at most "
        f"{tuner.QUICK_SECONDS:.0f} s, once. Set FASTSGEMM_TUNE=off to prevent this."
    )
    try:
        with tuner.evaluating(gpu) as evaluator, tuner.exclusive_lock(evaluator.device, WAIT_SECONDS):
            database.forget()
            if not device_database.knows(gpu):  # another process may have tuned it in the meantime
                outcome = tuner.run_plan(plan_run(evaluator.device, quick=True), evaluator, bar)
                if outcome.gain is not None:
                    bar.note(f"fastsgemm: {outcome.improvement}")
    except FastsgemmError as error:
        warn(f"{gpu.name} could not be tuned, its times are predicted from another device: {error}")
    finally:  # also after Ctrl-C: the next call uses the results so far
        opened[gpu.ordinal] = gpu
