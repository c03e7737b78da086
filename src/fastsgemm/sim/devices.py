"""The devices that can be simulated, from ``devices.json``: a new one is a line of data."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastsgemm.errors import DeviceError

_DEFAULT = "NVIDIA H200"


@dataclass(frozen=True)
class Limits:
    """What one SM has.

    Attributes
    ----------
    threads, blocks, registers : int
    shared : int
        Bytes of shared memory.
    shared_limit : int
        Bytes that one block may opt in to.
    shared_reserved : int
        Bytes that the system takes of each block.
    shared_step : int
        Bytes are given to a block in steps of this many.
    """

    threads: int
    blocks: int
    registers: int
    shared: int
    shared_limit: int
    shared_reserved: int
    shared_step: int


@dataclass(frozen=True)
class SimulatedDevice:
    """A device, as far as kernels and the choice of their constants go.

    Attributes
    ----------
    name : str
        As a driver gives it.
    arch : str
        For example ``sm_90``.
    multiprocessors : int
    limits : Limits
    """

    name: str
    arch: str
    multiprocessors: int
    limits: Limits

    @property
    def shared_limit(self) -> int:
        """Shared memory that a block may opt in to, in bytes."""
        return self.limits.shared_limit


def wanted() -> str:
    """Return the device that ``FASTSGEMM_SIM_DEVICE`` names, or the one that is simulated without it."""
    return os.environ.get("FASTSGEMM_SIM_DEVICE", "").strip() or _DEFAULT


@cache
def find(device: str) -> SimulatedDevice:
    """Return the device of this name, or the one that stands for an architecture such as ``sm_90``.

    Raises
    ------
    DeviceError
        It is not in the table; the message lists what is.
    """
    table = json.loads((Path(__file__).parent / "devices.json").read_text(encoding="utf-8"))
    for name, device_info in table["devices"].items():
        if device in (name, device_info["arch"]):
            return SimulatedDevice(name, **device_info, limits=Limits(**table["architectures"][device_info["arch"]]))
    known = ", ".join([*table["architectures"], *table["devices"]])
    raise DeviceError(f"a device {device!r} is not known to the simulated device; known are {known}")
