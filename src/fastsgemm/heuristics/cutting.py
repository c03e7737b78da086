"""Whether C is cut into two parts, each a product with a config of its own.

Tiles of one size seldom fit: the last row or column of tiles computes elements that C does not have, and the last wave
of tiles leaves multiprocessors idle. So the first part is whole tiles or whole waves, and the second is what is left.
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

_EDGE = 64  # rows or columns: most tiles are as large or have a multiple
_TILE = 128  # rows and columns of the tiles that fill a wave, one for each multiprocessor
_LEAST_MS = 0.05  # of a product that is cut
_LEAST_STEPS = 32  # of k: with fewer, a product waits for the memory, and how tiles fit does not matter


class Piece(Struct, frozen=True):
    """A part of C and how it is computed.

    Attributes
    ----------
    rows, columns : (int, int)
        The first of them, and how many.
    choice : Choice
    """

    rows: Pair
    columns: Pair
    choice: Choice


class Cut(Struct, frozen=True):
    """C in two parts.

    Attributes
    ----------
    pieces : (Piece, Piece)
        In the order in which they are launched.
    ms : float
        The predicted time of both.
    """

    pieces: tuple[Piece, Piece]
    ms: float

    def __str__(self) -> str:
        (row, _), (column, _) = self.pieces[1].rows, self.pieces[1].columns
        return f"row {row}" if row else f"column {column}"


def find(device: DeviceTraits, found: packing.Selection, a: Operand, b: Operand, c: Operand) -> Cut | None:
    """Return the quickest cut of C, or None where one product is as quick.

    Only the first part reads packed operands: the second is small, and with operands as they lie it has the kernels of
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
        pieces = _pieces(device, axis, at, (*packing.operands(found.packed, a, b), c), (a, b, c), least)
        if pieces:
            cut = Cut((pieces[0], pieces[1]), sum(piece.choice.ms or 0.0 for piece in pieces))
            least = cut.ms
    return cut


def _places(shape: Pair, multiprocessors: int) -> Iterator[tuple[int, int]]:
    """Yield where C may be cut: the axis, and the first row or column of the second part."""
    for axis in (0, 1):
        along, across = shape[axis], -(-shape[1 - axis] // _TILE)
        tiles = -(-along // _TILE)
        edge = along // _EDGE * _EDGE
        wave = tiles * across // multiprocessors * multiprocessors // across * _TILE
        yield from ((axis, at) for at in {edge, wave} if 0 < at < along)


_Operands = tuple[Operand, Operand, Operand]


def _pieces(device: DeviceTraits, axis: int, at: int, first: _Operands, second: _Operands, least: float) -> list[Piece]:
    """Return both parts of C cut there; none where together they do not take less than `least` milliseconds."""
    shape = first[2].shape
    pieces: list[Piece] = []
    for operands, span in ((first, (0, at)), (second, (at, shape[axis] - at))):
        rows, columns = (span, (0, shape[1])) if axis == 0 else ((0, shape[0]), span)
        rung = packing.READER if any(operand.padded for operand in operands) else None
        choice = choose.choose(
            device, rung, variants.as_dense(variants.call_for(*variants.part(*operands, rows, columns)))
        )
        if choice.ms is None or choice.ms >= least:
            return []
        least -= choice.ms
        pieces.append(Piece(rows, columns, choice))
    return pieces
