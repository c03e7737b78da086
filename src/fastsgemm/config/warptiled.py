"""Rung 8: a level of warp tiles between block and thread."""

from dataclasses import dataclass
from typing import Annotated

from fastsgemm.config import constant, rules
from fastsgemm.config.base import Config
from fastsgemm.config.constant import VECTOR, WARP, Constant


@dataclass(frozen=True, repr=False)
class WarptiledConfig(Config):
    """Rung 8. The defaults are the version of the literature."""

    BK: constant.BlockK
    TM: constant.ThreadM
    TN: constant.ThreadN
    WM: constant.WarpM
    WN: constant.WarpN
    WNITER: constant.WarpSubtilesN
    PREFETCH: Annotated[int, Constant("1: the next tile is read to registers before this one's arithmetic", (0, 1))] = 0
    SERPENTINE: Annotated[int, Constant("1: odd rows of the outer product run backwards", (0, 1))] = 0
    GROUP_M: constant.GroupM = 1
    MIN_BLOCKS: constant.MinBlocks = 1

    THREADS = rules.THREADS_OF_WARPS
    SHARED_BYTES = rules.TILES
    LEAST_REGISTERS = rules.outer_product("(TM * WMITER)", "(TN * WNITER)") + " + PREFETCH * (BK * (BM + BN) / THREADS)"
    RULES = (
        rules.WARP_TILES,
        (
            *rules.threads(THREADS),
            *rules.copies(VECTOR),
            *rules.vectors("BK", "BM", "BN", "TM", "TN"),
            rules.shared(rules.TILES),
            rules.registers("for WM * WN results and the copied tiles"),
        ),
    )

    @property
    def thread_results(self) -> int:
        """Results of C that a thread computes."""
        return self.WM * self.WN // WARP

    @property
    def wmiter(self) -> int:
        """Sub-tiles of a warp tile along m."""
        return self.WM * self.WN // (WARP * self.TM * self.TN * self.WNITER)
