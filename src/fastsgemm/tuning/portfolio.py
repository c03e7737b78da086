"""The portfolio: a few configs, one of which is close to the best on each problem. Their curves are measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastsgemm.config import Config, PipelinedConfig
from fastsgemm.tuning.search import Result

_NEVER = 1e9  # ms, the time of a problem on which none of the chosen configs was timed
_LEAST_GAIN = 0.002  # least improvement of the sum of the logarithms of the times; less is noise


def portfolio(results: Sequence[Result], count: int) -> list[Config]:
    """Choose up to `count` configs greedily, such that one of them is close to the best on each problem.

    When no other config improves the times of the problems, the choice starts over with the configs that are left: the
    second best config of many problems is more useful on untuned problems than one that is good on none.
    """
    tables = [_by_base_config(result.times) for result in results if result.times]
    left = list(dict.fromkeys(config for table in tables for config in table))
    chosen: list[Config] = []
    covered = [_NEVER] * len(tables)
    while left and len(chosen) < count:
        costs = {config: _cost(config, covered, tables) for config in left}
        config = min(left, key=lambda config: costs[config])
        if costs[config] > _cost(None, covered, tables) - _LEAST_GAIN:  # never twice: any config is better than none
            covered = [_NEVER] * len(tables)
            continue
        covered = [min(have, table.get(config, _NEVER)) for have, table in zip(covered, tables, strict=True)]
        chosen.append(config)
        left.remove(config)
    return chosen


def base_config(config: Config) -> Config:
    """Return the config without split-K and partial accumulators, which are chosen for each problem separately."""
    return config.kernel.replace(PARTIAL_ACCUMULATORS=1) if isinstance(config, PipelinedConfig) else config.kernel


def _by_base_config(times: dict[Config, float]) -> dict[Config, float]:
    """Return for each base config its best time over SPLIT_K and PARTIAL_ACCUMULATORS."""
    best: dict[Config, float] = {}
    for config, ms in times.items():
        base = base_config(config)
        best[base] = min(ms, best.get(base, ms))
    return best


def _cost(config: Config | None, covered: Sequence[float], tables: Sequence[dict[Config, float]]) -> float:
    """Return the sum over the problems of the logarithm of the best time, if `config` is added to the chosen ones."""
    times = (
        (have, table.get(config, _NEVER) if config else _NEVER) for have, table in zip(covered, tables, strict=True)
    )
    return sum(math.log(min(pair)) for pair in times)
