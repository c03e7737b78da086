"""How many blocks an SM of a device holds at once."""

from __future__ import annotations

from dataclasses import dataclass

from fastsgemm.known_devices import Limits
from fastsgemm.sim.clock import WARP

_REGISTER_STEP = 256  # registers are given to a warp in steps of this many
_WARP_STEP = 4  # the register file has four parts, a warp lives in one


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

    def __str__(self) -> str:
        return f"{self.share:.0%} of the warps of an SM ({self.warps}), limited by {self.limited_by}"


def occupancy(has: Limits, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Return what an SM with these limits holds of a kernel; shared memory is static and dynamic."""
    warps = -(-threads // WARP)
    per_warp = _up(registers * WARP, _REGISTER_STEP)
    warps_by_registers = has.registers // _WARP_STEP // per_warp * _WARP_STEP if per_warp else has.threads // WARP
    fitting = {
        "threads": has.threads // (warps * WARP),
        "blocks": has.blocks,
        "registers": warps_by_registers // warps,
        "shared memory": has.by_shared(shared_bytes),
    }
    limited_by = min(fitting, key=lambda name: fitting[name])
    blocks = fitting[limited_by]
    return Occupancy(blocks, blocks * warps, blocks * warps * WARP / has.threads, limited_by)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
