"""The search spaces: the configs that a tuning run tries, as named data."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastsgemm import config as configs
from fastsgemm import rungs
from fastsgemm.config import Config, PipelinedConfig, SkinnyConfig, WarptiledConfig
from fastsgemm.heuristics import database
from fastsgemm.heuristics.database_entries import SearchLimits
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung
from fastsgemm.tuning.problem_sets import (
    ANCHORS,
    BATCHES,
    CALIBRATION,
    HUGE,
    NARROW,
    NARROW_ANCHORS,
    NARROW_BATCHES,
    STANDARD,
    VARIANT_ANCHORS,
)

_REGISTER_FILE = 65536  # registers of an SM, on every architecture since sm_35


@dataclass(frozen=True, eq=False)  # compared by identity
class Space:
    """A named set of configs of one rung: a grid, and refinements of the best configs of the grid.

    Attributes
    ----------
    name : str
    rung : str
    grid : mapping of str to tuple of int
        The values of each constant. Every legal combination is tried that by the rules of thumb can be fast.
    refined : tuple of mapping of str to tuple of int
        Further values, one mapping for each step of refinement. Every combination of them is applied to the best
        configs of the step before.
    problems : tuple of Problem
        The standard set of the rung.
    anchors : tuple of Problem
        The problems on which all candidates are tried. The best of them are tried on the rest of the standard set.
    variants : tuple of Problem
        Further anchors, whose operands need other kernels. On each of them, the best third of the candidates of the
        nearest anchor is tried.
    calibration : tuple of Problem
        Problems on which the curves are calibrated.
    """

    name: str
    rung: str
    grid: Mapping[str, tuple[int, ...]]
    refined: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    problems: tuple[Problem, ...] = STANDARD
    anchors: tuple[Problem, ...] = ANCHORS
    variants: tuple[Problem, ...] = ()
    calibration: tuple[Problem, ...] = ()

    @property
    def quick(self) -> tuple[Config, ...]:
        """The configs of a quick run, the most useful first; ``generic.json`` lists them."""
        return database.candidates(self.name, "quick")

    @property
    def picked(self) -> tuple[Config, ...]:
        """Configs that are tried beside the grid; ``generic.json`` lists them. No refinement leads to most of them."""
        return database.candidates(self.name, "picked")

    def candidates(self, shared_limit: int, quick: bool = False) -> list[Config]:
        """Return the legal configs of the grid that can be fast, and the picked ones, before any refinement.

        Parameters
        ----------
        shared_limit : int
            Shared memory that a block may opt in to on the device, in bytes.
        quick : bool
            Whether to return only the configs of a quick run.
        """
        rung = rungs.find(self.rung)
        configs = self.quick if quick else _configs_of_any_device(self)
        return [config for config in configs if not rung.violations(config, shared_limit)]

    def refinements(self, config: Config, shared_limit: int, step: int = 0) -> list[Config]:
        """Return the configs that differ from `config` only in the constants that are refined in this step.

        A new MIN_BLOCKS is tried only where it bounds the registers of a thread. Otherwise it has hardly an effect.
        """
        rung = rungs.find(self.rung)
        drawn = (config.replace(**constants) for constants in _combinations(self.refined[step]))
        return [
            other
            for other in drawn
            if other != config
            and not rung.violations(other, shared_limit)
            and _sensible(other)
            and (_min_blocks(other) in (1, _min_blocks(config)) or _most_registers(other) < configs.MAX_REGISTERS)
        ]


@database.cached
def _configs_of_any_device(space: Space) -> tuple[Config, ...]:
    """Return the picked configs of a space, and those of its grid that are legal and can be fast.

    Shared memory is unlimited here.
    """
    rung = rungs.find(space.rung)
    drawn = _draw(rung, space.grid)
    return (*space.picked, *(one for one in drawn if not rung.violations(one, sys.maxsize) and _sensible(one)))


def _draw(rung: Rung, grid: Mapping[str, tuple[int, ...]]) -> Iterator[Config]:
    for constants in _combinations(grid):
        # A look at three integers refuses most of rung 9's grid, and constructing a config takes much longer.
        if rung.config is not PipelinedConfig or _deep_enough(
            constants["BK"], constants["STAGES"], constants["SLICED_K"]
        ):
            yield rung.config(**constants)


def _combinations(grid: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _sensible(config: Config) -> bool:
    """Whether a legal config of a grid is worth compiling, by rules of thumb. Some picked configs break them."""
    limits = database.search_limits()
    if config.threads > limits.most_threads:
        return False
    if isinstance(config, WarptiledConfig | PipelinedConfig):
        if max(config.WM, config.WN) > 4 * min(config.WM, config.WN):
            return False  # long thin warp tiles load more from shared memory per FMA
        if limits.large_results <= config.BM * config.BN and not _for_large_tiles(config, limits):
            return False
    if isinstance(config, PipelinedConfig) and not _sensible_pipeline(config, limits):
        return False
    return config.least_registers <= _most_registers(config)  # otherwise it spills for certain


def _most_registers(config: Config) -> int:
    """Return the registers that a thread can have, so that MIN_BLOCKS blocks fit on a multiprocessor."""
    return min(configs.MAX_REGISTERS, _REGISTER_FILE // (_min_blocks(config) * config.threads))


def _min_blocks(config: Config) -> int:
    return config.MIN_BLOCKS if isinstance(config, WarptiledConfig | PipelinedConfig | SkinnyConfig) else 1


def _sensible_pipeline(config: PipelinedConfig, limits: SearchLimits) -> bool:
    """Whether stages, sliced-K and asynchronous copies of rung 9 suit the size of the tile."""
    results = config.BM * config.BN
    if limits.most_stage_floats < config.BK * (config.BM + config.BN):
        return False  # a smaller stage hides the copies as well, and more blocks fit on a multiprocessor
    if config.SLICED_K > 1 and results > limits.most_sliced_results:
        return False  # a tile of this size has enough warps without slices
    if config.STAGES > 2 and not _for_more_stages(config, limits):
        return False
    if config.CP_ASYNC == 2 and config.STAGES == 2 and results < limits.least_scattered_results:
        return False  # CP_ASYNC = 2 saves registers, which a smaller tile does not need
    # CP_ASYNC = 1 needs registers that a larger tile lacks.
    return config.CP_ASYNC != 1 or results <= limits.most_async_results


def _deep_enough(BK: int, STAGES: int, SLICED_K: int) -> bool:
    """Whether the depth of a tile of rung 9 suits it: deep with sliced-K, shallow without.

    Without sliced-K, deep tiles pay only where C is narrow, and rung 10 computes those problems. Four stages do not pay
    without sliced-K either.
    """
    limits = database.search_limits()
    if SLICED_K > 1:
        least, most = limits.slice_k
        return limits.most_unsliced_k < BK and least <= BK // SLICED_K <= most
    return limits.most_unsliced_k >= BK and STAGES != 4


def _for_more_stages(config: PipelinedConfig, limits: SearchLimits) -> bool:
    """Whether more than two stages can pay, because the tile is so small that its copies outlast its arithmetic.

    SPREAD has no effect with more than two stages, so only SPREAD = 2 is tried.
    """
    most = limits.most_three_stage_results if config.STAGES == 3 else limits.most_four_stage_results
    return config.SPREAD == 2 and most >= config.BM * config.BN


def _for_large_tiles(config: WarptiledConfig | PipelinedConfig, limits: SearchLimits) -> bool:
    """Whether a large tile has large thread tiles, without which it is no faster than a small one."""
    if isinstance(config, PipelinedConfig) and config.TM < 8:
        return False
    enough = limits.least_thread_results <= config.thread_results
    return enough and limits.most_unsliced_k * config.sliced_k >= config.BK


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
        {"GROUP_M": (4, 8, 16), "MIN_BLOCKS": (1, 4), "CP_ASYNC": (1, 2, 3), "STAGES": (2, 3, 4)},
        {"FRAGMENTS": (1, 2, 4)},  # CP_ASYNC = 3 reads four steps of k at a time
    ),
    problems=(*STANDARD, *BATCHES, *HUGE),
    variants=VARIANT_ANCHORS,
    calibration=CALIBRATION,
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
    problems=(*NARROW, *NARROW_BATCHES),
    anchors=NARROW_ANCHORS,
)

SPACES: dict[str, Space] = {space.name: space for space in (CLASSIC, LITERATURE, REFINED, PIPELINED, SKINNY)}
# The space that is searched for each rung whose constants are searched; the default rungs of `sgemm` come first.
DEFAULTS: dict[str, Space] = {space.rung: space for space in (PIPELINED, SKINNY, REFINED, CLASSIC)}
