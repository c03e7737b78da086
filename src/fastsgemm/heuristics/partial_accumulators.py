"""How many partial accumulators an element of C gets: the longer a chain of FMAs, the larger its rounding error.

The limits are where cuBLAS begins to use several chains, judged by its errors on about 300 problems on an H200. It does
so from about 16 steps of k where C is small, from a few hundred where C does not fill the device, and from about 1000
where it does, there for one problem in three.
"""

from __future__ import annotations

import math

from fastsgemm.config import Config, PipelinedConfig
from fastsgemm.geometry.grid import split
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung

_FEW = 4  # steps of k: rounding each product alone makes more of the error than adding them up one by one
ACCUMULATORS = 4  # of an element: halves the error
COST = 1.04  # times the time with one accumulator: the mean on problems of 20 us to 5 ms; 1.01 on large squares
# Elements of C up to which a sum is long, and the steps of k that it then has at least
_LONG = ((1 << 17, 17), (900_000, 256), (math.inf, 1024))


def splits_few(rung: Rung, config: Config, problem: Problem) -> bool:
    """Return whether a sum of so few steps would be shared out, so that products are rounded that need not be.

    Parameters
    ----------
    rung : Rung
    config : Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.facing`.
    """
    if problem.K > _FEW:
        return False
    if rung.narrow:  # neighbouring threads take neighbouring k where B is read along it, float by float
        return problem.layout[1] == "T" and problem.K < _FEW
    return config.sliced_k > 1


def shortened(config: Config, problem: Problem, shared_limit: int) -> Config:
    """Return the config with partial accumulators where the sums of a problem would be long chains, else unchanged.

    A config stays unchanged where sliced-K or split-K already shorten the chains, where it has partial accumulators,
    and where more do not fit into shared memory.

    Parameters
    ----------
    config : Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.facing`.
    shared_limit : int
        Shared memory that a block may opt in to on the device, in bytes.
    """
    if not isinstance(config, PipelinedConfig) or config.PARTIAL_ACCUMULATORS > 1:
        return config
    size = problem.M * problem.N
    begins = next(steps for elements, steps in _LONG if size <= elements)
    if begins > problem.K:
        return config
    if split(config, problem.K)[0] * config.SLICED_K >= ACCUMULATORS:
        return config
    shorter = config.replace(PARTIAL_ACCUMULATORS=ACCUMULATORS)
    return config if shorter.shared_bytes > shared_limit else shorter


def cost(config: Config) -> float:
    """Return how many times longer a config takes for its partial accumulators than with one accumulator."""
    return COST if isinstance(config, PipelinedConfig) and config.PARTIAL_ACCUMULATORS > 1 else 1.0
