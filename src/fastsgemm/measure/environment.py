"""The environment of a run: the device, versions, clocks, the power limit, and the date."""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastsgemm import device
from fastsgemm.measure import cublas

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_QUERY = {"clock_mhz": "clocks.max.sm", "memory_clock_mhz": "clocks.max.memory", "power_limit_w": "power.limit"}
_QUERY_SECONDS = 10.0
_TEXTS = {"cublas": "cuBLAS {}", "clock_mhz": "SM clock up to {:g} MHz", "power_limit_w": "power limit {:g} W"}


def facts(gpu: Gpu) -> dict[str, Any]:
    """Return the known facts of a run made now, by name, as plain data."""
    values = {
        "date": datetime.date.today().isoformat(),
        "device": gpu.name,
        "driver": device.driver_text(),
        "nvrtc": device.nvrtc_text(),
        "cublas": cublas.version(),
        **dict(zip(_QUERY, clocks(gpu), strict=True)),
    }
    return {name: value for name, value in values.items() if value is not None}


def in_words(run: Mapping[str, Any]) -> str:
    """Return the facts of a run, and its packages, as text for a page; some may be missing."""
    machine = (f"one {run['device']}", f"driver {run['driver']}", f"NVRTC {run['nvrtc']}")
    packages = (f"{name} {version}" for name, version in run.get("packages", {}).items())
    limits = (text.format(run[name]) for name, text in _TEXTS.items() if name in run)
    return ", ".join((*machine, *packages, *limits, run["date"]))


def clocks(gpu: Gpu) -> tuple[float | None, float | None, float | None]:
    """Return the highest clock and memory clock in MHz and the power limit in W; None if unknown."""
    command = ["nvidia-smi", f"--id={gpu.device.pci_bus_id}", f"--query-gpu={','.join(_QUERY.values())}"]
    try:
        process = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=_QUERY_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, None, None
    return parsed_clocks(process.stdout)


def parsed_clocks(line: str) -> tuple[float | None, float | None, float | None]:
    """Return the three numbers of a line of ``nvidia-smi``, None for each that is not a number."""
    numbers: list[float | None] = []
    for cell in line.split(","):
        try:
            numbers.append(float(cell))
        except ValueError:
            numbers.append(None)
    first, second, third = (*numbers, None, None, None)[:3]
    return first, second, third
