"""The fits of many configs as arrays, and what a prediction takes from K alone or from K and the load.

`fastsgemm.heuristics.line_arrays` has the lines among these, and `fastsgemm.heuristics.cost_model` does the rest of the
arithmetic.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fastsgemm.config import Config
from fastsgemm.heuristics import database, partial_accumulators, probes
from fastsgemm.heuristics.curve_fit import Fit
from fastsgemm.heuristics.database_entries import Fitted
from fastsgemm.heuristics.line_arrays import Floats, Lines, LinesAtK, Waves, along, floats, waves, whole_loads
from fastsgemm.heuristics.probes import LAYOUTS, TINY, TRANSACTION
from fastsgemm.problem import LAYOUTS as EVERY_LAYOUT
from fastsgemm.problem import Problem

_MOST_PARTS = 256  # of K
PARTS = sorted({1, *(base << i for base in (2, 3) for i in range(8) if base << i <= _MOST_PARTS)})
FEWER = [0, *PARTS[:-1]]  # the number before each of them
# Extra cost of 8-byte loads relative to that of 4-byte loads: twice the loads of 16 bytes, not four times.
_PAIRED = 1 / 3


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
        BM, BN = floats(c.BM for c in configs), floats(c.BN for c in configs)
        turned = np.where(self.narrow, BN, BM), np.where(self.narrow, BM, BN)
        self.extents = {False: (BM, BN), True: turned}  # rows and columns of a tile of the caller's C, by swap_ab
        self.largest = float(np.max(self.extents[False]))
        self.guard = floats(fit.numbers.guard for fit in fits)
        self.shared = floats(fit.numbers.shared for fit in fits)
        self.all_pairs = bool(self.pairs.all())
        self.any_shared = bool(self.shared.any())
        self.tile = floats(c.tile_k for c in configs)
        self.least_depth = floats(least_depth(fit.curve.config) if fit.rung.splits else np.inf for fit in fits)
        self._least = float(self.least_depth.min())
        self.tail = np.array([fit.numbers.tail for fit in fits]).T
        self.bandwidth = floats(fit.numbers.bandwidth for fit in fits)
        of_arch = [database.fitted(fit.curve.arch) for fit in fits]
        self.reduction_ms = floats(one.reduction_ms for one in of_arch)
        self.reduction_ms_per_part = floats(one.reduction_ms_per_part for one in of_arch)
        self.reduction_rate = floats(one.reduction_bytes_per_ms for one in of_arch)
        # The chains of each part of K, and how many times as many partial accumulators can make, and what each costs.
        self.chains = floats(map(partial_accumulators.chains_of, configs))
        self.most_accumulators = floats(partial_accumulators.most(c, shared_limit) for c in configs)
        costs = np.array([fit.curve.accumulators_cost for fit in fits]).T
        self.per_chain = dict(zip(EVERY_LAYOUT, partial_accumulators.per_chain(costs, fitted), strict=True))
        self.calibration = floats(fit.curve.calibration for fit in fits)
        self.full = floats(fit.curve.blocks_per_sm for fit in fits)
        self.bends = np.array([(fit.probes.bend, float(fit.probes.shallow)) for fit in fits]).T
        self.deepest_bend = float(self.bends.max())
        self.whole_tiles = math.lcm(*(c.tile_k for c in configs))  # a K that ends in no config's ragged tile
        self.lines, widths = whole_loads(fits)
        self.place = np.cumsum([0, *widths[:-1]])
        # The depth of a K of nearly no steps is known, so its times are.
        self.few_steps = floats(fit.depth(TINY) for fit in fits)
        short = np.minimum(self.few_steps - self.bends, 0.0)
        self.few = along(self.lines, np.repeat(self.few_steps, widths), np.repeat(short, widths, axis=1))
        factors = np.array([fit.numbers.layouts for fit in fits]).transpose(1, 3, 2, 0)
        self.layouts = dict(zip(LAYOUTS, factors, strict=True))
        self.layouts["NN"] = np.ones_like(self.layouts["TT"])

    def depth(self, K: int) -> Floats:
        """Return K with the steps of a ragged last tile weighted by what they cost."""
        depth = np.full(len(self.fits), float(K))
        if K % self.whole_tiles:
            rest = K % self.tile
            once, each = self.tail
            depth += np.where(rest > 0.0, once + (each - 1.0) * rest, 0.0)
        return depth

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
    most_blocks : float
        With so many blocks or more, K is not split into more parts.
    """

    def __init__(self, every: Configs, numbers: Sequence[int], most_blocks: float) -> None:
        self.every, self.of = every, np.tile(np.arange(len(every.fits)), len(numbers))
        parts = np.repeat(numbers, len(every.fits)).astype(np.float64)
        most_tiles = [most_blocks / FEWER[PARTS.index(number)] if number > 1 else np.inf for number in numbers]
        self.most_tiles = np.repeat(most_tiles, len(every.fits))
        self.whole = len(every.fits) if numbers[0] == 1 else 0  # the first so many options do not split K
        self.split = numbers[-1] > 1
        self.tile = every.tile[self.of]
        self.tile_parts = self.tile * parts
        self.least_depth = np.where(parts > 1, every.least_depth[self.of] * parts, 0.0)
        self.bandwidth = every.bandwidth[self.of]
        self.reduction = np.where(parts > 1, every.reduction_ms[self.of], 0.0)
        self.reduction_per_part = np.where(parts > 1, every.reduction_ms_per_part[self.of], 0.0)
        self.reduction_rate = np.where(parts > 1, every.reduction_rate[self.of], np.inf)
        self.chains, self.most_accumulators = every.chains[self.of], every.most_accumulators[self.of]
        self.per_chain = {layout: costs[self.of] for layout, costs in every.per_chain.items()}
        self.full = every.full[self.of]
        place = every.place[self.of]
        self._place = place.astype(np.float64)
        self.lines = [
            Lines(every.lines[:, ragged], every.few[ragged], place, self.full.astype(np.intp), ~every.narrow[self.of])
            for ragged in (0, 1)
        ]
        self.bends = every.bends.take(self.of, axis=1)
        # A whole tile of few steps has fewer than a ragged one counts as.
        self.least_steps = np.where((parts > 1) & (self.tile < TINY), 0.0, every.few_steps[self.of])
        self._narrow, self._pairs = every.narrow[self.of], every.pairs[self.of]
        self._factors: dict[tuple[str, bool], Factors] = {}

    def ragged_share(self, problem: Problem) -> Floats | float:
        """Return the share of A and B that cannot be read 16 bytes at a time, if they are dense."""
        lines = (
            problem.M if problem.layout[0] == "T" else problem.K,
            problem.K if problem.layout[1] == "T" else problem.N,
        )
        plain = sum(line % TRANSACTION != 0 for line in lines) / len(lines)
        paired = sum((line % TRANSACTION != 0) * (1.0 if line % 2 else _PAIRED) for line in lines) / len(lines)
        if plain == paired or self.every.all_pairs:
            return paired
        return np.where(self._pairs, paired, plain)

    def stored(self, times: Callable[[int], Floats], problem: Problem, swap_ab: bool) -> Floats:
        """Return the times of aligned operands where rows of C can be stored by 16 bytes, else of ragged ones."""
        ragged, turned = int(problem.N % TRANSACTION != 0), int(problem.M % TRANSACTION != 0)
        if not swap_ab or ragged == turned:
            return times(ragged)
        found: Floats = np.where(self._narrow, times(turned), times(ragged))
        return found

    def waves(self, load: Floats) -> Waves:
        """Return how blocks are divided into waves at these loads."""
        return waves(load, self.full, self._place)

    def factors(self, layout: str, swap_ab: bool) -> Factors:
        """Return what the times of the steps of NN are multiplied by for a layout."""
        found = self._factors.get((layout, swap_ab))
        if found is None:
            every = self.every
            turned = Problem(1, 1, 1, layout).transposed.layout if swap_ab else layout
            both = np.where(every.narrow, every.layouts[turned], every.layouts[layout]) * every.calibration
            light, heavy = both.take(self.of, axis=2)
            found = self._factors[layout, swap_ab] = Factors(light, heavy, self.full)
        return found


