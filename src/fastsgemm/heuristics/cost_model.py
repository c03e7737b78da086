"""Predict the times of many configs on many products at once. ``docs/tuning.md`` explains each term.

Times are in ms, K and depths in steps of k. What a table costs is the number of NumPy calls, hardly the size of arrays:
so the options of every product of a comparison are elements of the same arrays.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from fastsgemm.config import SEGMENT, Config
from fastsgemm.geometry.grid import MAX_BLOCKS, tiles, triangle_tiles
from fastsgemm.heuristics import curve_problems, partial_accumulators
from fastsgemm.heuristics.curve_arrays import (
    ACCUMULATING,
    BANDWIDTH,
    FULL,
    LATER,
    LIGHTER,
    LIGHTEST,
    TERMS,
    BlockTimes,
    CandidateArrays,
    Floats,
    floats,
    of_configs,
)
from fastsgemm.heuristics.curve_fit import Fit
from fastsgemm.heuristics.curve_problems import SPARSE, STACKED
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.heuristics.products import Features, Product, numbers
from fastsgemm.heuristics.selection import PREDICTED, Selection
from fastsgemm.problem import Problem, Ragged

# Two predicted times that differ by less are equal: the model errs more than that.
CLOSE = 1.02
_MOST_WAVES = 8  # of blocks that split-K makes
_MOST_PARTS = 256  # of K
PARTS = sorted({1, *(base << i for base in (2, 3) for i in range(8) if base << i <= _MOST_PARTS)})
_FEWER = [0, *PARTS[:-1]]  # the number before each of them
_LEAST_MS = 1e-30  # no division by zero, whatever was measured
_MOST_CONFIGS = 4096  # that are kept, because making one takes longer than predicting its time


def _least_depth(config: Config) -> int:
    """Return the least steps of k of a part."""
    return config.tile_k * curve_problems.form(config).least_tiles


def splits(config: Config, problem: Problem, multiprocessors: float) -> list[int]:
    """Return the numbers of parts of K to consider: 1, and 2^i and 3 * 2^i while there are few blocks.

    The problem is as the rung computes it; see `fastsgemm.geometry.variants.with_swap_ab`.
    """
    count, deep = tiles(config, problem) * problem.batch, _least_depth(config)
    return [
        parts
        for fewer, parts in zip(_FEWER, PARTS, strict=True)
        if parts == 1 or (fewer * count < _MOST_WAVES * multiprocessors and parts * deep <= problem.K)
    ]


@lru_cache(maxsize=_MOST_CONFIGS)
def _in_parts(config: Config, parts: int) -> Config:
    return config.replace(SPLIT_K=parts)


class Table:
    """The times of all options of some products.

    `ms` are by product, number of parts of K and config; infinite where a product rules an option out.
    """

    def __init__(self, model: CostModel, products: Sequence[Product], ms: Floats) -> None:
        self._model, self._products, self._ms = model, products, ms
        self._least: Floats = ms[:, 0] if ms.shape[1] == 1 else ms.min(axis=1)  # of each config

    def best(self, plane: int = 0) -> Selection | None:
        """Return the best config for a product, or None if no config has a grid for it.

        Of the configs whose time is close to the least, the best is the one that comes first. So problems of similar
        shapes share kernels, and fewer have to be compiled.
        """
        times = self._least[plane]
        least = times.item(times.argmin())
        if least == math.inf:
            return None
        return self._pick(plane, int((times <= self._model.close * least).argmax()))

    def ranking(self) -> list[Selection]:
        """Return each config with the SPLIT_K that gives its least time on one product, the best first."""
        order = self._least[0].argsort(kind="stable").tolist()
        return [self._pick(0, column) for column in order if self._least[0, column] < math.inf]

    def options(self) -> list[tuple[Fit, int, float]]:
        """Return config, parts of K and ms of each option of one product."""
        fits, (rows, columns) = self._model.fits, (self._ms[0] < math.inf).nonzero()
        pairs = zip(rows.tolist(), columns.tolist(), strict=True)
        return [(fits[column], PARTS[row], self._ms.item(0, row, column)) for row, column in pairs]

    def _pick(self, plane: int, column: int) -> Selection:
        """Return a config with the SPLIT_K that gives its least time."""
        row, fit = int(self._ms[plane, :, column].argmin()), self._model.fits[column]
        config = partial(self._model.config, self._products[plane].problem, row, column)
        return Selection(fit.rung, config, PREDICTED, fit.curve, self._ms.item(plane, row, column))


class CostModel:
    """Predicts the times on one device of the configs that have a fit: of at least one, the most useful first.

    An option is a config with a number of parts of K. All arrays of `predict` have one axis, of the options of every
    product: NumPy does simple arithmetic with arrays of one shape in a third of the time that broadcasting takes.

    The limit is the shared memory that a block may opt in to on the device, in bytes. With `in_order`, sums have one
    order: K is in one part, or each segment is a part.
    """

    def __init__(
        self, fits: Sequence[Fit], multiprocessors: float, shared_limit: int, fitted: Fitted, in_order: bool = False
    ) -> None:
        self.fits = tuple(fits)
        self.close = 1.0 if in_order else CLOSE
        self._sms, self._shared_limit, self._fitted, self._in_order = multiprocessors, shared_limit, fitted, in_order
        configs = [fit.curve.config for fit in fits]
        self.tile = BM, BN = floats(c.BM for c in configs), floats(c.BN for c in configs)
        self._narrow = np.array([fit.rung.narrow for fit in fits])
        self._any_narrow = bool(self._narrow.any())
        self._sliced = np.array([c.sliced_k > 1 for c in configs])
        self._whole_k = math.lcm(*(c.tile_k for c in configs))
        self._largest = float(max(BM.max(), BN.max()))  # rows or columns of a tile
        # The most rows and columns of a tile of the caller's C, without swap_ab and with it.
        turned = np.where(self._narrow, BN, BM), np.where(self._narrow, BM, BN)
        self._most_sides = [[float(side.max()) for side in sides] for sides in (self.tile, turned)]
        self._least_part = min(_least_depth(fit.curve.config) if fit.rung.splits else math.inf for fit in fits)
        if in_order:
            self._illegal = np.array([[self._ordered(fit, parts) is None for fit in fits] for parts in (1, 2)])
        self._options = np.array([*self._of_options()])
        # The options of one product, by how many numbers of parts of K are considered.
        self._first = [CandidateArrays(*self._options[:, : rows * len(fits)]) for rows in range(len(PARTS) + 1)]
        self._tables = BlockTimes(fits, fitted.accumulators_cost)
        flop = 2.0 * BM * BN * multiprocessors * floats(fit.blocks_per_sm for fit in fits)  # of a step
        # FLOP per ms of the quickest config in full waves, of aligned NN operands.
        self.peak = float((flop / self._tables.full_step).max())

    def _of_options(self) -> CandidateArrays:
        """Return the numbers of all options, with K in one part first."""
        parts, fewer = floats([1, 2] if self._in_order else PARTS)[:, None], floats(_FEWER)[:, None]
        more, rows = parts > 1.0, len(parts)
        if self._in_order:
            of_parts = {"part_k": np.where(more, SEGMENT, np.inf), "depth": 1.0, "least_k": 0.0, "most_tiles": np.inf}
        else:
            tile_k = floats(fit.curve.config.tile_k for fit in self.fits)
            depths = floats(_least_depth(fit.curve.config) if fit.rung.splits else math.inf for fit in self.fits)
            of_parts = {
                "part_k": np.where(more, parts * tile_k, 1.0),
                "depth": np.where(more, tile_k, 1.0),
                "least_k": np.where(more, parts * depths, 0.0),
                "most_tiles": _MOST_WAVES * self._sms / np.maximum(fewer, 1e-9),
            }
        shortest = [partial_accumulators.shortest(fit.curve.config, self._shared_limit) for fit in self.fits]
        chains = [partial_accumulators.chains_of(fit.curve.config) for fit in self.fits]
        once, more_steps = np.array([fit.numbers.tail for fit in self.fits]).T - [[0.0], [1.0]]
        of_parts |= {
            "split": more,
            "tail_once": np.where(more, 0.0, once),
            "tail_steps": np.where(more, 0.0, more_steps),
        }
        arrays = CandidateArrays(**of_configs(self.fits, self._sms), **of_parts, chains=chains, shortest=shortest)
        return CandidateArrays(
            *(np.broadcast_to(array, (rows, len(self.fits))).ravel().astype(np.float64) for array in arrays)
        )

    def _ordered(self, fit: Fit, parts: int) -> Config | None:
        """Return the config of a fit that sums in one order, or None if it is not legal."""
        config = _in_parts(fit.curve.config, parts).replace(SEGMENT=SEGMENT)
        return None if fit.rung.violations(config, self._shared_limit) else config

    def config(self, problem: Problem, row: int, column: int) -> Config:
        """Return the config of an option, with the partial accumulators that the problem needs."""
        fit = self.fits[column]
        if self._in_order:
            parts = 2 if row or problem.K <= SEGMENT else 1
            return _in_parts(fit.curve.config, parts).replace(SEGMENT=SEGMENT)
        config = _in_parts(fit.curve.config, PARTS[row]) if row else fit.curve.config
        return partial_accumulators.shortened(config, problem.K, self._shared_limit)

    def times(self, problem: Problem) -> list[tuple[Fit, int, float]]:
        """Return config, parts of K and predicted time in ms of every option, without the cost of accumulators."""
        return self.predict([Product(problem, True)], accumulators=False).options()

    def predict(self, products: Sequence[Product], accumulators: bool = True) -> Table:
        """Return the times of all configs on some products, if `accumulators` with the partial ones they need.

        The same is ragged in all of them.
        """
        features = [numbers(product.problem) for product in products]
        rows = self._rows(features)
        o, p = self._first[rows], features[0]
        if len(features) > 1:
            n = rows * len(self.fits)
            o = CandidateArrays(*np.concatenate([self._options[:, :n]] * len(features), axis=1))
            p = Features(*np.array([*zip(*features, strict=True)]).repeat(n, axis=1))
        tall, wide, tiles = self._tiles(products, p, o)
        # A tile has one element at least.
        too_many = max(feature.stored_bytes for feature in features) > 4.0 * MAX_BLOCKS
        if too_many:  # of more blocks, a float64 does not say how many the last wave has
            tiles = np.minimum(tiles, MAX_BLOCKS + 1.0)
        steps, depth, parts = self._depth(features, p, o, rows)
        bent = np.minimum(depth, o.bend)
        grouped = products[0].ragged is not Ragged.NOTHING
        # Copies check bounds where a tile exceeds C, or may exceed a group's.
        if grouped or min(feature.least for feature in features) < self._largest:
            guard = np.where((tall > p.M) | (wide > p.N) | grouped, o.guard, 1.0)
            depth, bent = depth * guard, bent * guard
        blocks = tiles if rows == 1 else tiles * parts
        waves = np.ceil(blocks / o.wave)
        last = (blocks - (waves - 1.0) * o.wave) / self._sms  # the load of the last one

        # What a block costs once, and the steps of k: a straight line from the bend on.
        step, extra, once = self._tables.at(p.table, o.place + np.ceil(last))
        ends = self._tables.ends(p.table, o.column, 1 + LIGHTEST if self._any_narrow else 1 + LIGHTER)
        lines = ends[TERMS:].reshape(-1, 3, ends.shape[1])
        stored = lines[:, 2]
        if any(feature.stores > 1.0 for feature in features):
            # The transposed store takes about as long, but no kernel starts for it. Where K is split, the start stays:
            # there the parts are stored once and what adds them up stores twice, and neither was measured.
            again = (p.stores - 1.0) * (1.0 - o.split) * self._tables.start
            once, stored = once * p.stores - again, stored * p.stores
            stored[FULL] -= again
        lighter = np.minimum(np.maximum(1.0 - last, 0.0), 1.0 - 1.0 / SPARSE)
        k_steps, of_steps = step * depth + extra * bent, lines[:, 0] * depth + lines[:, 1] * bent
        ms = _of_waves(waves, lighter, k_steps + once, of_steps + stored)
        if self._any_narrow:  # rows of tiles share reads of B, but a few blocks have the memory to themselves
            k_steps = _of_waves(waves, lighter, k_steps, of_steps)
            saved = o.shared * (1.0 - 1.0 / np.minimum(np.ceil(p.least / o.BM), STACKED))
            ms -= k_steps - np.minimum(k_steps, np.maximum(k_steps * (1.0 - saved), of_steps[LIGHTEST]))
        # A and B are read once, at most at the rate that was measured.
        ms = np.maximum(ms, p.read_bytes / ends[BANDWIDTH])
        if rows > 1:  # a second kernel reads the partial sums, and reads and writes C
            written = p.stored_bytes / self._fitted.reduction_bytes_per_ms
            added = parts * (self._fitted.reduction_ms_per_part + written / p.stores)
            ms += (added + (self._fitted.reduction_ms + 2.0 * written)) * o.split
        if accumulators and not self._in_order and max(feature.chains for feature in features) > 1.0:
            needed = p.chains / (parts * o.chains)
            ms = partial_accumulators.add(ms, ends[ACCUMULATING], steps / o.shortest, needed)
        if too_many:
            ms = np.where(tiles > MAX_BLOCKS, np.inf, ms)
        if rows > 1:
            ms = np.where((tiles >= o.most_tiles) | (o.least_k > p.K), np.inf, ms)
        return Table(self, products, self._without(products, ms.reshape(len(features), rows, len(self.fits))))

    def _rows(self, features: Sequence[Features]) -> int:
        """Return how many numbers of parts of K are considered with any config."""
        most_K = max(p.K for p in features)
        if self._in_order:
            return 2 if most_K > SEGMENT else 1
        deep = bisect_right(PARTS, most_K / self._least_part)
        if deep < 2:
            return 1
        sides = (self._most_sides[int(p.swap)] for p in features)
        fewest = min(
            math.ceil(p.M / tall) * math.ceil(p.N / wide) * p.batch
            for p, (tall, wide) in zip(features, sides, strict=True)
        )
        return min(deep, bisect_left(_FEWER, _MOST_WAVES * self._sms / fewest))

    def _tiles(self, products: Sequence[Product], p: Features, o: CandidateArrays) -> tuple[Any, Any, Floats]:
        """Return the rows and columns of a tile of the caller's C, and how many tiles are computed."""
        tall, wide = o.BM, o.BN
        if self._any_narrow:
            tall, wide = tall + p.swap * o.more_rows, wide + p.swap * o.more_columns
        rows, columns = np.ceil(p.M / tall), np.ceil(p.N / wide)
        ragged = products[0].ragged  # the last tile of a group is half full in the mean
        if ragged is Ragged.ROWS:
            rows = p.M / tall + 0.5
        elif ragged is Ragged.COLUMNS:
            columns = p.N / wide + 0.5
        tiles: Floats = rows * columns * p.batch
        for plane, (problem, *_) in enumerate(products):
            if problem.symmetric:
                sides = zip(*self.tile, strict=True)
                tiles.reshape(len(products), -1, len(self.fits))[plane] = [
                    problem.batch * triangle_tiles(int(BM), int(BN), problem.N) for BM, BN in sides
                ]
        return tall, wide, tiles

    def _depth(
        self, features: Sequence[Features], p: Features, o: CandidateArrays, rows: int
    ) -> tuple[Any, Floats, Any]:
        """Return the steps of k of a part, the same above those of the shortest K that was measured, and the parts.

        A ragged last tile of k costs some steps more.
        """
        parts: Any = 1.0
        steps = p.K
        if rows > 1:
            steps = np.minimum(p.K, o.part_k) if self._in_order else np.ceil(p.K / o.part_k) * o.depth
            parts = np.ceil(p.K / steps)
        depth = steps
        if any(feature.K % self._whole_k for feature in features):
            rest = np.fmod(p.K, o.tile_k)
            depth = depth + o.tail_once * np.minimum(rest, 1.0) + o.tail_steps * rest
        return steps, np.maximum(depth, o.few) - o.few, parts

    def _without(self, products: Sequence[Product], ms: Floats) -> Floats:
        """Return the times with what single products rule out set to infinity.

        That are several parts of K of groups; the rungs for few rows where a product has many; and the options that
        share out a sum of few steps, unless a product has no other.
        """
        for plane, product in enumerate(products):
            if product.ragged:
                ms[plane, 1:] = np.inf
            if self._any_narrow and not product.narrow:
                ms[plane, :, self._narrow] = np.inf
            if self._in_order:  # one segment is a part, which needs no shared memory for the sums of several
                in_one_segment = product.problem.K <= SEGMENT
                ms[plane, 0, self._illegal[int(in_one_segment)]] = np.inf
                ms[plane, 1:, self._illegal[1] | in_one_segment] = np.inf
            if product.problem.K <= partial_accumulators.FEW:
                narrow, wide = (partial_accumulators.shares_out_few(product.problem, kind) for kind in (True, False))
                chained = np.where(np.where(self._narrow, narrow, wide & self._sliced), np.inf, ms[plane])
                if chained.min() < np.inf:
                    ms[plane] = chained
        return ms


def _of_waves(waves: Floats, lighter: Floats, last: Floats, ends: Floats) -> Floats:
    """Return the times of all waves.

    `lighter` says how much lighter than one block on each multiprocessor the last wave is, and `last` are times at its
    load in whole blocks. `ends` are times of a full wave (`FULL`), of a later one (`LATER`), and at the lightest load
    less those at a load of 1 (`LIGHTER`). A wave after the first costs less than it, and one that is not full takes the
    same share of that.
    """
    last = last + ends[LIGHTER] * lighter
    full = ends[FULL]
    several = full + np.maximum(ends[LATER], 0.0) * (waves - 2.0 + last / np.maximum(full, _LEAST_MS))
    return np.where(waves > 1.0, several, last)
