"""The fits of many configs as arrays, and what a prediction takes from K alone or from K and the load.

`fastsgemm.heuristics.line_arrays` has the lines among these, and `fastsgemm.heuristics.cost_model` does the rest of the
arithmetic.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastsgemm.config import Config
from fastsgemm.heuristics import partial_accumulators, probes
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
from fastsgemm.heuristics.probes import STACKED, TINY, TRANSACTION
from fastsgemm.problem import LAYOUTS, Problem

_MOST_PARTS = 256  # of K
PARTS = sorted({1, *(base << i for base in (2, 3) for i in range(8) if base << i <= _MOST_PARTS)})
FEWER = [0, *PARTS[:-1]]  # the number before each of them
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


class Layout(NamedTuple):
    """What the times of configs, or of options, take from a layout.

    Attributes
    ----------
    swap_ab : bool
        Whether the rungs for few rows compute the transposed problem.
    factors : array
        What the times of the steps of NN are multiplied by, with the calibration, at the places of the lines.
    light, heavy : array
        The factors at a load of 1 and of a full wave, for aligned and then for ragged operands.
    bandwidth : array
        The bytes of A and B that a ms reads, at most.
    accumulating : array
        How many times longer a config takes with partial accumulators.
    line_bytes : array or None
        The bytes of B that thin tiles read at a step of k. None where the rows of their narrow operand are no
        neighbours, so that no sector is read for a few elements; see `Options.sectors`.
    """

    swap_ab: bool
    factors: Floats
    light: Floats
    heavy: Floats
    bandwidth: Floats
    accumulating: Floats
    line_bytes: Floats | None


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
        self._pairs = np.array([fit.rung.pairs for fit in fits])
        self.any_narrow = bool(self.narrow.any())
        BM, BN = floats(c.BM for c in configs), floats(c.BN for c in configs)
        turned = np.where(self.narrow, BN, BM), np.where(self.narrow, BM, BN)
        self.extents = {False: (BM, BN), True: turned}  # rows and columns of a tile of the caller's C, by swap_ab
        self._edges = sorted({*BM.tolist(), *BN.tolist()})
        self._guard = floats(fit.numbers.guard for fit in fits)
        self._guards: dict[tuple[bool, int, int], Floats | None] = {}
        self._shared = floats(fit.numbers.shared for fit in fits)
        self.any_shared = bool(self._shared.any())
        self._most_stacked = STACKED * int(np.max(BM))
        self._unshared: dict[int, Floats] = {}
        self._ragged: dict[tuple[int, int], Floats] = {}
        self.tile = floats(c.tile_k for c in configs)
        # What a ragged last tile costs beyond its steps: once, and for each of them.
        once, each = np.array([fit.numbers.tail for fit in fits]).T
        self._tail = once, each - 1.0
        self.most_blocks = most_blocks
        self.least_depth = floats(least_depth(fit.curve.config) if fit.rung.splits else np.inf for fit in fits)
        self._least_depth = float(np.min(self.least_depth))
        self._calibration = floats(fit.curve.calibration for fit in fits)
        # The chains of each part of K, how long they are at least with partial accumulators, and what these cost.
        self.chains = floats(map(partial_accumulators.chains_of, configs))
        self.shortest = floats(partial_accumulators.shortest(c, shared_limit) for c in configs)
        costs = np.array([fit.curve.accumulators_cost for fit in fits]).T
        self._accumulating = dict(zip(LAYOUTS, partial_accumulators.cost(costs, fitted), strict=True))
        full = floats(fit.curve.blocks_per_sm for fit in fits)
        bends = np.array([(fit.probes.bend, float(fit.probes.shallow)) for fit in fits]).T
        # The depth of a K of nearly no steps is known, so its times are.
        self._few_steps = few_steps = floats(fit.depth(TINY) for fit in fits)
        # A whole tile of few steps has fewer than a ragged one counts as.
        least_steps = np.where(self.tile < TINY, 0.0, few_steps)
        self._bandwidth = np.array([fit.numbers.bandwidth for fit in fits]).T
        self._widths = [int(blocks) + 2 for blocks in full]  # places: the lightest load, 1, 2, ..., full, the heaviest
        self.lines, place = self._both_kinds(full, terms(few_steps, bends))
        self._light, self._heavy = place + 1, place + np.tile(full, 2).astype(np.intp)
        twice = np.tile([full, least_steps, *bends], 2)
        self._numbers = np.concatenate([[place], twice, self.lines.few_ends])
        self._layouts = layout_factors(fits)
        self._of_layouts: dict[tuple[str, bool], Layout] = {}
        self.thin = self.narrow & (4.0 * np.maximum(BM, BN) < _SECTOR)  # tiles of less than a sector each way
        self._line_bytes = {"N": np.full_like(BN, _SECTOR), "T": 4.0 * BN}  # of B at a step of k, for these tiles
        self.l2_bandwidth = _L2 * fitted.reduction_bytes_per_ms
        self.fitted = fitted

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

    def depth(self, K: float) -> Floats:
        """Return K with the steps of a ragged last tile weighted by what they cost."""
        once, each = self._tail
        depth: Floats = np.fmod(K, self.tile)
        tail = each * depth
        np.minimum(depth, 1.0, out=depth)
        depth *= once
        depth += tail
        depth += K
        return np.maximum(depth, self._few_steps, out=depth) if K >= TINY else depth

    def rows(self, K: int, tiles: Floats) -> int:
        """Return how many of `PARTS` to look at, given the tiles of C of every config.

        These are at least those that are considered with any config. They are a power of two, so that the arrays of a
        few numbers of options serve all problems.
        """
        fewest = tiles.item(tiles.argmin())
        deep, few = bisect_right(PARTS, K / self._least_depth), bisect_left(FEWER, self.most_blocks / fewest)
        return 1 << (max(1, min(deep, few)) - 1).bit_length()

    def layout(self, layout: str, swap_ab: bool) -> Layout:
        """Return what times take from a layout, where the rungs for few rows swap A and B or not."""
        found = self._of_layouts.get((layout, swap_ab))
        if found is None:
            faced = _of_narrow(layout, swap_ab)
            factors = np.where(self._each_place(self.narrow), self._layouts[faced], self._layouts[layout])
            factors *= self._each_place(self._calibration)
            of_others = int(layout[0] == "T") if swap_ab else 2 + (layout[1] == "T")
            found = self._of_layouts[layout, swap_ab] = Layout(
                swap_ab,
                factors,
                factors.take(self._light),
                factors.take(self._heavy),
                np.where(self.narrow, self._bandwidth[2 + (faced[1] == "T")], self._bandwidth[of_others]),
                self._accumulating[layout],
                self._line_bytes[faced[1]] if faced[0] == "T" else None,
            )
        return found

    def guard(self, M: int, N: int, swap_ab: bool) -> Floats | None:
        """Return how many times longer configs take where C has fewer rows or columns than a tile; None: no config."""
        key = swap_ab, bisect_right(self._edges, M), bisect_right(self._edges, N)
        if key not in self._guards:
            tall, wide = self.extents[swap_ab]
            smaller = (tall > M) | (wide > N)
            self._guards[key] = np.where(smaller, self._guard, 1.0) if smaller.any() else None
        return self._guards[key]

    def unshared(self, rows: int) -> Floats:
        """Return the part of the time of so many rows of C that rows of tiles do not save by sharing reads of B."""
        rows = min(rows, self._most_stacked)
        found = self._unshared.get(rows)
        if found is None:
            high = np.minimum(np.ceil(rows / self.extents[False][0]), STACKED)
            found = self._unshared[rows] = 1.0 - self._shared * (1.0 - 1.0 / high)
        return found

    def ragged(self, problem: Problem) -> Floats:
        """Return the share of A and B that configs cannot read 16 bytes at a time, if they are dense."""
        ends = of_a, of_b = ragged_ends(problem)
        found = self._ragged.get(ends)
        if found is None:
            share = (_PAIRED[of_a] + _PAIRED[of_b]) / 2
            found = self._ragged[ends] = np.where(self._pairs, share, ((of_a > 0) + (of_b > 0)) / 2)
        return found

    def _each_place(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a value of each config for each of its places, of aligned and of ragged operands."""
        return np.tile(values.repeat(self._widths), 2)


