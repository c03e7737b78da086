"""Predicting the times of many configs on a problem at once, from their curves. ``docs/tuning.md`` explains the rule.

At a given load, the blocks of a grid over the multiprocessors, the time of a config is a straight line in K with a bend;
`fastsgemm.heuristics.curve_fit` gives the lines. A prediction is arithmetic on NumPy arrays with an element for each
config and each number of parts of K, so that a call on a new shape waits for some sixty array operations and not for a
Python function per config. All configs go through the same arithmetic, whatever their rung.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastsgemm.config import Config
from fastsgemm.geometry.grid import MAX_BLOCKS, tiles
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import database, partial_accumulators, probes
from fastsgemm.heuristics.curve_fit import Fit, Line
from fastsgemm.heuristics.database_entries import Fitted
from fastsgemm.heuristics.probes import SPARSE, STACKED, STEADY, TINY, TRANSACTION
from fastsgemm.problem import Problem

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

# Limits of split-K: most parts, and most waves of blocks.
_MOST_PARTS, _MOST_WAVES = 256, 8
_PARTS = np.array(sorted({1, *(base << i for base in (2, 3) for i in range(8) if base << i <= _MOST_PARTS)}))
_FEWER_PARTS = np.array([0, *_PARTS[:-1]])  # the number before each of them
# Extra cost of 8-byte loads relative to that of 4-byte loads: twice the loads of 16 bytes, not four times.
_PAIRED = 1 / 3
_LEAST_REST = 1e-9  # of a load: a last wave of less is none
_MOST_DEPTHS = 32  # values of K of which a model keeps what depends on K alone
_FEW_STEPS = 4  # of k, up to which sharing out a sum may be ruled out; see `partial_accumulators.splits_few`


def splits(config: Config, problem: Problem, multiprocessors: float) -> list[int]:
    """Return the numbers of parts of K to consider: 1, and 2^i and 3 * 2^i while there are few blocks.

    Parameters
    ----------
    config : Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.with_swap_ab`.
    multiprocessors : int
    """
    count, deep = tiles(config, problem), _least_depth(config)
    few = _FEWER_PARTS * count < _MOST_WAVES * multiprocessors
    return _PARTS[few & (_PARTS * deep <= problem.K) | (_PARTS == 1)].tolist()


def _least_depth(config: Config) -> int:
    """Return the least steps of k of a part."""
    return config.tile_k * probes.form(config).least_tiles


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
        At least one.
    multiprocessors : float
        Of the device.
    shared_limit : int
        Shared memory that a block may opt in to on the device, in bytes.
    fitted : Fitted
        The fitted numbers of the device's architecture, which say when sums get partial accumulators.
    """

    def __init__(self, fits: Sequence[Fit], multiprocessors: float, shared_limit: int, fitted: Fitted) -> None:
        self._configs = _Configs(fits, shared_limit, fitted)
        self._sms = multiprocessors
        self._shared_limit = shared_limit
        self._fitted = fitted
        self._options: dict[int, _Options] = {}

    def best(self, problem: Problem) -> Prediction | None:
        """Return the config with the least predicted time, or None if no config has a grid for the problem.

        Parameters
        ----------
        problem : Problem
            As the caller passes it.
        """
        ms = self._times(problem)
        entry = int(ms.argmin())
        if problem.K <= _FEW_STEPS:
            entry = min(range(len(ms)), key=lambda one: (self._splits_few(problem, one), ms[one]))
        return self._prediction(problem, entry, float(ms[entry])) if ms[entry] < np.inf else None

    def ranking(self, problem: Problem) -> list[Prediction]:
        """Return each config with the SPLIT_K that gives its least time, the best first."""
        ms, of = self._times(problem), self._at(problem.K).configs
        best: dict[int, int] = {}
        for entry in ms.argsort(kind="stable").tolist():
            if ms[entry] < np.inf:
                best.setdefault(int(of[entry]), entry)
        order = sorted(best.values(), key=lambda entry: (self._splits_few(problem, entry), ms[entry]))
        return [self._prediction(problem, entry, float(ms[entry])) for entry in order]

    def times(self, problem: Problem) -> list[tuple[Fit, int, float]]:
        """Return config, parts of K and predicted time in ms of every option, without the cost of accumulators."""
        ms, at = self._times(problem, accumulators=False), self._at(problem.K)
        found = zip(at.configs.tolist(), at.parts.tolist(), ms.tolist(), strict=False)
        return [(self._configs.fits[of], int(parts), time) for of, parts, time in found if time < np.inf]

    def _prediction(self, problem: Problem, entry: int, ms: float) -> Prediction:
        at = self._at(problem.K)
        fit, parts = self._configs.fits[at.configs[entry]], int(at.parts[entry])
        config = fit.curve.config if parts == 1 else fit.curve.config.replace(SPLIT_K=parts)
        faced = with_swap_ab(fit.rung, problem)
        return Prediction(ms, partial_accumulators.shortened(config, faced, self._shared_limit, self._fitted), fit)

    def _splits_few(self, problem: Problem, entry: int) -> bool:
        fit = self._configs.fits[self._at(problem.K).configs[entry]]
        return partial_accumulators.splits_few(fit.rung, fit.curve.config, with_swap_ab(fit.rung, problem))

    def _at(self, K: int) -> _Options:
        found = self._options.get(K)
        if found is None:
            if len(self._options) >= _MOST_DEPTHS:
                self._options.clear()
            found = self._options[K] = _Options(self._configs, K, self._sms)
        return found

    def _times(self, problem: Problem, accumulators: bool = True) -> Floats:
        """Return the time of each option for K; infinite where M and N rule it out, and the last ones left out if so.

        The axes of the arrays are, from the last: options or configs; aligned and ragged operands.
        """
        M, N = problem.M, problem.N
        every, at = self._configs, self._at(problem.K)
        swap_ab = N < M  # on the rungs for few rows
        tall, wide = every.extents[swap_ab]
        count = np.ceil(M / tall) * np.ceil(N / wide)
        end = at.end(_MOST_WAVES * self._sms / float(count.min()))
        of = at.configs[:end]
        factors = every.factors(problem.layout, swap_ab)
        share = every.ragged_share(problem)

        waves = _Waves(count[of] / at.sms[:end], at, end)
        stored = waves.time(at.tiny)
        read = waves.time(at.deep) - stored
        if factors is not None:
            factor = factors.at(waves.load, of)
            stored, read = stored * factor, read * factor
        read = _mixed(read, share, of) * np.where((tall > M) | (wide > N), every.guard, 1.0)[of]
        if every.any_shared:
            alone = at.alone[:, :end] if factors is None else at.alone[:, :end] * factors.light[:, of]
            high = np.minimum(np.ceil(min(M, N) / every.extents[False][0]), STACKED)
            shared = (every.shared * (1.0 - 1.0 / high))[of]
            # Few blocks do not saturate the memory, so sharing reads saves them nothing.
            read = np.minimum(read, np.maximum(read * (1.0 - shared), _mixed(alone, share, of)))
        stored = every.as_stored(stored, problem, swap_ab, of)
        ms = np.maximum(stored + read, 4.0 * (M + N) * at.per_byte[:end])
        ms += at.reduction[:end] + 4.0 * M * N * at.reduction_per_byte[:end]
        if accumulators:
            ms *= at.slowdown(partial_accumulators.is_long(problem, self._fitted))[:end]
        ms[(at.fewer[:end] * count[of] >= _MOST_WAVES * self._sms) | (count[of] > MAX_BLOCKS)] = np.inf
        return ms


class _Waves:
    """Whole waves of blocks, and the load of the last one."""

    def __init__(self, load: Floats, at: _Options, end: int) -> None:
        full = at.full[:end]
        self.load = load
        self._end = end
        self._over = load > full
        whole = np.floor(load / full) * self._over
        rest = load - whole * full
        self._more = np.maximum(whole - 1.0, 0.0)
        self._rest = rest > _LEAST_REST
        # A last wave takes as long as its multiprocessor with most blocks. Between the two lightest loads, times are
        # interpolated: `_below` is the share of the lightest one.
        self._place = (at.place[:end] + np.maximum(np.ceil(rest), 1.0)).astype(np.intp)
        self._below = np.minimum(np.maximum((1.0 - rest) * (SPARSE / (SPARSE - 1)), 0.0), 1.0)

    def time(self, lines: _Times) -> Floats:
        """Return the time of all waves at one depth."""
        end = self._end
        last = lines.at(self._place) + self._below * lines.lighter[:, :end]
        part = np.where(self._over, lines.ratio[:, :end] * self._rest, 1.0)
        return self._over * lines.first[:, :end] + self._more * lines.wave[:, :end] + part * last


class _Times:
    """Times of options at one depth of K each, for aligned and for ragged operands.

    Attributes
    ----------
    first, wave : array
        Of a full wave, and of each further one.
    ratio : array
        Of a further wave, relative to the first.
    lightest, lighter : array
        Of the lightest load, and how much that is less than of a load of 1.
    """

    def __init__(self, lines: Floats, powers: Floats, place: Places, full: Places) -> None:
        self._lines, self._powers = lines, powers
        self.first, steady, one, self.lightest = (self.at(place + n) for n in (full, full + 1, 1, 0))
        self.wave = np.maximum(steady - self.first, 0.0) / (STEADY - 1)
        self.ratio = np.divide(self.wave, self.first, out=np.zeros_like(self.wave), where=self.first != 0.0)
        self.lighter = self.lightest - one

    def at(self, place: Places) -> Floats:
        """Return the times of the first options at these places of the table of lines."""
        found: Floats = (self._lines.take(place, axis=2) * self._powers[..., : len(place)]).sum(axis=0)
        return found


class _Configs:
    """The fits of many configs as arrays, with an element for each config.

    The lines of a config are kept at each whole load up to a full wave, where those between two measured loads are
    interpolated. Index 0 has the lightest load, and the one after a full wave the heaviest.
    """

    def __init__(self, fits: Sequence[Fit], shared_limit: int, fitted: Fitted) -> None:
        self.fits = tuple(fits)
        configs = [fit.curve.config for fit in fits]
        self.narrow = np.array([fit.rung.narrow for fit in fits])
        BM, BN = _floats(c.BM for c in configs), _floats(c.BN for c in configs)
        turned = np.where(self.narrow, BN, BM), np.where(self.narrow, BM, BN)
        self.extents = {False: (BM, BN), True: turned}  # rows and columns of a tile of the caller's C, by swap_ab
        self.pairs = np.array([fit.rung.pairs for fit in fits])
        self.guard = _floats(fit.guard for fit in fits)
        self.shared = _floats(fit.shared for fit in fits)
        self.any_shared = bool(self.shared.any())
        self.tile = _floats(c.tile_k for c in configs)
        splits = (_least_depth(fit.curve.config) if fit.rung.splits else np.inf for fit in fits)
        self.least_depth = _floats(splits)
        self.tail = _floats(fit.tail[0] for fit in fits), _floats(fit.tail[1] for fit in fits)
        self.tiny = _floats(fit.depth(TINY) for fit in fits)
        self.full = _floats(fit.curve.blocks_per_sm for fit in fits)
        self.bandwidth = _floats(fit.bandwidth for fit in fits)
        of_arch = [database.fitted(fit.curve.arch) for fit in fits]
        self.reduction_ms = _floats(one.reduction_ms for one in of_arch)
        self.reduction_rate = _floats(one.reduction_bytes_per_ms for one in of_arch)
        self.bends = _floats(fit.probes.bend for fit in fits), _floats(fit.probes.shallow for fit in fits)
        tables = [_whole_loads(fit) for fit in fits]
        self.lines = np.concatenate(tables, axis=2)
        self.place = np.cumsum([0, *(table.shape[2] for table in tables[:-1])])
        of_place = np.repeat(np.arange(len(fits)), [table.shape[2] for table in tables])
        self.tiny_lines = (self.lines * self.powers(of_place, self.tiny[of_place])).sum(axis=0)[None]
        self.slowdown = np.array([_slowdown(c, shared_limit, fitted) for c in configs]).T
        self._factors: dict[tuple[str, bool], _Factors] = {}

    def powers(self, of: Places, depth: Floats) -> Floats:
        """Return what the four rows of `lines` are multiplied by at a depth of K."""
        near, shallow = self.bends
        rows = np.ones_like(depth), depth, np.minimum(depth - near[of], 0.0), np.minimum(depth - shallow[of], 0.0)
        return np.stack(rows)[:, None]

    def ragged_share(self, problem: Problem) -> Floats | float:
        """Return the share of A and B that cannot be read 16 bytes at a time, if they are dense."""
        lines = (
            problem.M if problem.layout[0] == "T" else problem.K,
            problem.K if problem.layout[1] == "T" else problem.N,
        )
        plain = sum(line % TRANSACTION != 0 for line in lines) / len(lines)
        paired = sum((line % TRANSACTION != 0) * (1.0 if line % 2 else _PAIRED) for line in lines) / len(lines)
        return plain if plain == paired else np.where(self.pairs, paired, plain)

    def factors(self, layout: str, swap_ab: bool) -> _Factors | None:
        """Return the times of a layout relative to those of NN, or None if all are 1."""
        if layout == "NN" and not swap_ab:
            return None
        found = self._factors.get((layout, swap_ab))
        if found is None:
            turned = Problem(1, 1, 1, layout).transposed.layout if swap_ab else layout
            faced = [fit.layouts.get(turned if fit.rung.narrow else layout, _NO_FACTORS) for fit in self.fits]
            found = self._factors[layout, swap_ab] = _Factors(np.array(faced).transpose(2, 1, 0), self.full)
        return found

    def as_stored(self, times: Floats, problem: Problem, swap_ab: bool, of: Places) -> Floats:
        """Return the times of aligned operands where rows of C can be stored 16 bytes at a time, else of ragged ones."""
        ragged, turned = problem.N % TRANSACTION != 0, problem.M % TRANSACTION != 0
        if not swap_ab or ragged == turned:
            return times[int(ragged)]
        return np.where(self.narrow[of], times[int(turned)], times[int(ragged)])


class _Factors:
    """Times of a layout relative to those of NN, which change with the logarithm of the load up to a full wave."""

    def __init__(self, light_and_heavy: Floats, full: Floats) -> None:
        self.light, heavy = light_and_heavy
        self._more = heavy - self.light
        self._per_log = np.divide(1.0, np.log(full), out=np.zeros_like(full), where=full > 1.0)

    def at(self, load: Floats, of: Places) -> Floats:
        """Return the factors at these loads."""
        share = np.minimum(np.maximum(np.log(load) * self._per_log[of], 0.0), 1.0)
        return self.light[:, of] + self._more[:, of] * share


class _Options:
    """What the prediction of configs with each number of parts of K takes from K alone.

    Options are in the order of parts, then of configs, because a large C rules out all from some number of parts on.

    Attributes
    ----------
    configs, parts, fewer : array of int
        Index of the config, the parts of K, and the number of parts before this one.
    sms : array
        Multiprocessors for each part.
    tiny, deep : _Times
        With a K of nearly no steps, and with those of a part.
    alone : array
        Time of reading A and B at the lightest load.
    per_byte : array
        Steps of a part relative to the bandwidth.
    reduction, reduction_per_byte : array
        Cost of the second kernel in ms, and for each byte of C.
    """

    def __init__(self, every: _Configs, K: int, multiprocessors: float) -> None:
        allowed = (_PARTS[:, None] * every.least_depth <= K) | (_PARTS[:, None] == 1)
        part, of = np.nonzero(allowed)
        self._ends = np.cumsum(allowed.sum(axis=1)).tolist()
        self.configs, self.parts, self.fewer = of, _PARTS[part], _FEWER_PARTS[part]
        tile = every.tile[of]
        steps = np.ceil(K / (tile * self.parts)) * tile  # of a part
        count = np.ceil(K / steps)
        whole = count == 1
        steps[whole] = K
        once, each = every.tail
        rest = steps % tile
        depth = steps - rest + (rest > 0) * (once[of] + each[of] * rest)
        # A whole tile of few steps has fewer than a ragged one counts as.
        np.maximum(depth, every.tiny[of], out=depth, where=steps >= TINY)
        self.sms = multiprocessors / count
        self.full, self.place = every.full[of], every.place[of]
        full = self.full.astype(np.intp)
        self.deep = _Times(every.lines, every.powers(of, depth), self.place, full)
        self.tiny = _Times(every.tiny_lines, np.ones((1, 1, len(of))), self.place, full)
        self.alone = self.deep.lightest - self.tiny.lightest
        self.per_byte = steps / every.bandwidth[of]
        self.reduction = np.where(whole, 0.0, every.reduction_ms[of])
        self.reduction_per_byte = np.where(whole, 0.0, (count + 2) / every.reduction_rate[of])
        short, long, least = every.slowdown[:, of]
        self._slowdown = short, np.where(count < least, long, short)

    def end(self, limit: float) -> int:
        """Return how many options have less than `limit` parts fewer than theirs."""
        end: int = self._ends[int(np.searchsorted(_FEWER_PARTS, limit)) - 1]
        return end

    def slowdown(self, long: bool) -> Floats:
        """Return the cost of the partial accumulators that options get if the sums of the problem are long."""
        return self._slowdown[long]


_NO_FACTORS = ((1.0, 1.0), (1.0, 1.0))  # of NN


def _whole_loads(fit: Fit) -> Floats:
    """Return start, slope and both bends of the lines of a config, at each whole load, for both kinds of operands.

    The result has the shape (4, 2, loads): the lightest load, 1, 2 and so on up to a full wave, and the heaviest.
    """
    measured = probes.loads(fit.curve.blocks_per_sm)
    rows = np.array([[_row(fit, line) for line in lines] for lines in fit.lines])  # (2, measured loads, 4)
    loads = [measured[0], *range(1, fit.curve.blocks_per_sm + 1), measured[-1]]
    high = np.maximum(np.searchsorted(measured, loads), 1)
    low_loads, high_loads = (np.array(measured)[at] for at in (high - 1, high))
    share = ((loads - low_loads) / (high_loads - low_loads))[:, None]
    return (rows[:, high - 1] + (rows[:, high] - rows[:, high - 1]) * share).transpose(2, 0, 1)


def _row(fit: Fit, line: Line) -> tuple[float, float, float, float]:
    near = line.bend == fit.probes.bend
    return line.start, line.slope, line.extra if near else 0.0, 0.0 if near else line.extra


def _slowdown(config: Config, shared_limit: int, fitted: Fitted) -> tuple[float, float, float]:
    """Return the cost of accumulators for short and for long sums, and the parts of K that make a sum short."""
    return (
        partial_accumulators.cost(config, fitted),
        fitted.accumulators_cost,
        partial_accumulators.fewest_parts(config, shared_limit),
    )


def _mixed(times: Floats, share: Floats | float, of: Places) -> Floats:
    """Return the mean of the times of aligned and of ragged operands, given the share of the latter."""
    aligned, ragged = times
    if isinstance(share, float):
        return aligned if share == 0.0 else (1.0 - share) * aligned + share * ragged
    return (1.0 - share[of]) * aligned + share[of] * ragged


def _floats(values: Iterable[float]) -> Floats:
    return np.array([*values], np.float64)
