"""How many chains of FMAs make up a sum where nobody said: the longer a chain, the larger its rounding error."""

from __future__ import annotations

from dataclasses import replace

from fastsgemm.config import Config
from fastsgemm.plan import Problem, split
from fastsgemm.rungs import Rung

CHAINS = 4  # halves the error
_LONG = 256  # steps of k
_SMALL = 1 << 17  # elements of C: where there are few, blocks wait for memory more than they compute
_LEAST = 17  # steps of k of a small C


def shortened(rung: Rung, config: Config, problem: Problem, shared_limit: int) -> Config:
    """Return the config with CHAINS where the sums of a problem would be long chains, else as it is.

    A sum that is shared out among blocks or threads anyway is left alone, and so is one whose chains do not fit into
    shared memory.

    Parameters
    ----------
    rung : Rung
    config : Config
    problem : Problem
        As the rung computes it; see `fastsgemm.plan.facing`.
    shared_limit : int
        Shared memory that a block may opt in to on the card, in bytes.
    """
    if "CHAINS" not in rung.knobs or config.CHAINS:
        return config
    small = problem.M * problem.N <= _SMALL and problem.K >= _LEAST
    if problem.K < _LONG and not small:
        return config
    if split(config, problem.K)[0] * (config.SLICES or 1) >= CHAINS:
        return config
    shorter = replace(config, CHAINS=CHAINS)
    return config if shorter.shared_bytes > shared_limit else shorter
