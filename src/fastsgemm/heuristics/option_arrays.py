"""The fits of many configs as arrays, and what a prediction takes from K alone or from K and the load.

`fastsgemm.heuristics.line_arrays` has the lines among these, and `fastsgemm.heuristics.cost_model` does the rest of the
arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastsgemm.config import Config
from fastsgemm.heuristics import database, partial_accumulators, probes
from fastsgemm.heuristics.curve_fit import Fit
from fastsgemm.heuristics.database_entries import Fitted
from fastsgemm.heuristics.line_arrays import (
    Ends,
    Floats,
    Lines,
    along,
    ends,
    floats,
    layout_factors,
    terms,
    waves,
    whole_loads,
)
from fastsgemm.heuristics.probes import TINY, TRANSACTION
from fastsgemm.problem import LAYOUTS, Problem

_MOST_PARTS = 256  # of K
PARTS = sorted({1, *(base << i for base in (2, 3) for i in range(8) if base << i <= _MOST_PARTS)})
FEWER = [0, *PARTS[:-1]]  # the number before each of them
_MOST_TAILS = 256  # of ragged last tiles, of which the cost is kept
# What a line of so many floats beyond a multiple of `TRANSACTION` costs where it is read by 8 bytes if it can be. The
# extra cost of 8-byte loads is a third of that of 4-byte loads: twice the loads of 16 bytes, not four times.
_PAIRED = (0.0, 1.0, 1 / 3, 1.0)
_SECTOR = 32  # bytes that L2 sends at least
_L2 = 1.4  # bytes that L2 sends in the time in which one is read or written to add up parts; measured on an H200


def least_depth(config: Config) -> int:
    """Return the least steps of k of a part."""
    return config.tile_k * probes.form(config).least_tiles


def _of_narrow(layout: str, swap_ab: bool) -> str:
    """Return the layout that the rungs for few rows compute, which with swap_ab is that of the transposed problem."""
    return Problem(1, 1, 1, layout).transposed.layout if swap_ab else layout


class Numbers(NamedTuple):
    """Numbers of some configs, for aligned or for ragged operands.

    Attributes
    ----------
    first : array
        The place of the line of the lightest load.
    full : array
        Blocks that fit on a multiprocessor at a time.
    least_steps : array
        What the steps of a part count as at least.
    bends : array, shape (2, configs)
        Where the lines bend.
    few : array, shape (4, configs)
        The four numbers of `fastsgemm.heuristics.line_arrays.Ends` with nearly no steps of k.
    """

    first: Floats
    full: Floats
    least_steps: Floats
    bends: Floats
    few: Floats


class Configs:
    """The fits of many configs as arrays, with an element for each config.

    The lines of a config are kept at each whole load up to a full wave, where those between two measured loads are
    interpolated. First comes the lightest load, and last the heaviest.
    """

    def __init__(self, fits: Sequence[Fit], shared_limit: int, fitted: Fitted, most_blocks: float) -> None:
        self.fits = tuple(fits)
        self.count = len(self.fits)
        configs = [fit.curve.config for fit in fits]
        self.narrow = np.array([fit.rung.narrow for fit in fits])
        self.pairs = np.array([fit.rung.pairs for fit in fits])
        self.all_pairs, self.any_narrow = bool(self.pairs.all()), bool(self.narrow.any())
        BM, BN = floats(c.BM for c in configs), floats(c.BN for c in configs)
        turned = np.where(self.narrow, BN, BM), np.where(self.narrow, BM, BN)
        self.extents = {False: (BM, BN), True: turned}  # rows and columns of a tile of the caller's C, by swap_ab
        self.largest = float(np.max(self.extents[False]))
        self.guard = floats(fit.numbers.guard for fit in fits)
        self.shared = floats(fit.numbers.shared for fit in fits)
        self.any_shared = bool(self.shared.any())
        self.tile = floats(c.tile_k for c in configs)
        self._tail = np.array([fit.numbers.tail for fit in fits]).T
        self._whole_tiles = math.lcm(*(c.tile_k for c in configs))  # a K that ends in no config's ragged tile
        self._tails = lru_cache(maxsize=_MOST_TAILS)(self._tail_steps)
        # Of every number of parts: the least steps of K, and from how many tiles of C on K is not split into so many.
        least = floats(least_depth(fit.curve.config) if fit.rung.splits else np.inf for fit in fits)
        self.of = np.tile(np.arange(self.count), len(PARTS))
        self.tile_parts = np.outer(PARTS, self.tile).ravel()
        self._least_steps = np.outer(PARTS, least)
        self._least_steps[0] = 0.0
        self._most_tiles = np.array([[np.inf], *([most_blocks / fewer] for fewer in FEWER[1:])])
        self._calibration = floats(fit.curve.calibration for fit in fits)
        # The chains of each part of K, how long they are at least with partial accumulators, and what these cost.
        self.chains = floats(map(partial_accumulators.chains_of, configs))
        self.shortest = floats(partial_accumulators.shortest(c, shared_limit) for c in configs)
        costs = np.array([fit.curve.accumulators_cost for fit in fits]).T
        self.accumulating = dict(zip(LAYOUTS, partial_accumulators.cost(costs, fitted), strict=True))
        of_arch = [database.fitted(fit.curve.arch) for fit in fits]
        # What it takes to add up parts of K: once, for each part, and for each byte of C.
        self.reduction = np.array(
            [(one.reduction_ms, one.reduction_ms_per_part, 1.0 / one.reduction_bytes_per_ms) for one in of_arch]
        ).T
        full = floats(fit.curve.blocks_per_sm for fit in fits)
        bends = np.array([(fit.probes.bend, float(fit.probes.shallow)) for fit in fits]).T
        # The depth of a K of nearly no steps is known, so its times are.
        self._few_steps = few_steps = floats(fit.depth(TINY) for fit in fits)
        # A whole tile of few steps has fewer than a ragged one counts as.
        least_steps = np.where(self.tile < TINY, 0.0, few_steps)
        self._bandwidth = np.array([fit.numbers.bandwidth for fit in fits]).T
        self._widths = [int(blocks) + 2 for blocks in full]  # places: the lightest load, 1, 2, ..., full, the heaviest
        self.lines, place = self._both_kinds(full, terms(few_steps, bends))
        twice = np.tile([full, least_steps, *bends], 2)
        self._numbers = np.concatenate([[place], twice, self.lines.few_ends])
        self._layouts = layout_factors(fits)
        self._factors: dict[tuple[str, bool], Floats] = {}
        self.thin = self.narrow & (4.0 * np.maximum(BM, BN) < _SECTOR)  # tiles of less than a sector each way
        self.line_bytes = {"N": np.full_like(BN, _SECTOR), "T": 4.0 * BN}  # of B at a step of k, for these tiles
        self.l2_bandwidth = _L2 * fitted.reduction_bytes_per_ms

    def _both_kinds(self, full: Floats, few: Floats) -> tuple[Lines, NDArray[np.intp]]:
        """Return the lines of all configs, for aligned and then for ragged operands, and the places of the first."""
        lines = whole_loads(self.fits)
        place = np.cumsum([0, *self._widths, *self._widths[:-1]])
        computes = np.tile(~self.narrow, 2)
        flat = lines.reshape(len(lines), -1)
        return Lines(flat, place, np.tile(full, 2).astype(np.intp), np.tile(few, 2), computes, self.any_shared), place

    def numbers(self, columns: NDArray[np.intp]) -> Numbers:
        """Return the numbers of some configs, whose places are higher by `count` for ragged operands."""
        found = self._numbers.take(columns, axis=1)
        first, full, least_steps = found[:3]
        return Numbers(first, full, least_steps, bends=found[3:5], few=found[5:])

    def bandwidth(self, layout: str, tall: bool) -> Floats:
        """Return the bytes of A and B that a ms reads, at most, for a C of more rows than columns or not."""
        of_narrow = 2 + (_of_narrow(layout, tall)[1] == "T")
        of_others = int(layout[0] == "T") if tall else 2 + (layout[1] == "T")
        found: Floats = np.where(self.narrow, self._bandwidth[of_narrow], self._bandwidth[of_others])
        return found

    def depth(self, K: int) -> Floats:
        """Return K with the steps of a ragged last tile weighted by what they cost."""
        depth = self._tails(K % self._whole_tiles) + K
        return np.maximum(depth, self._few_steps, out=depth) if K >= TINY else depth

    def _tail_steps(self, rest: int) -> Floats:
        """Return how many steps more a ragged last tile costs, given the steps beyond whole tiles of every config."""
        once, each = self._tail
        steps = rest % self.tile
        return np.where(steps > 0.0, once + (each - 1.0) * steps, 0.0)

    def options(self, K: int, tiles: Floats) -> NDArray[np.intp]:
        """Return which numbers of parts of K to consider with which configs, whose C has so many tiles.

        These are places in the order of parts, then of configs.
        """
        held = tiles < self._most_tiles
        held &= self._least_steps <= K
        return held.ravel().nonzero()[0]

    def factors(self, layout: str, swap_ab: bool) -> Floats:
        """Return what the times of the steps of NN are multiplied by for a layout, with the calibration, by place."""
        found = self._factors.get((layout, swap_ab))
        if found is None:
            faced = self._layouts[_of_narrow(layout, swap_ab)]
            found = np.where(self._each_place(self.narrow), faced, self._layouts[layout])
            found *= self._each_place(self._calibration)
            self._factors[layout, swap_ab] = found
        return found

    def _each_place(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a value of each config for each of its places, of aligned and of ragged operands."""
        return np.tile(values.repeat(self._widths), 2)


