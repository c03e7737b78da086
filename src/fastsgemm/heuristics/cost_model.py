"""Predict the times of many configs on many products at once. ``docs/tuning.md`` explains each term.

One array has a plane for each product, a row for each number of parts of K and a column for each config. What it costs
to fill is the number of NumPy calls, hardly the size of the array: so every product of a comparison is a plane of one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastsgemm.config import SEGMENT, Config
from fastsgemm.geometry.grid import MAX_BLOCKS, tiles, triangle_tiles
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import partial_accumulators, probes
from fastsgemm.heuristics.curve_arrays import Floats, floats, layout_factors, whole_loads
from fastsgemm.heuristics.curve_fit import Fit
from fastsgemm.heuristics.database_entries import Fitted
from fastsgemm.heuristics.probes import SPARSE, STACKED, STEADY
from fastsgemm.heuristics.products import LIGHTEST, SECTOR, Planes, Product, Waves
from fastsgemm.problem import LAYOUTS, Problem

Array = NDArray[Any]

# Two predicted times that differ by less are equal: the model errs more than that.
CLOSE = 1.02
_MOST_WAVES = 8  # of blocks that split-K makes
_MOST_PARTS = 256  # of K
PARTS = sorted({1, *(base << i for base in (2, 3) for i in range(8) if base << i <= _MOST_PARTS)})
_FEWER = [0, *PARTS[:-1]]  # the number before each of them
_L2 = 1.4  # bytes that L2 sends in the time in which one is read or written to add up parts; measured on an H200
_MOST_CONFIGS = 4096  # that are kept, because making one takes longer than predicting its time
_TRANSPOSED = {"NN": "TT", "NT": "NT", "TN": "TN", "TT": "NN"}


def _least_depth(config: Config) -> int:
    """Return the least steps of k of a part."""
    return config.tile_k * probes.form(config).least_tiles


def splits(config: Config, problem: Problem, multiprocessors: float) -> list[int]:
    """Return the numbers of parts of K to consider: 1, and 2^i and 3 * 2^i while there are few blocks.

    Parameters
    ----------
    config : Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.with_swap_ab`.
    multiprocessors : int
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


class Prediction(NamedTuple):
    """One option for a product.

    Attributes
    ----------
    ms : float
        Predicted device time, the reduction of split-K included.
    cost : float
        What it is ranked by: `ms`, or 1.25 times that where its sums have too few chains.
    fit : Fit
    make : callable
        Returns `config`.
    """

    ms: float
    cost: float
    fit: Fit
    make: Callable[[], Config]

    @property
    def config(self) -> Config:
        """The config with the SPLIT_K that this time is for, and partial accumulators where the problem needs them."""
        return self.make()


class Table:
    """The times of all options for some products.

    Parameters
    ----------
    model : CostModel
    products : sequence of Product
    ms, cost : array, shape (products, parts of K, configs)
        See `Prediction`; a cost is infinite where an option is not considered.
    """

    def __init__(self, model: CostModel, products: Sequence[Product], ms: Floats, cost: Floats) -> None:
        self._model, self._products, self._ms, self._cost = model, products, ms, cost
        self._least: Floats = cost[:, 0] if cost.shape[1] == 1 else cost.min(axis=1)  # of each config

    def best(self, plane: int = 0) -> Prediction | None:
        """Return the best config for a product, or None if no config has a grid for it.

        Of the configs whose cost is close to the least, the best is the one that comes first. So problems of similar
        shapes share kernels, and fewer have to be compiled.
        """
        cost, elements = self._least[plane], self._products[plane].elements
        if elements is not None:
            cost = cost[: len(elements)] / elements
        least = cost.item(cost.argmin())
        if least == math.inf:
            return None
        return self._prediction(plane, int((cost <= self._model.close * least).argmax()))

    def ranking(self, plane: int = 0) -> list[Prediction]:
        """Return each config with the SPLIT_K that gives its least cost, the best first."""
        order = self._least[plane].argsort(kind="stable").tolist()
        return [self._prediction(plane, column) for column in order if self._least[plane, column] < math.inf]

    def options(self) -> list[tuple[int, int, float]]:
        """Return of each option of one product the places of the number of parts of K and of the config, and the ms."""
        rows, columns = (self._cost[0] < math.inf).nonzero()
        each = zip(rows.tolist(), columns.tolist(), strict=True)
        return [(row, column, self._ms.item(0, row, column)) for row, column in each]

    def _prediction(self, plane: int, column: int) -> Prediction:
        """Return a config with the SPLIT_K that gives its least cost."""
        row = int(self._cost[plane, :, column].argmin())
        make = partial(self._model.config, self._products[plane].problem, row, column)
        ms, cost = self._ms.item(plane, row, column), self._cost.item(plane, row, column)
        return Prediction(ms, cost, self._model.fits[column], make)


class CostModel:
    """Predicts the times of configs on one device.

    Numbers of configs are kept for every number of parts of K, the first row for K in one part: the first rows of all
    of them, as one axis, are the options of a product.

    Parameters
    ----------
    fits : sequence of Fit
        At least one, the most useful first.
    multiprocessors : float
        Of the device.
    shared_limit : int
        Shared memory that a block may opt in to on the device, in bytes.
    fitted : Fitted
        The fitted numbers of the device's architecture.
    in_order : bool
        Sums have one order: K is in one part, or each segment is a part.
    """

    def __init__(
        self, fits: Sequence[Fit], multiprocessors: float, shared_limit: int, fitted: Fitted, in_order: bool = False
    ) -> None:
        self.fits = tuple(fits)
        self.close = 1.0 if in_order else CLOSE
        self._sms, self._shared_limit, self._fitted, self._in_order = multiprocessors, shared_limit, fitted, in_order
        configs = [fit.curve.config for fit in fits]
        self._narrow = np.array([fit.rung.narrow for fit in fits])
        self._any_narrow = bool(self._narrow.any())
        self.tile = BM, BN = floats(c.BM for c in configs), floats(c.BN for c in configs)
        # Rows and columns of a tile of the caller's C, without swap_ab and with it.
        self._tall = np.stack([BM, np.where(self._narrow, BN, BM)])
        self._wide = np.stack([BN, np.where(self._narrow, BM, BN)])
        self._largest = max(BM.max(), BN.max())
        self._tile_k = floats(c.tile_k for c in configs)
        self._whole_k = math.lcm(*(c.tile_k for c in configs))
        # What a ragged last tile of k costs beyond its steps: once, and for each of them.
        self._once, self._each = np.array([fit.numbers.tail for fit in fits]).T - [[0.0], [1.0]]
        self._guard = floats(fit.numbers.guard for fit in fits)
        self._shared = floats(fit.numbers.shared for fit in fits)
        # ms per byte that tiles of less than a sector each way read, and how much less of a column-major B.
        self._thin = (self._narrow & (4.0 * np.maximum(BM, BN) < SECTOR)) / (_L2 * fitted.reduction_bytes_per_ms)
        self._thin_less = self._thin * (SECTOR - 4.0 * BN)
        self._sliced = np.array([c.sliced_k > 1 for c in configs])
        full = [fit.curve.blocks_per_sm for fit in fits]

        # Of options: every number of parts of K with each config.
        rows, count = (2 if in_order else len(PARTS)), len(fits)
        self._column = np.tile(np.arange(count), rows)
        self._full = floats(full * rows)
        self._tiles_k = np.tile(self._tile_k, rows)
        self._parts_k = np.outer(PARTS[:rows], self._tile_k).ravel()
        depths = floats(_least_depth(fit.curve.config) if fit.rung.splits else math.inf for fit in fits)
        self._least_part = depths.item(depths.argmin())
        self._depths = np.outer(PARTS[:rows], depths).ravel()
        self._depths[:count] = 0.0
        self._most_tiles = (_MOST_WAVES * multiprocessors / np.maximum(_FEWER[:rows], 1e-9)).repeat(count)
        self._few = floats([fit.few for fit in fits] * rows)
        self._bend = floats([fit.bend - fit.few for fit in fits] * rows)
        self._chains = floats([partial_accumulators.chains_of(c) for c in configs] * rows)
        # Time with partial accumulators over the time without, of each layout.
        costs = np.array([fit.curve.accumulators_cost for fit in fits]).T
        self._accumulating = np.tile(np.where(costs > 0.0, costs, fitted.accumulators_cost), rows)
        self._shortest = floats([partial_accumulators.shortest(c, shared_limit) for c in configs] * rows)
        if in_order:
            self._illegal = np.array([[self._ordered(fit, parts) is None for fit in fits] for parts in (1, 2)])
            self._depths[:], self._most_tiles[:] = 0.0, np.inf
        bandwidth = np.array([fit.numbers.bandwidth for fit in fits]).T
        # With swap_ab, the large operand of a narrow product is the caller's A, in the other order.
        self._bandwidth = np.tile(np.where(self._narrow, bandwidth[[3, 2, 2, 3]], bandwidth), rows)

        # The places of a config are the lightest load, 1, 2, ... up to a full wave, and the heaviest load.
        self._place = np.cumsum([0, *(blocks + 2 for blocks in full[:-1])])
        self._places = sum(full) + 2 * count
        self._first = np.tile(self._place, rows)
        store, *steps = whole_loads(fits)  # each of aligned and of ragged operands, at each place
        narrow = self._narrow.repeat([blocks + 2 for blocks in full])
        # By whether rows of the caller's C are ragged, then by whether those are that a narrow product stores.
        kinds = [np.where(narrow, store[stored], store[own]) for own in (0, 1) for stored in (0, 1)]
        self._store, self._store_ends = self._tables(np.array(kinds)[None])
        factors = layout_factors(fits)
        turned = np.where(narrow, factors[[LAYOUTS.index(_TRANSPOSED[layout]) for layout in LAYOUTS]], factors)
        each = np.array(steps)[:, None, None] * np.stack([factors, turned])  # by swap_ab, layout, kind and place
        aligned, ragged = each[..., 0, :], each[..., 1, :]
        self._steps, self._step_ends = self._tables(np.stack([aligned, (aligned + ragged) / 2, ragged], axis=-2))

    def _tables(self, times: Floats) -> tuple[Floats, Floats]:
        """Return times at each place, and those that follow from two places of a config; see `Waves.times`.

        The first axis of `times` is kept, the last one are the places. In between are all tables.
        """
        full = self._place + self._full[: len(self.fits)].astype(np.intp)
        lightest, one, whole, heavy = (times[..., at] for at in (self._place, self._place + 1, full, full + 1))
        later = (heavy - whole) / (STEADY - 1)
        lighter = (lightest - one) * (SPARSE / (SPARSE - 1))  # for a whole block less
        ends = np.stack([whole, later, lighter, lightest])
        ends = ends.reshape(4, len(times), -1, len(self.fits))
        return times.reshape(len(times), -1), np.tile(ends, len(self._full) // len(self.fits))

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
        faced = with_swap_ab(fit.rung, problem)
        return partial_accumulators.shortened(config, faced, self._shared_limit, self._fitted)

    def best(self, problem: Problem) -> Prediction | None:
        """Return the best config for one problem; see `Table.best`."""
        return self.predict([Product(problem, True)]).best()

    def ranking(self, problem: Problem) -> list[Prediction]:
        """Return all configs for one problem; see `Table.ranking`."""
        return self.predict([Product(problem, True)]).ranking()

    def times(self, problem: Problem) -> list[tuple[Fit, int, float]]:
        """Return config, parts of K and predicted time in ms of every option, without the cost of accumulators."""
        options = self.predict([Product(problem, True)], accumulators=False).options()
        return [(self.fits[column], PARTS[row], ms) for row, column, ms in options]

    def predict(self, products: Sequence[Product], accumulators: bool = True) -> Table:
        """Return the times of all configs on some products.

        Parameters
        ----------
        products : sequence of Product
        accumulators : bool
            Whether the times are those with partial accumulators, where a problem needs them.
        """
        p, configs = Planes(products, self._fitted), len(self.fits)
        tall, wide = self._tall[p.swap], self._wide[p.swap]
        tiles = np.ceil(p.M / tall) * np.ceil(p.N / wide) * p.batch
        for plane, product in enumerate(products):
            if product.tiles is not None:
                own = tiles.reshape(-1, configs)[plane]
                own[:], own[: len(product.tiles)] = 0.0, product.tiles
            if product.problem.symmetric:
                N, batch = product.problem.N, product.problem.batch
                each = zip(*self.tile, strict=True)
                tiles.reshape(-1, configs)[plane] = [batch * triangle_tiles(int(BM), int(BN), N) for BM, BN in each]
        rows = self._rows(p, tiles)
        n = rows * configs  # options of a product

        def of_options(values: Array) -> Array:
            return values if rows == 1 else values.take(self._column[:n], axis=-1)

        tiles = of_options(tiles)
        if p.is_unusual:  # of more, a float64 does not say how many the last wave has
            tiles = np.minimum(tiles, MAX_BLOCKS + 1.0)
        steps, depth, parts = self._depth(p, n)
        bent = np.minimum(depth, self._bend[:n])
        if p.least_side < self._largest:  # where a tile is larger than C, the copies check bounds
            guard = of_options(np.where((tall > p.M) | (wide > p.N), self._guard, 1.0))
            depth, bent = depth * guard, bent * guard
        waves = Waves(tiles * parts / self._sms, self._full[:n])
        place = self._first[:n] + waves.place
        at = place + p.read_place * self._places

        # The steps of k take a straight line from the bend on, beside what a block costs once.
        def ends(which: int) -> Floats:
            slope, extra = self._step_ends[which][:, p.read, :n]
            times: Floats = slope * depth + extra * bent
            return times

        def all_ends(which: int) -> Floats:
            store = self._store_ends[which, 0][p.store, :n]
            times: Floats = ends(which) + (store if p.stores is None else store * p.stores)
            return times

        k_steps = self._steps[0].take(at) * depth + self._steps[1].take(at) * bent
        store = self._store[0].take(place + p.store_place * self._places)
        if p.stores is not None:  # the transposed store of a tile takes about as long as the other
            store = store * p.stores
        ms = waves.times(k_steps + store, all_ends)
        if self._any_narrow:  # rows of tiles share reads of B, but a few blocks have the memory to themselves
            k_steps = waves.times(k_steps, ends)
            high = np.minimum(np.ceil(np.minimum(p.M, p.N) / self.tile[0]), STACKED)
            shared = of_options(self._shared * (1.0 - 1.0 / high))
            slower = np.minimum(k_steps, np.maximum(k_steps * (1.0 - shared), ends(LIGHTEST)))
            if p.any_sectors:  # L2 sends whole sectors, of which thin tiles need a few elements
                sectors = p.sectors * self._thin - p.sectors_less * self._thin_less
                slower = np.maximum(slower, tiles * of_options(sectors))
            ms += slower - k_steps
        # A and B are read once, at most at the rate that was measured.
        ms = np.maximum(ms, p.read_bytes / self._bandwidth[p.large, :n])
        if rows > 1:  # a second kernel reads the partial sums, and reads and writes C
            written = p.stored_bytes / self._fitted.reduction_bytes_per_ms
            summed = written if p.stores is None else written / p.stores
            added = parts * (self._fitted.reduction_ms_per_part + summed) + (self._fitted.reduction_ms + 2.0 * written)
            ms += added * (parts > 1.0)
        cost = ms
        if accumulators and not self._in_order and p.most_chains > 1:
            wanted = p.chains / (parts * self._chains[:n])
            ms, cost = partial_accumulators.add(
                ms, self._accumulating[p.layout, :n], steps / self._shortest[:n], wanted
            )
        out = (tiles > MAX_BLOCKS) | (tiles == 0.0) if p.is_unusual else None
        if rows > 1:
            more = (tiles >= self._most_tiles[:n]) | (self._depths[:n] > p.K)
            out = more if out is None else out | more
        if out is not None:
            cost = np.where(out, np.inf, cost)
        shape = len(products), rows, configs
        return Table(self, products, ms.reshape(shape), self._without(products, p, cost.reshape(shape)))

    def _rows(self, p: Planes, tiles: Floats) -> int:
        """Return how many numbers of parts of K are considered with any config."""
        if self._in_order:
            return 2 if p.most_K > SEGMENT else 1
        fewest = max(1.0, tiles.item(tiles.argmin()))
        deep, few = (
            bisect_right(PARTS, p.most_K / self._least_part),
            bisect_left(_FEWER, _MOST_WAVES * self._sms / fewest),
        )
        return max(1, min(deep, few))

    def _depth(self, p: Planes, n: int) -> tuple[Any, Floats, Any]:
        """Return the steps of k of a part, the same above those of the shortest K that was measured, and the parts.

        A ragged last tile of k costs some steps more.
        """
        configs, few = len(self.fits), self._few[:n]
        tail: Any = 0.0
        if not p.is_whole(self._whole_k):
            rest = np.fmod(p.K, self._tile_k)
            tail = self._once * np.minimum(rest, 1.0) + self._each * rest
        if n == configs:
            return p.K, np.maximum(p.K + tail, few) - few, 1.0
        if self._in_order:
            steps = np.minimum(p.K, float(SEGMENT)) + np.zeros(n)
        else:
            steps = np.ceil(p.K / self._parts_k[:n]) * self._tiles_k[:n]
        steps[..., :configs] = p.K
        depth = steps.copy()
        depth[..., :configs] += tail
        return steps, np.maximum(depth, few) - few, np.ceil(p.K / steps)

    def _without(self, products: Sequence[Product], p: Planes, cost: Floats) -> Floats:
        """Return the costs with what single products rule out set to infinity.

        That are the rungs for few rows where a product has many; split-K where it has a number of tiles of its own; and
        the options that share out a sum of few steps, unless a product has no other.
        """
        for plane, product in enumerate(products):
            if self._any_narrow and not product.narrow:
                cost[plane, :, self._narrow] = np.inf
            if product.tiles is not None:
                cost[plane, 1:] = np.inf
            if self._in_order:  # one segment is a part, which needs no shared memory for the sums of several
                one = product.problem.K <= SEGMENT
                cost[plane, 0, self._illegal[int(one)]] = np.inf
                cost[plane, 1:, self._illegal[1] | one] = np.inf
            if product.problem.K <= partial_accumulators.FEW:
                narrow, wide = (partial_accumulators.shares_out_few(product.problem, kind) for kind in (True, False))
                chained = np.where(np.where(self._narrow, narrow, wide & self._sliced), np.inf, cost[plane])
                if chained.min() < np.inf:
                    cost[plane] = chained
        return cost
