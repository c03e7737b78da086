"""The cost of a warp's access: 32-byte sectors of global memory, wavefronts of shared memory."""

from __future__ import annotations

import numpy as np

from fastsgemm.sim.clock import WARP
from fastsgemm.sim.lanes import Array, Lanes

SECTOR = 32  # bytes
BANKS = 32
BANK_BYTES = 4
_NOBODY = -1


def by_warp(lanes: Lanes, values: Array) -> Array:
    """Return values of the lanes that execute as a (warps, 32) table, -1 for the other lanes."""
    if lanes.mask is None:
        return values.astype(np.int64).reshape(-1, WARP)
    table = np.full(lanes.count, _NOBODY, np.int64)
    table[lanes.mask] = values
    return table.reshape(-1, WARP)


def sectors(addresses: Array) -> int:
    """Return the sectors that the warps touch, each counted once per warp.

    The addresses are those of aligned accesses of at most 32 bytes, by warp and lane; -1 for a lane that does not take
    part.
    """
    touched = np.sort(addresses // SECTOR, axis=1)  # -1 stays -1
    first = touched[:, 1:] != touched[:, :-1]
    return int(np.count_nonzero(first & (touched[:, 1:] >= 0)) + np.count_nonzero(touched[:, 0] >= 0))


def wavefronts(addresses: Array, size: int, loading: bool) -> int:
    """Return the passes over the 32 banks that the warps' shared-memory accesses take.

    A pass serves 128 bytes' worth of lanes: the whole warp for 4 bytes per lane, half for 8, a quarter for 16.
    Within those lanes equal addresses are one; what then remains in one bank is served one after the other. A load of 8
    or 16 bytes takes half the passes if in every active pair of lanes (n, n ^ 1), or in every pair (n, n ^ 2), both
    read the same address.

    The addresses are those of aligned accesses of `size` bytes, by warp and lane; -1 for a lane that does not take
    part.
    """
    size = max(size, BANK_BYTES)
    slots = np.where(addresses < 0, _NOBODY, addresses // size)
    phase = BANKS * BANK_BYTES // size  # lanes of a pass
    if phase == WARP or not loading:
        return _passes(slots.reshape(-1, phase), phase)
    paired = _all_paired(slots, 1) | _all_paired(slots, 2)
    wide = _passes(slots[paired].reshape(-1, 2 * phase), phase)
    return wide + _passes(slots[~paired].reshape(-1, phase), phase)


def _all_paired(slots: Array, distance: int) -> Array:
    partner = slots[:, np.arange(WARP) ^ distance]
    same = (slots == partner) | (slots < 0) | (partner < 0)
    return np.asarray(same.all(axis=1))


def _passes(slots: Array, groups: int) -> int:
    """Sum over the rows the most distinct slots that fall in one group of banks."""
    if slots.size == 0:
        return 0
    ordered = np.sort(slots, axis=1)
    distinct = ordered >= 0
    distinct[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    row, column = np.nonzero(distinct)
    counts = np.bincount(row * groups + ordered[row, column] % groups, minlength=len(slots) * groups)
    return int(counts.reshape(-1, groups).max(axis=1).sum())
