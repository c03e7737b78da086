"""Information on this machine: devices, driver, NVRTC, PyTorch, kernel cache, and the tuning record in use."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from fastsgemm import device
from fastsgemm.device import DeviceTraits, driver_text, nvrtc_text
from fastsgemm.driver import attribute, described
from fastsgemm.errors import DeviceError, FastsgemmError
from fastsgemm.geometry import variants
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.heuristics.database_entries import Record
from fastsgemm.jit import cache, packs, torch_library
from fastsgemm.problem import Problem, format_problem
from fastsgemm.rungs import Rung

T = TypeVar("T")


@dataclass(frozen=True)
class DeviceRow:
    """One device of this machine."""

    ordinal: int  # CUDA's device number
    name: str
    arch: str
    multiprocessors: int  # number of SMs
    shared_limit: int  # shared memory that a block may opt in to, in bytes


@dataclass(frozen=True)
class ChoiceRow:
    """The tuning record used for one problem."""

    problem: Problem  # as the caller gave it
    rung: str
    constants: dict[str, int]  # tile constants by name
    arch: str  # the tuning file that holds the record: an architecture, or `generic`
    device: str | None  # the device the record was measured on
    origin: str  # `measured`, `published` or `hand-picked`
    source: str  # a reference


@dataclass(frozen=True)
class Info:
    """Information on this machine. A missing part is None, and `notes` says why."""

    fastsgemm: str  # version, as in the fields of the other packages
    python: str
    numpy: str
    backend: str | None  # what multiplies host arrays: `cuda`, `host` or `sim`
    simulated: str | None  # name of the simulated device if `backend` is `sim`, else None
    driver: str | None
    nvrtc: str | None
    pytorch: str | None  # its version, and whether its launcher is compiled
    devices: tuple[DeviceRow, ...]
    cache_folder: str | None
    cache_kernels: int
    cache_bytes: int
    packages: tuple[str, ...]  # of kernels: what each has, for people
    choice: ChoiceRow | None  # the tuning record for the simulated device if `backend` is `sim`, else for the first
    notes: tuple[str, ...]  # one sentence for each missing part

    def json(self) -> dict[str, Any]:
        """Return this as plain data, ready for `json.dumps`."""
        return asdict(self)

    def text(self) -> str:
        """Return this as text for a terminal, one fact a line."""
        count = self.cache_kernels
        kernels = f"{count} kernel{'s' * (count != 1)}, {self.cache_bytes / 1e6:.1f} MB" if count else "empty"
        rows = [("fastsgemm", f"{self.fastsgemm}, Python {self.python}, NumPy {self.numpy}")]
        rows += [("device", _device_text(row)) for row in self.devices] or [("device", "none")]
        rows += [
            ("driver", self.driver or "none"),
            ("NVRTC", self.nvrtc or "none"),
            ("PyTorch", self.pytorch or "none"),
            (
                "kernel cache",
                f"{self.cache_folder} ({kernels})" if self.cache_folder else "none: there is no home folder",
            ),
            *(("package", text) for text in self.packages),
            ("host arrays", self._host_arrays()),
        ]
        if self.choice is not None:
            rows.append(("default", _choice_text(self.choice)))
        rows += [("note", note) for note in self.notes]
        return "\n".join(f"{name:14}{value}" for name, value in rows)

    def _host_arrays(self) -> str:
        text = _BACKENDS[self.backend].format(self.simulated or "device")
        if self.backend == "host":
            text += f"; {_SIMULATOR if self.nvrtc else _NO_SIMULATOR}"
        return text


_BACKENDS = {
    "cuda": "go through the first device and back",
    "host": "are multiplied by NumPy",
    "sim": "go through a simulated {}",
    None: "cannot be multiplied",
}
_SIMULATOR = "FASTSGEMM_DEVICE=sim runs the kernels on a simulated device instead"
_NO_SIMULATOR = "the simulated device needs NVRTC: pip install 'fastsgemm[cu13]'"


def collect(problem: Problem) -> Info:
    """Collect information on this machine, and the tuning record of a problem. A missing part becomes a note."""
    from fastsgemm import __version__

    notes: list[str] = []
    nvrtc = _value_or_note(notes, nvrtc_text)
    devices = _value_or_note(notes, _devices) or ()
    backend = _value_or_note(notes, device.host_backend)
    simulated = _value_or_note(notes, _simulated) if backend == "sim" else None
    chosen = simulated or (devices[0] if devices else None)
    choice = _value_or_note(notes, lambda: choose(chosen, None, problem)) if chosen else None
    kernels, size = _value_or_note(notes, _kernels) or (0, 0)
    return Info(
        fastsgemm=__version__,
        python=platform.python_version(),
        numpy=np.__version__,
        backend=backend,
        simulated=simulated.name if simulated else None,
        driver=driver_text(),
        nvrtc=nvrtc,
        pytorch=torch_library.described(),
        devices=devices,
        cache_folder=None if (folder := cache.folder()) is None else str(folder),
        cache_kernels=kernels,
        cache_bytes=size,
        packages=tuple(map(str, packs.installed())),
        choice=choice,
        notes=tuple(dict.fromkeys(notes)),
    )


def choose(device_info: DeviceTraits, rung: Rung | None, problem: Problem) -> ChoiceRow:
    """Return the tuning record for `problem` on this device: of `rung`, or of the rung `sgemm` picks if it is None."""
    chosen = choose_config(device_info, rung, variants.dense_call(problem).problem)
    record = chosen.evidence
    assert record is not None  # no config was given
    arch, _ = database.origin_of(record, device_info.arch)
    origin = record.origin if isinstance(record, Record) else "predicted"
    source = record.source if isinstance(record, Record) else f"from {record.source}"
    return ChoiceRow(problem, chosen.rung.name, chosen.config.constants, arch, record.device, origin, source)


def _value_or_note(notes: list[str], query: Callable[[], T]) -> T | None:
    try:
        return query()
    except FastsgemmError as error:
        notes.append(str(error))
        return None


def _simulated() -> DeviceTraits:
    from fastsgemm.known_devices import simulated  # other calls do not need it

    return simulated()


def _kernels() -> tuple[int, int]:
    try:
        return cache.entries()
    except OSError as error:
        raise DeviceError(f"the kernel cache cannot be read: {error.strerror or error}") from error


def _devices() -> tuple[DeviceRow, ...]:
    return tuple(map(_device, range(device.probe())))


def _device(ordinal: int) -> DeviceRow:
    """Describe a device without opening it, because a context costs time and device memory."""
    from cuda.bindings import driver

    attributes = driver.CUdevice_attribute
    return DeviceRow(
        ordinal,
        *described(ordinal),
        attribute(attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal),
        attribute(attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, ordinal),
    )


def _device_text(row: DeviceRow) -> str:
    shared = row.shared_limit // 1024
    return f"{row.ordinal}: {row.name}, {row.arch}, {row.multiprocessors} SMs, {shared} KB shared memory per block"


def _choice_text(choice: ChoiceRow) -> str:
    problem = choice.problem
    constants = " ".join(f"{name}={value}" for name, value in choice.constants.items())
    origin = choice.device or choice.arch
    return (
        f"{choice.rung} {constants} at {format_problem(problem)}; {choice.origin} record for {origin} ({choice.source})"
    )
