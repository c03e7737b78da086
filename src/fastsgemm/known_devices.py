"""Architectures and devices that are known without being present, read from ``known_devices.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from fastsgemm import settings
from fastsgemm.errors import DeviceError

EARLY = 90  # the first architecture with programmatic dependent launch


def compute_capability(arch: str) -> int:
    """Return the number in the name of an architecture: 90 for ``sm_90``."""
    return int(arch.removeprefix("sm_"))


class Limits(Struct, frozen=True):
    """The resources of one SM."""

    lanes: int  # of FP32: the FMAs of threads that it starts in a cycle
    threads: int  # the most that can be resident
    blocks: int  # the most that can be resident
    registers: int
    shared: int  # shared memory in bytes
    shared_limit: int  # shared memory that a block may opt in to, in bytes
    shared_reserved: int  # shared memory that the system reserves for each block, in bytes
    shared_step: int  # granularity in which shared memory is allocated to a block, in bytes

    def by_shared(self, shared_bytes: int) -> int:
        """Return how many blocks with so much shared memory are resident at a time, as far as that allows."""
        step = self.shared_step
        shared = -(-(shared_bytes + self.shared_reserved) // step) * step
        return self.shared // shared if shared else self.blocks

    def blocks_of(self, threads: int, shared_bytes: int) -> int:
        """Return how many such blocks are resident at a time, as far as threads and shared memory allow."""
        return min(self.threads // threads, self.blocks, self.by_shared(shared_bytes))


class SimulatedDevice(Struct, frozen=True):
    """A device that can be simulated: the properties for compiling kernels and choosing constants."""

    name: str  # as the driver reports it
    arch: str  # for example `sm_90`
    multiprocessors: int
    limits: Limits

    @property
    def shared_limit(self) -> int:
        """Shared memory that a block may opt in to, in bytes."""
        return self.limits.shared_limit


def simulated() -> SimulatedDevice:
    """Return the device that ``FASTSGEMM_SIM_DEVICE`` names, or the default one.

    Raises
    ------
    DeviceError
        The variable names no known device; see `find`.
    """
    name = settings.SIM_DEVICE.read()
    try:
        return find(name)
    except DeviceError as error:
        raise DeviceError(f"{settings.SIM_DEVICE.name}={name}: {error}") from error


def named(query: str, devices: Iterable[tuple[str, str]]) -> list[int]:
    """Return the indices of the devices, pairs of name and architecture, that match `query`.

    It is one of the two, or part of the name: whole words, in any case, such as ``H200`` or ``rtx 4090``.
    """
    candidates, words = list(devices), re.compile(rf"(?<!\w){re.escape(query)}(?!\w)", re.IGNORECASE)
    exact = [number for number, device in enumerate(candidates) if query in device]
    return exact or [number for number, (name, _) in enumerate(candidates) if query and words.search(name)]


def known() -> dict[str, str]:
    """Return the architecture of each device by its name."""
    return {name: device_info["arch"] for name, device_info in _table()["devices"].items()}


@cache
def limits_of(arch: str) -> Limits | None:
    """Return the resources of one SM of an architecture, or None if it is unknown."""
    entry = _table()["architectures"].get(arch)
    return None if entry is None else Limits(**entry)


@cache
def find(device: str) -> SimulatedDevice:
    """Return the device with this name or a part of it, or the first one of an architecture such as ``sm_90``.

    Raises
    ------
    DeviceError
        The device is unknown, and the message lists the known ones; or several names have this part.
    """
    table = _table()
    arch_of = known()
    matches = [[*arch_of][number] for number in named(device, arch_of.items())]
    if len(matches) > 1 and device not in arch_of.values():
        raise DeviceError(f"{device!r} can be {', '.join(matches)}; name one of them")
    if matches:
        device_info = table["devices"][matches[0]]
        return SimulatedDevice(matches[0], **device_info, limits=Limits(**table["architectures"][device_info["arch"]]))
    known_names = ", ".join([*table["architectures"], *table["devices"]])
    raise DeviceError(
        f"nothing is known of a device {device!r}; known are {known_names}; a device in this machine is cuda or cuda:1"
    )


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((Path(__file__).parent / "known_devices.json").read_text(encoding="utf-8"))
    return table
