"""The quickest known way to compute a product, for a caller who names no rung: config, packed operands, cut of C."""

from __future__ import annotations

from fastsgemm.device import DeviceTraits
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import cutting, packing
from fastsgemm.heuristics.cutting import Cut


class Selection(packing.Selection, frozen=True):
    """How a product is computed: what `packing.select` chose for all of it, and how C is cut.

    Attributes
    ----------
    cut : Cut or None
        How C is cut, if it is; then each share has a choice of its own.
    """

    cut: Cut | None = None


def select(device: DeviceTraits, a: Operand, b: Operand, c: Operand, *, extents: tuple[int, ...] = ()) -> Selection:
    """Return the quickest way to compute a product, as far as is known or predicted.

    Parameters
    ----------
    device : Device
    a, b, c : Operand
        As the caller passes them.
    extents : tuple of int
        Those of a batch, whose operands are never packed and whose C is never cut.
    """
    found = packing.select(device, a, b, c, extents=extents)
    cut = None if extents else cutting.find(device, found, a, b, c)
    return Selection(found.choice, found.packed, found.ms, cut)
