"""The lines in K of many configs as arrays, and the times of all waves that follow from them.

Lines of aligned and of ragged operands are apart, because most problems need those of one kind. All arrays of options
have one axis: with as few elements as here, an operation on arrays of different shapes takes several times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastsgemm.heuristics import probes
from fastsgemm.heuristics.curve_fit import Fit
from fastsgemm.heuristics.database_entries import Line
from fastsgemm.heuristics.probes import SPARSE, STEADY

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
    several : array
        1 where there are any, else 0.
    """

    place: NDArray[np.intp]
    lighter: Floats
    before: Floats
    several: Floats


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
    before = np.ceil(load / full - (1.0 + _LEAST_WAVE))
    last = np.minimum(load - before * full, full)
    lighter = np.maximum(np.minimum(1.0 - last, 1.0 - 1.0 / SPARSE), 0.0)
    return Waves((np.ceil(last) + first).astype(np.intp), lighter, before, np.minimum(before, 1.0))


class Lines:
    """The lines of options for aligned or for ragged operands.

    Parameters
    ----------
    lines : array, shape (4, places)
        As `whole_loads` returns them.
    few : array
        The times on them with nearly no steps.
    place, full : array of int
        The place of each option's lightest load, and how many blocks fit on a multiprocessor.
    computes : array of bool
        Whether the time of an option's block among many limits that of others.
    """

    def __init__(
        self, lines: Floats, few: Floats, place: NDArray[np.intp], full: NDArray[np.intp], computes: NDArray[np.bool_]
    ) -> None:
        self.lines, self._few = [*lines], few
        every = np.concatenate([few[None], lines])
        lightest, one, whole, steady = (every[:, n] for n in (place, place + 1, place + full, place + full + 1))
        # Between the two lightest loads, times are interpolated. A wave after the first costs less than it.
        lighter, wave = (lightest - one) * (SPARSE / (SPARSE - 1)), (steady - whole) / (STEADY - 1)
        self._few_ends = _Ends(whole[0], wave[0], lighter[0])
        per_block = np.where(computes, _steps(steady) / (STEADY * full), [[-np.inf], [0.0], [0.0], [0.0]])
        self.ends = np.stack([whole[1:], wave[1:], lighter[1:], per_block], axis=1)
        self.alone = _steps(lightest)

    def few(self, waves: Waves) -> Floats:
        """Return the times of all waves with nearly no steps of k."""
        return self._few_ends.all_waves(self._few.take(waves.place), waves)


class LinesAtK:
    """The times on the lines of options at one K.

    Parameters
    ----------
    lines : Lines
    depth : array
        Steps of k of each option.
    short : sequence of array
        As `along` takes it.

    Attributes
    ----------
    per_block : array
        Time of the steps of a block among many; -inf where it limits nothing.
    """

    def __init__(self, lines: Lines, depth: Floats, short: Sequence[Floats]) -> None:
        self._lines, self._depth, self._short = lines, depth, short
        full, wave, lighter, self.per_block = along(lines.ends, depth, short)
        self._ends = _Ends(full, wave, lighter)

    @cached_property
    def alone(self) -> Floats:
        """Time of the steps at the lightest load."""
        return along(self._lines.alone, self._depth, self._short)

    def steps(self, waves: Waves, few: Floats) -> Floats:
        """Return the times of all waves less those with nearly no steps of k."""
        lines = [line.take(waves.place) for line in self._lines.lines[: 2 + len(self._short)]]
        found = self._ends.all_waves(along(lines, self._depth, self._short), waves)
        found -= few
        return found


class _Ends:
    """What the times of all waves take from lines that no load changes."""

    def __init__(self, full: Floats, wave: Floats, lighter: Floats) -> None:
        self._wave = np.maximum(wave, 0.0)
        self._first = full - self._wave
        self._less = self._wave / np.maximum(full, _LEAST_MS) - 1.0
        self._lighter = lighter

    def all_waves(self, time: Floats, waves: Waves) -> Floats:
        """Return the times of all waves, given those of the last ones at whole loads, which are overwritten."""
        time += self._lighter * waves.lighter
        # A wave that is not full takes the share of a later one that it takes of the first.
        more = self._less * time
        more += self._first
        more *= waves.several
        time += more
        time += self._wave * waves.before
        return time


def _steps(lines: Floats) -> Floats:
    """Return lines less the times with nearly no steps, which come before them."""
    found: Floats = lines[1:].copy()
    found[0] -= lines[0]
    return found


def along(lines: Sequence[Floats] | Floats, depth: Floats, short: Sequence[Floats] | Floats) -> Floats:
    """Return the times on lines at these depths.

    Parameters
    ----------
    lines : sequence of array
        Start, slope and what each bend adds.
    depth : array
        Steps of k.
    short : sequence of array
        What these are short of each bend, negative; none where they are beyond all bends.
    """
    found: Floats = lines[1] * depth
    found += lines[0]
    for bend, steps in zip(lines[2:], short, strict=False):
        found += bend * steps
    return found


def whole_loads(fits: Sequence[Fit]) -> tuple[Floats, list[int]]:
    """Return the lines of the configs at the lightest load, 1, 2, ..., full and the heaviest, and how many each has.

    The first axis has start, slope and what both bends add, the second has aligned and ragged operands.
    """
    ends = [(fit.numbers.lines, fit.probes.bend) for fit in fits]
    both = ([_row(line, bend) for lines, bend in ends for line in lines[ragged]] for ragged in (0, 1))
    measured = np.array([*both]).transpose(2, 0, 1)
    below: list[int] = []
    above: list[int] = []
    shares: list[float] = []
    widths, first = [], 0
    for fit in fits:
        low, high, share = _between(fit.curve.blocks_per_sm)
        below += [first + at for at in low]
        above += [first + at for at in high]
        shares += share
        widths.append(len(low))
        first = above[-1] + 1
    lines = measured.take(below, axis=2)
    lines += (measured.take(above, axis=2) - lines) * floats(shares)
    return lines, widths


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


def _row(line: Line, bend: float) -> Row:
    """Return start, slope and what both bends add, given the bend that is not the smaller measured depth."""
    near = line.bend == bend
    return line.start, line.slope, line.extra if near else 0.0, 0.0 if near else line.extra


def floats(values: Iterable[float]) -> Floats:
    """Return an array of these numbers."""
    return np.array([*values], np.float64)
