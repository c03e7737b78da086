"""Calls of the CUDA driver API that need no opened device: attributes, captures, and the check of results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastsgemm.errors import DeviceError

LEGACY_STREAM = 1  # CUDA's and DLPack's number for the legacy default stream, which torch and CuPy call 0
PER_THREAD_STREAM = 2  # CUDA's number for the per-thread default stream of the current device
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def check_driver(action: str, answer: tuple[Any, ...]) -> None:
    """Raise `DeviceError` unless a call of the driver API succeeded."""
    if int(answer[0]) != 0:
        raise DeviceError(f"{action} failed: {answer[0].name}")


def described(ordinal: int) -> tuple[str, str]:
    """Return name and architecture of a device without opening it."""
    from cuda.bindings import driver

    attributes = driver.CUdevice_attribute
    major = attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ordinal)
    minor = attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, ordinal)
    return driver.cuDeviceGetName(256, device_at(ordinal))[1].split(b"\0")[0].decode(), f"sm_{major}{minor}"


def device_at(ordinal: int) -> Any:
    """Return the driver's handle of a device."""
    from cuda.bindings import driver

    answer = driver.cuDeviceGet(ordinal)
    check_driver(f"asking for cuda:{ordinal}", answer)
    return answer[1]


def attribute(which: Any, ordinal: int) -> int:
    """Return an attribute of a device, which is a ``CUdevice_attribute``."""
    from cuda.bindings import driver

    answer = driver.cuDeviceGetAttribute(which, device_at(ordinal))
    check_driver(f"asking cuda:{ordinal} for {which.name}", answer)
    return int(answer[1])


def is_capturing(handle: int) -> bool:
    """Return whether the stream with this raw handle is being captured into a CUDA graph."""
    from cuda.bindings import driver

    result, status = driver.cuStreamIsCapturing(handle or LEGACY_STREAM)
    return int(result) != 0 or int(status) != 0


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Allow calls in this thread that would invalidate a capture in CUDA's default mode.

    They are executed now, once, and do not become part of the graph.
    """
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    answer = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    check_driver("relaxing the capture mode of this thread", answer)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(answer[1])
