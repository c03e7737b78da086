"""First shares without the last wave of tiles, which only some multiprocessors have and the others wait for.

Here a wave is one tile for each multiprocessor, however many blocks that holds at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import variants
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import choose, packing
from fastsgemm.heuristics.choose import Choice
from fastsgemm.heuristics.cost_model import CLOSE
from fastsgemm.heuristics.line_arrays import Floats


class FirstShare(NamedTuple):
    """What the first share is.

    Attributes
    ----------
    axis : int
        0: it is the upper rows of C; 1: its left columns.
    end : int
        How many of them.
    choice : Choice
    """

    axis: int
    end: int
    choice: Choice


def quickest(device: DeviceTraits, a: Operand, b: Operand, c: Operand) -> FirstShare | None:
    """Return the upper rows or left columns that a config is predicted to compute in the least time for each element.

    Of each config, these are as many rows or columns of tiles as it computes without the last wave. It is None where no
    config has a last wave that can be left out.

    Parameters
    ----------
    device : Device
    a, b, c : Operand
        Of the whole product.
    """
    model = choose.model(device, packing.READER)
    if model is None:
        return None
    M, N = c.shape[::-1] if c.how.trans else c.shape  # as a kernel sees it
    BM, BN = model.tile
    down, across = np.ceil(M / BM), np.ceil(N / BN)  # tiles
    count = down * across
    over = count % device.multiprocessors
    rows, columns = np.ceil(over / across), np.ceil(over / down)  # of tiles, of which the least are left out
    of_rows, of_columns = rows * across, columns * down
    by_rows = of_rows <= of_columns
    count -= np.minimum(of_rows, of_columns)
    end = np.where(by_rows, (down - rows) * BM, (across - columns) * BN)
    dense = variants.dense_problem(a, b, c)
    ms = model.of_tiles(dense, np.maximum(count, 1.0))
    np.putmask(ms, over * count == 0.0, np.inf)  # there is no last wave, or no other
    each: Floats = ms / (end * np.where(by_rows, N, M))
    least = each.item(each.argmin())
    if least == np.inf:  # also where each of these grids has more blocks than there can be
        return None
    place = int((each <= CLOSE * least).argmax())
    best = model.prediction(dense, place, ms.item(place))
    choice = Choice(best.fit.rung, best.config, choose.PREDICTED, best.fit.curve, best.ms)
    return FirstShare(0 if by_rows[place] != c.how.trans else 1, int(end[place]), choice)
