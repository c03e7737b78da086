"""The machine: whether it has a usable driver, which devices it has, and what one device can do once opened."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsgemm.config import STATIC_SHARED
from fastsgemm.errors import DeviceError, DeviceMismatchError, DriverTooOldError, NoDriverError, NoNvrtcError

if TYPE_CHECKING:
    from cuda.core import Kernel, Stream

_RELEASE = Path("/proc/driver/nvidia/version")  # on Linux

_PRESENT = re.compile(r"(?:cuda:)?([0-9]{1,4})|cuda")

BACKENDS = ("cuda", "host", "sim")  # what can multiply host arrays

LEGACY_STREAM = 1  # CUDA's and DLPack's number for the legacy default stream, which torch and CuPy call 0

gpus: dict[int, Gpu] = {}  # the devices opened so far
_lock = threading.Lock()


class Gpu:
    """One device, opened: its limits, its context, and what has been prepared and loaded for it.

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
    prepared : dict
        The problems seen so far; see `fastsgemm.call.product`.
    kernels : dict
        The kernels loaded so far; see `fastsgemm.jit.kernel`.
    launch, allocate, free : callable
        cuda.core's ``launch`` and the driver's ``cuMemAllocAsync`` and ``cuMemFreeAsync``, held here because an import
        in each call costs time.
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
        self.prepared: dict[Any, Any] = {}
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

        _ = (
            self.device.memory_resource
        )  # sets the driver's pool to keep freed memory; otherwise each call would map new pages
        self.allocate = driver.cuMemAllocAsync
        return self.allocate(size, handle)

    def enter(self) -> bool:
        """Make this device current in the calling thread. Return whether `leave` must be called to undo it."""
        if int(self._get_current()[1]) == self._context_id:
            return False
        self._push(self._context)
        return True

    def leave(self) -> None:
        """Undo `enter`: make the device current that was current before it."""
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

        This is for arrays of a library that does not track the stream and might reuse their memory too early. Nothing
        waits: the next call releases the objects whose work is done.
        """
        stream = self.stream(handle)
        if is_capturing(stream):
            return  # a graph outlives any event; its owner keeps the operands alive, as for every captured kernel
        with (
            self._keeping
        ):  # otherwise two threads could see that one entry is done, and the second would drop the next entry
            while self._kept and self._kept[0][0].is_done:
                self._kept.popleft()
            self._kept.append((stream.record(), objects))

    def load(self, cubin: bytes, name: str, shared_bytes: int) -> Kernel:
        """Load a kernel and allow it the dynamic shared memory that it is launched with.

        Parameters
        ----------
        cubin : bytes
            Machine code for this architecture.
        name : str
            The ``extern "C"`` name.
        shared_bytes : int
            Dynamic shared memory of a block. More than 48 KiB must be requested from the driver.

        Raises
        ------
        DeviceError
            The device refuses that much shared memory.
        """
        from cuda.bindings import driver
        from cuda.core import ObjectCode

        kernel = ObjectCode.from_cubin(cubin, name=name).get_kernel(name)
        if shared_bytes > STATIC_SHARED:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            answer = driver.cuKernelSetAttribute(attribute, shared_bytes, int(kernel.handle), self.ordinal)
            what = f"asking {self.name} for {shared_bytes} bytes of shared memory (limit {self.shared_limit})"
            succeed(what, answer)
        return kernel

    def _adopt(self, handle: int) -> Stream:
        from cuda.core import LEGACY_DEFAULT_STREAM, Stream

        if handle in (0, LEGACY_STREAM):
            stream = LEGACY_DEFAULT_STREAM
        else:
            stream = Stream.from_handle(handle)
            ordinal = stream.device.device_id
            if handle != 2 and ordinal != self.ordinal:  # 2 is the per-thread default stream of the current device
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
                raise DeviceError(f"FASTSGEMM_DEVICE=sim accepts host arrays only, and this needs cuda:{ordinal}")
            count = probe()
            if not 0 <= ordinal < count:
                raise DeviceError(f"there is no cuda:{ordinal}, this machine has {count} device(s)")
            gpu = gpus[ordinal] = Gpu(ordinal)
    return gpu


def is_present(place: str) -> bool:
    """Whether `place` is spelled as a device of this machine: ``cuda``, ``cuda:1`` or ``1``."""
    return _PRESENT.fullmatch(place) is not None


def ordinal(place: int | str) -> int:
    """Return CUDA's number of the device in this machine that `place` names.

    Parameters
    ----------
    place : int or str
        The number, ``cuda`` (the first device), ``cuda:1``, or a name or architecture such as ``NVIDIA H200`` or
        ``sm_90``, which means the first such device.

    Raises
    ------
    DeviceError
        This machine has no such device; see also `probe`.
    """
    if isinstance(place, int):
        return place
    found = _PRESENT.fullmatch(place.lower())
    if found is not None:
        return int(found[1] or 0)
    there = [described(number) for number in range(probe())]
    for number, known in enumerate(there):
        if place in known:
            return number
    names = ", ".join(f"{name} ({arch})" for name, arch in there)
    raise DeviceError(f"this machine has no device {place!r}; it has {names}")


def described(ordinal: int) -> tuple[str, str]:
    """Return name and architecture of a device without opening it."""
    from cuda.bindings import driver

    handle = driver.cuDeviceGet(ordinal)[1]
    attribute = driver.CUdevice_attribute
    major, minor = (
        int(driver.cuDeviceGetAttribute(which, handle)[1])
        for which in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    return driver.cuDeviceGetName(256, handle)[1].split(b"\0")[0].decode(), f"sm_{major}{minor}"


@cache
def probe() -> int:
    """Return the number of usable devices, asking the driver directly.

    This must succeed before cuda.core is used: without a driver some of its calls hang.

    Raises
    ------
    NoDriverError
        No driver, or no device.
    DriverTooOldError
        The driver is older than the CUDA line of the installed NVRTC.
    """
    from cuda.bindings import driver

    try:
        result = driver.cuInit(0)[0]
    except Exception as error:  # the type depends on how the platform's loader fails
        raise NoDriverError(
            "no NVIDIA driver was found; device arrays and rungs need one. "
            "Without it, NumPy multiplies host arrays (FASTSGEMM_DEVICE=host)"
        ) from error
    if int(result) != 0:
        raise NoDriverError(f"the NVIDIA driver has no usable device: cuInit returned {result.name}")
    require_driver(int(driver.cuDriverGetVersion()[1]), nvrtc_version())
    count = int(driver.cuDeviceGetCount()[1])
    if count == 0:
        raise NoDriverError("the NVIDIA driver reports no device (is CUDA_VISIBLE_DEVICES empty?)")
    return count


def is_capturing(stream: Any) -> bool:
    """Whether work on this stream is being recorded into a CUDA graph."""
    from cuda.bindings import driver

    result, status = driver.cuStreamIsCapturing(int(stream.handle))
    return int(result) != 0 or int(status) != 0


def succeed(what: str, answer: tuple[Any, ...]) -> None:
    """Raise `DeviceError` unless a call of the driver API succeeded."""
    if int(answer[0]) != 0:
        raise DeviceError(f"{what} failed: {answer[0].name}")


def require_driver(driver_version: int, nvrtc: tuple[int, int]) -> None:
    """Raise `DriverTooOldError` if a driver (13000 is CUDA 13.0) cannot load what this NVRTC compiles."""
    major, minor = driver_version // 1000, driver_version % 1000 // 10
    if major < nvrtc[0]:
        raise DriverTooOldError(
            f"the driver is for CUDA {major}.{minor}, the installed NVRTC is {nvrtc[0]}.{nvrtc[1]} and needs a "
            f"driver for CUDA {nvrtc[0]}.0 or later; update the driver or install 'fastsgemm[cu{major}]'"
        )


@cache
def host_backend() -> str:
    """Return what multiplies host arrays: ``cuda``, ``host`` or ``sim``. Decided once per process.

    ``FASTSGEMM_DEVICE`` selects one. By default it is ``cuda``, or ``host`` on a machine without a device.

    Raises
    ------
    DeviceError
        ``FASTSGEMM_DEVICE`` has an unknown value, or is ``cuda`` on a machine without a device.
    DriverTooOldError, NoNvrtcError
        There is a device, but it cannot be used; see `probe`.
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
    """Return the driver's CUDA version, on Linux with its release, or None without a driver."""
    from cuda.bindings import driver

    try:
        result, version = driver.cuDriverGetVersion()
    except Exception:  # the type depends on how the platform's loader fails
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
    """The properties of a device that configs depend on.

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
    """Return the properties of an opened device that configs depend on."""
    return DeviceInfo(gpu.name, gpu.arch, gpu.shared_limit, gpu.multiprocessors)


def nvrtc_version() -> tuple[int, int]:
    """Return NVRTC's version.

    Raises
    ------
    NoNvrtcError
        The library is not installed; the message names the extra that installs it.
    """
    from cuda.bindings import nvrtc

    try:
        result, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the type depends on how the platform's loader fails
        raise NoNvrtcError(
            "NVRTC, which compiles the kernels, was not found; install it with "
            "pip install 'fastsgemm[cu13]' (or 'fastsgemm[cu12]' for a driver of the 12 line)"
        ) from error
    if int(result) != 0:
        raise NoNvrtcError(f"NVRTC is installed but returned {result.name}")
    return int(major), int(minor)
