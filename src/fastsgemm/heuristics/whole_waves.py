"""First shares without the last wave of tiles, which only some multiprocessors have and the others wait for.

They leave a rectangle of tiles at the bottom right of C to the second share.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fastsgemm.config import Config, PipelinedConfig
from fastsgemm.device import DeviceTraits
from fastsgemm.geometry.grid import tiles
from fastsgemm.geometry.layout import Pair
from fastsgemm.geometry.variants import Call
from fastsgemm.heuristics import choose, packing
from fastsgemm.heuristics.choose import Choice
from fastsgemm.heuristics.cost_model import CLOSE
from fastsgemm.heuristics.line_arrays import Floats
from fastsgemm.problem import Problem


class FirstShare(NamedTuple):
    """What the first share is.

    Attributes
    ----------
    end : (int, int)
        The row and column at which the second share begins.
    choice : Choice
    """

    end: Pair
    choice: Choice


def quickest(device: DeviceTraits, call: Call, dense: Problem) -> FirstShare | None:
    """Return the upper rows or left columns that a config is predicted to compute in the least time for each element.

    Of each config, these are as many rows or columns of tiles as it computes without the last wave.

    Parameters
    ----------
    device : Device
    call : Call
        Of the whole product.
    dense : Problem
        What the database is asked for; see `fastsgemm.geometry.variants.dense_problem`.
    """
    model = choose.model(device, packing.READER)
    if model is None:
        return None
    problem = call.problem
    BM, BN = model.tile
    down, across = np.ceil(problem.M / BM), np.ceil(problem.N / BN)  # tiles
    over = down * across % device.multiprocessors
    rows, columns = np.ceil(over / across), np.ceil(over / down)  # of tiles, of which the least are left out
    by_rows = rows * across <= columns * down
    row, column = np.where(by_rows, (down - rows) * BM, 0.0), np.where(by_rows, 0.0, (across - columns) * BN)
    elements = np.where(by_rows, row * problem.N, column * problem.M)
    count = np.where(by_rows, (down - rows) * across, (across - columns) * down)
    possible = (over > 0) & (count > 0)
    if not possible.any():
        return None
    ms = model.of_tiles(dense, np.maximum(count, 1.0))
    each: Floats = np.divide(ms, elements, out=np.full_like(ms, np.inf), where=possible)
    place = int(np.flatnonzero(each <= CLOSE * each.min())[0])
    best = model.prediction(dense, place, float(ms[place]))
    choice = Choice(best.fit.rung, best.config, choose.PREDICTED, best.fit.curve, best.ms)
    return FirstShare(_of_caller(call, int(row[place]), int(column[place])), choice)


def with_fewer_blocks(device: DeviceTraits, call: Call, dense: Problem, choice: Choice) -> FirstShare | None:
    """Return what the config of the whole product computes before its last wave, in the time that this wave leaves.

    None where a curve does not say how long that is. It does if it is of a config with the same tile, of which a
    multiprocessor holds one block at a time: of several, the last wave begins before the wave before it has ended.

    Parameters
    ----------
    device : Device
    call : Call
        Of the whole product.
    dense : Problem
        What the database is asked for; see `fastsgemm.geometry.variants.dense_problem`.
    choice : Choice
        For the whole product.
    """
    config, model = choice.config, choose.model(device, packing.READER)
    if model is None or not isinstance(config, PipelinedConfig) or config.split_k > 1 or choice.ms is None:
        return None
    alike = (place for place, fit in enumerate(model.fits) if _tile(fit.curve.config) == _tile(config))
    place = next(alike, None)
    if place is None or model.fits[place].curve.blocks_per_sm > 1:
        return None
    every = tiles(config, call.problem)
    rows, columns = _last_tiles(config, call.problem, every % device.multiprocessors)
    count = every - rows * columns
    if count in (0, every):
        return None
    before, whole = (float(model.of_tiles(dense, np.full(len(model.fits), float(n)))[place]) for n in (count, every))
    down, across = -(-call.problem.M // config.BM), -(-call.problem.N // config.BN)
    end = _of_caller(call, (down - rows) * config.BM, (across - columns) * config.BN)
    return FirstShare(end, replace(choice, ms=choice.ms * before / whole))


def _last_tiles(config: PipelinedConfig, problem: Problem, least: int) -> Pair:
    """Return the rows and columns of the smallest rectangle of so many tiles that the first share can leave out.

    That is rows, columns or the tiles of the last blocks. Blocks walk GROUP_M rows of tiles together, column by column;
    see ``cuda_src/device/raster.cuh``. So the last ones compute the end of the last column, or the last columns of the
    last rows that are walked together.
    """
    down, across = -(-problem.M // config.BM), -(-problem.N // config.BN)
    group = (down - 1) % config.GROUP_M + 1  # the last rows that are walked together
    found = (-(-least // across), across), (down, -(-least // down)), (min(least, group), -(-least // group))
    return min((each for each in found if each[1] <= across), key=lambda each: each[0] * each[1])


def _tile(config: Config) -> tuple[int, int, int]:
    return config.BM, config.BN, config.sliced_k


def _of_caller(call: Call, row: int, column: int) -> Pair:
    return (column, row) if call.swap_ab else (row, column)
