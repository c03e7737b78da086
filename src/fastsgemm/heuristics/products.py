"""The products whose times are predicted, as numbers, and how their blocks are divided into waves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastsgemm.geometry.grid import MAX_BLOCKS
from fastsgemm.heuristics import partial_accumulators
from fastsgemm.heuristics.curve_arrays import FULL, KINDS, LATER, LIGHTER, SECTOR, STORES, Floats
from fastsgemm.heuristics.curve_problems import SPARSE, TRANSACTION
from fastsgemm.heuristics.database_entries import Fitted
from fastsgemm.problem import Problem

_LEAST_WAVE = 1e-9  # the least part of a wave that counts as one
_LEAST_MS = 1e-30  # no division by zero, whatever was measured


class Product(NamedTuple):
    """A product whose times are predicted: one plane.

    Attributes
    ----------
    problem : Problem
        As the caller passes it. Of a symmetric one, the tiles that meet one triangle are computed and stored twice.
    narrow : bool
        Whether the rungs for few rows may compute it.
    tiles : array or None
        How many tiles of C each config of the rungs for many rows, which come first, computes with K in one part;
        infinite: none. None: all tiles, and any number of parts.
    elements : array or None
        How many elements of C that are, by which costs are divided before they are compared.
    """

    problem: Problem
    narrow: bool = False
    tiles: Floats | None = None
    elements: Floats | None = None


class Numbers(NamedTuple):
    """The numbers of products: of one, or an array of one for each option.

    Attributes
    ----------
    M, N, narrow, K, batch, chains : array or float
        `narrow` is the lesser of M and N; `chains` are those that a sum needs. No steps of k take as long as one.
    read_bytes, stored_bytes : array or float
        Of A and B, and of C.
    sectors, sectors_less : array or float
        Bytes that L2 sends for a tile of a narrow product, and how many fewer are due to a column-major B.
    swap, table : array or float
        Whether the rungs for few rows compute the transposed product; the table of times, see `Tables`.
    stores : array or float
        How often each tile is stored: twice, where one triangle is computed.
    """

    M: Any
    N: Any
    narrow: Any
    K: Any
    batch: Any
    chains: Any
    read_bytes: Any
    stored_bytes: Any
    sectors: Any
    sectors_less: Any
    swap: Any
    table: Any
    stores: Any


class Planes:
    """The numbers of some products, and what they have in common.

    Attributes
    ----------
    least_side, most_K, most_chains : int
    is_unusual : bool
        Some configs have no grid for a product, or are not considered.
    any_sectors, any_symmetric : bool
    each : list of Numbers
    """

    def __init__(self, products: Sequence[Product], fitted: Fitted) -> None:
        self.each = [_numbers(product.problem, fitted) for product in products]
        self._columns: Any = [*zip(*self.each, strict=True)]
        of = Numbers(*self._columns)
        self.least_side, self.most_K, self.most_chains = min(of.narrow), max(of.K), max(of.chains)
        # A tile has one element at least.
        self.is_unusual = max(of.stored_bytes) > 4.0 * MAX_BLOCKS or any(one.tiles is not None for one in products)
        self.any_sectors = any(of.sectors)
        self.any_symmetric = max(of.stores) > 1.0
        self._K = of.K

    def is_whole(self, steps: int) -> bool:
        """Whether K is a multiple of so many steps."""
        return not any(K % steps for K in self._K)

    def of_options(self, count: int) -> Numbers:
        """Return the numbers of each of the `count` options of each product, one product after the other."""
        return Numbers(*np.array(self._columns, np.float64).repeat(count, axis=1))


def _numbers(p: Problem, fitted: Fitted) -> Numbers:
    M, N, batch = p.M, p.N, p.batch
    trans_a, trans_b, swap = p.layout[0] == "T", p.layout[1] == "T", N < M
    ragged = ((M if trans_a else p.K) % TRANSACTION > 0) + ((p.K if trans_b else N) % TRANSACTION > 0)
    odd = N % TRANSACTION > 0
    store = 2 * odd + (M % TRANSACTION > 0 if swap else odd)
    table = (((2 * swap + trans_a) * 2 + trans_b) * KINDS + ragged) * STORES + store
    K, chains = max(1, p.K), partial_accumulators.chains_needed(p, fitted)
    # Rows of the narrow operand are neighbours: a step of k reads a sector for each tile, and one of a row-major B.
    faced_a, faced_b = (not trans_b, not trans_a) if swap else (trans_a, trans_b)
    sectors = K * (SECTOR + min(4.0 * min(M, N), SECTOR)) if faced_a else 0.0
    less = float(K) if faced_a and faced_b else 0.0
    read_bytes, stored_bytes = 4.0 * (M + N) * batch * K, 4.0 * M * N * batch
    # NumPy takes longer to multiply arrays by integers.
    return Numbers(
        float(M),
        float(N),
        float(min(M, N)),
        float(K),
        float(batch),
        float(chains),
        read_bytes,
        stored_bytes,
        sectors,
        less,
        swap,
        table,
        2.0 if p.symmetric else 1.0,
    )


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
    ends : int
        Of `FULL`, `LATER` and `LIGHTER`, the first so many are needed; see `times`.
    last : array
        The load of the last wave, which is that of its multiprocessor with most blocks: 1, 2, ... up to a full wave.
    """

    def __init__(self, load: Floats, full: Floats) -> None:
        before = np.ceil(load / full - (1.0 + _LEAST_WAVE))  # waves before the last one
        self._before = before if before.item(before.argmax()) > 0.0 else None
        last = load if self._before is None else load - before * full
        last = np.minimum(last, full)
        self.last = np.ceil(last)
        self._lighter, self.ends = None, 0 if self._before is None else 1 + LATER
        if last.item(last.argmin()) < 1.0:  # between the two lightest loads, times are interpolated
            self._lighter, self.ends = np.minimum(np.maximum(1.0 - last, 0.0), 1.0 - 1.0 / SPARSE), 1 + LIGHTER

    def times(self, last: Floats, ends: Callable[[int], Floats]) -> Floats:
        """Return the times of all waves.

        Parameters
        ----------
        last : array
            Times at the whole load of the last wave.
        ends : callable
            Returns times of a full wave (`FULL`), of a later one (`LATER`), and at the lightest load less those at a
            load of 1 (`LIGHTER`). A wave after the first costs less than it, and one that is not full takes the same
            share of that.
        """
        if self._lighter is not None:
            last = last + ends(LIGHTER) * self._lighter
        if self._before is None:
            return last
        full, later = ends(FULL), np.maximum(ends(LATER), 0.0)
        several = full + later * (self._before - 1.0 + last / np.maximum(full, _LEAST_MS))
        return np.where(self._before > 0.0, several, last)
