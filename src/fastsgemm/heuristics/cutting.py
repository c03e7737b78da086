"""Whether C is cut into two shares, each a product with a config of its own.

Tiles of one size seldom fit: the last row or column of tiles computes elements that C does not have, and the last wave
of tiles leaves multiprocessors idle. So the first share is whole tiles or whole waves, and the second is what is left.
``docs/tuning.md`` states the rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Pair
from fastsgemm.geometry.variants import Operand, Span
from fastsgemm.heuristics import choose, packing, whole_waves
from fastsgemm.heuristics.choose import Choice
from fastsgemm.heuristics.cost_model import CLOSE

_EDGE = 64  # rows or columns: most tiles are as large or have a multiple
_LEAST_MS = 0.05  # of a product that is cut
_LEAST_STEPS = 32  # of k: with fewer, a product waits for the memory, and how tiles fit does not matter
# Of the whole and of its last wave, for which the config of the whole gets fewer blocks. What it then takes is known as
# well as what the whole takes, so a small gain is a certain one.
_LEAST_GAIN, _LEAST_GAIN_OF_WAVE = 0.01, 1 / 4


class Cut(Struct, frozen=True):
    """C in two shares: the second begins at an element and ends with C, the first is all before it.

    The second share is the last rows of C, its last columns, or a corner.

    Attributes
    ----------
    at : (int, int)
        The row and column at which the second share begins.
    choices : (Choice, Choice)
        One for each share, in the order in which they are launched.
    ms : float
        The predicted time of both.
    """

    at: Pair
    choices: tuple[Choice, Choice]
    ms: float

    def spans(self, shape: Pair) -> tuple[Span, Span]:
        """Return which elements both shares have of a C of this shape."""
        return _spans(self.at, shape)

    def __str__(self) -> str:
        return " and ".join(f"{name} {first}" for name, first in zip(("row", "column"), self.at, strict=True) if first)


class _Offer(NamedTuple):
    """A cut that may be taken.

    Attributes
    ----------
    at : (int, int)
    first : Choice or None
        For the first share; None: it is chosen as for any other product.
    below : float
        The milliseconds that both shares have to stay below.
    """

    at: Pair
    first: Choice | None
    below: float


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
    if found.choice.ms is None or found.choice.ms < _LEAST_MS or a.shape[1] < _LEAST_STEPS:
        return None
    read = packing.operands(found.packed, a, b)
    cut, least = None, float("inf")
    for offer in _offers(device, found.choice, *read, c):
        below = min(offer.below, least)
        of_first, of_second = _spans(offer.at, c.shape)
        first = offer.first or _choice(device, *variants.share(*read, c, of_first))
        # The second share takes at least as long for each element as the first.
        if first.ms is None or first.ms * (1.0 + of_second.elements / of_first.elements) >= below:
            continue
        second = _choice(device, *variants.share(a, b, c, of_second))
        if second.ms is not None and first.ms + second.ms < below:
            least = first.ms + second.ms
            cut = Cut(offer.at, (first, second), least)
    return cut


def _offers(device: DeviceTraits, choice: Choice, a: Operand, b: Operand, c: Operand) -> Iterator[_Offer]:
    """Yield the cuts to consider, given the choice for the whole product and its operands."""
    ms = choice.ms or 0.0
    below = ms * (1.0 - packing.LEAST_GAIN if choice.rule == choose.EXACT else 1.0 / CLOSE)
    row, column = (extent // _EDGE * _EDGE for extent in c.shape)
    if 0 < row < c.shape[0]:
        yield _Offer((row, 0), None, below)
    if 0 < column < c.shape[1]:
        yield _Offer((0, column), None, below)
    call = variants.call_for(a, b, c)
    dense = variants.dense_problem(a, b, c)
    waves = whole_waves.quickest(device, call, dense)
    if waves is not None:
        yield _Offer(waves.end, waves.choice, below)
    waves = whole_waves.with_fewer_blocks(device, call, dense, choice)
    if waves is not None:
        last = ms - (waves.choice.ms or 0.0)
        yield _Offer(waves.end, waves.choice, ms - max(_LEAST_GAIN * ms, _LEAST_GAIN_OF_WAVE * last))


def _spans(at: Pair, shape: Pair) -> tuple[Span, Span]:
    (row, column), (M, N) = at, shape
    second = Span((row, M - row), (column, N - column))
    if row and column:
        return Span((0, M), (0, N), (M - row, N - column)), second
    return Span((0, row or M), (0, column or N)), second


def _choice(device: DeviceTraits, a: Operand, b: Operand, c: Operand) -> Choice:
    rung = packing.READER if a.padded or b.padded else None
    return choose.choose(device, rung, variants.dense_problem(a, b, c))
