"""The search spaces: which constants a tuning run tries, as named data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fastsgemm import config as configs
from fastsgemm import rungs
from fastsgemm.config import Config
from fastsgemm.problem import Problem
from fastsgemm.tuning.problem_sets import ANCHORS, HUGE, NARROW, NARROW_ANCHORS, STANDARD, VARIANT_ANCHORS

_REGISTER_FILE = 65536  # registers of an SM, on every architecture since sm_35
_MOST_SLICED = 8192  # results of a block whose slices share out k
_LEAST_SCATTERED = 16384  # results of a block of two stages that transposes past the registers, a float at a time
_MOST_STAGED = 8192  # results of a block of more stages, which has little time for each
_FOUR_STAGED = 2048  # and of four
_ALL_SCATTERED = 32768  # and of one that always does
_LARGE, _LEAST_SUMS = 8192, 64  # results of a block, and of a thread in it at least
_MOST_STAGE = 9216  # floats of shared memory in a stage of rung 9
_SHALLOW = 24  # steps of a tile without slices at most
_SHARE = range(8, 17)  # steps of a tile that a slice has
_MOST_THREADS = 512  # of a block: beyond it every barrier waits for too many warps


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
    quick : tuple of Config
        What is tried where there are seconds only.
    picked : tuple of Config
        What is tried beside the grid, because a refinement of the grid would not come upon it.
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
    grid: Mapping[str, tuple[int | None, ...]]
    refined: tuple[Mapping[str, tuple[int | None, ...]], ...] = ()
    quick: tuple[Config, ...] = ()
    picked: tuple[Config, ...] = ()
    problems: tuple[Problem, ...] = STANDARD
    anchors: tuple[Problem, ...] = ANCHORS
    variants: tuple[Problem, ...] = ()

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
        values = self.refined[step]
        drawn = (replace(config, **constants) for constants in _combinations(values))
        return [
            other
            for other in drawn
            if other != config and not configs.violations(rung, other, shared_limit) and _sensible(other)
        ]


@lru_cache(maxsize=64)
def _candidates(space: Space, shared_limit: int, quick: bool) -> tuple[Config, ...]:
    rung = rungs.find(space.rung)
    # How deep comes first, because it is quick and most are not.
    drawn = space.quick if quick else (*space.picked, *filter(_deep_enough, _draw(space.grid)))
    return tuple(one for one in drawn if not configs.violations(rung, one, shared_limit) and _sensible(one))


def _draw(grid: Mapping[str, tuple[int | None, ...]]) -> Iterator[Config]:
    yield from (Config(**constants) for constants in _combinations(grid))


def _combinations(grid: Mapping[str, tuple[int | None, ...]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _sensible(config: Config) -> bool:
    """Whether a legal config can be worth its compilation."""
    threads = config.threads
    if threads > _MOST_THREADS:
        return False
    if config.WM and config.WN and max(config.WM, config.WN) > 4 * min(config.WM, config.WN):
        return False  # a long thin warp tile reads more fragments for the same arithmetic
    if config.FRAGMENTS and (config.BK or 0) * (config.BM + config.BN) > _MOST_STAGE:
        return False  # so much hides the copies, and more only keeps other blocks away
    if config.SLICES and config.BM * config.BN > _MOST_SLICED:
        return False  # so large a tile has warps enough
    if config.WM and config.BM * config.BN >= _LARGE and not _for_large_tiles(config):
        return False
    if config.STAGES and not _for_more_stages(config):
        return False
    if config.ASYNC == 2 and not config.STAGES and config.BM * config.BN < _LEAST_SCATTERED:
        return False  # registers are what it saves, and a smaller tile has them
    if config.ASYNC == 1 and config.BM * config.BN >= _ALL_SCATTERED:
        return False  # its registers are all taken
    blocks = config.MIN_BLOCKS or 1
    bound = min(configs.MAX_REGISTERS, _REGISTER_FILE // (blocks * threads))
    if configs.least_registers(config) > bound:
        return False  # it must spill
    return blocks == 1 or bound < configs.MAX_REGISTERS  # else it asks for nothing


def _deep_enough(config: Config) -> bool:
    """Whether slices are there for deep tiles, whose copies are under way for long, and no other tile is deep.

    Without slices deep tiles are good for narrow results only, and these have rung 10; neither do four stages help.
    """
    if not config.FRAGMENTS:
        return True
    depth = config.BK or 0
    if config.SLICES:
        return depth > _SHALLOW and depth // config.SLICES in _SHARE
    return depth <= _SHALLOW and config.STAGES != 4


def _for_more_stages(config: Config) -> bool:
    """Whether copies take longer than the arithmetic on a tile, and a constant that then says nothing is as it was."""
    results = config.BM * config.BN
    return config.SPREAD == 2 and (results <= _MOST_STAGED if config.STAGES == 3 else results <= _FOUR_STAGED)


def _for_large_tiles(config: Config) -> bool:
    """Whether a large tile is shared out among large thread tiles, which is what it is there for."""
    if config.FRAGMENTS and (config.TM or 0) < 8:
        return False
    slices = config.SLICES or 1
    return _LEAST_SUMS * config.threads <= slices * config.BM * config.BN and (config.BK or 0) <= _SHALLOW * slices


def _tile(bm: int, bn: int, bk: int, tm: int, tn: int, wm: int, wn: int, wniter: int, group: int = 8) -> Config:
    return Config(bm, bn, bk, tm, tn, wm, wn, wniter, PREFETCH=1, SERPENTINE=1, GROUP_M=group, MIN_BLOCKS=1)


def _stages(
    bm: int,
    bn: int,
    bk: int,
    tm: int,
    tn: int,
    wm: int,
    wn: int,
    wniter: int,
    order: int = 1,
    copies: int = 1,
    slices: int | None = None,
    stages: int | None = None,
    group: int = 8,
) -> Config:
    return Config(
        bm, bn, bk, tm, tn, wm, wn, wniter,
        GROUP_M=group, MIN_BLOCKS=1, ORDER=order, FRAGMENTS=2, ASYNC=copies, SPREAD=2, STAGES=stages, SLICES=slices,
        SPLIT_K=1,
    )  # fmt: skip


CLASSIC = Space(
    "classic",
    "autotuned",
    grid={"BM": (64, 128, 256), "BN": (64, 128, 256), "BK": (8, 16, 32, 64), "TM": (4, 8, 16), "TN": (4, 8, 16)},
    quick=tuple(
        Config(*constants)
        for constants in (
            (64, 64, 16, 4, 4),
            (64, 64, 32, 4, 4),
            (64, 64, 64, 4, 4),
            (64, 64, 16, 8, 4),
            (64, 64, 32, 8, 4),
            (64, 64, 16, 8, 8),
            (64, 128, 16, 8, 4),
            (128, 64, 16, 8, 4),
            (128, 64, 8, 8, 8),
            (64, 128, 8, 8, 8),
            (128, 128, 8, 8, 8),
            (128, 128, 16, 8, 8),
            (128, 256, 16, 8, 8),
            (256, 128, 16, 8, 8),
        )
    ),
)

_WARP_GRID: dict[str, tuple[int | None, ...]] = {
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
    quick=(
        _tile(128, 128, 8, 8, 8, 64, 32, 1),
        _tile(128, 128, 8, 8, 4, 64, 64, 2),
        _tile(128, 128, 16, 8, 8, 64, 32, 1),
        _tile(128, 256, 8, 8, 8, 64, 64, 2),
        _tile(256, 128, 8, 8, 8, 64, 64, 2),
        _tile(64, 128, 8, 8, 4, 32, 64, 2),
        _tile(64, 128, 16, 8, 4, 32, 64, 2),
        _tile(128, 64, 8, 8, 4, 64, 32, 2),
        _tile(128, 64, 16, 8, 4, 64, 32, 2),
        _tile(64, 64, 8, 8, 4, 32, 32, 1),
        _tile(64, 64, 16, 8, 4, 32, 32, 1),
        _tile(64, 64, 32, 8, 4, 32, 32, 1),
        _tile(64, 32, 16, 4, 4, 32, 16, 1),
        _tile(32, 64, 16, 4, 4, 32, 16, 1),
        _tile(32, 64, 32, 4, 4, 16, 32, 1),
        _tile(32, 32, 16, 4, 4, 32, 16, 1),
        _tile(32, 32, 32, 4, 4, 16, 32, 1),
        _tile(16, 64, 32, 4, 4, 16, 32, 1),
        _tile(64, 16, 32, 4, 4, 32, 16, 1),
        _tile(16, 128, 32, 4, 4, 16, 32, 1),
        _tile(128, 16, 32, 4, 4, 32, 16, 1),
        _tile(32, 128, 16, 4, 4, 32, 32, 2),
        _tile(128, 32, 16, 4, 4, 32, 32, 2),
        _tile(256, 64, 16, 8, 4, 64, 32, 2),
    ),
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
        "ASYNC": (1, 2),
        "SPREAD": (2,),
        "STAGES": (None, 4),
        "SLICES": (None, 2, 4, 8),
    },
    refined=(
        {"ORDER": (1, 4, 5), "FRAGMENTS": (1, 2), "SPREAD": (0, 1, 2)},
        {"GROUP_M": (4, 8, 16), "MIN_BLOCKS": (1, 4), "ASYNC": (1, 2), "STAGES": (None, 3, 4)},
    ),
    problems=(*STANDARD, *HUGE),
    variants=VARIANT_ANCHORS,
    quick=(
        # Those that bring most on the standard set come first: no others are tried where the time is short.
        _stages(64, 128, 16, 8, 4, 64, 32, 2),
        _stages(16, 32, 64, 4, 4, 16, 32, 1, copies=2, slices=4, stages=4),
        _stages(128, 256, 16, 16, 4, 64, 64, 2, order=4, copies=2),
        _stages(128, 64, 8, 8, 4, 64, 32, 2, order=4, copies=2, stages=3),
        _stages(16, 64, 64, 4, 4, 16, 64, 2, slices=4),
        _stages(32, 256, 16, 8, 4, 32, 64, 2),
        _stages(16, 64, 32, 4, 4, 16, 32, 1),
        _stages(128, 32, 32, 4, 4, 64, 16, 2, slices=2),
        _stages(64, 32, 64, 4, 4, 64, 16, 2, slices=4),
        _stages(256, 128, 16, 8, 4, 64, 64, 2, order=4, copies=2),
        _stages(16, 32, 64, 4, 4, 16, 32, 1, slices=4),
        _stages(64, 96, 16, 8, 4, 32, 96, 3),
        _stages(64, 64, 32, 8, 4, 32, 64, 2, order=4, slices=2),
    ),
    picked=(
        _stages(128, 256, 16, 16, 4, 64, 64, 2, order=4, copies=2),
        _stages(256, 128, 16, 16, 4, 64, 64, 2, order=4, copies=2),
        _stages(128, 128, 16, 16, 4, 64, 64, 2, order=4, copies=2),
        _stages(256, 64, 16, 16, 4, 64, 64, 2, order=4, copies=2),
        _stages(128, 64, 16, 16, 4, 64, 64, 2, order=4, copies=2),
        _stages(64, 256, 8, 16, 4, 32, 128, 2, order=4, copies=2),
        _stages(128, 64, 8, 8, 4, 64, 32, 2, order=4, copies=2, stages=3),  # for shallow and tall products
        _stages(16, 64, 32, 4, 4, 16, 32, 1),  # for small ones of odd extents
        # Three times a power of two, for what is a little more than one: 24 steps are what every copy can share out.
        _stages(64, 96, 24, 8, 4, 32, 96, 3),
        _stages(64, 96, 16, 8, 4, 32, 96, 3),
        _stages(96, 96, 24, 8, 4, 32, 96, 3),
        _stages(96, 192, 24, 8, 4, 32, 96, 3),
        _stages(192, 96, 24, 8, 4, 32, 96, 3),
        _stages(192, 192, 24, 8, 4, 96, 32, 1, copies=2),
    ),
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
    quick=tuple(
        Config(bm, bn, bk, TN=tn, TK=tk, MIN_BLOCKS=1, SPLIT_K=1)
        for bm, bn, bk, tn, tk in (
            (1, 32, 512, 4, 16),
            (1, 64, 256, 4, 16),
            (2, 64, 256, 4, 16),
            (4, 64, 256, 4, 16),
            (4, 32, 512, 4, 16),
            (8, 64, 128, 4, 8),
            (8, 32, 512, 4, 8),
            (16, 64, 256, 4, 16),
            (16, 128, 128, 4, 16),
            (32, 64, 64, 4, 4),
        )
    ),
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