class Options:
    """The first numbers of parts of K with every config: arrays with an element for each of these options.

    They are in the order of parts, then of configs. Among them are options that a problem does not have, because its K
    or its tiles of C are too few or too many: arrays that all problems share need not be made for each of them.

    Where the times of both aligned and ragged operands are needed, there are two elements of what these depend on.

    Parameters
    ----------
    every : Configs
    rows : int
        How many of `PARTS`.
    kinds : tuple of int
        Of operands: 0 for aligned ones, 1 for ragged ones, or both.

    Attributes
    ----------
    of : array of int
        The config of each option.
    split : bool
        Whether any option splits K.
    both : bool
        Whether the times of both aligned and ragged operands are needed.
    thin : array of int
        The options whose tiles take a whole sector for a few elements of the narrow operand; see `sectors`.
    """

    def __init__(self, every: Configs, rows: int, kinds: tuple[int, ...]) -> None:
        self.every = every
        self.of = of = np.tile(np.arange(every.count), rows)
        self.split, self.both = rows > 1, len(kinds) > 1
        self._least_steps = np.outer(PARTS[:rows], every.least_depth).ravel()
        self._least_steps[: every.count] = 0.0
        self._most_tiles = floats([np.inf, *(every.most_blocks / fewer for fewer in FEWER[1:rows])]).repeat(every.count)
        columns = np.concatenate([of, of + every.count]) if self.both else of + every.count if kinds[0] else of
        self._columns = columns
        self.numbers = every.numbers(columns)
        self.few = Ends(*self.numbers.few)
        self.tile = every.tile.take(of)
        self.tile_parts = np.outer(PARTS[:rows], every.tile).ravel()
        self.chains, self.shortest = every.chains.take(of), every.shortest.take(of)
        self.ends = every.lines.ends.take(columns, axis=2)
        self.thin = every.thin.take(of).nonzero()[0]
        self._of_layouts: dict[tuple[str, bool], Layout] = {}

    def layout(self, problem: Problem) -> Layout:
        """Return what times take from the layout of a problem."""
        key = problem.layout, problem.N < problem.M
        found = self._of_layouts.get(key)
        if found is None:
            each = self.every.layout(*key)
            found = self._of_layouts[key] = each._replace(
                light=each.light.take(self._columns),
                heavy=each.heavy.take(self._columns),
                bandwidth=each.bandwidth.take(self.of),
                accumulating=each.accumulating.take(self.of),
                line_bytes=None if each.line_bytes is None else each.line_bytes.take(self.of.take(self.thin)),
            )
        return found

    def left_out(self, K: int, tiles: Floats) -> NDArray[np.bool_]:
        """Return which options are not considered, given the tiles of C of each."""
        found: NDArray[np.bool_] = tiles >= self._most_tiles
        found |= self._least_steps > K
        return found

    def mixed(self, times: Floats, problem: Problem) -> Floats:
        """Return the mean of the times of aligned and of ragged operands, weighted by the shares of A and B in each."""
        if not self.both:
            return times
        aligned, ragged = self._kinds(times)
        found: Floats = ragged - aligned
        found *= self.every.ragged(problem).take(self.of)
        found += aligned
        return found

    def sectors(self, problem: Problem, line_bytes: Floats, tiles: Floats) -> Floats:
        """Return the times that L2 takes at least to send the `thin` options what they read.

        Their narrow operand lies so that its rows are neighbours. A tile reads a few of them, but gets whole sectors.
        """
        found = line_bytes + min(4.0 * min(problem.M, problem.N), _SECTOR)
        found *= tiles.take(self.thin)
        found *= problem.K / self.every.l2_bandwidth
        return found

    def stored(self, times: Floats, problem: Problem, swap_ab: bool) -> Floats:
        """Return the times of aligned operands where rows of C can be stored by 16 bytes, else of ragged ones."""
        if not self.both:
            return times
        either = self._kinds(times)
        ragged, turned = int(problem.N % TRANSACTION != 0), int(problem.M % TRANSACTION != 0)
        found: Floats = either[ragged]
        if swap_ab and ragged != turned and self.every.any_narrow:
            found = np.where(self.every.narrow.take(self.of), either[turned], found)
        return found

    def _kinds(self, times: Floats) -> tuple[Floats, Floats]:
        """Return the times of aligned and those of ragged operands."""
        return times[: len(self.of)], times[len(self.of) :]


