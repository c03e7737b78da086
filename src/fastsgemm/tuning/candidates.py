"""Which configs of a search space are worth a trial on one problem."""

from __future__ import annotations

from collections.abc import Sequence

from fastsgemm import rungs
from fastsgemm.config import Config, PipelinedConfig, SkinnyConfig
from fastsgemm.geometry.grid import tiles
from fastsgemm.problem import Problem

_MOST_SLICED = 1024  # blocks on a C for which slices of their threads are tried
_FINEST = 16  # tiles of C a multiprocessor: where there would be more, only larger ones are tried
_COARSEST = 4  # times the rows or columns of C that a tile may have


def worth_trying(config: Config, problem: Problem) -> bool:
    """Whether slices have but few blocks to fill, and a block of rung 10 has about as many rows as there are."""
    if isinstance(config, SkinnyConfig):
        rows = min(problem.M, problem.N, rungs.NARROW)
        return rows / 4 <= config.BM < 2 * rows
    return config.sliced_k == 1 or tiles(config, problem) <= _MOST_SLICED


def distinct(configs: Sequence[Config], problem: Problem) -> list[Config]:
    """Leave out what is the same as another of the configs: in layout TN, CP_ASYNC = 2 does what CP_ASYNC = 1 does."""
    if problem.layout != "TN":
        return list(configs)
    pipelined = (config for config in configs if isinstance(config, PipelinedConfig))
    twins = {config.replace(CP_ASYNC=2) for config in pipelined if config.CP_ASYNC == 1}
    return [config for config in configs if config not in twins]


def of_its_size(configs: Sequence[Config], problem: Problem, multiprocessors: int) -> list[Config]:
    """Return the configs whose tiles are neither much larger than a problem nor very many, or those nearest to that.

    Parameters
    ----------
    configs : sequence of Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.with_swap_ab`.
    multiprocessors : int
    """
    inside = [c for c in configs if c.BM < _COARSEST * problem.M and c.BN < _COARSEST * problem.N]
    few = [c for c in inside if tiles(c, problem) <= _FINEST * multiprocessors]
    if few or not configs:
        return few
    nearest = max(c.BM * c.BN for c in inside) if inside else min(c.BM * c.BN for c in configs)
    return [c for c in inside or configs if nearest == c.BM * c.BN]
