"""Rung 9: its search space, which of its configs can be fast, and its sizes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from fastsgemm.config import PipelinedConfig
from fastsgemm.config.search_limits import SearchLimits
from fastsgemm.geometry.grid import tiles
from fastsgemm.problem import LAYOUTS, Problem
from fastsgemm.tuning.spaces import warptiled
from fastsgemm.tuning.spaces.space import Space
from fastsgemm.tuning.spaces.standard_set import STANDARD, problems

_MOST_SLICED = 1024  # tiles of C; with more of them blocks fill the device, and sliced-K needs another reason

HUGE = problems("16384,16384,16384")  # only for this rung, because every product takes long
# The scores of an attention and their product with the values, for 96 heads of 64 and 1024 tokens, and small squares.
BATCHES = problems("1024,1024,64,NT,x96 1024,64,1024,x96 512,512,512,x8 64,64,64,x512 32,32,32,x4096")
# Anchors with other layouts and odd extents, which need other kernels.
VARIANT_ANCHORS = problems(
    "4096,4096,4096,NT 4096,4096,4096,TN 4096,4096,4096,TT 4095,4097,4093 2047,1025,511 333,777,555"
)


def _drawn(count: int) -> tuple[Problem, ...]:
    """Return random problems of 0.5 to 20 GFLOP whose operands need few kernels: layouts and odd extents in turn."""
    generator = random.Random(17)
    drawn: list[Problem] = []
    while len(drawn) < count:
        turn, layout = divmod(len(drawn), len(LAYOUTS))
        M, N, K = (32 * round(2 ** generator.uniform(3.0, 7.5)) + turn % 2 for _ in range(3))
        problem = Problem(M, N, K, LAYOUTS[layout])
        if 5 * 10**8 <= problem.flops <= 2 * 10**10:
            drawn.append(problem)
    return tuple(drawn)


# The curves of the standard set are calibrated on these. They are unlike the problems of a curve: narrow, deep, large.
CALIBRATION = _drawn(32)


def worth_making(constants: Mapping[str, int], limits: SearchLimits) -> bool:
    """Whether the depth of a tile suits it: deep with sliced-K, shallow without.

    Without sliced-K, deep tiles pay only where C is narrow, and rung 10 computes those problems. Four stages do not pay
    without sliced-K either. This refuses most of the grid before a config is made, which takes much longer.
    """
    BK, slices = constants["BK"], constants["SLICED_K"]
    if slices > 1:
        least, most = limits.slice_k
        return limits.most_unsliced_k < BK and least <= BK // slices <= most
    return limits.most_unsliced_k >= BK and constants["STAGES"] != 4


def sensible(config: PipelinedConfig, limits: SearchLimits) -> bool:
    """Whether a config can be fast: its warp tiles as on rung 8, and stages, slices and copies suit the tile."""
    results = config.BM * config.BN
    if not warptiled.sensible(config, limits) or (limits.large_results <= results and config.TM < 8):
        return False
    if limits.most_stage_floats < config.BK * (config.BM + config.BN):
        return False  # a smaller stage hides the copies as well, and more blocks fit on a multiprocessor
    if config.SLICED_K > 1 and results > limits.most_sliced_results:
        return False  # a tile of this size has enough warps without slices
    if config.STAGES > 2:  # pay only where a tile is so small that its copies outlast its arithmetic
        most = limits.most_three_stage_results if config.STAGES == 3 else limits.most_four_stage_results
        if config.SPREAD != 2 or most < results:  # SPREAD has no effect here, so one value of it is tried
            return False
    elif config.CP_ASYNC == 2 and results < limits.least_scattered_results:
        return False  # CP_ASYNC = 2 saves registers, which a smaller tile does not need
    # CP_ASYNC = 1 needs registers that a larger tile lacks.
    return config.CP_ASYNC != 1 or results <= limits.most_async_results


def worth_trying(config: PipelinedConfig, problem: Problem, limits: SearchLimits) -> bool:
    """Whether a config can be fast on a problem, judged by sliced-K.

    Sliced-K pays where C has few tiles, and where it lets each thread of a small tile compute many results. Of a batch,
    the tiles of one product are counted: many products of few steps of k do not make large tiles fast.
    """
    many_results = config.thread_results >= limits.least_thread_results
    return config.SLICED_K == 1 or many_results or tiles(config, problem) <= _MOST_SLICED


def distinct(configs: Sequence[PipelinedConfig], problem: Problem) -> list[PipelinedConfig]:
    """Return the configs without duplicates: in layout TN, CP_ASYNC of 1, 2 and 3 compile to the same kernel."""
    if problem.layout != "TN":
        return list(configs)
    first = [config for config in configs if config.CP_ASYNC in (1, 2)]
    twins = {config.replace(CP_ASYNC=more) for config in first for more in range(config.CP_ASYNC + 1, 4)}
    return [config for config in configs if config not in twins]


PIPELINED = Space(
    "pipelined",
    grid={
        **warptiled.WARP_GRID,
        "BK": (8, 16, 32, 64, 128),
        "TN": (4,),
        "GROUP_M": (8,),
        "MIN_BLOCKS": (1,),
        "SPLIT_K": (1,),
        "ORDER": (1,),
        "FRAGMENTS": (2,),
        "CP_ASYNC": (1, 2),
        "SPREAD": (2,),
        "STAGES": (2, 4),
        "SLICED_K": (1, 2, 4, 8),
    },
    refined=(
        {"ORDER": (1, 4, 5), "FRAGMENTS": (1, 2), "SPREAD": (0, 1, 2)},
        {"GROUP_M": (4, 8, 16), "MIN_BLOCKS": (1, 4), "CP_ASYNC": (1, 2, 3), "STAGES": (2, 3, 4)},
        {"FRAGMENTS": (1, 2, 4)},  # CP_ASYNC = 3 reads four steps of k at a time
    ),
    worth_making=worth_making,
    sensible=sensible,
    worth_trying=worth_trying,
    distinct=distinct,
    problems=(*STANDARD, *BATCHES, *HUGE),
    variants=VARIANT_ANCHORS,
    calibration=CALIBRATION,
)
