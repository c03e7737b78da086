"""The lines in K of many configs as arrays, and the times of all waves that follow from them.

All arrays of options have one axis: with as few elements as here, an operation on arrays of different shapes takes
several times as long, and one on twice as many elements hardly longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastsgemm.heuristics import probes
from fastsgemm.heuristics.curve_fit import Fit
from fastsgemm.heuristics.database_entries import Line
from fastsgemm.heuristics.probes import LAYOUTS, SPARSE, STEADY

Floats = NDArray[np.float64]
Row = tuple[float, ...]

_LEAST_WAVE = 1e-9  # the least part of a wave that counts as one
_LEAST_MS = 1e-30  # no division by zero, whatever was measured


class Waves(NamedTuple):
    """How the blocks of options are divided into waves.

    Attributes
    ----------
    place : array of int
        The lines of the last wave, whose time is that of its multiprocessor with most blocks.
    lighter : array
        How much less than 1 the load of the last wave is, down to the lightest load.
    before : array
        Waves before the last one.
    several : array of bool
        Whether there are any.
    """

    place: NDArray[np.intp]
    lighter: Floats
    before: Floats
    several: NDArray[np.bool_]


def waves(load: Floats, full: Floats, first: Floats) -> Waves:
    """Return how blocks are divided into waves.

    Parameters
    ----------
    load : array
        Blocks for each multiprocessor.
    full : array
        Blocks that fit on a multiprocessor at a time.
    first : array
        The places of the options' first lines.
    """
    before = load / full
    before -= 1.0 + _LEAST_WAVE
    np.ceil(before, out=before)
    last = before * full
    np.subtract(load, last, out=last)
    np.minimum(last, full, out=last)
    lighter = 1.0 - last
    np.minimum(lighter, 1.0 - 1.0 / SPARSE, out=lighter)
    np.maximum(lighter, 0.0, out=lighter)
    np.ceil(last, out=last)
    last += first
    return Waves(last.astype(np.intp), lighter, before, before > 0.0)


class Ends(NamedTuple):
    """What the times of all waves take from lines that no load changes.

    Attributes
    ----------
    lighter : array
        What the lightest load takes less than a load of 1, for a whole block less.
    wave : array
        The time of a wave after the first.
    first : array
        How much longer the first one takes.
    share : array
        A later wave relative to the first: one that is not full takes this share of what it takes as the first.
    """

    lighter: Floats
    wave: Floats
    first: Floats
    share: Floats

    def all_waves(self, time: Floats, waves: Waves) -> Floats:
        """Return the times of all waves, given those of the last ones at whole loads, which are overwritten."""
        time += self.lighter * waves.lighter
        several = time * self.share
        several += self.first
        several += self.wave * waves.before
        np.putmask(time, waves.several, several)
        return time


def ends(full: Floats, wave: Floats, lighter: Floats) -> Ends:
    """Return the ends, given the times of a full wave, of a later one and of the lightest load less that of 1."""
    wave = np.maximum(wave, 0.0)
    return Ends(lighter, wave, full - wave, wave / np.maximum(full, _LEAST_MS))


class Lines:
    """The lines in K of configs, those of ragged operands after those of aligned ones.

    Parameters
    ----------
    lines : array, shape (4, places)
        Start, slope and what each bend adds.
    place, full : array of int
        The place of each config's lightest load, and how many blocks fit on a multiprocessor.
    few : array, shape (4, configs)
        Nearly no steps of k, as `terms` returns them.
    computes : array of bool
        Whether the time of a config's block among many limits that of others.
    alone : bool
        Whether `ends` has the times of the steps at the lightest load.

    Attributes
    ----------
    lines : array, shape (4, places)
    few : array
        The times with nearly no steps, for each place.
    few_ends : array, shape (4, configs)
        The ends of these times.
    ends : array, shape (4, 4 or 5, configs)
        The lines of a full wave, of a later one and of the lightest load less that of 1; those of a block among many,
        -inf where it limits nothing, and if asked for of the lightest load, both without the time with nearly no steps.
    """

    def __init__(
        self,
        lines: Floats,
        place: NDArray[np.intp],
        full: NDArray[np.intp],
        few: Floats,
        computes: NDArray[np.bool_],
        alone: bool,
    ) -> None:
        self.lines = lines
        self.few = along(lines, few.repeat(np.diff(place, append=lines.shape[1]), axis=1))
        every = np.concatenate([self.few[None], lines])
        lightest, one, whole, steady = (every[:, n] for n in (place, place + 1, place + full, place + full + 1))
        # Between the two lightest loads, times are interpolated. A wave after the first costs less than it.
        lighter, wave = (lightest - one) * (SPARSE / (SPARSE - 1)), (steady - whole) / (STEADY - 1)
        self.few_ends = np.array(ends(whole[0], wave[0], lighter[0]))
        per_block = np.where(computes, _steps(steady) / (STEADY * full), [[-np.inf], [0.0], [0.0], [0.0]])
        found = [whole[1:], wave[1:], lighter[1:], per_block]
        self.ends = np.stack([*found, _steps(lightest)] if alone else found, axis=1)


def _steps(lines: Floats) -> Floats:
    """Return lines less the times with nearly no steps, which come before them."""
    found: Floats = lines[1:].copy()
    found[0] -= lines[0]
    return found


def terms(steps: Floats, bends: Floats) -> Floats:
    """Return what the numbers of lines are multiplied by at these steps of k.

    These are 1 for the start, the steps for the slope, and what they are short of each bend, as a negative number.
    """
    found = np.empty((4, len(steps)))
    found[0] = 1.0
    found[1] = steps
    short = np.subtract(steps, bends, out=found[2:])
    np.minimum(short, 0.0, out=short)
    return found


def along(lines: Floats, terms: Floats) -> Floats:
    """Return the times on lines, given what their numbers are multiplied by."""
    found: Floats = np.einsum("ij,ij->j", lines, terms)
    return found


def whole_loads(fits: Sequence[Fit]) -> Floats:
    """Return the lines of the configs at the lightest load, 1, 2, ..., full and the heaviest.

    The first axis has start, slope and what both bends add, the second has aligned and ragged operands.
    """
    ends = [(fit.numbers.lines, fit.probes.bend) for fit in fits]
    both = ([_row(line, bend) for lines, bend in ends for line in lines[ragged]] for ragged in (0, 1))
    measured = np.array([*both]).transpose(2, 0, 1)
    below: list[int] = []
    above: list[int] = []
    shares: list[float] = []
    first = 0
    for fit in fits:
        low, high, share = _between(fit.curve.blocks_per_sm)
        below += [first + at for at in low]
        above += [first + at for at in high]
        shares += share
        first = above[-1] + 1
    lines = measured.take(below, axis=2)
    lines += (measured.take(above, axis=2) - lines) * floats(shares)
    return lines


@lru_cache(maxsize=64)
def _between(full: int) -> tuple[list[int], list[int], list[float]]:
    """Return for each load that is kept the two measured ones around it, and the share of the way between these."""
    measured = probes.loads(full)
    last = len(measured) - 1
    found = [(0, 0, 0.0), (1, 1, 0.0)]
    for at, (low, high) in enumerate(pairwise(measured[1:-1]), 1):
        found += [(at, at + 1, (load - low) / (high - low)) for load in range(int(low) + 1, int(high) + 1)]
    below, above, share = zip(*found, (last, last, 0.0), strict=True)
    return [*below], [*above], [*share]


def layout_factors(fits: Sequence[Fit]) -> dict[str, Floats]:
    """Return for each layout what the times of the steps of NN are multiplied by, at the places of `whole_loads`.

    Those of ragged operands follow those of aligned ones. Between two loads at which a layout was measured, the factor
    changes with the logarithm of the load.
    """
    shares = [_shares_of_loads(fit.curve.blocks_per_sm, fit.probes.layout_loads[1]) for fit in fits]
    measured = np.array([fit.numbers.layouts for fit in fits]).repeat([*map(len, shares)], axis=0)
    found = np.einsum("plkt,pt->lkp", measured, np.concatenate(shares)).reshape(len(LAYOUTS), -1)
    return {"NN": np.ones_like(found[0]), **dict(zip(LAYOUTS, found, strict=True))}


@lru_cache(maxsize=64)
def _shares_of_loads(full: int, middle: float) -> Floats:
    """Return for each load that is kept the shares of the three loads at which the layouts were measured."""
    found = []
    for load in (1, *range(1, full + 1), full):
        low, high, at = (1.0, middle, 0) if load <= middle else (middle, full, 1)
        share = math.log(load / low) / math.log(high / low) if high > low else 0.0
        found.append([0.0] * at + [1.0 - share, share] + [0.0] * (1 - at))
    return np.array(found)


def _row(line: Line, bend: float) -> Row:
    """Return start, slope and what both bends add, given the bend that is not the smaller measured depth."""
    near = line.bend == bend
    return line.start, line.slope, line.extra if near else 0.0, 0.0 if near else line.extra


def floats(values: Iterable[float]) -> Floats:
    """Return an array of these numbers."""
    return np.array([*values], np.float64)
