"""What configs and their curves bring into the cost model, as arrays: numbers of options, and times at every load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastsgemm.heuristics import curve_problems
from fastsgemm.heuristics.curve_fit import Fit
from fastsgemm.heuristics.curve_problems import SPARSE, STEADY
from fastsgemm.problem import LAYOUTS

Floats = NDArray[np.float64]

KINDS = 3  # of reading: neither, one or both of A and B are ragged
STORES = 4  # whether rows of C are ragged, and whether those are that are stored with swap_ab
FULL, LATER, LIGHTER, LIGHTEST = range(4)  # times that follow from more than one load; see `BlockTimes`
BANDWIDTH, ACCUMULATING, TERMS = range(3)  # places in what `BlockTimes.ends` returns


class CandidateArrays(NamedTuple):
    """What configs bring into the times of options: arrays of one for each."""

    BM: Any  # rows of a tile
    BN: Any  # columns of a tile
    more_rows: Any  # how many more rows of the caller's C a tile has with swap_ab
    more_columns: Any  # how many more columns
    wave: Any  # blocks that fit on the device at a time
    few: Any  # steps of k of the shortest K that was measured
    bend: Any  # steps of k from there to the bend
    tile_k: Any  # steps of k of a tile
    tail_once: Any  # how many more steps a ragged last tile of k costs with K in one part
    tail_steps: Any  # how many more for each step of that tile
    guard: Any  # how many times longer steps take with bounds checks
    shared: Any  # the share of that time that rows of tiles save
    # K is divided by part_k, rounded up and multiplied by depth for the steps of a part; both are 1 with K in one part.
    # In order, part_k are the steps of a part.
    part_k: Any
    depth: Any
    split: Any  # 1 with more than one part of K, else 0
    least_k: Any  # the least K that is divided into so many parts
    most_tiles: Any  # with so many tiles it is not
    chains: Any  # chains of a sum without partial accumulators
    shortest: Any  # steps of the shortest chain with them
    place: Any  # of a load of 0 blocks in a table
    column: Any  # the place of the config


def of_configs(fits: Sequence[Fit], multiprocessors: float) -> dict[str, Any]:
    """Return the fields of `CandidateArrays` that depend on the config alone, for so many multiprocessors."""
    configs = [fit.curve.config for fit in fits]
    BM, BN = floats(c.BM for c in configs), floats(c.BN for c in configs)
    narrow = np.array([fit.rung.narrow for fit in fits])
    few = floats(fit.few for fit in fits)
    return {
        "BM": BM, "BN": BN, "more_rows": narrow * (BN - BM), "more_columns": narrow * (BM - BN),
        "wave": [fit.blocks_per_sm * multiprocessors for fit in fits],
        "few": few, "bend": floats(fit.bend for fit in fits) - few,
        "tile_k": [c.tile_k for c in configs],
        "guard": [fit.numbers.guard for fit in fits], "shared": [fit.numbers.shared for fit in fits],
        "place": _places(fits), "column": range(len(fits)),
    }  # fmt: skip


class BlockTimes:
    """The times of a block, in ms: of a step of k, of one below the bend beside, and once.

    There is a table for each way to read and to store. Its places are, for one config after the other, the lightest
    load, 1, 2, ... up to a full wave, and the heaviest load. `full_step` are the ms of a step of k of a full wave of
    each config, of aligned NN operands. `start` is about what a kernel takes that stores nothing: the least that the
    blocks of any config cost once.
    """

    def __init__(self, fits: Sequence[Fit], accumulators_cost: float) -> None:
        blocks, place = np.array([fit.blocks_per_sm for fit in fits]), _places(fits)
        self._places, self._configs = int((blocks + 2).sum()), len(fits)
        each_narrow = np.array([fit.rung.narrow for fit in fits])
        narrow = each_narrow.repeat(blocks + 2)
        store, *steps = whole_loads(fits)  # each of aligned and of ragged operands, at each place
        # By whether rows of the caller's C are ragged, then by whether those are that a narrow product stores.
        stored = np.array([np.where(narrow, store[swapped], store[rows]) for rows in (0, 1) for swapped in (0, 1)])
        factors = layout_factors(fits)
        turned = np.where(narrow, factors[[3, 1, 2, 0]], factors)  # of C^T, NN and TT change places
        step_ms = np.array(steps)[:, None, None] * np.stack([factors, turned])  # by swap_ab, layout, kind and place
        aligned, ragged = step_ms[..., 0, :], step_ms[..., 1, :]
        terms = np.empty((3, 2, len(LAYOUTS), KINDS, STORES, self._places))
        terms[:2] = np.stack([aligned, (aligned + ragged) / 2, ragged], axis=-2)[..., None, :]
        terms[2] = stored
        lightest, at_1, whole, heavy = (terms[..., place + at] for at in (0, 1, blocks, 1 + blocks))
        self.start = float(lightest[2].min())
        self.full_step = np.maximum(whole[0, 0, 0, 0, 0], 1e-30)  # no division by zero, whatever was measured
        ends = np.empty((TERMS + 4 * 3, *whole.shape[1:]))
        # Bytes per ms; with swap_ab, the large operand of a narrow product is the caller's A, in the other order.
        bandwidth = np.array([fit.numbers.bandwidth for fit in fits]).T
        bandwidth = np.where(each_narrow, bandwidth[[3, 2, 2, 3]], bandwidth)
        ends[BANDWIDTH] = bandwidth[[[2, 3, 2, 3], [0, 0, 1, 1]]][:, :, None, None]
        costs = np.array([fit.curve.costs for fit in fits]).T[:, None, None]
        ends[ACCUMULATING] = np.where(costs > 0.0, costs, accumulators_cost)
        of_times = ends[TERMS:].reshape(4, *whole.shape)
        of_times[FULL], of_times[LATER], of_times[LIGHTEST] = whole, (heavy - whole) / (STEADY - 1), lightest
        of_times[LIGHTER] = (lightest - at_1) * (SPARSE / (SPARSE - 1))  # for a whole block less
        self._terms, self._ends = terms.reshape(3, -1), ends.reshape(len(ends), -1)

    def at(self, table: Any, place: Floats) -> Any:
        """Return the three terms at places of tables."""
        return self._terms.take((table * self._places + place).astype(np.intp), axis=1)

    def ends(self, table: Any, column: Floats, times: int) -> Floats:
        """Return numbers of configs that depend on the table.

        The first is the rate of reading in bytes per ms (`BANDWIDTH`), the second the time with partial accumulators
        over that without (`ACCUMULATING`). From `TERMS` on come the three terms of the first so many of `FULL`, a full
        wave; `LATER`, one after it; `LIGHTER`, the lightest load less a load of 1, for a block less; and `LIGHTEST`.
        """
        at = (table * self._configs + column).astype(np.intp)
        numbers: Floats = self._ends[: TERMS + 3 * times].take(at, axis=1)
        return numbers


def _places(fits: Sequence[Fit]) -> NDArray[np.intp]:
    """Return the place of the lightest load of each config."""
    return np.cumsum([0, *(fit.blocks_per_sm + 2 for fit in fits[:-1])])


def whole_loads(fits: Sequence[Fit]) -> Floats:
    """Return what a block costs once, a step of k, and a step below the bend more.

    The other axes are aligned and ragged operands, and the places of all configs. Times between two measured loads are
    interpolated.
    """
    below: list[int] = []
    above: list[int] = []
    shares: list[float] = []
    for fit in fits:
        first = above[-1] + 1 if above else 0
        low, high, share = _between(fit.blocks_per_sm)
        below += [first + at for at in low]
        above += [first + at for at in high]
        shares += share
    measured = np.array([[fit.line(line) for fit in fits for line in fit.numbers.lines[kind]] for kind in (0, 1)])
    lines = measured[:, below]
    lines += (measured[:, above] - lines) * floats(shares)[:, None]
    return lines.transpose(2, 0, 1)


@lru_cache(maxsize=64)
def _between(full: int) -> tuple[list[int], list[int], list[float]]:
    """Return for each place of a config the two measured loads around it, and the share of the way between these."""
    measured = curve_problems.loads(full)
    last = len(measured) - 1
    places = [(0, 0, 0.0), (1, 1, 0.0)]
    for at, (low, high) in enumerate(pairwise(measured[1:-1]), 1):
        places += [(at, at + 1, (load - low) / (high - low)) for load in range(int(low) + 1, int(high) + 1)]
    below, above, share = zip(*places, (last, last, 0.0), strict=True)
    return [*below], [*above], [*share]


def layout_factors(fits: Sequence[Fit]) -> Floats:
    """Return for each layout, aligned and ragged operands and each place what the steps of k of NN are multiplied by.

    Between two loads at which a layout was measured, the factor changes with the logarithm of the load.
    """
    shares = [_shares_of_loads(fit.blocks_per_sm, fit.problems.layout_loads[1]) for fit in fits]
    counts = [*map(len, shares)]
    measured = np.array([fit.numbers.layouts for fit in fits]).repeat(counts, axis=0)
    others = np.einsum("plkt,pt->lkp", measured, np.concatenate(shares))
    factors = np.concatenate([np.ones_like(others[:1]), others])
    factors *= floats(fit.curve.calibration for fit in fits).repeat(counts)
    return factors


@lru_cache(maxsize=64)
def _shares_of_loads(full: int, middle: float) -> Floats:
    """Return for each place of a config the shares of the three loads at which the layouts were measured."""
    rows = []
    for load in (1, *range(1, full + 1), full):
        low, high, at = (1.0, middle, 0) if load <= middle else (middle, full, 1)
        share = math.log(load / low) / math.log(high / low) if high > low else 0.0
        rows.append([0.0] * at + [1.0 - share, share] + [0.0] * (1 - at))
    return np.array(rows)


def floats(values: Iterable[float]) -> Floats:
    return np.array([*values], np.float64)
