"""The portfolio: the few configs that together are near the best on every problem. Their curves are measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastsgemm.config import Config, PipelinedConfig
from fastsgemm.tuning.search import Result

_NEVER = 1e9  # ms, of a problem that nothing has covered yet
_LEAST_GAIN = 0.002  # in the sum of the logarithms of the times: less is noise


def portfolio(results: Sequence[Result], count: int) -> list[Config]:
    """Return `count` configs that together are near the best on every problem, greedily.

    Once another config brings nothing the problems are covered again by the rest: the second best of many problems
    is more use on the untuned ones than any config left over.

    Parameters
    ----------
    results : sequence of Result
        On which all configs were timed.
    count : int
    """
    tables = [_of_whole(result.times) for result in results if result.times]
    left = list(dict.fromkeys(config for table in tables for config in table))
    chosen: list[Config] = []
    covered = [_NEVER] * len(tables)
    while left and len(chosen) < count:
        costs = {config: _cost(config, covered, tables) for config in left}
        config = min(left, key=lambda config: costs[config])
        if costs[config] > _cost(None, covered, tables) - _LEAST_GAIN and covered[0] != _NEVER:
            covered = [_NEVER] * len(tables)
            continue
        covered = [min(have, table.get(config, _NEVER)) for have, table in zip(covered, tables, strict=True)]
        chosen.append(config)
        left.remove(config)
    return chosen


def whole(config: Config) -> Config:
    """Return the config without split-K and partial accumulators, which are chosen for each problem."""
    return config.kernel.replace(PARTIAL_ACCUMULATORS=1) if isinstance(config, PipelinedConfig) else config.kernel


def _of_whole(times: dict[Config, float]) -> dict[Config, float]:
    """Return for each config the time with its best SPLIT_K."""
    found: dict[Config, float] = {}
    for config, ms in times.items():
        found[whole(config)] = min(ms, found.get(whole(config), ms))
    return found


def _cost(config: Config | None, covered: Sequence[float], tables: Sequence[dict[Config, float]]) -> float:
    """Return the sum over the problems of the logarithm of the best time with `config` beside what there is."""
    times = (
        (have, table.get(config, _NEVER) if config else _NEVER) for have, table in zip(covered, tables, strict=True)
    )
    return sum(math.log(min(pair)) for pair in times)
