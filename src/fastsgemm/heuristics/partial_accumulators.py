"""How many partial accumulators an element of C gets: the longer a chain of FMAs, the larger its rounding error.

From how many steps on a sum counts as long is data of the architecture; see
`fastsgemm.heuristics.database_entries.Fitted`. The limits for an H200 are where cuBLAS begins to use several chains,
judged by its errors on about 300 problems: from about 16 steps of k where C is small, from a few hundred where C does
not fill the device, and from about 1000 where it does, there for one problem in three.
"""

from __future__ import annotations

import math
from functools import lru_cache

from fastsgemm.config import Config, PipelinedConfig
from fastsgemm.geometry.grid import split
from fastsgemm.heuristics.database_entries import Fitted
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung

FEW = 4  # steps of k: rounding each product alone makes more of the error than adding them up one by one
_MOST_CONFIGS = 4096  # of which answers are kept
ACCUMULATORS = 4  # of an element: halves the error


def splits_few(rung: Rung, config: Config, problem: Problem) -> bool:
    """Return whether threads would share out a sum of few steps, which rounds each product and errs more than a chain.

    Parameters
    ----------
    rung : Rung
    config : Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.with_swap_ab`.
    """
    if problem.K > FEW:
        return False
    if rung.narrow:  # neighbouring threads take neighbouring k where B is read along it, float by float
        return problem.layout[1] == "T" and problem.K < FEW
    return config.sliced_k > 1


def shortened(config: Config, problem: Problem, shared_limit: int, fitted: Fitted) -> Config:
    """Return the config with partial accumulators where the sums of a problem would be long chains, else unchanged.

    A config stays unchanged where sliced-K or split-K already shorten the chains, where it has partial accumulators,
    and where more do not fit into shared memory.

    Parameters
    ----------
    config : Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.with_swap_ab`.
    shared_limit : int
        Shared memory that a block may opt in to on the device, in bytes.
    fitted : Fitted
    """
    if not is_long(problem, fitted) or split(config, problem.K)[0] >= fewest_parts(config, shared_limit):
        return config
    return _accumulating(config)


def is_long(problem: Problem, fitted: Fitted) -> bool:
    """Return whether a sum of the problem is long, that is, errs more than that of cuBLAS if it is one chain."""
    size = problem.M * problem.N
    begins = next((steps for elements, steps in fitted.long_sums if elements is None or size <= elements), math.inf)
    return begins <= problem.K


@lru_cache(maxsize=_MOST_CONFIGS)
def fewest_parts(config: Config, shared_limit: int) -> int:
    """Return the parts of K from which on a config has short chains without partial accumulators.

    It is 0 for a config that has partial accumulators already or cannot get them.
    """
    if not isinstance(config, PipelinedConfig) or config.PARTIAL_ACCUMULATORS > 1:
        return 0
    if _accumulating(config).shared_bytes > shared_limit:
        return 0
    return -(-ACCUMULATORS // config.SLICED_K)


@lru_cache(maxsize=_MOST_CONFIGS)
def _accumulating(config: Config) -> Config:
    return config.replace(PARTIAL_ACCUMULATORS=ACCUMULATORS)


def cost(config: Config, fitted: Fitted, own: float = 0.0) -> float:
    """Return how many times longer a config takes for its partial accumulators than with one accumulator.

    Parameters
    ----------
    config : Config
    fitted : Fitted
    own : float
        What was measured for this config; see `fastsgemm.heuristics.database_entries.Curve`.
    """
    several = isinstance(config, PipelinedConfig) and config.PARTIAL_ACCUMULATORS > 1
    return (own or fitted.accumulators_cost) if several else 1.0
