"""Whether A and B are packed: copied before the product to where rung 9 reads them fastest.

That is in aligned lines of whole vectors, along m and along n. ``docs/tuning.md`` states the rule.
"""

from __future__ import annotations

import math

from msgspec import Struct

from fastsgemm import rungs
from fastsgemm.config import VECTOR
from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import ITEM
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import choose, database
from fastsgemm.heuristics.choose import Choice
from fastsgemm.heuristics.cost_model import CLOSE
from fastsgemm.heuristics.database_entries import Fitted

Which = tuple[bool, bool]  # A, B

NOTHING: Which = (False, False)
_WAYS: tuple[Which, ...] = ((True, False), (False, True), (True, True))
_MOST_SHARE = 1 / 3  # of a product's time that copying may take to be considered: no layout costs rung 9 more
# Of a measured time, for which the record of a problem is given up. Predicted times of chosen configs are 3 % too short
# on average, and vary by 4 %.
LEAST_GAIN = 0.06
READER = next(rung for rung in rungs.DEFAULTS if not rung.narrow)  # the rung that reads packed operands


class Selection(Struct, frozen=True):
    """The choice for a product, and which of its operands are packed first.

    Attributes
    ----------
    choice : Choice
    packed : (bool, bool)
        Whether A and B are packed.
    ms : float
        What packing adds to the time of the choice; 0 if nothing is packed.
    """

    choice: Choice
    packed: Which = NOTHING
    ms: float = 0.0


def select(device: DeviceTraits, a: Operand, b: Operand, c: Operand, *, extents: tuple[int, ...] = ()) -> Selection:
    """Return the quickest way to compute a product, as far as is known or predicted, for a caller who names no rung.

    Parameters
    ----------
    device : Device
    a, b, c : Operand
        As the caller passes them.
    extents : tuple of int
        Those of a batch, whose operands are never packed.
    """
    lying = choose.choose(device, None, variants.dense_problem(a, b, c, extents=extents))
    best, least, plain_ms = Selection(lying), math.inf, lying.ms
    if extents or plain_ms is None:
        return best
    fitted, limit = database.fitted(device.arch), _MOST_SHARE * plain_ms
    if fitted.packing_ms >= limit:
        return best
    packed = operands(_WAYS[-1], a, b)
    in_vain_a, in_vain_b = _lies_alike(a, packed[0]), _lies_alike(b, packed[1])
    for which in _WAYS:
        ms = _cost(fitted, which, a, b, c)
        if ms < limit and not (which[0] and in_vain_a) and not (which[1] and in_vain_b):
            read_a, read_b = packed[0] if which[0] else a, packed[1] if which[1] else b
            choice = choose.choose(device, READER, variants.dense_problem(read_a, read_b, c))
            if choice.ms is not None and choice.ms + ms < min(least, plain_ms * _most(lying, choice, a, b)):
                best, least = Selection(choice, which, ms), choice.ms + ms
    return best


def operands(which: Which, a: Operand, b: Operand) -> tuple[Operand, Operand]:
    """Return A and B as the kernel gets them: A column-major if it is packed, and B row-major.

    That holds for a column-major C, too: there the kernel computes C^T = B^T A^T, whose A is the caller's B transposed.
    """
    return a.packed(trans=True) if which[0] else a, b.packed(trans=False) if which[1] else b


def _most(lying: Choice, packed: Choice, a: Operand, b: Operand) -> float:
    """Return the most that a packed product may take, copies included, relative to the one with operands as they lie.

    A measured time is given up for a predicted one only where the gain is large. Operands that are read in whole
    vectors are packed only for their order in memory; a gain that is smaller than the error of the cost model is not
    worth the other kernels that have to be compiled.
    """
    if lying.rule == choose.EXACT != packed.rule:
        return 1.0 - LEAST_GAIN
    return 1.0 / CLOSE if a.width == b.width == VECTOR else 1.0


def _lies_alike(operand: Operand, packed: Operand) -> bool:
    """Whether an operand lies as a packed one does, so that it would be packed in vain."""
    return operand.how.trans is packed.how.trans and operand.width == packed.width


def _cost(fitted: Fitted, which: Which, a: Operand, b: Operand, c: Operand) -> float:
    """Return what packing adds to the predicted time in ms; infinite where it was never measured."""
    if not fitted.packing_bytes_per_ms:
        return float("inf")
    floats = sum(one.shape[0] * one.shape[1] for chosen, one in zip(which, (a, b), strict=True) if chosen)
    ms = fitted.packing_ms * sum(which) + 2 * ITEM * floats / fitted.packing_bytes_per_ms  # each is read and written
    across = which[0] if c.how.trans else which[1]  # the operand whose lines run along those of C
    if across and c.width < VECTOR:
        ms += ITEM * c.shape[0] * c.shape[1] / fitted.odd_store_bytes_per_ms
    return ms
