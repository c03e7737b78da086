"""Architectures, and the devices that are described without being there, read from ``known_devices.json``."""

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

EARLY = 90  # the first architecture on which a kernel can be launched before the one that it waits for has ended


def compute_capability(arch: str) -> int:
    """Return the number in the name of an architecture: 90 for ``sm_90``."""
    return int(arch.removeprefix("sm_"))


class Limits(Struct, frozen=True):
    """The resources of one SM."""

    threads: int  # the most that can be resident
    blocks: int  # the most that can be resident
    registers: int
    shared: int  # shared memory in bytes
    shared_limit: int  # shared memory that a block may opt in to, in bytes
    shared_reserved: int  # shared memory that the system reserves for each block, in bytes
    shared_step: int  # granularity in which shared memory is allocated to a block, in bytes


class SimulatedDevice(Struct, frozen=True):
    """A device that can be simulated: what compiling a kernel and choosing its constants need."""

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
        The variable names none; see `find`.
    """
    name = settings.SIM_DEVICE.read()
    try:
        return find(name)
    except DeviceError as error:
        raise DeviceError(f"{settings.SIM_DEVICE.name}={name}: {error}") from error


def named(asked: str, devices: Iterable[tuple[str, str]]) -> list[int]:
    """Return which devices, of which each is a name and an architecture, `asked` means.

    It is one of the two, else part of the name: whole words, in any case, such as ``H200`` or ``rtx 4090``.
    """
    listed, words = list(devices), re.compile(rf"(?<!\w){re.escape(asked)}(?!\w)", re.IGNORECASE)
    exact = [number for number, device in enumerate(listed) if asked in device]
    return exact or [number for number, (name, _) in enumerate(listed) if asked and words.search(name)]


def known() -> dict[str, str]:
    """Return the architecture of each device by its name."""
    return {name: device_info["arch"] for name, device_info in _table()["devices"].items()}


@cache
def find(device: str) -> SimulatedDevice:
    """Return the device with this name or a part of it, or the first one of an architecture such as ``sm_90``.

    Raises
    ------
    DeviceError
        The table does not have it, and the message lists what it has; or several names have this part.
    """
    table = _table()
    arch_of = known()
    found = [[*arch_of][number] for number in named(device, arch_of.items())]
    if len(found) > 1 and device not in arch_of.values():
        raise DeviceError(f"{device!r} can be {', '.join(found)}; name one of them")
    if found:
        device_info = table["devices"][found[0]]
        return SimulatedDevice(found[0], **device_info, limits=Limits(**table["architectures"][device_info["arch"]]))
    there = ", ".join([*table["architectures"], *table["devices"]])
    raise DeviceError(
        f"nothing is known of a device {device!r}; known are {there}; a device in this machine is cuda or cuda:1"
    )


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((Path(__file__).parent / "known_devices.json").read_text(encoding="utf-8"))
    return table
