"""The machine: its driver, its devices, and those that have been opened."""

from __future__ import annotations

import ctypes
import re
import threading
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from fastsgemm import arguments, settings
from fastsgemm.driver import (
    LEGACY_STREAM,
    OUT_OF_MEMORY,
    PER_THREAD_STREAM,
    check_driver,
    described,
    is_capturing,
    relaxed_capture,
)
from fastsgemm.errors import DeviceError, DriverTooOldError, NoDriverError, NoNvrtcError
from fastsgemm.gpu import Event, Gpu, Kernel, current
from fastsgemm.known_devices import named

# fmt: off
__all__ = [
    "LEGACY_STREAM",
    "OUT_OF_MEMORY",
    "PER_THREAD_STREAM",
    "DeviceInfo",
    "DeviceTraits",
    "Event",
    "Gpu",
    "Kernel",
    "check_driver",
    "current",
    "described",
    "driver_text",
    "gpus",
    "host_backend",
    "info_of",
    "is_capturing",
    "is_present",
    "nvrtc_text",
    "nvrtc_version",
    "open_gpu",
    "ordinal",
    "probe",
    "relaxed_capture",
    "require_driver",
]
# fmt: on

_RELEASE = Path("/proc/driver/nvidia/version")  # on Linux

_PRESENT = re.compile(r"(?:cuda:(?=[0-9]{1,4}$)|(?=[0-9]{1,2}$))([0-9]+)|cuda")  # 4090 is a name

gpus: dict[int, Gpu] = {}  # the devices opened so far
_lock = threading.RLock()  # a finaliser that multiplies may run in the thread that holds it


def open_gpu(ordinal: int, *, by_name: bool = False) -> Gpu:
    """Return the device with this number, opened once per process.

    A device that the user named (`by_name`) is opened regardless of ``FASTSGEMM_DEVICE``.

    Raises
    ------
    NoDriverError, DriverTooOldError
        See `probe`.
    DeviceError
        There is no such device, or ``FASTSGEMM_DEVICE=sim`` forbids it.
    """
    with _lock:
        gpu = gpus.get(ordinal)
        if gpu is None:
            if not by_name and settings.DEVICE.read() == "sim":
                raise DeviceError(
                    f"FASTSGEMM_DEVICE=sim takes host arrays only, and this needs cuda:{ordinal}; unset the "
                    "variable, or multiply host arrays"
                )
            count = probe()
            if not 0 <= ordinal < count:
                raise DeviceError(f"there is no cuda:{ordinal}, this machine has {count} device(s)")
            gpu = gpus.setdefault(ordinal, Gpu(ordinal))
    return gpu


def is_present(place: str) -> bool:
    """Return whether `place` has the form of a device in this machine: ``cuda``, ``cuda:1`` or ``1``."""
    return _PRESENT.fullmatch(place) is not None


def ordinal(place: int | str) -> int:
    """Return CUDA's number of the device in this machine that `place` names.

    `place` is the number, ``cuda`` (the first device), ``cuda:1``, or a name, part of a name or architecture such as
    ``NVIDIA H200``, ``H200`` or ``sm_90``, which means the first such device.

    Raises
    ------
    ArgumentError
        `place` is neither a number nor a name.
    DeviceError
        This machine has no such device; see also `probe`.
    """
    place = arguments.place(place)
    if isinstance(place, int):
        return place
    numbered = _PRESENT.fullmatch(place.lower())
    if numbered is not None:
        return int(numbered[1] or 0)
    devices = [described(number) for number in range(probe())]
    for number in named(place, devices):
        return number
    names = ", ".join(f"{name} ({arch})" for name, arch in devices)
    raise DeviceError(f"this machine has no device {place!r}; it has {names}")


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
            "no NVIDIA driver was found; device arrays and rungs need one. Without it, NumPy multiplies host arrays "
            "(FASTSGEMM_DEVICE=host), or NVRTC and a simulated device do (FASTSGEMM_DEVICE=sim)"
        ) from error
    if int(result) != 0:
        raise NoDriverError(f"the NVIDIA driver has no usable device: cuInit returned {result.name}")
    with suppress(NoNvrtcError):  # stored kernels need none
        require_driver(int(driver.cuDriverGetVersion()[1]), nvrtc_version())
    count = int(driver.cuDeviceGetCount()[1])
    if count == 0:
        raise NoDriverError("the NVIDIA driver reports no device (is CUDA_VISIBLE_DEVICES empty?)")
    return count


def require_driver(driver_version: int, nvrtc: tuple[int, int]) -> None:
    """Raise `DriverTooOldError` if a driver (13000 is CUDA 13.0) cannot load what this NVRTC compiles."""
    major, minor = driver_version // 1000, driver_version % 1000 // 10
    if major < nvrtc[0]:
        message = (
            f"the driver is for CUDA {major}.{minor}, the installed NVRTC is {nvrtc[0]}.{nvrtc[1]} and needs a "
            f"driver for CUDA {nvrtc[0]}.0 or later; update the driver"
        )
        if major in _WHEELS:
            remove = f"pip uninstall {_WHEELS[nvrtc[0]][0]}, then " if nvrtc[0] in nvrtc_wheels() else ""
            message += f", or replace NVRTC: {remove}pip install 'fastsgemm[cu{major}]'"
        raise DriverTooOldError(message)


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
    setting = settings.DEVICE.read()
    if setting in ("host", "sim"):
        return setting
    try:
        probe()
    except NoDriverError:
        if setting == "cuda":
            raise
        return "host"
    return "cuda"