class Factors:
    """Times of the steps of a layout relative to those of NN, times the calibration.

    They change with the logarithm of the load up to a full wave.

    Attributes
    ----------
    light, heavy : list of array
        At a load of 1 and of a full wave, for aligned and for ragged operands.
    """

    def __init__(self, light: Floats, heavy: Floats, full: Floats) -> None:
        self.light, self.heavy, self._full = [*light], [*heavy], full
        per_log = np.divide(1.0, np.log(full), out=np.zeros_like(full), where=full > 1.0)
        self._more = [*((heavy - light) * per_log)]
        self._vary = bool((heavy != light).any())

    def at(self, load: Floats, ragged: int) -> Floats:
        """Return the factors at these loads, for aligned or for ragged operands."""
        factors: Floats = self.light[ragged]
        if self._vary:
            factors = self._more[ragged] * np.log(np.minimum(np.maximum(load, 1.0), self._full))
            factors += self.light[ragged]
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
    sms : array or float
        Multiprocessors for each part.
    most_tiles : array
        With so many tiles of C or more, K is not split into so many parts; 0 where these would be too shallow.
    per_byte : array
        Steps of a part relative to the bandwidth.
    """

    def __init__(self, options: Options, K: int, multiprocessors: float, part: int | None = None) -> None:
        K = max(1, K)  # no steps take as long as one
        self.options, self._K = options, K
        self._count: Floats | float = 1.0
        self.most_tiles = options.most_tiles
        steps: Floats | float = float(K)
        depth = options.every.depth(K)
        if options.split:
            steps = np.ceil(K / options.tile_parts) * options.tile
            if part is not None:
                steps[:] = part
            self._count = np.ceil(K / steps)
            self.most_tiles = options.most_tiles * (options.least_depth <= K)
            steps[: options.whole] = K
            depth = np.concatenate([depth[: options.whole], steps[options.whole :]])
        if K >= TINY:
            np.maximum(depth, options.least_steps, out=depth)
        self.sms = multiprocessors / self._count
        self.per_byte = steps / options.bandwidth
        self._depth = depth
        deep = np.minimum.reduce(depth) >= options.every.deepest_bend  # deeper than any line bends
        self._short = () if deep else [*np.minimum(depth - options.bends, 0.0)]
        self._lines: dict[int, LinesAtK] = {}

    def lines(self, ragged: int) -> LinesAtK:
        """Return the times on the lines of aligned or of ragged operands."""
        found = self._lines.get(ragged)
        if found is None:
            found = self._lines[ragged] = LinesAtK(self.options.lines[ragged], self._depth, self._short)
        return found

    def slowdown(self, needed: int, layout: str) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the cost of the partial accumulators that configs get where a sum needs so many chains.

        The second array says where they cannot make as many.
        """
        options = self.options
        accumulators = np.ceil(needed / (self._count * options.chains))
        found: Floats = np.minimum(accumulators, options.most_accumulators)
        found *= found > 1.0
        found *= options.per_chain[layout] * (self._count / max(self._K, partial_accumulators.LEAST_STEPS))
        found += 1.0
        return found, accumulators > options.most_accumulators

    def reduction(self, size: float) -> Floats:
        """Return the time of adding up parts of a C of so many bytes."""
        options = self.options
        found: Floats = (self._count + 2.0) * (size / options.reduction_rate)
        found += options.reduction + self._count * options.reduction_per_part
        return found


