"""How many partial accumulators an element of C gets: the longer a chain of FMAs, the larger its rounding error.

A sum of K steps in n chains of equal length errs like sqrt(K / n), within a few per cent: ours and that of cuBLAS. So
the errors of cuBLAS say how many chains it uses, and n / 1.44 chains err at most 1.2 times as much. How many that is
depends on layout and size of C, because cuBLAS shares out K where tiles of C do not fill the device. The numbers are
data of the architecture; see `fastsgemm.heuristics.fitted.Fitted`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache
from operator import itemgetter

import numpy as np

from fastsgemm.config import Config, PipelinedConfig, SkinnyConfig
from fastsgemm.geometry.grid import shortest_chain, split
from fastsgemm.heuristics.curve_arrays import Floats
from fastsgemm.heuristics.fitted import Fitted, Needs
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung

FEW = 4  # steps of k: rounding each product alone makes more of the error than adding them up one by one
_MOST_CONFIGS = 4096  # of which answers are kept
DOTS = 11  # rows of a C that cuBLAS computes by dot products, at most
MOST = 16  # partial accumulators that are added to a config
INACCURATE = 1.25  # how many times its time an option is ranked by, if its sums still have too few chains


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


def shortened(config: Config, problem: Problem, shared_limit: int, fitted: Fitted) -> Config:
    """Return the config with as many partial accumulators as the sums of a problem need, else unchanged.

    A config stays unchanged where sliced-K and split-K already make chains enough, where it has partial accumulators,
    where more do not fit into shared memory, and where a part of K is too short for a second chain.

    The problem is as the rung computes it; see `fastsgemm.geometry.variants.with_swap_ab`. The limit is the shared
    memory that a block may opt in to on the device, in bytes.
    """
    needed = chains_needed(problem, fitted)
    parts, chunk = split(config, problem.K)
    if needed == 1 or min(problem.K, chunk) < 2 * shortest(config, shared_limit):
        return config
    missing = -(-needed // (parts * config.sliced_k))
    return config if missing == 1 else _with_accumulators(config, min(missing, MOST))


def chains_needed(problem: Problem, fitted: Fitted) -> int:
    """Return how many chains a sum of the problem needs to err at most 1.2 times as much as that of cuBLAS."""
    size = problem.M * problem.N * problem.batch  # the products of a batch fill the device together
    for elements, needs in fitted.long_sums.get(kind(problem), ()):
        if elements is None or size <= elements:
            return chains_at(needs, problem.K)
    return 1


def chains_at(needs: Needs, K: int) -> int:
    """Return how many chains a sum of K steps needs."""
    place = bisect_right(needs, K, key=itemgetter(0))
    return needs[place - 1][1] if place else 1


def kind(problem: Problem) -> str:
    """Return what of a problem, besides its extents, decides how many chains the sums of cuBLAS have.

    That is its layout or, where cuBLAS has kernels for dot products, ``row`` for a C of one row or column, whose other
    operand lies along k, and ``rows`` for one of few rows, where both operands do.
    """
    if problem.batch == 1:
        if (problem.M == 1 and problem.layout[1] == "T") or (problem.N == 1 and problem.layout[0] == "N"):
            return "row"
        if 1 < problem.M <= DOTS and problem.layout == "NT":
            return "rows"
    return problem.layout


def chains_of(config: Config) -> int:
    """Return how many chains a sum of a part of K has, if no partial accumulators are added."""
    own = config.partial_accumulators if isinstance(config, SkinnyConfig) else 1
    return config.sliced_k * own


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


def add(ms: Floats, slowdown: Floats, most: Floats, wanted: Floats) -> tuple[Floats, Floats]:
    """Return times with the partial accumulators that sums need, and what they are ranked by.

    They multiply the times without them, `ms`, by `slowdown`. A part of K has steps for `most` of them; `wanted` are
    as many as its sums need.
    """
    most = np.minimum(np.maximum(np.floor(most), 1.0), MOST)
    ms = np.where(np.minimum(wanted, most) > 1.0, slowdown * ms, ms)
    return ms, np.where(wanted > most, INACCURATE * ms, ms)
