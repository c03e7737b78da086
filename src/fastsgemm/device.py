"""The machine: is there a usable driver, which devices are there, and what are their limits."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsgemm.errors import DeviceError, DeviceMismatchError, DriverTooOldError, NoDriverError

if TYPE_CHECKING:
    from cuda.core import Stream


from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastsgemm.errors import NoNvrtcError

if TYPE_CHECKING:
    pass

_RELEASE = Path("/proc/driver/nvidia/version")  # on Linux

BACKENDS = ("cuda", "host", "sim")  # what can multiply host arrays

LEGACY_STREAM = 1  # CUDA's and DLPack's number for the legacy default stream, which torch and CuPy call 0

gpus: dict[int, Gpu] = {}  # the devices opened so far
_lock = threading.Lock()


class Gpu:
    """One device, opened: its limits, its context, and the plans and kernels that were made for it.

    Attributes
    ----------
    ordinal : int
        CUDA's number of the device.
    name : str
        As the driver gives it, for example ``NVIDIA H200``.
    arch : str
        For example ``sm_90``.
    shared_limit : int
        Shared memory that a block may opt in to, in bytes.
    multiprocessors : int
    plans, kernels : dict
        What has been prepared for this device; see `fastsgemm.gemm` and `fastsgemm.jit.kernel`.
    launch, allocate, free : callable
        cuda.core's ``launch`` and the driver's allocation in stream order, at hand without an import.
    """

    def __init__(self, ordinal: int) -> None:
        from cuda.bindings import driver
        from cuda.core import Device, launch

        self.ordinal = ordinal
        self.device = Device(ordinal)
        previous = driver.cuCtxGetCurrent()[1]
        self.device.set_current()
        self._context = driver.cuCtxGetCurrent()[1]
        self._context_id = int(self._context)
        if int(previous) not in (0, self._context_id):
            driver.cuCtxSetCurrent(previous)  # the caller's device stays the current one
        properties = self.device.properties
        self.name = self.device.name
        self.arch = f"sm_{self.device.arch}"
        self.shared_limit = int(properties.max_shared_memory_per_block_optin)
        self.multiprocessors = int(properties.multiprocessor_count)
        self.plans: dict[Any, Any] = {}
        self.kernels: dict[Any, Any] = {}
        self._streams: dict[int, Stream] = {}
        self._kept: deque[tuple[Any, Any]] = deque()
        self._keeping = threading.Lock()
        self.launch = launch
        self.allocate = self._allocate_first
        self.free = driver.cuMemFreeAsync
        self._get_current = driver.cuCtxGetCurrent
        self._push = driver.cuCtxPushCurrent
        self._pop = driver.cuCtxPopCurrent

    def _allocate_first(self, size: int, handle: int) -> Any:
        from cuda.bindings import driver

        _ = self.device.memory_resource  # has the driver's pool keep what is freed, else every call pays for new pages
        self.allocate = driver.cuMemAllocAsync
        return self.allocate(size, handle)

    def enter(self) -> bool:
        """Make this device current in the calling thread; True says that `leave` must undo it."""
        if int(self._get_current()[1]) == self._context_id:
            return False
        self._push(self._context)
        return True

    def leave(self) -> None:
        """Make the device current again that was so before `enter`."""
        self._pop()

    def stream(self, handle: int) -> Stream:
        """Return cuda.core's object for a raw stream handle of this device.

        Raises
        ------
        DeviceMismatchError
            The stream belongs to another device.
        """
        found = self._streams.get(handle)
        return self._adopt(handle) if found is None else found

    def keep_alive(self, handle: int, objects: Any) -> None:
        """Hold `objects` until the work now on this stream is done.

        For arrays whose library does not know of the stream and could give their memory away too early. Nothing
        waits: what is finished is let go at the next call.
        """
        stream = self.stream(handle)
        if is_capturing(stream):
            return  # a graph outlives any event; its owner keeps the operands, as for every captured kernel
        with self._keeping:  # else two threads see the same one done, and the second lets go of the next
            while self._kept and self._kept[0][0].is_done:
                self._kept.popleft()
            self._kept.append((stream.record(), objects))

    def _adopt(self, handle: int) -> Stream:
        from cuda.core import LEGACY_DEFAULT_STREAM, Stream

        if handle in (0, LEGACY_STREAM):
            stream = LEGACY_DEFAULT_STREAM
        else:
            stream = Stream.from_handle(handle)
            ordinal = stream.device.device_id
            if handle != 2 and ordinal != self.ordinal:  # 2 is the per-thread default, of whatever is current
                raise DeviceMismatchError(f"the stream is on cuda:{ordinal}, the operands on cuda:{self.ordinal}")
        self._streams[handle] = stream
        return stream


def open_gpu(ordinal: int) -> Gpu:
    """Return the device with this number, opened once per process.

    Raises
    ------
    NoDriverError, DriverTooOldError
        See `probe`.
    DeviceError
        There is no such device, or ``FASTSGEMM_DEVICE=sim`` asks to use none.
    """
    with _lock:
        gpu = gpus.get(ordinal)
        if gpu is None:
            if _wanted() == "sim":
                raise DeviceError(
                    f"FASTSGEMM_DEVICE=sim simulates a device and takes host arrays only, but this needs cuda:{ordinal}"
                )
            count = probe()
            if not 0 <= ordinal < count:
                raise DeviceError(f"there is no cuda:{ordinal}, this machine has {count} device(s)")
            gpu = gpus[ordinal] = Gpu(ordinal)
    return gpu


@cache
def probe() -> int:
    """Return the number of usable devices, asking the driver directly.

    cuda.core may not be used before this has succeeded: without a driver some of its calls never return.

    Raises
    ------
    NoDriverError
        No driver, or no device.
    DriverTooOldError
        The driver cannot run what the installed CUDA packages make.
    """
    from cuda.bindings import driver

    try:
        result = driver.cuInit(0)[0]
    except Exception as error:  # the loader raises whatever the platform's dlopen made of it
        raise NoDriverError(
            "no NVIDIA driver was found; fastsgemm needs one for device arrays and for every rung. "
            "Without it host arrays are multiplied by NumPy (FASTSGEMM_DEVICE=host)"
        ) from error
    if int(result) != 0:
        raise NoDriverError(f"the NVIDIA driver has no usable device: cuInit answers {result.name}")
    require_driver(int(driver.cuDriverGetVersion()[1]), nvrtc_version())
    count = int(driver.cuDeviceGetCount()[1])
    if count == 0:
        raise NoDriverError("the NVIDIA driver is there but shows no device (is CUDA_VISIBLE_DEVICES empty?)")
    return count


def is_capturing(stream: Any) -> bool:
    """Whether work on this stream is being recorded into a CUDA graph."""
    from cuda.bindings import driver

    result, status = driver.cuStreamIsCapturing(int(stream.handle))
    return int(result) != 0 or int(status) != 0


def succeed(what: str, answer: tuple[Any, ...]) -> None:
    """Raise `DeviceError` unless a call of the driver's API answered success."""
    if int(answer[0]) != 0:
        raise DeviceError(f"{what} failed: {answer[0].name}")


