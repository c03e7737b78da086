"""Which configs are worth a trial: those of a search space on a device, and those that suit one problem.

Of a batch, the tiles of one product are looked at: many products of few steps of k do not make large tiles fast.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastsgemm.config import Config
from fastsgemm.geometry.grid import tiles
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import cost_model, database
from fastsgemm.heuristics.transfer import SOURCE
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung, find
from fastsgemm.tuning.spaces import Space

_FINEST = 16  # tiles of C per multiprocessor; configs with more tiles are tried only if no other config is left
_COARSEST = 4  # a tile must have fewer than this many times the rows and the columns of C
_COARSEST_OF_MANY = 2  # the same for a batch that fills the device, where what a tile computes beside C takes time
_FILLED = 2  # blocks per multiprocessor that fill a device


def of_space(space: Space, shared_limit: int, quick: bool = False) -> list[Config]:
    """Return the configs of a space that are legal on a device; if `quick`, those of a quick run.

    A quick run tries the configs that have a curve or, of a rung without curves, those that ``generic.json`` lists as
    ``quick``, the most useful first. The list ``picked`` there has configs to try beside the grid: no refinement leads
    to most of them, and some break the rules of thumb of the space. The limit is the shared memory that a block may opt
    in to on the device, in bytes.
    """
    if quick:
        configs = with_curves(space.rung) or database.candidates(space.rung, "quick")
    else:
        configs = (*database.candidates(space.rung, "picked"), *space.configs(database.search_limits()))
    rung = find(space.rung)
    return [config for config in configs if not rung.violations(config, shared_limit)]


def with_curves(rung: str) -> tuple[Config, ...]:
    """Return the configs whose curves are carried over to any device, the most useful first."""
    curves = database.shipped(SOURCE).curves
    return tuple(curve.config for curve in curves if curve.rung == rung and not curve.config.segment)


def of_suitable_size(configs: Sequence[Config], problem: Problem, multiprocessors: int) -> list[Config]:
    """Return the configs whose tiles suit the size of C: not much larger than C, and not too many.

    If no config qualifies, return those whose tile size is nearest to the limit that they miss. The problem is as the
    rung computes it; see `fastsgemm.geometry.variants.with_swap_ab`.
    """
    coarsest = _COARSEST if problem.batch < multiprocessors else _COARSEST_OF_MANY
    rows, columns = coarsest * problem.M, coarsest * problem.N
    inside = [c for c in configs if rows > c.BM and columns > c.BN]
    few = [c for c in inside if tiles(c, problem) <= _FINEST * multiprocessors]
    if few or not configs:
        return few
    nearest = max(c.BM * c.BN for c in inside) if inside else min(c.BM * c.BN for c in configs)
    return [c for c in inside or configs if nearest == c.BM * c.BN]


def with_each_split(rung: Rung, config: Config, problem: Problem, multiprocessors: int) -> list[Config]:
    """Return the config with each SPLIT_K that is worth a trial; of a rung without split-K, only the config.

    The problem is as the caller passes it.
    """
    if not rung.splits:
        return [config]
    problem = with_swap_ab(rung, problem)
    return [config.replace(SPLIT_K=parts) for parts in cost_model.splits(config, problem, multiprocessors)]


def with_filling_split(rung: Rung, config: Config, problem: Problem, multiprocessors: int) -> Config:
    """Return the config with the largest SPLIT_K that gives at most two blocks per multiprocessor, or with 1.

    The search begins with this SPLIT_K, so that configs with few tiles compete with the whole device busy. The problem
    is as the caller passes it.
    """
    count = tiles(config, with_swap_ab(rung, problem)) * problem.batch
    configs = with_each_split(rung, config, problem, multiprocessors)
    filling = [c for c in configs if c.split_k == 1 or c.split_k * count <= _FILLED * multiprocessors]
    return max(filling, key=lambda c: c.split_k)
