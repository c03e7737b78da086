"""How many partial accumulators an element of C gets: the longer a chain of FMAs, the larger its rounding error.

A sum of K steps in n chains of equal length errs like sqrt(K / n), within a few per cent. So that the error stays below
that of cuBLAS in the mean, no chain is longer than 512 steps of k, unless that takes more than 16 chains.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fastsgemm.config import Config, PipelinedConfig, SkinnyConfig
from fastsgemm.geometry.grid import shortest_chain, split
from fastsgemm.heuristics.curve_arrays import Floats
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung

# Most steps of k in a chain. Half as many cost squares 1.4 % of their time; with twice as many, 6 of 160 large
# problems err more than 1.2 times as much as cuBLAS.
CHAIN = 512
MOST = 16  # chains that are made for that, at most
FEW = 4  # steps of k: rounding each product alone makes more of the error than adding them up one by one
_MOST_CONFIGS = 4096  # of which answers are kept


def shares_out_few(problem: Problem, narrow: bool) -> bool:
    """Return whether threads that share out a sum of few steps round each product, which errs more than one chain.

    The problem is as the caller passes it. Those of a `narrow` rung, for few rows, are neighbours and take neighbouring
    k where B is read along it, float by float. Else they are those of sliced-K.
    """
    if not narrow:
        return problem.K <= FEW
    along_k = problem.layout[0] == "N" if problem.N < problem.M else problem.layout[1] == "T"
    return along_k and problem.K < FEW


def splits_few(rung: Rung, config: Config, problem: Problem) -> bool:
    """Return whether a config would share out a sum of few steps; `problem` is as the caller passes it."""
    return shares_out_few(problem, rung.narrow) and (rung.narrow or config.sliced_k > 1)


def shortened(config: Config, K: int, shared_limit: int) -> Config:
    """Return the config with as many partial accumulators as a sum of K steps needs, else unchanged.

    A config stays unchanged where sliced-K and split-K already make chains enough, where it has partial accumulators,
    where more do not fit into shared memory, and where a part of K is too short for a second chain.

    The limit is the shared memory that a block may opt in to on the device, in bytes.
    """
    needed = chains_needed(K)
    parts, chunk = split(config, K)
    if needed == 1 or min(K, chunk) < 2 * shortest(config, shared_limit):
        return config
    missing = -(-needed // (parts * config.sliced_k))
    return config if missing == 1 else _with_accumulators(config, missing)


def chains_needed(K: int) -> int:
    """Return how many chains a sum of K steps is to have."""
    return max(1, min(MOST, -(-K // CHAIN)))


def chains_of(config: Config) -> int:
    """Return how many chains a sum of a part of K has, if no partial accumulators are added."""
    per_group = config.partial_accumulators if isinstance(config, SkinnyConfig) else 1
    return config.sliced_k * per_group


@lru_cache(maxsize=_MOST_CONFIGS)
def shortest(config: Config, shared_limit: int) -> float:
    """Return the steps that each chain has at least if a config gets partial accumulators; infinite if it cannot."""
    several = accumulating(config, shared_limit)
    return math.inf if several is None else shortest_chain(several)


def accumulating(config: Config, shared_limit: int) -> PipelinedConfig | None:
    """Return a config with partial accumulators, or None if it has some or they do not fit into shared memory."""
    if not isinstance(config, PipelinedConfig) or config.PARTIAL_ACCUMULATORS > 1:
        return None
    changed = _with_accumulators(config, MOST)
    return changed if changed.shared_bytes <= shared_limit else None  # which the number does not change


@lru_cache(maxsize=_MOST_CONFIGS)
def _with_accumulators(config: PipelinedConfig, count: int) -> PipelinedConfig:
    return config.replace(PARTIAL_ACCUMULATORS=count)


def add(ms: Floats, slowdown: Floats, most: Floats, needed: Floats) -> Floats:
    """Return times with the partial accumulators that sums need: those without them, multiplied by `slowdown`.

    A part of K has steps for `most` of them; `needed` are as many as its sums need.
    """
    several: Floats = np.where((needed > 1.0) & (most >= 2.0), slowdown * ms, ms)
    return several