def driver_text() -> str | None:
    """Return the driver's CUDA version, on Linux with its release, or None without a driver."""
    version = driver_version()
    if version == 0:
        return None
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    try:
        release = re.search(r"\d+(\.\d+)+", _RELEASE.read_text(encoding="utf-8"))
    except OSError:
        release = None
    return f"{release[0]} ({cuda})" if release else cuda


def driver_version() -> int:
    """Return the CUDA version of the driver (13000 is 13.0), or 0 without a driver."""
    from cuda.bindings import driver

    try:
        result, version = driver.cuDriverGetVersion()
    except Exception:  # the type depends on how the platform's loader fails
        return 0
    return int(version) if int(result) == 0 else 0


class DeviceInfo(Struct, frozen=True):
    """The properties of a device that configs depend on."""

    name: str
    arch: str
    shared_limit: int  # shared memory that a block may opt in to, in bytes
    multiprocessors: int


class DeviceTraits(Protocol):
    """An object with the properties of a `DeviceInfo`: that itself, an opened `Gpu`, a simulated device."""

    @property
    def name(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def shared_limit(self) -> int: ...
    @property
    def multiprocessors(self) -> int: ...


def info_of(device: DeviceTraits) -> DeviceInfo:
    """Return the properties of a device that configs depend on, which can be compared and hashed."""
    return DeviceInfo(device.name, device.arch, device.shared_limit, device.multiprocessors)


# NVRTC is loaded by the first call, which in cuda-bindings 12.9.1 fails if several threads make it at once.
_loading_nvrtc = threading.RLock()

# NVRTC by major version: the pip package, and the path of its library in the folder `nvidia`.
_WHEELS = {
    12: ("nvidia-cuda-nvrtc-cu12", "cuda_nvrtc/lib/libnvrtc.so.12"),
    13: ("nvidia-cuda-nvrtc", "cu13/lib/libnvrtc.so.13"),
}


def nvrtc_version() -> tuple[int, int]:
    """Return NVRTC's version, after loading the NVRTC that fits the driver.

    Raises
    ------
    NoNvrtcError
        The library is not installed; the message names the extra that installs it.
    """
    from cuda.bindings import nvrtc

    try:
        with _loading_nvrtc:
            _load_fitting_nvrtc()
            result, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the type depends on how the platform's loader fails
        raise NoNvrtcError(
            "NVRTC, which compiles the kernels, was not found; install it with "
            "pip install 'fastsgemm[cu13]' (or 'fastsgemm[cu12]' for a driver of the 12 line)"
        ) from error
    if int(result) != 0:
        raise NoNvrtcError(f"NVRTC is installed but returned {result.name}")
    return int(major), int(minor)


def nvrtc_lines() -> tuple[int, ...]:
    """Return the major versions of NVRTC whose kernels may be stored: the installed one's, else all, newest first."""
    try:
        return nvrtc_version()[:1]
    except NoNvrtcError:
        return tuple(sorted(_WHEELS, reverse=True))


def nvrtc_text() -> str:
    """Return NVRTC's version, such as ``13.0``; see `nvrtc_version`."""
    return "{}.{}".format(*nvrtc_version())


@cache
def _load_fitting_nvrtc() -> None:
    """Load the NVRTC that cuda.bindings should use, if it would use another.

    cuda.bindings takes the newest that pip has installed, regardless of the driver, unless one is loaded already. It
    loads the newest itself, because it does extra work for NVRTC 13.0.
    """
    installed = nvrtc_wheels()
    if len(installed) > 1:
        import cuda.bindings

        fitting = fitting_nvrtc(set(installed), driver_version() // 1000, int(cuda.bindings.__version__.split(".")[0]))
        if fitting != max(installed):
            ctypes.CDLL(str(installed[fitting]))  # locally: PyTorch's NVRTC may be the other one


def nvrtc_wheels() -> dict[int, Path]:
    """Return the NVRTC libraries installed by pip, by major version."""
    nvidia = find_spec("nvidia")
    folders = [] if nvidia is None else [Path(folder) for folder in nvidia.submodule_search_locations or ()]
    paths = [(major, folder / library) for major, (_, library) in _WHEELS.items() for folder in reversed(folders)]
    return {major: path for major, path in paths if path.exists()}


def fitting_nvrtc(installed: set[int], driver: int, bindings: int) -> int:
    """Return the major version of the best of the NVRTCs `installed`, of which there is at least one.

    It must not be newer than the driver, which is 0 without one. cuda.bindings can use every NVRTC.
    """
    usable = {major for major in installed if major <= driver} if driver else installed
    return bindings if bindings in usable else max(usable or installed)
