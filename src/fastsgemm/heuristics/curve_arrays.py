"""The numbers of the curves of many configs as arrays: lines in K and factors of the layouts, at every whole load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fastsgemm.heuristics import probes
from fastsgemm.heuristics.curve_fit import Fit

Floats = NDArray[np.float64]


def whole_loads(fits: Sequence[Fit]) -> Floats:
    """Return what a block costs once, a step of k, and a step below the bend more.

    The other axes are aligned and ragged operands, and the places of all configs. Times between two measured loads are
    interpolated.
    """
    below: list[int] = []
    above: list[int] = []
    shares: list[float] = []
    for fit in fits:
        first = above[-1] + 1 if above else 0
        low, high, share = _between(fit.curve.blocks_per_sm)
        below += [first + at for at in low]
        above += [first + at for at in high]
        shares += share
    measured = np.array([[fit.line(line) for fit in fits for line in fit.numbers.lines[kind]] for kind in (0, 1)])
    lines = measured[:, below]
    lines += (measured[:, above] - lines) * floats(shares)[:, None]
    return lines.transpose(2, 0, 1)


@lru_cache(maxsize=64)
def _between(full: int) -> tuple[list[int], list[int], list[float]]:
    """Return for each place of a config the two measured loads around it, and the share of the way between these."""
    measured = probes.loads(full)
    last = len(measured) - 1
    places = [(0, 0, 0.0), (1, 1, 0.0)]
    for at, (low, high) in enumerate(pairwise(measured[1:-1]), 1):
        places += [(at, at + 1, (load - low) / (high - low)) for load in range(int(low) + 1, int(high) + 1)]
    below, above, share = zip(*places, (last, last, 0.0), strict=True)
    return [*below], [*above], [*share]


def layout_factors(fits: Sequence[Fit]) -> Floats:
    """Return for each layout, aligned and ragged operands and each place what the steps of k of NN are multiplied by.

    Between two loads at which a layout was measured, the factor changes with the logarithm of the load.
    """
    shares = [_shares_of_loads(fit.curve.blocks_per_sm, fit.probes.layout_loads[1]) for fit in fits]
    counts = [*map(len, shares)]
    measured = np.array([fit.numbers.layouts for fit in fits]).repeat(counts, axis=0)
    others = np.einsum("plkt,pt->lkp", measured, np.concatenate(shares))
    factors = np.concatenate([np.ones_like(others[:1]), others])
    factors *= floats(fit.curve.calibration for fit in fits).repeat(counts)
    return factors


@lru_cache(maxsize=64)
def _shares_of_loads(full: int, middle: float) -> Floats:
    """Return for each place of a config the shares of the three loads at which the layouts were measured."""
    found = []
    for load in (1, *range(1, full + 1), full):
        low, high, at = (1.0, middle, 0) if load <= middle else (middle, full, 1)
        share = math.log(load / low) / math.log(high / low) if high > low else 0.0
        found.append([0.0] * at + [1.0 - share, share] + [0.0] * (1 - at))
    return np.array(found)


def floats(values: Iterable[float]) -> Floats:
    return np.array([*values], np.float64)
