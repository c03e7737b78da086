"""How many blocks an SM holds at once, from the limits in ``cards.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastsgemm.errors import DeviceError
from fastsgemm.sim.batch import WARP

_REGISTER_STEP = 256  # registers are given to a warp in steps of this many
_WARP_STEP = 4  # the register file has four parts, a warp lives in one


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
class Occupancy:
    """What an SM holds of a kernel.

    Attributes
    ----------
    blocks, warps : int
        On an SM at once.
    share : float
        Of the warps that an SM can hold.
    limited_by : str
        ``threads``, ``blocks``, ``registers`` or ``shared memory``.
    """

    blocks: int
    warps: int
    share: float
    limited_by: str


@cache
def limits(device: str) -> Limits:
    """Return the limits of an architecture (``sm_90``) or a card (``NVIDIA H200``).

    Raises
    ------
    DeviceError
        It is not in the table; the message lists what is.
    """
    table = json.loads((Path(__file__).parent / "cards.json").read_text(encoding="utf-8"))
    arch = table["cards"].get(device, device)
    if arch not in table["architectures"]:
        known = ", ".join([*table["architectures"], *table["cards"]])
        raise DeviceError(f"the limits of {device!r} are not known; known are {known}")
    return Limits(**table["architectures"][arch])


def occupancy(device: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Return what an SM of a card holds of a kernel.

    Parameters
    ----------
    device : str
        An architecture or a card.
    threads : int
        Of a block.
    registers : int
        Of a thread.
    shared_bytes : int
        Of a block, static and dynamic.
    """
    has = limits(device)
    warps = -(-threads // WARP)
    per_warp = _up(registers * WARP, _REGISTER_STEP)
    warps_by_registers = has.registers // _WARP_STEP // per_warp * _WARP_STEP if per_warp else has.threads // WARP
    shared = _up(shared_bytes + has.shared_reserved, has.shared_step)
    fitting = {
        "threads": has.threads // (warps * WARP),
        "blocks": has.blocks,
        "registers": warps_by_registers // warps,
        "shared memory": has.shared // shared if shared else has.blocks,
    }
    limited_by = min(fitting, key=lambda name: fitting[name])
    blocks = fitting[limited_by]
    return Occupancy(blocks, blocks * warps, blocks * warps * WARP / has.threads, limited_by)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
