"""Predicting the times of many configs on a problem at once, from their curves. ``docs/tuning.md`` explains the rule.

At a given load, the blocks of a grid over the multiprocessors, the time of a config is a straight line in K with a
bend; `fastsgemm.heuristics.curve_fit` gives the lines. A prediction is arithmetic on NumPy arrays with an element for
each config and each number of parts of K, so that a call on a new shape waits for about a hundred array operations and
not for Python functions of each config. All configs go through the same arithmetic, whatever their rung.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from fastsgemm.heuristics.option_arrays import FEWER, PARTS, AtK, Configs, InWaves, Options, least_depth, ragged_ends
from fastsgemm.heuristics.probes import TRANSACTION
from fastsgemm.problem import Problem

_MOST_WAVES = 8  # of blocks that split-K makes
# Two predicted times that differ by less are equal: the model errs more than that.
CLOSE = 1.02
_MOST_ANSWERS = 16  # values of K of which a model keeps what it computed; dropping what is long unused takes longer
# Extents of which a model keeps what no layout changes. A problem whose operands may be packed is looked at in several
# layouts, with its own extents and with multiples of 4.
_MOST_EXTENTS = 2
_MOST_CONFIGS = 4096  # that are kept, because making one takes longer than predicting its time

_Key = tuple[int, tuple[int, ...]]  # how many of `PARTS`, and the kinds of operands


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
        The fitted numbers of the device's architecture: when sums get partial accumulators, and what it takes to add
        up parts of K.
    """

    def __init__(self, fits: Sequence[Fit], multiprocessors: float, shared_limit: int, fitted: Fitted) -> None:
        self._every = Configs(fits, shared_limit, fitted, _MOST_WAVES * multiprocessors)
        self._sms = multiprocessors
        self._shared_limit = shared_limit
        self._fitted = fitted
        self._options: dict[_Key, Options] = {}
        self._at: dict[tuple[_Key, int, int | None], AtK] = {}
        self._waves: dict[tuple[AtK, int, int, int], InWaves] = {}

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
            quickest = None
            for one in self._ranked(problem):
                if not _splits_few(problem, one):
                    return one
                quickest = quickest or one
            return quickest
        ms = self._times(problem)
        least = ms.item(ms.argmin())
        if least == np.inf:
            return None
        close = (ms <= CLOSE * least).nonzero()[0].tolist()
        place = min(close, key=lambda place: (place % self._every.count, ms[place]))
        return self.prediction(problem, place, ms.item(place))

    def ranking(self, problem: Problem) -> list[Prediction]:
        """Return each config with the SPLIT_K that gives its least time, the best first."""
        ranked = self._ranked(problem)
        return sorted(ranked, key=lambda one: _splits_few(problem, one))

    def _ranked(self, problem: Problem) -> Iterator[Prediction]:
        """Yield each config with the SPLIT_K that gives its least time, the quickest first."""
        ms = self._times(problem)
        seen: set[int] = set()
        for place in np.lexsort((np.arange(len(ms)) % self._every.count, ms)).tolist():
            column = place % self._every.count
            if column not in seen and ms[place] < np.inf:
                seen.add(column)
                yield self.prediction(problem, place, float(ms[place]))

    def times(self, problem: Problem) -> list[tuple[Fit, int, float]]:
        """Return config, parts of K and predicted time in ms of every option, without the cost of accumulators."""
        found = []
        for place, ms in enumerate(self._times(problem, accumulators=False).tolist()):
            row, column = divmod(place, self._every.count)
            if ms < np.inf:
                found.append((self._every.fits[column], PARTS[row], ms))
        return found

    def prediction(self, problem: Problem, place: int, ms: float) -> Prediction:
        """Return the option at a place in the order of parts of K, then of configs."""
        row, column = divmod(place, self._every.count)
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
        at = self._at_k(problem, 1)
        return self._with_accumulators(problem, at, self._times_at(problem, at, _in_waves(problem, at, tiles)))

    def in_parts(self, problem: Problem, steps: int) -> list[float]:
        """Return the predicted time in ms of every config with K in parts of so many steps, or in one part.

        It is infinite where a grid cannot have as many blocks.
        """
        one = steps >= problem.K
        at = self._at_k(problem, 1, None) if one else self._at_k(problem, 2, steps)
        ms = self._times_at(problem, at, _in_waves(problem, at, self._tiles(problem)))
        last: list[float] = ms[-self._every.count :].tolist()
        return last

    def _at_k(self, problem: Problem, rows: int, part: int | None = None) -> AtK:
        key = rows, self._kinds(problem)
        found = self._at.get((key, problem.K, part))
        if found is None:
            if len(self._at) >= _MOST_ANSWERS:
                self._at.clear()
            found = self._at[key, problem.K, part] = AtK(self._with(key), problem.K, self._sms, part)
        return found

    def _with(self, key: _Key) -> Options:
        found = self._options.get(key)
        if found is None:
            found = self._options[key] = Options(self._every, *key)
        return found

    def _kinds(self, problem: Problem) -> tuple[int, ...]:
        """Return the kinds of operands whose times a prediction needs: 0 for aligned, 1 for ragged ones, or both."""
        of_a, of_b = ragged_ends(problem)
        of_c, turned = problem.N % TRANSACTION, problem.M % TRANSACTION
        if not self._every.any_narrow:
            turned = of_c
        if not (of_a or of_b or of_c or turned):
            return (0,)
        return (1,) if of_a and of_b and of_c and turned and of_a != 2 != of_b else (0, 1)

    def _tiles(self, problem: Problem) -> Floats:
        """Return the number of tiles of C for each config; the products of a batch share the multiprocessors."""
        tall, wide = self._every.extents[problem.N < problem.M]
        count: Floats = np.ceil(problem.M / tall) * np.ceil(problem.N / wide) * problem.batch
        return count

    def _times(self, problem: Problem, accumulators: bool = True) -> Floats:
        """Return the times of all options, in the order of parts of K, then of configs.

        A time is infinite where the option is not considered, or where a grid cannot have as many blocks.
        """
        tiles = self._tiles(problem)
        at = self._at_k(problem, self._every.rows(problem.K, tiles))
        key = at, problem.M, problem.N, problem.batch
        waves = self._waves.get(key)
        if waves is None:
            if len(self._waves) >= _MOST_EXTENTS:
                self._waves.clear()
            waves = self._waves[key] = _in_waves(problem, at, tiles)
        ms = self._times_at(problem, at, waves)
        if accumulators:
            ms = self._with_accumulators(problem, at, ms)
        if at.options.split:
            np.putmask(ms, at.options.left_out(problem.K, waves.tiles), np.inf)
        return ms

    def _with_accumulators(self, problem: Problem, at: AtK, ms: Floats) -> Floats:
        """Return times with the cost of the chains that the sums of the problem need."""
        needed = partial_accumulators.chains_needed(problem, self._fitted)
        return ms * at.slowdown(needed, at.options.layout(problem)) if needed > 1 else ms

    def _times_at(self, problem: Problem, at: AtK, waves: InWaves) -> Floats:
        """Return the time of options; infinite where a grid cannot have as many blocks."""
        M, N, every, options = problem.M, problem.N, self._every, at.options
        layout = options.layout(problem)
        ms = options.mixed(at.steps(waves, layout), problem)
        guard = every.guard(M, N, layout.swap_ab)
        if guard is not None:
            ms *= guard.take(options.of)
        if every.any_shared:
            shared = ms * every.unshared(min(M, N)).take(options.of)
            # Few blocks do not saturate the memory, so sharing reads saves them nothing.
            np.maximum(shared, options.mixed(at.alone(layout), problem), out=shared)
            np.minimum(ms, shared, out=ms)
        if layout.line_bytes is not None and len(options.thin):
            sectors = options.sectors(problem, layout.line_bytes, waves.tiles)
            ms[options.thin] = np.maximum(ms[options.thin], sectors)
        ms += options.stored(waves.few, problem, layout.swap_ab)
        np.maximum(ms, at.reading(layout, (M + N) * problem.batch), out=ms)
        if options.split:
            at.add_reduction(ms, 4.0 * M * N * problem.batch)
        if _many(problem):
            np.putmask(ms, waves.tiles > MAX_BLOCKS, np.inf)
        return ms


def _many(problem: Problem) -> bool:
    """Whether a grid may have more blocks than there can be."""
    return problem.M * problem.N * problem.batch > MAX_BLOCKS


def _in_waves(problem: Problem, at: AtK, tiles: Floats) -> InWaves:
    """Return what times take from K and the tiles of each config."""
    tiles = tiles.take(at.options.of)
    if _many(problem):  # beyond 2^53 blocks, a float64 does not say how many are in the last wave
        np.minimum(tiles, MAX_BLOCKS + 1.0, out=tiles)
    return at.in_waves(tiles)


def _splits_few(problem: Problem, one: Prediction) -> bool:
    return partial_accumulators.splits_few(one.fit.rung, one.config, with_swap_ab(one.fit.rung, problem))
