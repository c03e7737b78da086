"""The ways to compute a product, each with its time: what is compared is predicted in one table.

A product is computed whole or, as C is cut, in two shares. Its operands are read as they lie, or packed into lines that
rung 9 reads fastest. ``docs/tuning.md`` states the rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fastsgemm import rungs
from fastsgemm.config import VECTOR
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.layout import ITEM, Pair
from fastsgemm.geometry.variants import Operand, with_swap_ab
from fastsgemm.heuristics import partial_accumulators
from fastsgemm.heuristics.cost_model import CLOSE, Prediction
from fastsgemm.heuristics.database_entries import Curve, Fitted
from fastsgemm.heuristics.knowledge import Knowledge
from fastsgemm.heuristics.products import Product
from fastsgemm.heuristics.shares import EXACT, NEAREST, NOTHING, PREDICTED, Packed, Pick, Way
from fastsgemm.problem import Problem
from fastsgemm.rungs import SKINNY_IN_ORDER, Rung

AS_THEY_LIE = "as they lie"

Operands = tuple[Operand, Operand, Operand]
Span = tuple[Pair, Pair]  # rows and columns of C: the first of them, and how many

READER, SKINNY = rungs.DEFAULTS  # the first reads packed operands, and computes shares without a last wave
_PACKINGS: tuple[Packed, ...] = ((True, False), (False, True), (True, True))
_MOST_SHARE = 1 / 3  # of a product's time that copying may take to be considered: no layout costs rung 9 more
# Of a measured time, for which the record of a problem is given up. Predicted times of chosen configs are 3 % too short
# on average, and vary by 4 %.
LEAST_GAIN = 0.06
_EDGE = 64  # rows or columns: most tiles have as many, or a multiple
_LEAST_MS = 0.05  # of a product that is cut
_LEAST_STEPS = 32  # of k: with fewer, a product waits for the memory, and how tiles fit does not matter
_FEW_BLOCKS = 4  # on each multiprocessor


class _Cut(NamedTuple):
    """A cut that is considered: its first share, and whether the rest are rows, and where these or columns begin.

    Both are arrays of one for each config where the cut is before the last wave of its tiles.
    """

    first: Product
    of_rows: Any
    end: Any


class Search:
    """Finds the quickest way to compute a product.

    Parameters
    ----------
    known : Knowledge
    rung : Rung or None
        The only one that is considered. None: the default rungs that suit a product.
    in_order : bool
        Whether each sum must have the one order of ``docs/precision.md``.
    """

    def __init__(self, known: Knowledge, rung: Rung | None, in_order: bool) -> None:
        self._known, self._rung, self._in_order = known, rung, in_order
        self._multiprocessors = known.device.multiprocessors

    def ways(self, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...] = ()) -> Iterator[Way]:
        """Yield the ways that were compared, the one to take first. C is row-major."""
        problem = variants.dense_problem(a, b, c, extents=extents)
        if extents or self._rung is not None or self._in_order:
            yield self._whole(self.pick(problem), NOTHING, 0.0, c)
            return
        # Operands packed and as they lie are compared in one table, where the product looks large enough for it.
        typical = self._typical_ms(problem)
        added = self._packings(typical, a, b, c)
        lying, *others = self._picks_packed(problem, added, a, b, c)
        if lying.ms is not None and lying.ms > typical:
            added = self._packings(lying.ms, a, b, c)
            if len(added) > len(others):
                _, *others = self._picks_packed(problem, added, a, b, c)
        best, packed, least = lying, NOTHING, math.inf
        # Operands that are read in whole vectors are packed only for their order in memory, and C is cut, for a gain
        # that is larger than the error of the model: other kernels have to be compiled for it.
        aligned = bool(added) and a.width == b.width == VECTOR
        for (how, ms), pick in zip(added.items(), others, strict=True):
            cost = pick.cost + ms
            most = lying.cost * _most(lying, pick, 1.0 / CLOSE if aligned else 1.0)
            if lying.ms is not None and ms < _MOST_SHARE * lying.ms and cost < min(least, most):
                best, packed, least = pick, how, cost
        ms = added.get(packed, 0.0)
        if lying.ms is not None and lying.ms >= _LEAST_MS and a.shape[1] >= _LEAST_STEPS:
            half = self._half(best, packed, ms, a, b, c)
            if half is not None:
                yield half
        if packed != NOTHING:
            yield self._whole(best, packed, ms, c)
        yield self._whole(lying, NOTHING, 0.0, c)

    def symmetric_ways(
        self,
        a: Operand,
        b: Operand,
        c: Operand,
        extents: tuple[int, ...] = (),
        gram: bool = False,
        declared: bool = False,
    ) -> Iterator[Way]:
        """Return the ways to compute a symmetric result that were compared, the one to take first. C is row-major.

        C is never cut, because each share would have an order of summation of its own.

        Parameters
        ----------
        a, b, c : Operand
        extents : tuple of int
        gram : bool
            B is A transposed. Then one copy is packed for both, and unless the result is declared to be symmetric, the
            product may be computed whole: its kernels sum what lies across the diagonal in the same order.
        declared : bool
            The caller says that the result is symmetric, or wants one triangle of it.
        """
        if self._rung is not None and not self._rung.computes_triangles:
            return self.ways(a, b, c, extents)
        problem = variants.dense_problem(a, b, c, extents=extents)
        pick = self.pick(_symmetric(problem))
        best = self._whole(pick, NOTHING, 0.0, c, triangle=True)
        ways = [best]
        if not (extents or pick.ms is None or self._rung is not None or self._in_order):
            aligned = a.width == b.width == VECTOR
            for packed, added in self._packings(pick.ms, a, b, c).items():
                if gram and packed != (True, True):
                    continue
                one = self.pick(_symmetric(variants.dense_problem(*pack(packed, a, b), c)))
                way = self._whole(one, packed, added / 2 if gram else added, c, triangle=True)
                ways.append(way)
                if way.cost < min(best.cost, ways[0].cost / (CLOSE if aligned else 1.0)):
                    best = way
        if declared or not gram:
            return iter(sorted(ways, key=lambda way: way is not best))
        pick = self.pick(problem)
        whole = self._whole(pick, NOTHING, 0.0, c)
        if best.ms is None or pick.ms is None:  # without times, the waves of blocks count
            quicker = self._waves(best, _symmetric(problem)) < self._waves(whole, problem)
        else:
            quicker = best.cost < whole.cost * _most(pick, None, 1.0 / CLOSE)
        first = best if quicker else whole
        return iter(sorted([*ways, whole], key=lambda way: way is not first))

    def _waves(self, way: Way, problem: Problem) -> int:
        """Return how many waves of blocks a multiprocessor has."""
        config, rung = way.shares[0].config, way.shares[0].rung
        blocks = grid.blocks(config, with_swap_ab(rung, problem)) * problem.batch
        return -(-blocks // self._multiprocessors)

    def _typical_ms(self, problem: Problem) -> float:
        """Return how long a product takes at half the rate of the quickest config."""
        model = self._known.model(READER)
        return 0.0 if model is None else 4.0 * problem.M * problem.N * problem.K / model.peak

    def _packings(self, whole: float, a: Operand, b: Operand, c: Operand) -> dict[Packed, float]:
        """Return the packings to consider, and what each adds to the time, for a product that takes `whole` ms.

        They change how operands are read.
        """
        fitted, limit = self._known.fitted, _MOST_SHARE * whole
        if not fitted.packing_bytes_per_ms or fitted.packing_ms >= limit:
            return {}
        read = pack((True, True), a, b)
        in_vain = [
            one.how.trans is to.how.trans and one.width == to.width for one, to in zip((a, b), read, strict=True)
        ]
        return {
            packed: ms
            for packed in _PACKINGS
            if not ((packed[0] and in_vain[0]) or (packed[1] and in_vain[1]))
            and (ms := packing_ms(fitted, packed, a, b, c)) < limit
        }

    def _picks_packed(
        self, problem: Problem, packings: Iterable[Packed], a: Operand, b: Operand, c: Operand
    ) -> list[Pick]:
        """Return the configs for a whole product with operands as they lie, and packed in several ways."""
        packed = [self.product(variants.dense_problem(*pack(how, a, b), c), how) for how in packings]
        return [pick for pick in self.picks([self.product(problem), *packed]) if pick is not None]

    def _cuts(self, a: Operand, b: Operand, c: Operand, packed: Packed) -> list[_Cut]:
        """Return the cuts that are considered: before the last whole edge of tiles, and before the last wave of one.

        A and B are as the first share reads them.
        """
        cuts = []
        for axis, extent in enumerate(c.shape):
            edge = extent // _EDGE * _EDGE
            if 0 < edge < extent:
                first, _ = _spans(axis, edge, c.shape)
                problem = variants.dense_problem(*variants.share(a, b, c, *first))
                cuts.append(_Cut(self.product(problem, packed), axis == 0, edge))
        model = self._known.model(READER)
        if model is not None:
            tiles, of_rows, end = _without_last_wave(*model.tile, c.shape, self._multiprocessors)
            elements = np.maximum(end * np.where(of_rows, c.shape[1], c.shape[0]), 1.0)
            cuts.append(_Cut(Product(variants.dense_problem(a, b, c), False, tiles, elements), of_rows, end))
        return cuts

    def _half(self, whole: Pick, packed: Packed, added: float, a: Operand, b: Operand, c: Operand) -> Way | None:
        """Return the quickest way that cuts C, or None if the whole is as quick; packing adds `added` ms to either.

        The second share is small and reads operands as they lie.
        """
        cuts = self._cuts(*pack(packed, a, b), c, packed)
        firsts, most = [], whole.cost * _most(whole, None, 1.0 / CLOSE)
        for cut, first in zip(cuts, self.picks([cut.first for cut in cuts]), strict=True):
            if first is None:
                continue
            of_rows, end = cut.of_rows, cut.end
            if cut.first.tiles is not None:
                assert isinstance(first.known, Prediction)
                of_rows, end = of_rows[first.known.column], int(end[first.known.column])
            axis = 0 if of_rows else 1
            # Tiles fit the second share worse: it takes at least as long per element as the first.
            if first.cost * c.shape[axis] / end < most:
                firsts.append((axis, first, _spans(axis, end, c.shape)))
        if not firsts:
            return None
        rest = [variants.share(a, b, c, *spans[1]) for *_, spans in firsts]
        seconds = self.picks([self.product(variants.dense_problem(*share)) for share in rest])
        costs = [first.cost + second.cost for (_, first, _), second in zip(firsts, seconds, strict=True) if second]
        least = min(costs, default=math.inf)
        if least >= most:
            return None
        at = costs.index(least)
        (axis, first, spans), second = firsts[at], seconds[at]
        assert first.ms is not None and second is not None and second.ms is not None
        shares = first.share(*spans[0], packed), second.share(*spans[1])
        main = variants.share(*pack(packed, a, b), c, *spans[0])
        if self._second_first(first, main, second, rest[at]):
            shares = shares[1], shares[0]
        name = f"{_named(packed)}, cut before {('row', 'column')[axis]} {spans[1][axis][0]}"
        return Way(name, shares, first.ms + second.ms + added, least + added)

    def _second_first(self, first: Pick, main: Operands, second: Pick, rest: Operands) -> bool:
        """Whether the second share is launched first.

        One of few blocks is, because then each multiprocessor gets as many of them as any other. Launched while the
        first share ends, they would all go to the first multiprocessors that have room. The first share must fill the
        device: else its blocks would crowd on the multiprocessors that have none of the second. Blocks of rung 10, or
        of parts of K, are done soon anyway.
        """
        if not isinstance(first.evidence, Curve) or second.rung.narrow:
            return False
        blocks, _ = _blocks(first, main)
        few, parts = _blocks(second, rest)
        fills = blocks >= first.evidence.blocks_per_sm * self._multiprocessors
        return fills and parts == 1 and few < _FEW_BLOCKS * self._multiprocessors

    def _whole(self, pick: Pick, packed: Packed, added: float, c: Operand, triangle: bool = False) -> Way:
        """Return a way that does not cut C, or computes one triangle of it."""
        share = pick.share((0, c.shape[0]), (0, c.shape[1]), packed)
        ms = None if pick.ms is None else pick.ms + added
        name = f"one triangle, {_named(packed)}" if triangle else _named(packed)
        return Way(name, (share,), ms, pick.cost + added, triangle)

    def product(self, problem: Problem, packed: Packed = NOTHING) -> Product:
        """Return a problem with whether the rungs for few rows may compute it."""
        if self._rung is not None:
            return Product(problem, self._rung.narrow)
        narrow = SKINNY.suits(problem.M, problem.N) and not any(packed) and not problem.symmetric
        return Product(problem, narrow)

    def pick(self, problem: Problem) -> Pick:
        """Return the config of one problem, whole and with operands as they lie; see `picks`."""
        pick = self.picks([self.product(problem)])[0]
        assert pick is not None
        return pick

    def picks(self, products: Sequence[Product]) -> list[Pick | None]:
        """Return the config of each product: its record, else the least predicted time, else the nearest record.

        None only for a product without the last wave, which no config may have.
        """
        picks = [None if product.tiles is not None else self._exact(product) for product in products]
        asked = [number for number, pick in enumerate(picks) if pick is None]
        if not asked:
            return picks
        widest = next((number for number in asked if products[number].narrow), asked[0])
        model = self._known.model(*self._rungs(products[widest]), in_order=self._in_order)
        if model is not None:
            table = model.predict([products[number] for number in asked])
            for plane, number in enumerate(asked):
                one = table.best(plane)
                if one is not None:
                    picks[number] = Pick(one.fit.rung, one, PREDICTED, one.fit.curve, one.ms, one.cost)
        return [
            self._nearest(product) if pick is None and product.tiles is None else pick
            for product, pick in zip(products, picks, strict=True)
        ]

    def ranking(self, problem: Problem) -> list[Pick]:
        """Return each config that has a curve, the quickest first."""
        product = self.product(problem)
        model = self._known.model(*self._rungs(product), in_order=self._in_order)
        found = [] if model is None else model.predict([product]).ranking()
        return [Pick(one.fit.rung, one, PREDICTED, one.fit.curve, one.ms, one.cost) for one in found]

    def _rungs(self, product: Product) -> tuple[Rung, ...]:
        """Return the rungs that are considered for a product."""
        if self._rung is not None:
            return (self._rung,)
        if product.problem.symmetric or not self._in_order:
            return (READER, SKINNY) if product.narrow else (READER,)
        one_row = min(product.problem.M, product.problem.N) == 1
        skinny = one_row and self._known.of(SKINNY_IN_ORDER, True).is_measured
        return (SKINNY_IN_ORDER,) if skinny else (READER,)

    def _exact(self, product: Product) -> Pick | None:
        """Return the record of a problem, of several the quickest, unless it shares out a sum of few steps."""
        problem, best = product.problem, None
        for rung in self._rungs(product):
            record = self._known.of(rung, self._in_order).exact(problem)
            if record is None or partial_accumulators.splits_few(rung, record.config, problem):
                continue
            cost = math.inf if record.ms is None else record.ms
            if best is None or cost <= best.cost:
                config = rungs.in_order(record.config, problem.K) if self._in_order else record.config
                best = Pick(rung, config, EXACT, record, record.ms, cost)
        return best

    def _nearest(self, product: Product) -> Pick:
        """Return the config of the nearest record, where no times are known: of two rungs the more special."""
        problem, picks = product.problem, []
        for rung in self._rungs(product):
            record, *_ = self._known.of(rung, self._in_order).nearest(problem)
            faced, config = with_swap_ab(rung, problem), record.config
            if self._in_order:
                few = grid.tiles(config, faced) * problem.batch < self._multiprocessors
                config = config if rung.narrow else config.replace(SPLIT_K=2 if few else 1)
                config = rungs.in_order(config, problem.K)
            else:
                limit = self._known.device.shared_limit
                config = partial_accumulators.shortened(config, faced, limit, self._known.fitted)
            picks.append(Pick(rung, config, NEAREST, record, None, math.inf))
        whole = [one for one in picks if not partial_accumulators.splits_few(one.rung, one.config, problem)]
        return (whole or picks)[-1]


def _symmetric(problem: Problem) -> Problem:
    """Return the same problem with one triangle computed."""
    return replace(problem, symmetric=True)


def pack(packed: Packed, a: Operand, b: Operand) -> tuple[Operand, Operand]:
    """Return A and B as a kernel gets them: A column-major where it is packed, and B row-major."""
    return a.packed(trans=True) if packed[0] else a, b.packed(trans=False) if packed[1] else b


def packing_ms(fitted: Fitted, packed: Packed, a: Operand, b: Operand, c: Operand) -> float:
    """Return what packing adds to the predicted time in ms. C is row-major."""
    floats = sum(one.shape[0] * one.shape[1] for chosen, one in zip(packed, (a, b), strict=True) if chosen)
    ms = fitted.packing_ms * sum(packed) + 2 * ITEM * floats / fitted.packing_bytes_per_ms  # each is read and written
    if packed[1] and c.width < VECTOR:
        ms += ITEM * c.shape[0] * c.shape[1] / fitted.odd_store_bytes_per_ms
    return ms


def _most(old: Pick, new: Pick | None, most: float) -> float:
    """Return the largest share of the cost of one way for which another one is taken.

    A measured time is given up for a predicted one only where the gain is large. None: for a cut, whose time is the sum
    of two.
    """
    return 1.0 - LEAST_GAIN if old.rule == EXACT and (new is None or new.rule != EXACT) else most


def _named(packed: Packed) -> str:
    name = " and ".join(name for name, one in zip("AB", packed, strict=True) if one)
    return f"{name} packed" if name else AS_THEY_LIE


def _spans(axis: int, end: int, shape: Pair) -> tuple[Span, Span]:
    """Return the rows and columns of both shares of C."""
    first, second = (0, end), (end, shape[axis] - end)
    if axis == 0:
        return (first, (0, shape[1])), (second, (0, shape[1]))
    return ((0, shape[0]), first), ((0, shape[0]), second)


def _without_last_wave(BM: Any, BN: Any, shape: Pair, multiprocessors: int) -> tuple[Any, Any, Any]:
    """Return how much of C tiles compute without the last wave, which only some multiprocessors have.

    Here a wave is one tile for each multiprocessor. So many rows or columns of tiles are left out that none has more.

    Returns
    -------
    tiles : array
        How many there are then; infinite where no wave is left out, or no other is left.
    of_rows : array of bool
        Whether rows of tiles are left out, else columns.
    end : array
        The rows or columns of C that are left.
    """
    M, N = shape
    down, across = np.ceil(M / BM), np.ceil(N / BN)
    over = down * across % multiprocessors
    rows, columns = np.ceil(over / across), np.ceil(over / down)
    of_rows = rows * across <= columns * down
    tiles = down * across - np.minimum(rows * across, columns * down)
    tiles = np.where((over > 0.0) & (tiles > 0.0), tiles, np.inf)
    return tiles, of_rows, np.where(of_rows, (down - rows) * BM, (across - columns) * BN)


def _blocks(pick: Pick, share: Operands) -> tuple[int, int]:
    """Return the blocks of a share, and into how many parts they divide K."""
    problem = with_swap_ab(pick.rung, variants.dense_problem(*share))
    return grid.blocks(pick.config, problem), grid.split(pick.config, problem.K)[0]
