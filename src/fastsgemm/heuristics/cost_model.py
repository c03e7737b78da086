"""Predicting the times of many configs on a problem at once, from their curves. ``docs/tuning.md`` explains the rule.

At a given load, the blocks of a grid over the multiprocessors, the time of a config is a straight line in K with a
bend; `fastsgemm.heuristics.curve_fit` gives the lines. A prediction is arithmetic on NumPy arrays with an element for
each number of parts of K and each config, so that a call on a new shape waits for about a hundred array operations and
not for Python functions of each config. All configs go through the same arithmetic, whatever their rung.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fastsgemm.config import Config
from fastsgemm.geometry.grid import MAX_BLOCKS, tiles
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import partial_accumulators
from fastsgemm.heuristics.curve_fit import Fit
from fastsgemm.heuristics.database_entries import Fitted
from fastsgemm.heuristics.line_arrays import Floats
from fastsgemm.heuristics.option_arrays import FEWER, PARTS, AtK, AtLoad, Configs, Options, least_depth, mixed
from fastsgemm.heuristics.probes import STACKED
from fastsgemm.problem import Problem

_MOST_WAVES = 8  # of blocks that split-K makes
# Two predicted times that differ by less are equal: the model errs more than that.
CLOSE = 1.02
_MOST_DEPTHS = 32  # values of K, of which a model keeps what depends on K alone
_MOST_CONFIGS = 4096  # that are kept, because making one takes longer than predicting its time


def splits(config: Config, problem: Problem, multiprocessors: float) -> list[int]:
    """Return the numbers of parts of K to consider: 1, and 2^i and 3 * 2^i while there are few blocks.

    Parameters
    ----------
    config : Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.with_swap_ab`.
    multiprocessors : int
    """
    count, deep = tiles(config, problem) * problem.batch, least_depth(config)
    return [
        parts
        for fewer, parts in zip(FEWER, PARTS, strict=True)
        if parts == 1 or (fewer * count < _MOST_WAVES * multiprocessors and parts * deep <= problem.K)
    ]


@lru_cache(maxsize=_MOST_CONFIGS)
def _in_parts(config: Config, parts: int) -> Config:
    return config.replace(SPLIT_K=parts)


class Prediction(NamedTuple):
    """One config on a problem.

    Attributes
    ----------
    ms : float
        Predicted device time, the reduction of split-K included.
    config : Config
        With the SPLIT_K that this time is for, and partial accumulators where the problem needs them.
    fit : Fit
    """

    ms: float
    config: Config
    fit: Fit


class CostModel:
    """Predicts the times of configs on one device.

    Parameters
    ----------
    fits : sequence of Fit
        At least one, the most useful first.
    multiprocessors : float
        Of the device.
    shared_limit : int
        Shared memory that a block may opt in to on the device, in bytes.
    fitted : Fitted
        The fitted numbers of the device's architecture, which say when sums get partial accumulators.
    """

    def __init__(self, fits: Sequence[Fit], multiprocessors: float, shared_limit: int, fitted: Fitted) -> None:
        self._every = Configs(fits, shared_limit, fitted)
        self._sms = multiprocessors
        self._most_blocks = _MOST_WAVES * multiprocessors
        self._shared_limit = shared_limit
        self._fitted = fitted
        self._options: dict[tuple[int, ...], Options] = {}
        self._at: dict[tuple[int, int], AtK] = {}

    def best(self, problem: Problem) -> Prediction | None:
        """Return the best config, or None if no config has a grid for the problem.

        Of the configs whose predicted time is close to the least, the best is the one that comes first. So problems of
        similar shapes share kernels, and fewer have to be compiled.

        Parameters
        ----------
        problem : Problem
            As the caller passes it.
        """
        if problem.K <= partial_accumulators.FEW:
            return next(iter(self.ranking(problem)), None)
        ms = self._times(problem)
        least = float(np.minimum.reduce(ms))
        if least == np.inf:
            return None
        close = (ms <= CLOSE * least).nonzero()[0].tolist()
        place = min(close, key=lambda place: (place % len(self._every.fits), ms[place]))
        return self.prediction(problem, place, float(ms[place]))

    def ranking(self, problem: Problem) -> list[Prediction]:
        """Return each config with the SPLIT_K that gives its least time, the best first."""
        ms = self._times(problem).reshape(-1, len(self._every.fits))
        places = ms.argmin(axis=0) * ms.shape[1] + np.arange(ms.shape[1])
        found = ((int(place), float(ms.flat[place])) for place in places)
        ranked = [self.prediction(problem, place, least) for place, least in found if least < np.inf]
        return sorted(ranked, key=lambda one: (_splits_few(problem, one), one.ms))

    def times(self, problem: Problem) -> list[tuple[Fit, int, float]]:
        """Return config, parts of K and predicted time in ms of every option, without the cost of accumulators."""
        found = []
        for place, ms in enumerate(self._times(problem, accumulators=False).tolist()):
            row, column = divmod(place, len(self._every.fits))
            if ms < np.inf:
                found.append((self._every.fits[column], PARTS[row], ms))
        return found

    def prediction(self, problem: Problem, place: int, ms: float) -> Prediction:
        """Return the option at a place in the order of `_times`: parts of K, then configs."""
        row, column = divmod(place, len(self._every.fits))
        fit = self._every.fits[column]
        config = _in_parts(fit.curve.config, PARTS[row]) if row else fit.curve.config
        faced = with_swap_ab(fit.rung, problem)
        return Prediction(ms, partial_accumulators.shortened(config, faced, self._shared_limit, self._fitted), fit)

    @property
    def fits(self) -> tuple[Fit, ...]:
        """The configs, the most useful first."""
        return self._every.fits

    @property
    def tile(self) -> tuple[Floats, Floats]:
        """BM and BN of every config."""
        return self._every.extents[False]

    def of_tiles(self, problem: Problem, tiles: Floats) -> Floats:
        """Return the predicted time in ms of every config with K in one part, if it computed so many tiles of C."""
        at = self._at_k(problem.K, 1)
        return self._with_accumulators(problem, at, self._times_at(problem, at, tiles))

    def in_parts(self, problem: Problem, steps: int) -> list[float]:
        """Return the predicted time in ms of every config with K in parts of so many steps, or in one part.

        It is infinite where a grid cannot have as many blocks.
        """
        one = steps >= problem.K
        options = self._with((1,) if one else (2,))
        at = AtK(options, problem.K, self._sms, None if one else steps)
        ms: list[float] = self._times_at(problem, at, self._tiles(problem)[options.of]).tolist()
        return ms

    def _with(self, numbers: tuple[int, ...]) -> Options:
        """Return the options with these numbers of parts."""
        if numbers not in self._options:
            self._options[numbers] = Options(self._every, numbers, self._most_blocks)
        return self._options[numbers]

    def _at_k(self, K: int, rows: int) -> AtK:
        found = self._at.get((K, rows))
        if found is None:
            if len(self._at) >= _MOST_DEPTHS:
                self._at.clear()
            found = self._at[K, rows] = AtK(self._with(tuple(PARTS[:rows])), K, self._sms)
        return found

    def _tiles(self, problem: Problem) -> Floats:
        """Return the number of tiles of C for each config; the products of a batch share the multiprocessors."""
        tall, wide = self._every.extents[problem.N < problem.M]
        count: Floats = np.ceil(problem.M / tall) * np.ceil(problem.N / wide) * problem.batch
        return count

    def _times(self, problem: Problem, accumulators: bool = True) -> Floats:
        """Return the time of each option; infinite where the problem rules it out.

        Options are in the order of parts, then of configs. As many numbers of parts are looked at as the config with
        the fewest tiles allows.
        """
        count = self._tiles(problem)
        rows = bisect_left(FEWER, self._most_blocks / float(np.minimum.reduce(count)))
        at = self._at_k(problem.K, min(rows, self._every.most_rows(problem.K)))
        if at.options.split:
            count = count.take(at.options.of)
        ms = self._times_at(problem, at, count)
        if at.options.split:
            np.putmask(ms, count >= at.most_tiles, np.inf)
        return self._with_accumulators(problem, at, ms) if accumulators else ms

    def _with_accumulators(self, problem: Problem, at: AtK, ms: Floats) -> Floats:
        """Return times with the cost of the partial accumulators that the problem needs.

        They are infinite where a sum would still have too few chains, if any option has enough.
        """
        needed = partial_accumulators.chains_needed(problem, self._fitted)
        if needed == 1:
            return ms
        slowdown, short = at.slowdown(needed, problem.layout)
        ms = ms * slowdown
        accurate: Floats = np.where(short, np.inf, ms)
        return accurate if np.minimum.reduce(accurate) < np.inf else ms

    def _times_at(self, problem: Problem, at: AtK, count: Floats) -> Floats:
        """Return the time of options with so many tiles each; infinite where a grid cannot have as many."""
        M, N, every, options = problem.M, problem.N, self._every, at.options
        swap_ab = N < M  # on the rungs for few rows
        large = M * N * problem.batch > MAX_BLOCKS
        if large:  # beyond 2^53 blocks, a float64 does not say how many are in the last wave
            count = np.minimum(count, MAX_BLOCKS + 1.0)
        at_load = AtLoad(at, count / at.sms, options.factors(problem.layout, swap_ab))
        share = options.ragged_share(problem)
        ms = mixed(at_load.steps, share)
        if min(M, N) < every.largest:
            tall, wide = every.extents[swap_ab]
            ms = ms * np.where((tall > M) | (wide > N), every.guard, 1.0)[options.of]
        if every.any_shared:
            high = np.minimum(np.ceil(min(M, N) / every.extents[False][0]), STACKED)
            shared = (every.shared * (1.0 - 1.0 / high))[options.of]
            alone = mixed(at_load.alone, share)
            # Few blocks do not saturate the memory, so sharing reads saves them nothing.
            ms = np.minimum(ms, np.maximum(ms * (1.0 - shared), alone))
        ms += options.stored(at_load.few, problem, swap_ab)
        np.maximum(ms, 4.0 * (M + N) * problem.batch * at.per_byte, out=ms)
        if options.split:
            ms += at.reduction(4.0 * M * N * problem.batch)
        if large:
            np.putmask(ms, count > MAX_BLOCKS, np.inf)
        return ms


def _splits_few(problem: Problem, one: Prediction) -> bool:
    return partial_accumulators.splits_few(one.fit.rung, one.config, with_swap_ab(one.fit.rung, problem))
