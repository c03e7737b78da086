"""The search spaces: which constants a tuning run tries, as named data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fastsgemm import config as configs
from fastsgemm import rungs
from fastsgemm.config import Config, PipelinedConfig, SkinnyConfig, WarptiledConfig
from fastsgemm.heuristics import database
from fastsgemm.heuristics.database_entries import SearchLimits
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung
from fastsgemm.tuning.problem_sets import ANCHORS, HUGE, NARROW, NARROW_ANCHORS, STANDARD, VARIANT_ANCHORS

_REGISTER_FILE = 65536  # registers of an SM, on every architecture since sm_35


@dataclass(frozen=True, eq=False)  # each is one of a kind
class Space:
    """A named set of configs of one rung: a grid, and refinements that are tried on the best of it.

    Attributes
    ----------
    name : str
    rung : str
    grid : mapping of str to tuple of int
        Every legal combination of these is tried.
    refined : tuple of mapping of str to tuple of int
        Every combination of the first is tried on the best configs of the grid, of the next on the best of these.
    problems : tuple of Problem
        The standard set of the rung.
    anchors : tuple of Problem
        Of these, where all candidates are tried; the best of them are tried on the rest.
    variants : tuple of Problem
        Further anchors, whose operands need kernels of their own: the best third of what was tried on the nearest
        anchor is tried there.
    """

    name: str
    rung: str
    grid: Mapping[str, tuple[int, ...]]
    refined: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    problems: tuple[Problem, ...] = STANDARD
    anchors: tuple[Problem, ...] = ANCHORS
    variants: tuple[Problem, ...] = ()

    @property
    def quick(self) -> tuple[Config, ...]:
        """What is tried in a quick run, the most useful first; ``generic.json`` lists it."""
        return database.candidates(self.name, "quick")

    @property
    def picked(self) -> tuple[Config, ...]:
        """What is tried beside the grid, because no refinement of the grid leads to it; ``generic.json`` lists it."""
        return database.candidates(self.name, "picked")

    def candidates(self, shared_limit: int, quick: bool = False) -> list[Config]:
        """Return the legal configs to begin with.

        Parameters
        ----------
        shared_limit : int
            Shared memory that a block may opt in to on the device, in bytes.
        quick : bool
        """
        return list(_candidates(self, shared_limit, quick))

    def refinements(self, config: Config, shared_limit: int, step: int = 0) -> list[Config]:
        """Return what `config` becomes by other values of the constants that are refined in this step."""
        rung = rungs.find(self.rung)
        values, limits = self.refined[step], database.search_limits()
        drawn = (config.replace(**constants) for constants in _combinations(values))
        return [
            other
            for other in drawn
            if other != config and not rung.violations(other, shared_limit) and _sensible(other, limits)
        ]


@lru_cache(maxsize=64)
def _candidates(space: Space, shared_limit: int, quick: bool) -> tuple[Config, ...]:
    rung, limits = rungs.find(space.rung), database.search_limits()
    # How deep comes first, because it is quick and most are not.
    drawn = (
        space.quick
        if quick
        else (
            *space.picked,
            *(one for one in _draw(rung, space.grid) if _deep_enough(one, limits)),
        )
    )
    return tuple(one for one in drawn if not rung.violations(one, shared_limit) and _sensible(one, limits))


def _draw(rung: Rung, grid: Mapping[str, tuple[int, ...]]) -> Iterator[Config]:
    yield from (rung.config(**constants) for constants in _combinations(grid))


def _combinations(grid: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _sensible(config: Config, limits: SearchLimits) -> bool:
    """Whether a legal config can be worth its compilation."""
    threads = config.threads
    if threads > limits.most_threads:
        return False
    blocks = 1
    if isinstance(config, WarptiledConfig | PipelinedConfig):
        if max(config.WM, config.WN) > 4 * min(config.WM, config.WN):
            return False  # a long thin warp tile reads more fragments for the same arithmetic
        if limits.large_results <= config.BM * config.BN and not _for_large_tiles(config, limits):
            return False
    if isinstance(config, PipelinedConfig) and not _sensible_pipeline(config, limits):
        return False
    if isinstance(config, WarptiledConfig | PipelinedConfig | SkinnyConfig):
        blocks = config.MIN_BLOCKS
    bound = min(configs.MAX_REGISTERS, _REGISTER_FILE // (blocks * threads))
    if config.least_registers > bound:
        return False  # it must spill
    return blocks == 1 or bound < configs.MAX_REGISTERS  # else MIN_BLOCKS bounds nothing


def _sensible_pipeline(config: PipelinedConfig, limits: SearchLimits) -> bool:
    """Whether stages, slices and copies of rung 9 suit the size of the tile."""
    results = config.BM * config.BN
    if limits.most_stage_floats < config.BK * (config.BM + config.BN):
        return False  # a smaller stage hides the copies too, and leaves room for other blocks
    if config.SLICED_K > 1 and results > limits.most_sliced_results:
        return False  # a tile of this size has warps enough
    if config.STAGES > 2 and not _for_more_stages(config, limits):
        return False
    if config.CP_ASYNC == 2 and config.STAGES == 2 and results < limits.least_scattered_results:
        return False  # it saves registers, and a smaller tile has them
    return (
        config.CP_ASYNC != 1 or results <= limits.most_async_results
    )  # a larger tile has no registers left for copies


def _deep_enough(config: Config, limits: SearchLimits) -> bool:
    """Whether the tile is deep exactly where it has slices, which hide the long copies of a deep tile.

    Without slices a deep tile is good for narrow results only, and rung 10 is for these. Four stages without slices
    do not help either.
    """
    if not isinstance(config, PipelinedConfig):
        return True
    if config.SLICED_K > 1:
        least, most = limits.slice_k
        return limits.most_unsliced_k < config.BK and least <= config.BK // config.SLICED_K <= most
    return limits.most_unsliced_k >= config.BK and config.STAGES != 4


def _for_more_stages(config: PipelinedConfig, limits: SearchLimits) -> bool:
    """Whether copies take longer than the arithmetic on a tile. SPREAD has no effect then, and stays at 2."""
    most = limits.most_three_stage_results if config.STAGES == 3 else limits.most_four_stage_results
    return config.SPREAD == 2 and most >= config.BM * config.BN


def _for_large_tiles(config: WarptiledConfig | PipelinedConfig, limits: SearchLimits) -> bool:
    """Whether a large tile is made of large thread tiles, the only reason to have one."""
    if isinstance(config, PipelinedConfig) and config.TM < 8:
        return False
    slices = config.sliced_k
    enough = limits.least_thread_results * config.threads <= slices * config.BM * config.BN
    return enough and limits.most_unsliced_k * slices >= config.BK


CLASSIC = Space(
    "classic",
    "autotuned",
    grid={"BM": (64, 128, 256), "BN": (64, 128, 256), "BK": (8, 16, 32, 64), "TM": (4, 8, 16), "TN": (4, 8, 16)},
)

_WARP_GRID: dict[str, tuple[int, ...]] = {
    "BM": (16, 32, 64, 128, 256),
    "BN": (16, 32, 64, 128, 256),
    "BK": (8, 16, 32),
    "TM": (4, 8, 16),
    "TN": (4, 8),
    "WM": (16, 32, 64, 128),
    "WN": (16, 32, 64, 128),
    "WNITER": (1, 2),
}

LITERATURE = Space(
    "warptiled",
    "warptiled",
    grid={**_WARP_GRID, "PREFETCH": (0,), "SERPENTINE": (0,), "GROUP_M": (1,), "MIN_BLOCKS": (1,)},
)

REFINED = Space(
    "warptiled+",
    "warptiled",
    grid={**_WARP_GRID, "PREFETCH": (1,), "SERPENTINE": (1,), "GROUP_M": (8,), "MIN_BLOCKS": (1,)},
    refined=({"PREFETCH": (0, 1), "SERPENTINE": (0, 1), "GROUP_M": (1, 4, 8, 16), "MIN_BLOCKS": (1, 3)},),
)

PIPELINED = Space(
    "pipelined",
    "pipelined",
    grid={
        **_WARP_GRID,
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
        {"GROUP_M": (4, 8, 16), "MIN_BLOCKS": (1, 4), "CP_ASYNC": (1, 2), "STAGES": (2, 3, 4)},
    ),
    problems=(*STANDARD, *HUGE),
    variants=VARIANT_ANCHORS,
)

SKINNY = Space(
    "skinny",
    "skinny",
    grid={
        "BM": (1, 2, 4, 8, 16, 32),
        "BN": (32, 64, 128),
        "BK": (64, 128, 256, 512),
        "TN": (4,),
        "TK": (4, 8, 16),
        "MIN_BLOCKS": (1,),
        "SPLIT_K": (1,),
    },
    refined=({"MIN_BLOCKS": (1, 2, 3)},),
    problems=NARROW,
    anchors=NARROW_ANCHORS,
)

SPACES: dict[str, Space] = {space.name: space for space in (CLASSIC, LITERATURE, REFINED, PIPELINED, SKINNY)}
_DEFAULTS = {space.rung: space for space in (PIPELINED, SKINNY, REFINED, CLASSIC)}  # what `sgemm` uses comes first


def tunable() -> tuple[str, ...]:
    """Return the names of the rungs whose constants are searched."""
    return tuple(_DEFAULTS)


def default_space(rung: str) -> Space | None:
    """Return the space that is searched for `rung`, or None where its constants are fixed."""
    return _DEFAULTS.get(rung)
