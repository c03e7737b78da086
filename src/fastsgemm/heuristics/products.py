"""The products whose times are predicted, as numbers, and how their blocks are divided into waves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastsgemm.geometry.grid import MAX_BLOCKS
from fastsgemm.heuristics import partial_accumulators
from fastsgemm.heuristics.curve_arrays import Floats
from fastsgemm.heuristics.database_entries import Fitted
from fastsgemm.heuristics.probes import SPARSE, TRANSACTION
from fastsgemm.problem import Problem

KINDS = 3  # of reading: neither, one or both of A and B are ragged
SECTOR = 32  # bytes that L2 sends at least
_LEAST_WAVE = 1e-9  # the least part of a wave that counts as one
_LEAST_MS = 1e-30  # no division by zero, whatever was measured
FULL, LATER, LIGHTER, LIGHTEST = range(4)  # times that follow from more than one load; see `Waves.times`


class Product(NamedTuple):
    """A product whose times are predicted: one plane.

    Attributes
    ----------
    problem : Problem
        As the caller passes it. Of a symmetric one, the tiles that meet one triangle are computed and stored twice.
    narrow : bool
        Whether the rungs for few rows may compute it.
    tiles : array or None
        How many tiles of C each config of the rungs for many rows, which come first, computes with K in one part; 0:
        none. None: all tiles, and any number of parts.
    elements : array or None
        How many elements of C that are, by which costs are divided before they are compared.
    """

    problem: Problem
    narrow: bool = False
    tiles: Floats | None = None
    elements: Floats | None = None


class Planes:
    """The numbers of some products, each with the shape (products, 1), or a single one.

    Attributes
    ----------
    M, N, K, batch, chains : array or float
        `chains` are those that a sum needs. No steps of k take as long as one.
    read_bytes, stored_bytes : array or float
        Of A and B, and of C.
    swap, read, store, large, layout : array of int, or int
        Whether the rungs for few rows compute the transposed product; tables of the times of reading and of storing,
        and of the rate of reading; the place of the layout in `LAYOUTS`.
    """

    def __init__(self, products: Sequence[Product], fitted: Fitted) -> None:
        planes = [self._numbers(product.problem, fitted) for product in products]
        self._K = [numbers[2] for numbers, _ in planes]
        self.most_K, self.most_chains = max(self._K), max(numbers[4] for numbers, _ in planes)
        self.least_side = min(min(numbers[:2]) for numbers, _ in planes)
        # Products of which some configs have no grid, or are not considered.
        self.is_unusual = any(
            product.tiles is not None or numbers[6] > 4.0 * MAX_BLOCKS
            for product, (numbers, _) in zip(products, planes, strict=True)
        )
        self.any_sectors = any(numbers[7] for numbers, _ in planes)
        self.stores: Any = None  # how often each tile is stored, where that is not once
        if any(product.problem.symmetric for product in products):
            self.stores = np.array([[2.0 if product.problem.symmetric else 1.0] for product in products])
        numbers: Any
        tables: Any
        numbers, tables = planes[0]
        self.read_place, self.store_place = tables[1:3]
        if len(products) > 1:
            numbers = np.array([each for each, _ in planes], np.float64).T[..., None]
            tables = np.array([each for _, each in planes], np.intp).T
            self.read_place, self.store_place = tables[1:3, :, None]
        self.M, self.N, self.K, self.batch, self.chains, self.read_bytes, self.stored_bytes = numbers[:7]
        self.sectors, self.sectors_less = numbers[7:]
        self.swap, self.read, self.store, self.large, self.layout = tables

    def is_whole(self, steps: int) -> bool:
        """Whether K is a multiple of so many steps."""
        return not any(K % steps for K in self._K)

    @staticmethod
    def _numbers(p: Problem, fitted: Fitted) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Return the numbers and the tables of one problem."""
        M, N, batch = p.M, p.N, p.batch
        trans_a, trans_b, swap = p.layout[0] == "T", p.layout[1] == "T", N < M
        ragged = ((M if trans_a else p.K) % TRANSACTION > 0) + ((p.K if trans_b else N) % TRANSACTION > 0)
        odd = N % TRANSACTION > 0
        store = 2 * odd + (M % TRANSACTION > 0 if swap else odd)
        read = ((2 * swap + trans_a) * 2 + trans_b) * KINDS + ragged
        K, chains = max(1, p.K), partial_accumulators.chains_needed(p, fitted)
        # Rows of the narrow operand are neighbours: a step of k reads a sector for each tile, and one of a row-major B.
        faced_a, faced_b = (not trans_b, not trans_a) if swap else (trans_a, trans_b)
        sectors = K * (SECTOR + min(4.0 * min(M, N), SECTOR)) if faced_a else 0.0
        read_bytes, stored_bytes = 4.0 * (M + N) * batch * K, 4.0 * M * N * batch
        less = float(K) if faced_a and faced_b else 0.0
        numbers = M, N, K, batch, chains, read_bytes, stored_bytes, sectors, less
        return numbers, (int(swap), read, store, int(trans_a) if swap else 2 + trans_b, 2 * trans_a + trans_b)


class Waves:
    """How the blocks of options are divided into waves.

    Parameters
    ----------
    load : array
        Blocks for each multiprocessor.
    full : array
        Blocks that fit on a multiprocessor at a time.

    Attributes
    ----------
    place : array of int
        The load of the last wave, which is that of its multiprocessor with most blocks: 1, 2, ... up to a full wave.
    """

    def __init__(self, load: Floats, full: Floats) -> None:
        before = np.maximum(np.ceil(load / full - (1.0 + _LEAST_WAVE)), 0.0)  # waves before the last one
        self._before = before if before.item(before.argmax()) > 0.0 else None
        last = load if self._before is None else load - before * full
        last = np.minimum(last, full)
        self.place = np.ceil(last).astype(np.intp)
        self._lighter = None
        if last.item(last.argmin()) < 1.0:  # between the two lightest loads, times are interpolated
            self._lighter = np.minimum(np.maximum(1.0 - last, 0.0), 1.0 - 1.0 / SPARSE)

    def times(self, last: Floats, ends: Callable[[int], Floats]) -> Floats:
        """Return the times of all waves.

        Parameters
        ----------
        last : array
            Times at the whole load of the last wave.
        ends : callable
            Returns times of a full wave (0), of a later one (1), and at the lightest load less those at a load of 1
            (2). A wave after the first costs less than it, and one that is not full takes the same share of that.
        """
        if self._lighter is not None:
            last = last + ends(LIGHTER) * self._lighter
        if self._before is None:
            return last
        full, later = ends(FULL), np.maximum(ends(LATER), 0.0)
        several = full + later * (self._before - 1.0 + last / np.maximum(full, _LEAST_MS))
        return np.where(self._before > 0.0, several, last)