class InWaves(NamedTuple):
    """What times take from K and the tiles of C, whatever the layout.

    Attributes
    ----------
    tiles : array
        How many of them each option has.
    place, several : array
        See `fastsgemm.heuristics.line_arrays.Waves`.
    steps, few : array
        The times of the steps of k of NN, and those with nearly no steps. The latter are mostly those of storing C.
    least : array
        What the steps of k of NN take at least on the multiprocessor with most blocks, where arithmetic is the limit.
    """

    tiles: Floats
    place: NDArray[np.intp]
    several: NDArray[np.bool_]
    steps: Floats
    few: Floats
    least: Floats


class AtK:
    """What a prediction takes from K and the options alone.

    Parameters
    ----------
    options : Options
    K : float
    multiprocessors : float
    part : int, optional
        Steps of a part, where K is split. Default: as few as make the number of parts in whole tiles.

    Attributes
    ----------
    options : Options
    """

    def __init__(self, options: Options, K: float, multiprocessors: float, part: int | None = None) -> None:
        self.options, self._K = options, max(1.0, float(K))  # no steps take as long as one
        K, whole, numbers = self._K, options.every.count, options.numbers
        count = len(options.of)
        steps = K / options.tile_parts
        np.ceil(steps, out=steps)
        steps *= options.tile
        if part is not None:
            steps[:] = part
        depth = np.maximum(steps, numbers.least_steps[:count]) if K >= TINY else steps.copy()
        steps[:whole] = K
        depth[:whole] = options.every.depth(K)
        self._parts = np.ceil(K / steps)
        self._sms = multiprocessors / self._parts
        self._steps = steps
        # The times of steps, which aligned and ragged operands share nothing of.
        self._terms = terms(np.concatenate([depth, depth]) if options.both else depth, numbers.bends)
        full, wave, lighter, per_block, *alone = np.einsum("ijk,ik->jk", options.ends, self._terms)
        self._ends = ends(full, wave, lighter)
        self._per_block = per_block
        self._alone = alone

    def in_waves(self, tiles: Floats) -> InWaves:
        """Return the times of the steps of NN, given how many tiles of C each option has."""
        options, lines = self.options, self.options.every.lines
        load = tiles / self._sms
        if options.both:
            load = np.concatenate([load, load])
        divided = waves(load, options.numbers.full, options.numbers.first)
        few = options.few.all_waves(lines.few.take(divided.place), divided)
        steps = self._ends.all_waves(along(lines.lines.take(divided.place, axis=1), self._terms), divided)
        steps -= few
        least = np.ceil(load)
        least *= self._per_block
        np.putmask(least, load <= 1.0, -np.inf)
        return InWaves(tiles, divided.place, divided.several, steps, few, least)

    def steps(self, waves: InWaves, layout: Layout) -> Floats:
        """Return the times of the steps of k.

        Where arithmetic is the limit, the multiprocessor with most blocks is no faster than one with many, whatever the
        factors of a layout say.
        """
        found = layout.factors.take(waves.place)
        np.putmask(found, waves.several, layout.heavy)
        found *= waves.steps
        return np.maximum(found, layout.heavy * waves.least, out=found)

    def alone(self, layout: Layout) -> Floats:
        """Return the times of the steps at the lightest load; not for a model where no config shares what it reads."""
        (alone,) = self._alone
        found: Floats = alone * layout.light
        return found

    def reading(self, layout: Layout, lines: int) -> Floats:
        """Return the times that the memory takes at least to send so many lines of A and B, each of K floats."""
        found: Floats = (4.0 * lines * self._K) / layout.bandwidth
        return found

    def slowdown(self, needed: int, layout: Layout) -> Floats:
        """Return how many times longer options take, or count as taking, where a sum needs so many chains.

        Partial accumulators take time, and an option that cannot make as many counts as slower.
        """
        most = np.minimum(np.floor(self._steps / self.options.shortest), partial_accumulators.MOST)
        np.maximum(most, 1.0, out=most)
        accumulators = needed / (self._parts * self.options.chains)  # not rounded up: `most` is whole
        found = np.where(np.minimum(accumulators, most) > 1.0, layout.accumulating, 1.0)
        np.putmask(found, accumulators > most, found * partial_accumulators.INACCURATE)
        return found

    def add_reduction(self, ms: Floats, size: float) -> None:
        """Add to the times of options that split K what it takes to add up the parts of a C of so many bytes."""
        whole, fitted = self.options.every.count, self.options.every.fitted
        of_bytes = size / fitted.reduction_bytes_per_ms
        reduction = self._parts[whole:] * (fitted.reduction_ms_per_part + of_bytes)
        reduction += fitted.reduction_ms + 2.0 * of_bytes
        ms[whole:] += reduction


def ragged_ends(problem: Problem) -> tuple[int, int]:
    """Return how many floats the lines of A and of B have beyond whole vectors of 16 bytes, if they are dense."""
    of_a = problem.M if problem.layout[0] == "T" else problem.K
    of_b = problem.K if problem.layout[1] == "T" else problem.N
    return of_a % TRANSACTION, of_b % TRANSACTION
