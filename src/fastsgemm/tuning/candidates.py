"""Which configs of a search space are worth a trial on one problem.

Of a batch, the tiles of one product are looked at: many products of few steps of k do not make large tiles fast.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastsgemm import rungs
from fastsgemm.config import Config, PipelinedConfig, SkinnyConfig
from fastsgemm.geometry.grid import tiles
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import cost_model, database
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung

_MOST_SLICED = 1024  # tiles of C; with more of them blocks fill the device, and sliced-K needs another reason
_FINEST = 16  # tiles of C per multiprocessor; configs with more tiles are tried only if no other config is left
_COARSEST = 4  # a tile must have fewer than this many times the rows and the columns of C
_COARSEST_OF_MANY = 2  # the same for a batch that fills the device, where what a tile computes beside C takes time
_FILLED = 2  # blocks per multiprocessor that fill a device


def worth_trying(config: Config, problem: Problem) -> bool:
    """Whether a config can be fast on a problem, judged by sliced-K and, for rung 10, by the rows of a tile.

    Sliced-K pays where C has few tiles, and where it lets each thread of a small tile compute many results. A tile of
    rung 10 should have about as many rows as C.
    """
    if isinstance(config, SkinnyConfig):
        rows = min(problem.M, problem.N, rungs.NARROW)
        return rows / 4 <= config.BM < 2 * rows
    if not isinstance(config, PipelinedConfig) or config.SLICED_K == 1:
        return True
    many_results = config.thread_results >= database.search_limits().least_thread_results
    return many_results or tiles(config, problem) <= _MOST_SLICED


def distinct(configs: Sequence[Config], problem: Problem) -> list[Config]:
    """Return the configs without duplicates: in layout TN, CP_ASYNC of 1, 2 and 3 compile to the same kernel."""
    if problem.layout != "TN":
        return list(configs)
    pipelined = (config for config in configs if isinstance(config, PipelinedConfig))
    found = [config for config in pipelined if config.CP_ASYNC in (1, 2)]
    twins = {config.replace(CP_ASYNC=more) for config in found for more in range(config.CP_ASYNC + 1, 4)}
    return [config for config in configs if config not in twins]


def of_suitable_size(configs: Sequence[Config], problem: Problem, multiprocessors: int) -> list[Config]:
    """Return the configs whose tiles suit the size of C: not much larger than C, and not too many.

    If no config qualifies, return those whose tile size is nearest to the limit that they miss.

    Parameters
    ----------
    configs : sequence of Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.with_swap_ab`.
    multiprocessors : int
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

    Parameters
    ----------
    rung : Rung
    config : Config
    problem : Problem
        As the caller passes it.
    multiprocessors : int
    """
    if not rung.splits:
        return [config]
    problem = with_swap_ab(rung, problem)
    return [config.replace(SPLIT_K=parts) for parts in cost_model.splits(config, problem, multiprocessors)]


def with_filling_split(rung: Rung, config: Config, problem: Problem, multiprocessors: int) -> Config:
    """Return the config with the largest SPLIT_K that gives at most two blocks per multiprocessor, or with 1.

    The search begins with this SPLIT_K, so that configs with few tiles compete with the whole device busy.

    Parameters
    ----------
    rung : Rung
    config : Config
    problem : Problem
        As the caller passes it.
    multiprocessors : int
    """
    count = tiles(config, with_swap_ab(rung, problem)) * problem.batch
    configs = with_each_split(rung, config, problem, multiprocessors)
    filling = [c for c in configs if c.split_k == 1 or c.split_k * count <= _FILLED * multiprocessors]
    return max(filling, key=lambda c: c.split_k)
