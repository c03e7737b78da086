"""How many chains of FMAs make up a sum where nobody said: the longer a chain, the larger its rounding error.

The limits are where cuBLAS was seen to begin with several chains, by its errors on some three hundred problems on an
H200: from about 16 steps on where C is small, from a few hundred where it does not fill the device, from about a thousand
where it does, and then for one problem in three.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fastsgemm.config import Config
from fastsgemm.geometry.grid import split
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung

_FEW = 4  # steps of k: rounding each product alone makes more of the error than adding them up one by one
CHAINS = 4  # halves the error
COST = 1.04  # times the time of one chain: the mean on problems of 20 us to 5 ms; 1.01 on large squares
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
    return config.SLICES is not None


def shortened(rung: Rung, config: Config, problem: Problem, shared_limit: int) -> Config:
    """Return the config with CHAINS where the sums of a problem would be long chains, else as it is.

    A sum that is shared out among blocks or threads anyway is left alone, and so is one whose chains do not fit into
    shared memory.

    Parameters
    ----------
    rung : Rung
    config : Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.facing`.
    shared_limit : int
        Shared memory that a block may opt in to on the device, in bytes.
    """
    if "CHAINS" not in rung.knobs or config.CHAINS:
        return config
    size = problem.M * problem.N
    begins = next(steps for elements, steps in _LONG if size <= elements)
    if begins > problem.K:
        return config
    if split(config, problem.K)[0] * (config.SLICES or 1) >= CHAINS:
        return config
    shorter = replace(config, CHAINS=CHAINS)
    return config if shorter.shared_bytes > shared_limit else shorter
