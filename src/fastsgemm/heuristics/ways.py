"""The ways to compute a product, each with its time: what is compared is predicted in one table.

A product is computed whole or, as C is cut, in two shares. Its operands are read as they lie, or packed into lines that
rung 9 reads fastest. ``docs/tuning.md`` states the rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fastsgemm import rungs
from fastsgemm.config import VECTOR
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.layout import ITEM, Pair
from fastsgemm.geometry.matrix import Operand
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import partial_accumulators
from fastsgemm.heuristics.cost_model import CLOSE
from fastsgemm.heuristics.database_entries import Curve
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.heuristics.knowledge import Knowledge
from fastsgemm.heuristics.products import Product
from fastsgemm.heuristics.shares import EXACT, NEAREST, NOTHING, Choice, Packed, Pick, Share
from fastsgemm.problem import Problem
from fastsgemm.request import Request
from fastsgemm.rungs import SKINNY_IN_ORDER, Rung

Operands = tuple[Operand, Operand, Operand]
Span = tuple[Pair, Pair]  # rows and columns of C: the first of them, and how many

READER, SKINNY = rungs.DEFAULTS  # the first reads packed operands
BOTH: Packed = (True, True)
_PACKINGS: tuple[Packed, ...] = ((True, False), (False, True), BOTH)
_MOST_SHARE = 1 / 3  # of a product's time that copying may take to be considered: no layout costs rung 9 more
# Of a measured time, for which the record of a problem is given up. Predicted times of chosen configs are 3 % too short
# on average, and vary by 4 %.
LEAST_GAIN = 0.06
_EDGE = 64  # rows or columns: most tiles have as many, or a multiple
_LEAST_MS = 0.05  # of a product that is cut
_MOST_USED = 0.95  # of what multiprocessors compute in whole waves, that C has elements for, in a product that is cut
_FEW_BLOCKS = 4  # on each multiprocessor


class Search:
    """Finds the quickest way to compute a product.

    The request is without tensor cores and a config. If it names no rung, the default rungs that suit a product are
    considered.
    """

    def __init__(self, known: Knowledge, request: Request) -> None:
        self._known, self._request = known, request
        self._rung, self._in_order = request.rung, request.batch_invariant
        self._multiprocessors = known.device.multiprocessors

    def ways(self, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...] = ()) -> Iterator[Choice]:
        """Yield the ways that were compared, the one to take first. C is row-major.

        Of a symmetric result one triangle is computed, and C is not cut, because each share would have an order of
        summation of its own. A Gram product that the caller does not declare to be symmetric may be computed whole: its
        kernels sum what lies across the diagonal in the same order.
        """
        request, rung = self._request, self._rung
        triangle = bool(request.sym) and (rung is None or rung.computes_triangles)
        lying, (best, packed, added) = self._packed_or_not(a, b, c, extents, triangle, request.gram)
        if triangle and request.gram and not request.symmetric:
            problem = variants.dense_problem(a, b, c, extents=extents)
            pick = self.pick(problem)
            if best.ms is None or pick.ms is None:  # without times, the waves of blocks count
                quicker = self._waves(best, replace(problem, symmetric=True)) < self._waves(pick, problem)
            else:
                quicker = best.cost + added < pick.cost * _most(pick, None, 1.0 / CLOSE)
            whole = self._whole(pick, NOTHING, 0.0, c)
            if not quicker:
                yield whole
            yield self._whole(best, packed, added, c, triangle=True)
            if quicker:
                yield whole
        else:
            if not (triangle or extents or rung is not None or self._in_order):
                cut = self._cut(best, packed, added, a, b, c)
                if cut is not None:
                    yield cut
            yield self._whole(best, packed, added, c, triangle)
        if packed != NOTHING:
            yield self._whole(lying, NOTHING, 0.0, c, triangle)

    def _packed_or_not(
        self, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...], triangle: bool, gram: bool
    ) -> tuple[Pick, tuple[Pick, Packed, float]]:
        """Return the config for operands as they lie, and the quickest with what it reads packed and what that takes.

        Both are of a product that is not cut. All are compared in one table.
        """
        added = {NOTHING: 0.0}
        if not (extents or self._rung is not None or self._in_order):
            added |= self._packings(a, b, c, gram)
        products = []
        for packed in added:
            problem = variants.dense_problem(*pack(packed, a, b), c, extents=extents)
            products.append(self.product(replace(problem, symmetric=True) if triangle else problem, packed))
        picks = self.picks(products)
        lying = picks[0]
        best, least = (lying, NOTHING, 0.0), math.inf
        # Operands that are read in whole vectors are packed only for their order in memory, and C is cut, for a gain
        # that is larger than the error of the model: other kernels have to be compiled for it.
        close = 1.0 / CLOSE if len(added) > 1 and a.width == b.width == VECTOR else 1.0
        for (packed, ms), pick in zip(added.items(), picks, strict=True):
            cost = pick.cost + ms
            if packed != NOTHING and lying.ms is not None and cost < min(least, lying.cost * _most(lying, pick, close)):
                best, least = (pick, packed, ms), cost
        pick, packed, ms = best
        return lying, (pick._replace(known=pick.config), packed, ms)

    def _packings(self, a: Operand, b: Operand, c: Operand, gram: bool) -> dict[Packed, float]:
        """Return the packings to consider, and what each adds to the time; they change how operands are read.

        At half the rate of the quickest config, no copy takes more than a third of the time of the product. Of a Gram
        product, one copy serves both sides.
        """
        model, fitted = self._known.model(READER), self._known.fitted
        if model is None or not fitted.packing_bytes_per_ms:
            return {}
        limit = _MOST_SHARE * 4.0 * c.shape[0] * c.shape[1] * a.shape[1] / model.peak
        if fitted.packing_ms >= limit:
            return {}
        in_vain = [
            one.how.trans is to.how.trans and one.width == to.width
            for one, to in zip((a, b), pack(BOTH, a, b), strict=True)
        ]
        added_ms = {}
        for packed in (BOTH,) if gram else _PACKINGS:
            ms = packing_ms(fitted, packed, a, b, c) / (2 if gram else 1)
            if ms < limit and not ((packed[0] and in_vain[0]) or (packed[1] and in_vain[1])):
                added_ms[packed] = ms
        return added_ms

    def _cut(self, whole: Pick, packed: Packed, added: float, a: Operand, b: Operand, c: Operand) -> Choice | None:
        """Return the quickest way that cuts C, or None if the whole is as quick; packing adds `added` ms to either.

        The first share reads A and B as the whole product does. The second is small and reads them as they lie.
        """
        if whole.ms is None or whole.ms + added < _LEAST_MS or self._used(whole, a, c) > _MOST_USED:
            return None
        cuts = [(axis, *_spans(axis, end, c.shape)) for axis, end in self._places(whole, c.shape)]
        firsts = [variants.share(*pack(packed, a, b), c, *first) for _, first, _ in cuts]
        picks = self.picks([self.product(variants.dense_problem(*first), packed) for first in firsts])
        most = whole.cost * _most(whole, None, 1.0 / CLOSE)
        left = [
            (pick, first, cut)
            for pick, first, cut in zip(picks, firsts, cuts, strict=True)
            # Tiles fit the second share worse: it takes at least as long per element as the first.
            if pick.cost * c.shape[cut[0]] / first[2].shape[cut[0]] < most
        ]
        if not left:
            return None
        rests = [variants.share(a, b, c, *second) for *_, (_, _, second) in left]
        seconds = self.picks([self.product(variants.dense_problem(*rest)) for rest in rests])
        costs = [first.cost + second.cost for (first, *_), second in zip(left, seconds, strict=True)]
        at = costs.index(min(costs))
        pick, first, (_, of_first, of_second) = left[at]
        second = seconds[at]
        if costs[at] >= most or pick.ms is None or second.ms is None:
            return None
        shares = pick.share(*of_first, packed), second.share(*of_second)
        if self._second_first(shares, first, rests[at]):
            shares = shares[1], shares[0]
        return Choice(shares, ms=pick.ms + second.ms + added, cost=costs[at] + added)

    def _used(self, pick: Pick, a: Operand, c: Operand) -> float:
        """Return which share of what the multiprocessors compute in whole waves are elements of C.

        Here a wave is one tile for each multiprocessor.
        """
        config, problem = pick.config, with_swap_ab(pick.rung, Problem(*c.shape, a.shape[1]))
        parts = grid.split(config, problem.K)[0]
        waves = -(-grid.tiles(config, problem) * parts // self._multiprocessors)
        return problem.M * problem.N * parts / (waves * self._multiprocessors * config.BM * config.BN)

    def _places(self, whole: Pick, shape: Pair) -> list[tuple[int, int]]:
        """Return where C may be cut: 0 and the first row of the second share, or 1 and its first column.

        That is before the last whole edge of tiles, and where the tiles of the whole product's config have no last
        wave, which only some multiprocessors have: so many rows or columns of tiles are left out.
        """
        places = [(axis, extent // _EDGE * _EDGE) for axis, extent in enumerate(shape)]
        if not whole.rung.narrow:
            BM, BN = whole.config.BM, whole.config.BN
            down, across = -(-shape[0] // BM), -(-shape[1] // BN)
            over = down * across % self._multiprocessors
            rows, columns = -(-over // across), -(-over // down)
            of_rows = rows * across <= columns * down
            places.append((0, (down - rows) * BM) if of_rows else (1, (across - columns) * BN))
        return [(axis, end) for axis, end in dict.fromkeys(places) if 0 < end < shape[axis]]

    def _second_first(self, shares: tuple[Share, Share], first: Operands, rest: Operands) -> bool:
        """Whether the second share is launched first.

        One of few blocks is, because then each multiprocessor gets as many of them as any other. Launched while the
        first share ends, they would all go to the first multiprocessors that have room. The first share must fill the
        device: else its blocks would crowd on the multiprocessors that have none of the second. Blocks of rung 10, or
        of parts of K, are done soon anyway.
        """
        main, second = shares
        if not isinstance(main.evidence, Curve) or second.rung.narrow:
            return False
        blocks, few = (_blocks(share, operands) for share, operands in ((main, first), (second, rest)))
        fills = blocks >= main.evidence.blocks_per_sm * self._multiprocessors
        parts = grid.split(second.config, first[0].shape[1])[0]
        return fills and parts == 1 and few < _FEW_BLOCKS * self._multiprocessors

    def _whole(self, pick: Pick, packed: Packed, added: float, c: Operand, triangle: bool = False) -> Choice:
        """Return a way that does not cut C, or computes one triangle of it."""
        share = pick.share((0, c.shape[0]), (0, c.shape[1]), packed)
        ms = None if pick.ms is None else pick.ms + added
        return Choice((share,), ms=ms, cost=pick.cost + added, triangle=triangle)

    def _waves(self, pick: Pick, problem: Problem) -> int:
        """Return how many waves of blocks a multiprocessor has."""
        blocks = grid.blocks(pick.config, with_swap_ab(pick.rung, problem)) * problem.batch
        return -(-blocks // self._multiprocessors)

    def product(self, problem: Problem, packed: Packed = NOTHING) -> Product:
        """Return a problem with whether the rungs for few rows may compute it."""
        if self._rung is not None:
            return Product(problem, self._rung.narrow)
        narrow = SKINNY.suits(problem.M, problem.N) and not any(packed) and not problem.symmetric
        return Product(problem, narrow)

    def pick(self, problem: Problem) -> Pick:
        """Return the config of one problem, whole and with operands as they lie; see `picks`."""
        return self.picks([self.product(problem)])[0]

    def picks(self, products: Sequence[Product]) -> list[Pick]:
        """Return the config of each product: its record, else the least predicted time, else the nearest record."""
        picks = [self._exact(product) for product in products]
        asked = [number for number, pick in enumerate(picks) if pick is None]
        if not asked:
            return [pick for pick in picks if pick is not None]
        widest = next((number for number in asked if products[number].narrow), asked[0])
        model = self._known.model(*self._rungs(products[widest]), in_order=self._in_order)
        if model is not None:
            table = model.predict([products[number] for number in asked])
            for plane, number in enumerate(asked):
                picks[number] = table.best(plane)
        return [pick or self._nearest(product) for product, pick in zip(products, picks, strict=True)]

    def ranking(self, problem: Problem) -> list[Pick]:
        """Return each config that has a curve, the quickest first."""
        product = self.product(problem)
        model = self._known.model(*self._rungs(product), in_order=self._in_order)
        return [] if model is None else model.predict([product]).ranking()

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
            record = self._known.of(rung, self._in_order).nearest(problem)
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


def _spans(axis: int, end: int, shape: Pair) -> tuple[Span, Span]:
    """Return the rows and columns of both shares of C."""
    first, second = (0, end), (end, shape[axis] - end)
    if axis == 0:
        return (first, (0, shape[1])), (second, (0, shape[1]))
    return ((0, shape[0]), first), ((0, shape[0]), second)


def _blocks(share: Share, operands: Operands) -> int:
    """Return the blocks of a share."""
    return grid.blocks(share.config, with_swap_ab(share.rung, variants.dense_problem(*operands)))
