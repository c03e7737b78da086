"""Which elements of C, and of the tiles of A and B, belong to a warp and to a thread of each rung: pure arithmetic.

It says in Python what the first lines of a kernel compute from `threadIdx.x`; a test checks that the threads of a block
share out its tile. A place is (row, column, rows, columns), in elements of the block's tile of C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Place = tuple[int, int, int, int]


@dataclass(frozen=True)
class Tiling:
    """How a block shares out its tile of C.

    Attributes
    ----------
    BM, BN : int
        Rows and columns of the block's tile.
    BK : int
        Steps of k of the tiles of A and B; 0 if there are none.
    threads : int
        Of the block, without those that only copy.
    down : bool
        Whether neighbouring threads have neighbouring rows, as in rung 1.
    TM, TN : int
        Rows and columns of each place of a thread.
    warps : tuple of int
        Rows and columns of a warp's tile, and sub-tiles along m and n. Rungs 1 to 7 have no such tile: (0, 0, 1, 1).
    """

    BM: int
    BN: int
    BK: int
    threads: int
    down: bool
    TM: int
    TN: int
    warps: tuple[int, int, int, int] = (0, 0, 1, 1)

    def of_thread(self, thread: int) -> list[Place]:
        """Return the places of a thread."""
        wm, wn, along_m, along_n = self.warps
        if not wm:
            wide = self.BM // self.TM if self.down else self.BN // self.TN
            row, column = (thread % wide, thread // wide) if self.down else divmod(thread, wide)
            return [(row * self.TM, column * self.TN, self.TM, self.TN)]
        warp, lane = divmod(thread, 32)
        top, left = warp // (self.BN // wn) * wm, warp % (self.BN // wn) * wn
        sub_m, sub_n = wm // along_m, wn // along_n
        row, column = top + lane // (sub_n // self.TN) * self.TM, left + lane % (sub_n // self.TN) * self.TN
        return [(row + i * sub_m, column + j * sub_n, self.TM, self.TN) for i in range(along_m) for j in range(along_n)]

    def of_warp(self, warp: int) -> Place:
        """Return the rectangle of a warp."""
        places = [place for thread in range(32 * warp, 32 * warp + 32) for place in self.of_thread(thread)]
        top, left = min(place[0] for place in places), min(place[1] for place in places)
        bottom, right = max(place[0] + place[2] for place in places), max(place[1] + place[3] for place in places)
        return top, left, bottom - top, right - left

    @property
    def rows(self) -> int:
        """Rows of C that a thread computes."""
        return self.TM * self.warps[2]

    @property
    def columns(self) -> int:
        """Columns of C that a thread computes."""
        return self.TN * self.warps[3]


def tiling(name: str, constants: Mapping[str, int]) -> Tiling:
    """Return the tiling of a rung from 1 to 9 with these constants."""
    BM, BN, BK = (constants.get(one, 0) for one in ("BM", "BN", "BK"))
    TM, TN = constants.get("TM", 1), constants.get("TN", 1)
    if "WM" not in constants:
        return Tiling(BM, BN, BK, BM * BN // (TM * TN), name == "naive", TM, TN)
    WM, WN, along_n = constants["WM"], constants["WN"], constants["WNITER"]
    along_m = WM * WN // (32 * TM * TN * along_n)
    threads = 32 * (BM // WM) * (BN // WN) * constants.get("SLICED_K", 1)
    return Tiling(BM, BN, BK, threads, False, TM, TN, (WM, WN, along_m, along_n))


def of_wgmma_thread(thread: int, BN: int) -> list[Place]:
    """Return the places of a thread of rung 11 in a tile of C: 64 x BN for each warpgroup.

    Each warp has 16 rows. A thread has pairs of columns, in the rows of its group of four lanes and 8 rows below.
    """
    warp, lane = divmod(thread, 32)
    row, column = 16 * warp + lane // 4, lane % 4 * 2
    return [(row + down, column + right, 1, 2) for down in (0, 8) for right in range(0, BN, 8)]


def of_skinny_thread(thread: int, constants: Mapping[str, int]) -> list[Place]:
    """Return the places of a thread of rung 10 in the tile of B, as (k, column, steps of k, columns).

    B is row-major; see device/skinny_copy.cuh.
    """
    across, slices = constants["BN"] // constants["TN"], constants["BK"] // constants["TK"]
    part, column = divmod(thread, across)
    groups = range(constants["TK"] // 4)
    return [(4 * (group * slices + part), column * constants["TN"], 4, constants["TN"]) for group in groups]