def require_driver(driver_version: int, nvrtc: tuple[int, int]) -> None:
    """Raise `DriverTooOldError` where a driver (13000 is CUDA 13.0) cannot load what this NVRTC compiles."""
    major, minor = driver_version // 1000, driver_version % 1000 // 10
    if major < nvrtc[0]:
        raise DriverTooOldError(
            f"the driver is for CUDA {major}.{minor}, the installed NVRTC is {nvrtc[0]}.{nvrtc[1]} and needs a "
            f"driver for CUDA {nvrtc[0]}.0 or later; update the driver or install 'fastsgemm[cu{major}]'"
        )


@cache
def host_backend() -> str:
    """Return what multiplies host arrays: ``cuda``, ``host`` or ``sim``. Decided once per process.

    ``FASTSGEMM_DEVICE`` forces one; otherwise it is the first device, or the host where there is none.

    Raises
    ------
    DeviceError
        ``FASTSGEMM_DEVICE`` has another value, or asks for a device that is not there.
    DriverTooOldError, NoNvrtcError
        There is a device that could be used; see `probe`.
    """
    wanted = _wanted()
    if wanted in ("host", "sim"):
        return wanted
    try:
        probe()
    except NoDriverError:
        if wanted == "cuda":
            raise
        return "host"
    return "cuda"


def _wanted() -> str:
    wanted = os.environ.get("FASTSGEMM_DEVICE", "").strip().lower()
    if wanted not in ("", *BACKENDS):
        raise DeviceError(f"FASTSGEMM_DEVICE must be one of {', '.join(BACKENDS)}, got {wanted!r}")
    return wanted


def driver_text() -> str | None:
    """Return the driver's release where Linux shows it, and the CUDA version it is for."""
    from cuda.bindings import driver

    try:
        result, version = driver.cuDriverGetVersion()
    except Exception:  # the loader raises whatever the platform's dlopen made of it
        return None
    if int(result) != 0 or version == 0:
        return None
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    try:
        release = re.search(r"\d+(\.\d+)+", _RELEASE.read_text(encoding="utf-8"))
    except OSError:
        release = None
    return f"{release[0]} ({cuda})" if release else cuda


@dataclass(frozen=True)
class DeviceInfo:
    """A device as far as tuning goes.

    Attributes
    ----------
    name, arch : str
    shared_limit : int
        Shared memory that a block may opt in to, in bytes.
    multiprocessors : int
    """

    name: str
    arch: str
    shared_limit: int
    multiprocessors: int


def info_of(gpu: Gpu) -> DeviceInfo:
    """Return what tuning needs to know of an opened device."""
    return DeviceInfo(gpu.name, gpu.arch, gpu.shared_limit, gpu.multiprocessors)


def nvrtc_version() -> tuple[int, int]:
    """Return NVRTC's version.

    Raises
    ------
    NoNvrtcError
        The library is not installed; the message says which extra brings it.
    """
    from cuda.bindings import nvrtc

    try:
        result, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the loader raises whatever the platform's dlopen made of it
        raise NoNvrtcError(
            "NVRTC, which compiles the kernels, was not found; install it with "
            "pip install 'fastsgemm[cu13]' (or 'fastsgemm[cu12]' for a driver of the 12 line)"
        ) from error
    if int(result) != 0:
        raise NoNvrtcError(f"NVRTC is installed but answers {result.name}")
    return int(major), int(minor)