class Options:
    """Some numbers of parts of K with some configs: arrays with an element for each of these options.

    Where the times of both aligned and ragged operands are needed, there are two elements of what these depend on.

    Parameters
    ----------
    every : Configs
    places : array of int
        Which ones, as `Configs.options` returns them.
    layout : str
    swap_ab : bool
        Whether the rungs for few rows compute the transposed problem.
    kinds : tuple of int
        Of operands: 0 for aligned ones, 1 for ragged ones, or both.

    Attributes
    ----------
    of : array of int
        The config of each option.
    whole : int
        The first so many options do not split K.
    split : bool
        Whether any other option does.
    both : bool
        Whether the times of both aligned and ragged operands are needed.
    thin : array of int
        The options whose tiles take a whole sector for a few elements of the narrow operand; see `sectors`.
    """

    def __init__(
        self, every: Configs, places: NDArray[np.intp], layout: str, swap_ab: bool, kinds: tuple[int, ...]
    ) -> None:
        self.every, self.places, self.swap_ab = every, places, swap_ab
        self.of = of = every.of.take(places)
        self.whole = 0 if places[0] else every.count
        self.split = len(of) > self.whole
        self.both = len(kinds) > 1
        columns = np.concatenate([of, of + every.count]) if self.both else of + every.count if kinds[0] else of
        self.numbers = every.numbers(columns)
        self.few = Ends(*self.numbers.few)
        self.tile = every.tile.take(of)
        self.tile_parts = every.tile_parts.take(places)
        self.chains, self.shortest = every.chains.take(of), every.shortest.take(of)
        self.accumulating = every.accumulating[layout].take(of)
        self.reduction = every.reduction.take(of, axis=1)
        self.reduction[:, : self.whole] = 0.0
        self.ends = every.lines.ends.take(columns, axis=2)
        self.bandwidth = every.bandwidth(layout, swap_ab).take(of)
        self._factors = every.factors(layout, swap_ab)
        first, full = self.numbers.first, self.numbers.full
        self.light, self.heavy = self._factors.take(np.concatenate([[first + 1.0], [first + full]]).astype(np.intp))
        faced = _of_narrow(layout, swap_ab)
        self.thin = every.thin.take(of).nonzero()[0] if faced[0] == "T" else of[:0]
        self.line_bytes = every.line_bytes[faced[1]].take(of.take(self.thin))

    def factors(self, whole: Floats) -> Floats:
        """Return what the times of the steps of NN are multiplied by at these loads, which are whole."""
        place = np.minimum(whole, self.numbers.full)
        place += self.numbers.first
        return self._factors.take(place.astype(np.intp))

    def mixed(self, times: Floats, problem: Problem) -> Floats:
        """Return the mean of the times of aligned and of ragged operands, given the share of A and B in the latter.

        These are what cannot be read 16 bytes at a time, if they are dense.
        """
        if not self.both:
            return times
        of_a, of_b = ragged_ends(problem)
        share: Floats | float = (_PAIRED[of_a] + _PAIRED[of_b]) / 2
        if not self.every.all_pairs:
            share = np.where(self.every.pairs, share, ((of_a > 0) + (of_b > 0)) / 2).take(self.of)
        aligned, ragged = times.reshape(2, -1)
        found: Floats = ragged - aligned
        found *= share
        found += aligned
        return found

    def sectors(self, problem: Problem, tiles: Floats) -> Floats:
        """Return the times that L2 takes at least to send the `thin` options what they read.

        Their narrow operand lies so that its rows are neighbours. A tile reads a few of them, but gets whole sectors.
        """
        found = self.line_bytes + min(4.0 * min(problem.M, problem.N), _SECTOR)
        found *= tiles.take(self.of.take(self.thin))
        found *= problem.K / self.every.l2_bandwidth
        return found

    def stored(self, times: Floats, problem: Problem) -> Floats:
        """Return the times of aligned operands where rows of C can be stored by 16 bytes, else of ragged ones."""
        if not self.both:
            return times
        either = times.reshape(2, -1)
        ragged, turned = int(problem.N % TRANSACTION != 0), int(problem.M % TRANSACTION != 0)
        found: Floats = either[ragged]
        if self.swap_ab and ragged != turned and self.every.any_narrow:
            found = np.where(self.every.narrow.take(self.of), either[turned], found)
        return found


