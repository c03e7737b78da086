"""What is on this machine: device, driver, NVRTC, kernel cache, and the tuning record that a product would use."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from fastsgemm import device
from fastsgemm.device import driver_text as _driver
from fastsgemm.device import nvrtc_version
from fastsgemm.errors import FastsgemmError
from fastsgemm.heuristics.choose import DeviceTraits as _DeviceLike
from fastsgemm.heuristics.choose import choose as choose_config
from fastsgemm.jit import cache
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung

T = TypeVar("T")


@dataclass(frozen=True)
class DeviceRow:
    """One device.

    Attributes
    ----------
    ordinal : int
        CUDA's number of it.
    name, arch : str
        For example ``NVIDIA H200`` and ``sm_90``.
    multiprocessors : int
    shared_limit : int
        Shared memory that a block may opt in to, in bytes.
    """

    ordinal: int
    name: str
    arch: str
    multiprocessors: int
    shared_limit: int


@dataclass(frozen=True)
class ChoiceRow:
    """The tuning record in use for one problem.

    Attributes
    ----------
    problem : Problem
        What was asked for.
    rung : str
    constants : dict
        Tile constants by name.
    arch : str
        The tuning file it is from: an architecture, or ``generic``.
    device : str or None
        The device it was found on.
    origin, source : str
        ``measured``, ``published`` or ``hand-picked``, and where from.
    """

    problem: Problem
    rung: str
    constants: dict[str, int]
    arch: str
    device: str | None
    origin: str
    source: str


@dataclass(frozen=True)
class Info:
    """What was found on this machine. A part that is missing is None, and `notes` says why.

    Attributes
    ----------
    fastsgemm, python, numpy : str
        Versions.
    backend : str or None
        What multiplies host arrays: ``cuda``, ``host`` or ``sim``.
    simulated : str or None
        The device that is simulated where it is ``sim``.
    driver, nvrtc : str or None
        Versions.
    devices : tuple of Device
    cache_folder : str
    cache_kernels, cache_bytes : int
    choice : Choice or None
        For the first device or, where host arrays go through that, the simulated one.
    notes : tuple of str
        One sentence for everything that is missing.
    """

    fastsgemm: str
    python: str
    numpy: str
    backend: str | None
    simulated: str | None
    driver: str | None
    nvrtc: str | None
    devices: tuple[DeviceRow, ...]
    cache_folder: str
    cache_kernels: int
    cache_bytes: int
    choice: ChoiceRow | None
    notes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    def text(self) -> str:
        """Return it as lines for people."""
        kernels = f"{self.cache_kernels} kernels, {self.cache_bytes / 1e6:.1f} MB" if self.cache_kernels else "empty"
        rows = [("fastsgemm", f"{self.fastsgemm}, Python {self.python}, NumPy {self.numpy}")]
        rows += [("device", _device_text(device_info)) for device_info in self.devices] or [("device", "none")]
        rows += [
            ("driver", self.driver or "none"),
            ("NVRTC", self.nvrtc or "none"),
            ("kernel cache", f"{self.cache_folder} ({kernels})"),
            ("host arrays", _BACKENDS[self.backend].format(self.simulated or "device")),
        ]
        if self.choice is not None:
            rows.append(("default", _choice_text(self.choice)))
        rows += [("note", note) for note in self.notes]
        return "\n".join(f"{name:14}{value}" for name, value in rows)


_BACKENDS = {
    "cuda": "go through the first device and back",
    "host": "are multiplied by NumPy; FASTSGEMM_DEVICE=sim runs the kernels on a simulated device instead",
    "sim": "go through a simulated {}",
    None: "cannot be multiplied",
}


def collect(problem: Problem) -> Info:
    """Look at the machine; what is missing becomes a note, not an error.

    Parameters
    ----------
    problem : Problem
        The one to name the tuning record for.
    """
    from fastsgemm import __version__

    notes: list[str] = []
    nvrtc = _or_note(notes, nvrtc_version)
    devices = _or_note(notes, _devices) or ()
    backend = _or_note(notes, device.host_backend)
    simulated = _or_note(notes, _simulated) if backend == "sim" else None
    device_info = simulated or (devices[0] if devices else None)
    choice = _or_note(notes, lambda: choose(device_info, None, problem)) if device_info else None
    kernels, size = cache.entries()
    return Info(
        fastsgemm=__version__,
        python=platform.python_version(),
        numpy=np.__version__,
        backend=backend,
        simulated=simulated.name if simulated else None,
        driver=_driver(),
        nvrtc=nvrtc and "{}.{}".format(*nvrtc),
        devices=devices,
        cache_folder=str(cache.folder()),
        cache_kernels=kernels,
        cache_bytes=size,
        choice=choice,
        notes=tuple(dict.fromkeys(notes)),
    )


def choose(device_info: _DeviceLike, rung: Rung | None, problem: Problem) -> ChoiceRow:
    """Return the tuning record that `rung`, or `sgemm` where that is None, uses for `problem` on this device."""
    found = choose_config(device_info, rung, problem)
    return ChoiceRow(
        problem, found.rung.name, found.config.constants, found.arch, found.device, found.origin, found.source
    )


def _or_note(notes: list[str], look: Callable[[], T]) -> T | None:
    try:
        return look()
    except FastsgemmError as error:
        notes.append(str(error))
        return None


def _simulated() -> _DeviceLike:
    from fastsgemm.sim import devices  # no other call needs it

    return devices.find(devices.wanted())


def _devices() -> tuple[DeviceRow, ...]:
    return tuple(map(_device, range(device.probe())))


def _device(ordinal: int) -> DeviceRow:
    """Describe a device without opening it: a context takes time and memory on every one."""
    from cuda.bindings import driver

    handle = driver.cuDeviceGet(ordinal)[1]

    def attribute(name: str) -> int:
        return int(
            driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)[1]
        )

    return DeviceRow(
        ordinal,
        driver.cuDeviceGetName(256, handle)[1].split(b"\0")[0].decode(),
        f"sm_{attribute('COMPUTE_CAPABILITY_MAJOR')}{attribute('COMPUTE_CAPABILITY_MINOR')}",
        attribute("MULTIPROCESSOR_COUNT"),
        attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )


def _device_text(device_info: DeviceRow) -> str:
    shared = device_info.shared_limit // 1024
    return f"{device_info.ordinal}: {device_info.name}, {device_info.arch}, {device_info.multiprocessors} SMs, {shared} KB shared memory a block"


def _choice_text(choice: ChoiceRow) -> str:
    problem = choice.problem
    constants = " ".join(f"{name}={value}" for name, value in choice.constants.items())
    place = choice.device or choice.arch
    return (
        f"{choice.rung} {constants} at {problem.M} x {problem.N} x {problem.K}; "
        f"{choice.origin} record for {place} ({choice.source})"
    )
