"""The search spaces: the configs that a tuning run tries, as named data."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fastsgemm import config as configs
from fastsgemm import rungs
from fastsgemm.config import Config, PipelinedConfig, SkinnyConfig, WarptiledConfig
from fastsgemm.heuristics import database
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung
from fastsgemm.tuning.problem_sets import ANCHORS, HUGE, NARROW, NARROW_ANCHORS, STANDARD, VARIANT_ANCHORS

_REGISTER_FILE = 65536  # registers of an SM, on every architecture since sm_35
_MOST_THREADS = 512  # of a block; with more, every barrier waits for too many warps
# Limits on the size of a tile of C, BM * BN elements.
_MOST_SLICED = 8192  # with sliced-K
_MOST_STAGED, _MOST_FOUR_STAGED = 8192, 2048  # with three stages, and with four
_LEAST_SCATTERED = 16384  # with two stages and CP_ASYNC = 2, which copies and transposes single floats
_ALL_SCATTERED = 32768  # from here on CP_ASYNC = 1 is not tried
_LARGE = 8192  # from here on a thread must compute at least the following number of elements
_LEAST_SUMS = 64
# Limits on its depth.
_MOST_STAGE = 9216  # floats in one stage of rung 9
_SHALLOW = 24  # largest BK without sliced-K
_SHARE = range(8, 17)  # steps of k per slice of a tile with sliced-K


@dataclass(frozen=True, eq=False)  # compared by identity
class Space:
    """A named set of configs of one rung: a grid, and refinements of the best configs of the grid.

    Attributes
    ----------
    name : str
    rung : str
    grid : mapping of str to tuple of int
        The values of each constant. Every legal combination that can be fast is tried.
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
        """The configs of a quick run, the most useful first; ``generic.json`` lists them."""
        return database.candidates(self.name, "quick")

    @property
    def picked(self) -> tuple[Config, ...]:
        """Configs that are tried beside the grid, because no refinement leads to them; ``generic.json`` lists them."""
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
        configs = filter(_sensible, self.quick) if quick else _configs_of_any_device(self)
        return [config for config in configs if not rung.violations(config, shared_limit)]

    def refinements(self, config: Config, shared_limit: int, step: int = 0) -> list[Config]:
        """Return the configs that differ from `config` only in the constants that are refined in this step."""
        rung = rungs.find(self.rung)
        values = self.refined[step]
        drawn = (config.replace(**constants) for constants in _combinations(values))
        return [
            other
            for other in drawn
            if other != config and not rung.violations(other, shared_limit) and _sensible(other)
        ]


@lru_cache(maxsize=64)
def _configs_of_any_device(space: Space) -> tuple[Config, ...]:
    """Return the configs of a space that can be fast and that are legal with unlimited shared memory."""
    rung = rungs.find(space.rung)
    drawn = (*space.picked, *_draw(rung, space.grid))
    return tuple(config for config in drawn if not rung.violations(config, sys.maxsize) and _sensible(config))


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
    """Whether a legal config can be fast enough to be worth compiling."""
    threads = config.threads
    if threads > _MOST_THREADS:
        return False
    blocks = 1
    if isinstance(config, WarptiledConfig | PipelinedConfig):
        if max(config.WM, config.WN) > 4 * min(config.WM, config.WN):
            return False  # long thin warp tiles load more from shared memory per FMA
        if config.BM * config.BN >= _LARGE and not _for_large_tiles(config):
            return False
    if isinstance(config, PipelinedConfig) and not _sensible_pipeline(config):
        return False
    if isinstance(config, WarptiledConfig | PipelinedConfig | SkinnyConfig):
        blocks = config.MIN_BLOCKS
    bound = min(configs.MAX_REGISTERS, _REGISTER_FILE // (blocks * threads))
    if config.least_registers > bound:
        return False  # it spills for certain
    return blocks == 1 or bound < configs.MAX_REGISTERS  # otherwise MIN_BLOCKS has no effect


def _sensible_pipeline(config: PipelinedConfig) -> bool:
    """Whether stages, sliced-K and asynchronous copies of rung 9 suit the size of the tile."""
    results = config.BM * config.BN
    if config.BK * (config.BM + config.BN) > _MOST_STAGE:
        return False  # a smaller stage hides the copies as well, and more blocks fit on a multiprocessor
    if config.SLICED_K > 1 and results > _MOST_SLICED:
        return False  # a tile of this size has enough warps without slices
    if config.STAGES > 2 and not _for_more_stages(config):
        return False
    if config.CP_ASYNC == 2 and config.STAGES == 2 and results < _LEAST_SCATTERED:
        return False  # CP_ASYNC = 2 saves registers, which a smaller tile does not need
    return config.CP_ASYNC != 1 or results < _ALL_SCATTERED  # CP_ASYNC = 1 needs registers that a larger tile lacks


def _deep_enough(BK: int, STAGES: int, SLICED_K: int) -> bool:
    """Whether the depth of a tile of rung 9 suits it: deep with sliced-K, shallow without.

    Without sliced-K, deep tiles pay only where C is narrow, and rung 10 computes those problems. Four stages do not pay
    without sliced-K either.
    """
    if SLICED_K > 1:
        return BK > _SHALLOW and BK // SLICED_K in _SHARE
    return BK <= _SHALLOW and STAGES != 4


def _for_more_stages(config: PipelinedConfig) -> bool:
    """Whether more than two stages can pay, because the tile is so small that its copies outlast its arithmetic.

    SPREAD has no effect with more than two stages, so only SPREAD = 2 is tried.
    """
    results = config.BM * config.BN
    return config.SPREAD == 2 and (results <= _MOST_STAGED if config.STAGES == 3 else results <= _MOST_FOUR_STAGED)


def _for_large_tiles(config: WarptiledConfig | PipelinedConfig) -> bool:
    """Whether a large tile has large thread tiles, without which it is no faster than a small one."""
    if isinstance(config, PipelinedConfig) and config.TM < 8:
        return False
    slices = config.sliced_k
    return _LEAST_SUMS * config.threads <= slices * config.BM * config.BN and _SHALLOW * slices >= config.BK


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
_DEFAULTS = {
    space.rung: space for space in (PIPELINED, SKINNY, REFINED, CLASSIC)
}  # the default rungs of `sgemm` come first


def tunable() -> tuple[str, ...]:
    """Return the names of the rungs whose constants are searched."""
    return tuple(_DEFAULTS)


def default_space(rung: str) -> Space | None:
    """Return the space that is searched for `rung`, or None where its constants are fixed."""
    return _DEFAULTS.get(rung)