class AtLoad:
    """Times of options at one K and one load each.

    Parameters
    ----------
    at : AtK
    load : array
        Blocks for each multiprocessor.
    factors : Factors
    """

    def __init__(self, at: AtK, load: Floats, factors: Factors) -> None:
        self._at, self._load, self._factors = at, load, factors
        self._waves = at.options.waves(load)
        self._few: dict[int, Floats] = {}

    def few(self, ragged: int) -> Floats:
        """Return the times with nearly no steps of k, which are mostly those of storing C."""
        found = self._few.get(ragged)
        if found is None:
            found = self._few[ragged] = self._at.options.lines[ragged].few(self._waves)
        return found

    def steps(self, ragged: int) -> Floats:
        """Return the times of the steps of k.

        Where arithmetic is the limit, the multiprocessor with most blocks is no faster than one with many, whatever the
        factors of a layout say.
        """
        lines, load = self._at.lines(ragged), self._load
        found = lines.steps(self._waves, self.few(ragged))
        found *= self._factors.at(load, ragged)
        steady = lines.per_block * self._factors.heavy[ragged]
        steady *= np.ceil(load)
        np.maximum(found, steady, out=found, where=load > 1.0)
        return found

    def alone(self, ragged: int) -> Floats:
        """Return the times of the steps of k at the lightest load."""
        alone: Floats = self._at.lines(ragged).alone * self._factors.light[ragged]
        return alone


def mixed(times: Callable[[int], Floats], share: Floats | float) -> Floats:
    """Return the mean of the times of aligned and of ragged operands, given the share of the latter."""
    if isinstance(share, float) and share in (0.0, 1.0):
        return times(int(share))
    found: Floats = (1.0 - share) * times(0) + share * times(1)
    return found
