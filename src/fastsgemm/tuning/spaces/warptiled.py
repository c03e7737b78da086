"""Rung 8: its search space, and which of its configs can be fast. Its sizes are the standard set."""

from fastsgemm.config import PipelinedConfig, WarptiledConfig
from fastsgemm.config.search_limits import SearchLimits
from fastsgemm.tuning.spaces.space import Space

WARP_GRID: dict[str, tuple[int, ...]] = {
    "BM": (16, 32, 64, 128, 256),
    "BN": (16, 32, 64, 128, 256),
    "BK": (8, 16, 32),
    "TM": (4, 8, 16),
    "TN": (4, 8),
    "WM": (16, 32, 64, 128),
    "WN": (16, 32, 64, 128),
    "WNITER": (1, 2),
}


def sensible(config: WarptiledConfig | PipelinedConfig, limits: SearchLimits) -> bool:
    """Whether a config can be fast, judged by its warp and thread tiles.

    Long thin warp tiles load more from shared memory per FMA. A large tile is no faster than a small one unless each
    thread computes many results and the tile is shallow.
    """
    if max(config.WM, config.WN) > 4 * min(config.WM, config.WN):
        return False
    if limits.large_results > config.BM * config.BN:
        return True
    enough = limits.least_thread_results <= config.thread_results
    return enough and limits.most_unsliced_k * config.sliced_k >= config.BK


WARPTILED = Space(
    "warptiled",
    grid={**WARP_GRID, "PREFETCH": (1,), "SERPENTINE": (1,), "GROUP_M": (8,), "MIN_BLOCKS": (1,)},
    refined=({"PREFETCH": (0, 1), "SERPENTINE": (0, 1), "GROUP_M": (1, 4, 8, 16), "MIN_BLOCKS": (1, 3)},),
    sensible=sensible,
)