class AtK:
    """What a prediction takes from K and the options alone.

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
    per_byte : array
        Steps of K, in all parts, relative to the bandwidth.
    """

    def __init__(self, options: Options, K: int, multiprocessors: float, part: int | None = None) -> None:
        self.options, self._K = options, max(1, K)  # no steps take as long as one
        K, whole, numbers = self._K, options.whole, options.numbers
        count = len(options.of)
        steps = K / options.tile_parts
        np.ceil(steps, out=steps)
        steps *= options.tile
        if part is not None:
            steps[:] = part
        depth = np.maximum(steps, numbers.least_steps[:count]) if K >= TINY else steps.copy()
        if whole:
            steps[:whole] = K
            depth[:whole] = options.every.depth(K)
        self._parts = np.ceil(K / steps)
        self._sms = multiprocessors / self._parts
        self._steps = steps
        self.per_byte = self._K / options.bandwidth
        if options.split:
            once, per_part, per_byte = options.reduction
            self._once = self._parts * per_part
            self._once += once
            self._each_byte = (self._parts + 2.0) * per_byte
        # The times of steps, which aligned and ragged operands share nothing of.
        self._terms = terms(np.concatenate([depth, depth]) if options.both else depth, numbers.bends)
        full, wave, lighter, per_block, *alone = np.einsum("ijk,ik->jk", options.ends, self._terms)
        self._ends = ends(full, wave, lighter)
        self._per_block = per_block * options.heavy
        self._alone = alone

    def times(self, tiles: Floats) -> tuple[Floats, Floats]:
        """Return the times of the steps of k and those with nearly none, given how many tiles of C each config has.

        The latter are mostly those of storing C. Where arithmetic is the limit, the multiprocessor with most blocks is
        no faster than one with many, whatever the factors of a layout say.
        """
        options, lines = self.options, self.options.every.lines
        load = tiles.take(options.of)
        load /= self._sms
        if options.both:
            load = np.concatenate([load, load])
        divided = waves(load, options.numbers.full, options.numbers.first)
        few = options.few.all_waves(lines.few.take(divided.place), divided)
        steps = self._ends.all_waves(along(lines.lines.take(divided.place, axis=1), self._terms), divided)
        steps -= few
        steady = np.ceil(load)
        steps *= options.factors(steady)
        steady *= self._per_block
        np.putmask(steady, load <= 1.0, -np.inf)
        return np.maximum(steps, steady, out=steps), few

    def alone(self) -> Floats:
        """Return the times of the steps at the lightest load; not for a model where no config shares what it reads."""
        (alone,) = self._alone
        found: Floats = alone * self.options.light
        return found

    def slowdown(self, needed: int) -> Floats:
        """Return how many times longer options take, or count as taking, where a sum needs so many chains.

        Partial accumulators take time, and an option that cannot make as many counts as slower.
        """
        options = self.options
        accumulators = np.ceil(needed / (self._parts * options.chains))
        most = np.minimum(np.floor(self._steps / options.shortest), partial_accumulators.MOST)
        np.maximum(most, 1.0, out=most)
        found: Floats = np.where((accumulators > 1.0) & (most > 1.0), options.accumulating, 1.0)
        found[accumulators > most] *= partial_accumulators.INACCURATE
        return found

    def reduction(self, size: float) -> Floats:
        """Return the time of adding up parts of a C of so many bytes."""
        found: Floats = self._each_byte * size
        found += self._once
        return found


def ragged_ends(problem: Problem) -> tuple[int, int]:
    """Return how many floats the lines of A and of B have beyond whole vectors of 16 bytes, if they are dense."""
    of_a = problem.M if problem.layout[0] == "T" else problem.K
    of_b = problem.K if problem.layout[1] == "T" else problem.N
    return of_a % TRANSACTION, of_b % TRANSACTION
