"""Whether C is cut into two shares, each a product with a config of its own.

Tiles of one size seldom fit: the last row or column of tiles computes elements that C does not have, and the last wave
of tiles leaves multiprocessors idle. So the first share is whole tiles or whole waves, and the second is what is left.
``docs/tuning.md`` states the rule.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Pair
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import choose, packing
from fastsgemm.heuristics.choose import Choice
from fastsgemm.heuristics.cost_model import CLOSE

Span = tuple[Pair, Pair]  # rows and columns: the first of them, and how many

_EDGE = 64  # rows or columns: most tiles are as large or have a multiple
_TILE = 128  # rows and columns of the tiles that fill a wave, one for each multiprocessor
_LEAST_MS = 0.05  # of a product that is cut
_LEAST_STEPS = 32  # of k: with fewer, a product waits for the memory, and how tiles fit does not matter


class Cut(Struct, frozen=True):
    """C in two shares: its upper and lower rows, or its left and right columns.

    Attributes
    ----------
    axis : int
        0: rows are divided; 1: columns.
    at : int
        The first row or column of the second share.
    choices : (Choice, Choice)
        One for each share, in the order in which they are launched.
    ms : float
        The predicted time of both.
    """

    axis: int
    at: int
    choices: tuple[Choice, Choice]
    ms: float

    def spans(self, shape: Pair) -> tuple[Span, Span]:
        """Return the rows and columns of both shares of a C of this shape."""
        return _spans(self.axis, self.at, shape)

    def __str__(self) -> str:
        return f"{('row', 'column')[self.axis]} {self.at}"


def find(device: DeviceTraits, found: packing.Selection, a: Operand, b: Operand, c: Operand) -> Cut | None:
    """Return the quickest cut of C, or None where one product is as quick.

    Only the first share reads packed operands: the second is small, and with operands as they lie it has the kernels of
    a product of its own.

    Parameters
    ----------
    device : Device
    found : Selection
        For the whole product.
    a, b, c : Operand
        As the caller passes them.
    """
    choice = found.choice
    if choice.ms is None or choice.ms < _LEAST_MS or a.shape[1] < _LEAST_STEPS:
        return None
    least = choice.ms * (1.0 - packing.LEAST_GAIN if choice.rule == choose.EXACT else 1.0 / CLOSE)
    cut = None
    for axis, at in _places(c.shape, device.multiprocessors):
        shares = zip(_spans(axis, at, c.shape), ((*packing.operands(found.packed, a, b), c), (a, b, c)), strict=True)
        choices = _choices(device, [variants.share(*operands, *span) for span, operands in shares], least)
        if choices is not None:
            least = sum(choice.ms or 0.0 for choice in choices)
            cut = Cut(axis, at, choices, least)
    return cut


def _spans(axis: int, at: int, shape: Pair) -> tuple[Span, Span]:
    first, second = (0, at), (at, shape[axis] - at)
    if axis == 0:
        return (first, (0, shape[1])), (second, (0, shape[1]))
    return ((0, shape[0]), first), ((0, shape[0]), second)


def _places(shape: Pair, multiprocessors: int) -> Iterator[Pair]:
    """Yield where C may be cut: the axis, and the first row or column of the second share."""
    for axis in (0, 1):
        along, across = shape[axis], -(-shape[1 - axis] // _TILE)
        tiles = -(-along // _TILE)
        edge = along // _EDGE * _EDGE
        wave = tiles * across // multiprocessors * multiprocessors // across * _TILE
        yield from ((axis, at) for at in {edge, wave} if 0 < at < along)


def _choices(
    device: DeviceTraits, shares: list[tuple[Operand, Operand, Operand]], least: float
) -> tuple[Choice, Choice] | None:
    """Return the choices for both shares; None where together they do not take less than `least` milliseconds."""
    choices = []
    for operands in shares:
        rung = packing.READER if any(operand.padded for operand in operands) else None
        choice = choose.choose(device, rung, variants.dense_problem(*operands))
        if choice.ms is None or choice.ms >= least:
            return None
        least -= choice.ms
        choices.append(choice)
    first, second = choices
    return first, second
