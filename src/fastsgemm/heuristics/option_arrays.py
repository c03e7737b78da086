"""The fits of many configs as arrays, and what a prediction takes from K alone.

`fastsgemm.heuristics.cost_model` does the rest of the arithmetic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fastsgemm.config import Config
from fastsgemm.heuristics import database, partial_accumulators, probes
from fastsgemm.heuristics.curve_fit import Fit
from fastsgemm.heuristics.database_entries import Fitted, Line
from fastsgemm.heuristics.probes import LAYOUTS, SPARSE, STEADY, TINY, TRANSACTION
from fastsgemm.problem import LAYOUTS as EVERY_LAYOUT
from fastsgemm.problem import Problem

Floats = NDArray[np.float64]
Row = tuple[float, ...]

_MOST_PARTS = 256  # of K
PARTS = sorted({1, *(base << i for base in (2, 3) for i in range(8) if base << i <= _MOST_PARTS)})
FEWER = [0, *PARTS[:-1]]  # the number before each of them
# Extra cost of 8-byte loads relative to that of 4-byte loads: twice the loads of 16 bytes, not four times.
_PAIRED = 1 / 3
_LEAST_WAVE = 1e-9  # the least part of a wave that counts as one


def least_depth(config: Config) -> int:
    """Return the least steps of k of a part."""
    return config.tile_k * probes.form(config).least_tiles


class Configs:
    """The fits of many configs as arrays, with an element for each config.

    The lines of a config are kept at each whole load up to a full wave, where those between two measured loads are
    interpolated. First comes the lightest load, and last the heaviest.
    """

    def __init__(self, fits: Sequence[Fit], shared_limit: int, fitted: Fitted) -> None:
        self.fits = tuple(fits)
        configs = [fit.curve.config for fit in fits]
        self.narrow = np.array([fit.rung.narrow for fit in fits])
        self.pairs = np.array([fit.rung.pairs for fit in fits])
        BM, BN = _floats(c.BM for c in configs), _floats(c.BN for c in configs)
        turned = np.where(self.narrow, BN, BM), np.where(self.narrow, BM, BN)
        self.extents = {False: (BM, BN), True: turned}  # rows and columns of a tile of the caller's C, by swap_ab
        self.largest = float(np.max(self.extents[False]))
        self.guard = _floats(fit.numbers.guard for fit in fits)
        self.shared = _floats(fit.numbers.shared for fit in fits)
        self.any_shared = bool(self.shared.any())
        self.tile = _floats(c.tile_k for c in configs)
        self.least_depth = _floats(least_depth(fit.curve.config) if fit.rung.splits else np.inf for fit in fits)
        self._least = float(self.least_depth.min())
        self.tail = np.array([fit.numbers.tail for fit in fits]).T
        self.bandwidth = _floats(fit.numbers.bandwidth for fit in fits)
        of_arch = [database.fitted(fit.curve.arch) for fit in fits]
        self.reduction_ms = _floats(one.reduction_ms for one in of_arch)
        self.reduction_ms_per_part = _floats(one.reduction_ms_per_part for one in of_arch)
        self.reduction_rate = _floats(one.reduction_bytes_per_ms for one in of_arch)
        # The chains of each part of K, where partial accumulators can make more of them, and what each of these costs.
        self.chains = _floats(
            c.sliced_k if partial_accumulators.can_accumulate(c, shared_limit) else np.inf for c in configs
        )
        costs = np.array([fit.curve.accumulators_cost for fit in fits]).T
        self.per_chain = dict(zip(EVERY_LAYOUT, partial_accumulators.per_chain(costs, fitted), strict=True))
        self.calibration = _floats(fit.curve.calibration for fit in fits)
        self.full = _floats(fit.curve.blocks_per_sm for fit in fits)
        self.bends = np.array([(fit.probes.bend, float(fit.probes.shallow)) for fit in fits]).T
        self.lines, widths = _whole_loads(fits)
        self.place = np.cumsum([0, *widths[:-1]])
        full = self.place + self.full.astype(np.intp)
        self.ends = np.stack([self.lines[:, :, n] for n in (self.place, self.place + 1, full, full + 1)], axis=1)
        # The depth of a K of nearly no steps is known, so its times are.
        self.few_steps = _floats(fit.depth(TINY) for fit in fits)
        powers = _powers(self.few_steps, self.bends)
        self.few_lines = (self.lines * np.repeat(powers, widths, axis=1)[:, None]).sum(axis=0)
        self.few_ends = (self.ends * powers[:, None, None]).sum(axis=0)
        factors = np.array([fit.numbers.layouts for fit in fits]).transpose(1, 3, 2, 0)
        self.layouts = dict(zip(LAYOUTS, factors, strict=True))
        self.layouts["NN"] = np.ones_like(self.layouts["TT"])

    def most_rows(self, K: int) -> int:
        """Return how many of the numbers of parts leave a part of some config deep enough."""
        return max(1, bisect_right(PARTS, K / self._least))


class Options:
    """The configs with each of some numbers of parts of K: arrays with an element for each option.

    Parameters
    ----------
    every : Configs
    numbers : sequence of int
        Ascending, from `PARTS`.
    """

    def __init__(self, every: Configs, numbers: Sequence[int]) -> None:
        self.of = np.tile(np.arange(len(every.fits)), len(numbers))
        parts = np.repeat(numbers, len(every.fits)).astype(np.float64)
        self.fewer = np.repeat([FEWER[PARTS.index(n)] for n in numbers], len(every.fits)).astype(np.float64)
        self.whole = len(every.fits) if numbers[0] == 1 else 0  # the first so many options do not split K
        self.split = numbers[-1] > 1
        self.tile = every.tile[self.of]
        self.tile_parts = self.tile * parts
        self.least_depth = np.where(parts > 1, every.least_depth[self.of] * parts, 0.0)
        self.tail = every.tail.take(self.of, axis=1)
        self.bandwidth = every.bandwidth[self.of]
        self.reduction = np.where(parts > 1, every.reduction_ms[self.of], 0.0)
        self.reduction_per_part = np.where(parts > 1, every.reduction_ms_per_part[self.of], 0.0)
        self.reduction_rate = np.where(parts > 1, every.reduction_rate[self.of], np.inf)
        self.chains = every.chains[self.of]
        self.per_chain = {layout: costs[self.of] for layout, costs in every.per_chain.items()}
        self.calibration = every.calibration[self.of]
        self.full = every.full[self.of]
        self.place = every.place[self.of].astype(np.float64)
        self.bends = every.bends.take(self.of, axis=1)
        self.few_steps = every.few_steps[self.of]
        self.lines, self.ends = every.lines, every.ends.take(self.of, axis=3)
        self.few_lines, self.few_ends = every.few_lines, every.few_ends.take(self.of, axis=2)
        self._layouts = {layout: factors.take(self.of, axis=2) for layout, factors in every.layouts.items()}
        self._narrow, self._pairs = every.narrow[self.of], every.pairs[self.of]
        self.computes = ~self._narrow
        self._factors: dict[tuple[str, bool], _Factors] = {}

    def ragged_share(self, problem: Problem) -> Floats | float:
        """Return the share of A and B that cannot be read 16 bytes at a time, if they are dense."""
        lines = (
            problem.M if problem.layout[0] == "T" else problem.K,
            problem.K if problem.layout[1] == "T" else problem.N,
        )
        plain = sum(line % TRANSACTION != 0 for line in lines) / len(lines)
        paired = sum((line % TRANSACTION != 0) * (1.0 if line % 2 else _PAIRED) for line in lines) / len(lines)
        return plain if plain == paired else np.where(self._pairs, paired, plain)

    def stored(self, times: Floats, problem: Problem, swap_ab: bool) -> Floats:
        """Return the times of aligned operands where rows of C can be stored by 16 bytes, else of ragged ones."""
        ragged, turned = problem.N % TRANSACTION != 0, problem.M % TRANSACTION != 0
        if not swap_ab or ragged == turned:
            found: Floats = times[int(ragged)]
        else:
            found = np.where(self._narrow, times[int(turned)], times[int(ragged)])
        return found

    def factors(self, layout: str, swap_ab: bool) -> _Factors | None:
        """Return the times of a layout relative to those of NN, or None if all are 1."""
        if layout == "NN" and not swap_ab:
            return None
        found = self._factors.get((layout, swap_ab))
        if found is None:
            turned = Problem(1, 1, 1, layout).transposed.layout if swap_ab else layout
            both = np.where(self._narrow, self._layouts[turned], self._layouts[layout])
            found = self._factors[layout, swap_ab] = _Factors(both, self.full)
        return found


class _Factors:
    """Times of a layout relative to those of NN, which change with the logarithm of the load up to a full wave."""

    def __init__(self, light_and_heavy: Floats, full: Floats) -> None:
        self.light, self.heavy = light_and_heavy
        per_log = np.divide(1.0, np.log(full), out=np.zeros_like(full), where=full > 1.0)
        self._more = (self.heavy - self.light) * per_log
        self._full = full

    def at(self, load: Floats) -> Floats:
        """Return the factors at these loads, for aligned and for ragged operands."""
        logarithm = np.log(np.minimum(np.maximum(load, 1.0), self._full))
        factors: Floats = self.light + self._more * logarithm
        return factors


class AtK:
    """What a prediction takes from K alone.

    Parameters
    ----------
    options : Options
    K : int
    multiprocessors : float
    part : int, optional
        Steps of a part, where K is split. Default: as few as make the number of parts in whole tiles.

    Attributes
    ----------
    options : Options
    too_shallow : array of bool
        A part would have too few steps.
    sms : array
        Multiprocessors for each part.
    times : _Times
    alone : array
        Time of reading A and B at the lightest load, for aligned and for ragged operands.
    per_byte : array
        Steps of a part relative to the bandwidth.
    reduction_per_byte : array
        Cost of the second kernel for each byte of C.
    """

    def __init__(self, options: Options, K: int, multiprocessors: float, part: int | None = None) -> None:
        K = max(1, K)  # no steps take as long as one
        self.options = options
        self.too_shallow = options.least_depth > K
        steps = np.ceil(K / options.tile_parts) * options.tile
        if part is not None:
            steps[:] = part
        count = np.ceil(K / steps)
        unsplit = slice(options.whole)
        steps[unsplit] = K
        depth = steps.copy()
        rest = K % options.tile[unsplit]
        once, each = options.tail[:, unsplit]
        depth[unsplit] += np.where(rest > 0.0, once + (each - 1.0) * rest, 0.0)
        # A whole tile of few steps has fewer than a ragged one counts as.
        np.maximum(depth, options.few_steps, out=depth, where=steps >= TINY)
        self.sms = multiprocessors / count
        self.times = _Times(options, depth)
        self.alone = (self.times.lightest[0] - self.times.lightest[1]) * options.calibration
        self.per_byte = steps / options.bandwidth
        self.reduction = options.reduction + count * options.reduction_per_part
        self.reduction_per_byte = (count + 2.0) / options.reduction_rate
        self._chains = count * options.chains
        self._per_step = count / max(K, partial_accumulators.LEAST_STEPS)

    def slowdown(self, needed: int, layout: str) -> Floats:
        """Return the cost of the partial accumulators that configs get where a sum needs so many chains."""
        missing = needed / self._chains
        fewer, more = partial_accumulators.ACCUMULATORS
        accumulators = np.where(missing > fewer, more, fewer)
        found: Floats = 1.0 + np.where(
            missing > 1.0, accumulators * self._per_step * self.options.per_chain[layout], 0.0
        )
        return found


class _Times:
    """Times of options by load, with all steps of k and with nearly none, for aligned and for ragged operands.

    Attributes
    ----------
    lightest : array, shape (2, 2, options)
        At the lightest load.
    per_block : array, shape (2, options)
        Of a block among many, without what it costs once.
    """

    def __init__(self, options: Options, depth: Floats) -> None:
        self._lines, self._few_lines = options.lines, options.few_lines
        self._powers = _powers(depth, options.bends)[:, None]
        ends = np.empty((4, 2, 2, len(depth)))
        np.add.reduce(options.ends * self._powers[:, None], axis=0, out=ends[:, 0])
        ends[:, 1] = options.few_ends
        self.lightest, one, full, steady = ends
        # A wave after the first costs less than it. One that is not full takes the share that it takes of the first.
        self._wave = np.maximum(steady - full, 0.0) / (STEADY - 1)
        ratio = self._wave / (full + (full == 0.0))  # no division by zero, whatever was measured
        self._first, self._less = full - self._wave, ratio - 1.0
        self.per_block = (steady[0] - steady[1]) / (STEADY * options.full)
        self._lighter = (self.lightest - one) * (SPARSE / (SPARSE - 1))  # for each 1 that the load is less than 1

    def of_load(self, load: Floats, options: Options) -> Floats:
        """Return the times of all waves."""
        before = np.ceil(load / options.full - _LEAST_WAVE) - 1.0  # waves before the last one
        last = np.minimum(load - before * options.full, options.full)
        # The last wave takes as long as its multiprocessor with most blocks. Between the two lightest loads, times are
        # interpolated.
        place = (options.place + np.ceil(last)).astype(np.intp)
        time = np.empty_like(self._wave)
        np.add.reduce(self._lines.take(place, axis=2) * self._powers, axis=0, out=time[0])
        self._few_lines.take(place, axis=1, out=time[1])
        time += self._lighter * (1.0 - np.minimum(np.maximum(last, 1 / SPARSE), 1.0))
        time += np.minimum(before, 1.0) * (self._less * time + self._first)
        time += before * self._wave
        return time


def _powers(depth: Floats, bends: Floats) -> Floats:
    """Return what the four rows of lines are multiplied by at these depths of K: 1, K and what K is short of a bend."""
    found = np.empty((4, len(depth)))
    found[0], found[1] = 1.0, depth
    np.minimum(depth - bends, 0.0, out=found[2:])
    return found


def _whole_loads(fits: Sequence[Fit]) -> tuple[Floats, list[int]]:
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
    lines += (measured.take(above, axis=2) - lines) * _floats(shares)
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


def mixed(times: Floats, share: Floats | float) -> Floats:
    """Return the mean of the times of aligned and of ragged operands, given the share of the latter."""
    aligned, ragged = times
    found: Floats = aligned
    if not isinstance(share, float) or share:
        found = (1.0 - share) * aligned + share * ragged
    return found


def _floats(values: Iterable[float]) -> Floats:
    return np.array([*values], np.float64)
