"""The ways to compute a product, each with its time: what is compared is predicted in one table.

Operands are read as they lie, or packed into lines that rung 9 reads fastest. A symmetric result may be computed as one
triangle. ``docs/tuning.md`` states the rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fastsgemm import rungs
from fastsgemm.config import VECTOR
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.layout import ITEM
from fastsgemm.geometry.matrix import Operand
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import partial_accumulators
from fastsgemm.heuristics.cost_model import CLOSE
from fastsgemm.heuristics.device_database import DeviceDatabase
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.heuristics.products import Product
from fastsgemm.heuristics.selection import EXACT, NEAREST, NOTHING, Choice, Packed, Selection, comparable
from fastsgemm.problem import Problem, Ragged
from fastsgemm.request import Request
from fastsgemm.rungs import SKINNY_IN_ORDER, Rung

READER, SKINNY = rungs.DEFAULTS  # the first reads packed operands
BOTH: Packed = (True, True)
_PACKINGS: tuple[Packed, ...] = ((True, False), (False, True), BOTH)
_MOST_SHARE = 1 / 3  # of a product's time that copying may take to be considered: no layout costs rung 9 more
# Of a measured time, for which the record of a problem is given up. Predicted times of chosen configs are 3 % too short
# on average, and vary by 4 %.
LEAST_GAIN = 0.06


class Search:
    """Finds the quickest way to compute a product.

    The request is without tensor cores and a config. If it names no rung, the default rungs that suit a product are
    considered.
    """

    def __init__(self, data: DeviceDatabase, request: Request) -> None:
        self._data, self._request = data, request
        self._rung, self._in_order = request.rung, request.batch_invariant
        self._multiprocessors = data.device.multiprocessors

    def alternatives(self, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...] = ()) -> Iterator[Choice]:
        """Yield the ways that were compared, the one to take first. C is row-major.

        Of a symmetric result one triangle is computed. A Gram product that the caller does not declare to be symmetric
        may be computed whole: its kernels sum what lies across the diagonal in the same order.
        """
        request, rung = self._request, self._rung
        triangle = bool(request.sym) and (rung is None or rung.computes_triangles)
        unpacked, (best, packed, added) = self._packed_or_not(a, b, c, extents, triangle, request.gram)
        if triangle and request.gram and not request.symmetric:
            problem = variants.dense_problem(a, b, c, extents=extents)
            pick = self.pick(problem)
            if best.ms is None or pick.ms is None:  # without times, the waves of blocks count
                quicker = self._waves(best, replace(problem, symmetric=True)) < self._waves(pick, problem)
            else:
                quicker = best.ms + added < pick.ms * _most(pick, None)
            alternatives = [_way(best, packed, added, triangle=True), _way(pick)]
            yield from alternatives if quicker else reversed(alternatives)
        else:
            yield _way(best, packed, added, triangle)
        if packed != NOTHING:
            yield _way(unpacked, triangle=triangle)

    def _packed_or_not(
        self, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...], triangle: bool, gram: bool
    ) -> tuple[Selection, tuple[Selection, Packed, float]]:
        """Return the config for operands as they lie, and the quickest with what it reads packed and what that takes.

        All are compared in one table.
        """
        added = {NOTHING: 0.0}
        if not (extents or self._rung is not None or self._in_order):
            added |= self._packings(a, b, c, gram)
        products = []
        for packed in added:
            problem = variants.dense_problem(*pack(packed, a, b), c, extents=extents)
            products.append(self.product(replace(problem, symmetric=True) if triangle else problem, packed))
        picks = self.picks(products)
        unpacked = picks[0]
        best, least = (unpacked, NOTHING, 0.0), math.inf
        for (packed, copying), pick in zip(added.items(), picks, strict=True):
            ms = comparable(pick.ms) + copying
            if packed != NOTHING and unpacked.ms is not None and ms < min(least, unpacked.ms * _most(unpacked, pick)):
                best, least = (pick, packed, copying), ms
        return unpacked, best

    def _packings(self, a: Operand, b: Operand, c: Operand, gram: bool) -> dict[Packed, float]:
        """Return the packings to consider, and what each adds to the time; they change how operands are read.

        At half the rate of the quickest config, no copy takes more than a third of the time of the product. Of a Gram
        product, one copy serves both sides.
        """
        model, fitted = self._data.model(READER), self._data.fitted
        if model is None or not fitted.packing_bytes_per_ms:
            return {}
        limit = _MOST_SHARE * 4.0 * c.shape[0] * c.shape[1] * a.shape[1] / model.peak
        if fitted.packing_ms >= limit:
            return {}
        in_vain = [
            operand.how.trans is copy.how.trans and operand.width == copy.width
            for operand, copy in zip((a, b), pack(BOTH, a, b), strict=True)
        ]
        added_ms = {}
        for packed in (BOTH,) if gram else _PACKINGS:
            ms = packing_ms(fitted, packed, a, b, c) / (2 if gram else 1)
            if ms < limit and not ((packed[0] and in_vain[0]) or (packed[1] and in_vain[1])):
                added_ms[packed] = ms
        return added_ms

    def _waves(self, pick: Selection, problem: Problem) -> int:
        """Return how many waves of blocks a multiprocessor has."""
        blocks = grid.blocks(pick.config, with_swap_ab(pick.rung, problem)) * problem.batch
        return -(-blocks // self._multiprocessors)

    def product(self, problem: Problem, packed: Packed = NOTHING) -> Product:
        """Return a problem with whether the rungs for few rows may compute it."""
        if self._rung is not None:
            return Product(problem, self._rung.narrow)
        narrow = SKINNY.suits(problem.M, problem.N) and not any(packed) and not problem.symmetric
        return Product(problem, narrow)

    def pick(self, problem: Problem, ragged: Ragged = Ragged.NOTHING) -> Selection:
        """Return the config of one problem, whole and with operands as they lie; see `picks`.

        With something `ragged`, the problem is the mean of groups.
        """
        return self.picks([self.product(problem)._replace(ragged=ragged)])[0]

    def picks(self, products: Sequence[Product]) -> list[Selection]:
        """Return the config of each product: its record, else the least predicted time, else the nearest record."""
        picks = [self._exact(product) for product in products]
        unrecorded = [number for number, pick in enumerate(picks) if pick is None]
        if not unrecorded:
            return [pick for pick in picks if pick is not None]
        widest = next((number for number in unrecorded if products[number].narrow), unrecorded[0])
        model = self._data.model(*self._rungs(products[widest]), in_order=self._in_order)
        if model is not None:
            table = model.predict([products[number] for number in unrecorded])
            for plane, number in enumerate(unrecorded):
                picks[number] = table.best(plane)
        return [pick or self._nearest(product) for product, pick in zip(products, picks, strict=True)]

    def ranking(self, problem: Problem, ragged: Ragged = Ragged.NOTHING) -> list[Selection]:
        """Return each config that has a curve, the quickest first; see `pick`."""
        product = self.product(problem)._replace(ragged=ragged)
        model = self._data.model(*self._rungs(product), in_order=self._in_order)
        return [] if model is None else model.predict([product]).ranking()

    def _rungs(self, product: Product) -> tuple[Rung, ...]:
        """Return the rungs that are considered for a product."""
        if self._rung is not None:
            return (self._rung,)
        if product.problem.symmetric or not self._in_order:
            return (READER, SKINNY) if product.narrow else (READER,)
        one_row = min(product.problem.M, product.problem.N) == 1
        skinny = one_row and self._data.of(SKINNY_IN_ORDER, True).is_measured
        return (SKINNY_IN_ORDER,) if skinny else (READER,)

    def _exact(self, product: Product) -> Selection | None:
        """Return the record of a problem, of several the quickest, unless it shares out a sum of few steps."""
        problem, best = product.problem, None
        if product.ragged:
            return None
        for rung in self._rungs(product):
            record = self._data.of(rung, self._in_order).exact(problem)
            if record is None or partial_accumulators.splits_few(rung, record.config, problem):
                continue
            if best is None or comparable(record.ms) <= comparable(best.ms):
                config = rungs.in_order(record.config, problem.K) if self._in_order else record.config
                best = Selection(rung, config, EXACT, record, record.ms)
        return best

    def _nearest(self, product: Product) -> Selection:
        """Return the config of the nearest record, where no times are known: of two rungs the more special."""
        problem, picks = product.problem, []
        for rung in self._rungs(product):
            record = self._data.of(rung, self._in_order).nearest(problem)
            config = record.config
            if self._in_order:
                faced = with_swap_ab(rung, problem)
                few = grid.tiles(config, faced) * problem.batch < self._multiprocessors
                config = config if rung.narrow else config.replace(SPLIT_K=2 if few and not product.ragged else 1)
                config = rungs.in_order(config, problem.K)
            else:
                config = config.replace(SPLIT_K=1) if product.ragged else config
                config = partial_accumulators.shortened(config, problem.K, self._data.device.shared_limit)
            picks.append(Selection(rung, config, NEAREST, record))
        whole = [
            selection
            for selection in picks
            if not partial_accumulators.splits_few(selection.rung, selection.config, problem)
        ]
        return (whole or picks)[-1]


def pack(packed: Packed, a: Operand, b: Operand) -> tuple[Operand, Operand]:
    """Return A and B as a kernel gets them: A column-major where it is packed, and B row-major."""
    return a.packed(trans=True) if packed[0] else a, b.packed(trans=False) if packed[1] else b


def packing_ms(fitted: Fitted, packed: Packed, a: Operand, b: Operand, c: Operand) -> float:
    """Return what packing adds to the predicted time in ms. C is row-major."""
    floats = sum(operand.shape[0] * operand.shape[1] for copied, operand in zip(packed, (a, b), strict=True) if copied)
    ms = fitted.packing_ms * sum(packed) + 2 * ITEM * floats / fitted.packing_bytes_per_ms  # each is read and written
    if packed[1] and c.width < VECTOR:
        ms += ITEM * c.shape[0] * c.shape[1] / fitted.odd_store_bytes_per_ms
    return ms


def _way(pick: Selection, packed: Packed = NOTHING, added: float = 0.0, triangle: bool = False) -> Choice:
    """Return the way with this config, which packing makes longer by `added` ms."""
    ms = None if pick.ms is None else pick.ms + added
    return Choice(pick.taken, ms, packed, triangle=triangle)


def _most(old: Selection, new: Selection | None) -> float:
    """Return the largest share of the time of one way for which another one is taken, whose kernel is another.

    A measured time is given up for a predicted one only where the gain is large. None: for a triangle.
    """
    return 1.0 - LEAST_GAIN if old.rule == EXACT and (new is None or new.rule != EXACT) else 1.0 / CLOSE
