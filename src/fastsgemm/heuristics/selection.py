"""The quickest known way to compute a product, for a caller who names no rung: config, packed operands, cut of C."""

from __future__ import annotations

from msgspec import Struct

from fastsgemm.device import DeviceTraits
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import cutting, packing
from fastsgemm.heuristics.choose import Choice
from fastsgemm.heuristics.cutting import Cut
from fastsgemm.heuristics.packing import NOTHING, Which


class Selection(Struct, frozen=True):
    """How a product is computed.

    Attributes
    ----------
    choice : Choice
        For the whole product.
    packed : (bool, bool)
        Whether A and B are packed.
    packing_ms : float
        What packing adds to the time of the choice; 0 if nothing is packed.
    cut : Cut or None
        How C is cut, if it is; then each share has a choice of its own.
    """

    choice: Choice
    packed: Which = NOTHING
    packing_ms: float = 0.0
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
