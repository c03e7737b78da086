"""The search space of a rung: a grid, what narrows it, and the sizes that it is tuned for."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastsgemm import rungs
from fastsgemm.config import MAX_REGISTERS, Config
from fastsgemm.config.search_limits import SearchLimits
from fastsgemm.problem import Problem
from fastsgemm.tuning.spaces.standard_set import ANCHORS, STANDARD

_REGISTER_FILE = 65536  # registers of an SM, on every architecture since sm_35


def _always(*_: Any) -> bool:
    return True


def _all(configs: Sequence[Any], problem: Problem) -> list[Any]:
    return list(configs)


@dataclass(frozen=True, eq=False)  # compared by identity
class Space:
    """The configs that are tried for a rung: a grid, and refinements of the best configs of the grid.

    The limits of its rules are arguments, because the tuning database has them.
    """

    rung: str
    # The values of each constant. Every legal combination is tried that by the rules of thumb can be fast.
    grid: Mapping[str, tuple[int, ...]]
    # Further values, one mapping for each step of refinement. Every combination of them is applied to the best
    # configs of the step before.
    refined: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    # Takes constants of the grid; returns whether their config can be fast.
    worth_making: Callable[[Mapping[str, int], SearchLimits], bool] = _always
    # Takes a legal config; returns whether it is worth its compilation, by rules of thumb.
    sensible: Callable[[Any, SearchLimits], bool] = _always
    # Takes a config and a problem as the rung computes it; returns whether the config can be fast on it.
    worth_trying: Callable[[Any, Problem, SearchLimits], bool] = _always
    # Takes configs and a problem; returns the list of configs without those that compile to the same kernel.
    distinct: Callable[[Sequence[Any], Problem], list[Any]] = _all
    problems: tuple[Problem, ...] = STANDARD  # the standard set of the rung
    # The problems on which all candidates are tried. The best of them are tried on the rest of the standard set.
    anchors: tuple[Problem, ...] = ANCHORS
    # Further anchors, whose operands need other kernels. On each of them, the best third of the candidates of the
    # nearest anchor is tried.
    variants: tuple[Problem, ...] = ()
    calibration: tuple[Problem, ...] = ()  # problems on which the curves are calibrated

    def configs(self, limits: SearchLimits) -> tuple[Config, ...]:
        """Return the configs of the grid that are legal where shared memory is unlimited, and that can be fast."""
        return _configs(self, limits)

    def worthy(self, configs: Sequence[Config], problem: Problem, limits: SearchLimits) -> list[Config]:
        """Return the configs that can be fast on a problem, one for each kernel."""
        return [config for config in self.distinct(configs, problem) if self.worth_trying(config, problem, limits)]

    def refinements(self, config: Config, shared_limit: int, limits: SearchLimits, step: int = 0) -> list[Config]:
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
            and _sensible(self, other, limits)
            and (_min_blocks(other) in (1, _min_blocks(config)) or _most_registers(other) < MAX_REGISTERS)
        ]


@cache  # it takes seconds to draw them
def _configs(space: Space, limits: SearchLimits) -> tuple[Config, ...]:
    rung = rungs.find(space.rung)
    drawn = (
        rung.config(**combination)
        for combination in _combinations(space.grid)
        if space.worth_making(combination, limits)
    )
    return tuple(
        config for config in drawn if not rung.violations(config, sys.maxsize) and _sensible(space, config, limits)
    )


def _combinations(grid: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _sensible(space: Space, config: Config, limits: SearchLimits) -> bool:
    if config.threads > limits.most_threads or not space.sensible(config, limits):
        return False
    return config.least_registers <= _most_registers(config)  # otherwise it spills for certain


def _most_registers(config: Config) -> int:
    """Return the registers that a thread can have, so that MIN_BLOCKS blocks fit on a multiprocessor."""
    return min(MAX_REGISTERS, _REGISTER_FILE // (_min_blocks(config) * config.threads))


def _min_blocks(config: Config) -> int:
    blocks: int = getattr(config, "MIN_BLOCKS", 1)
    return blocks
