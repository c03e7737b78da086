"""Whether C is cut into two shares, each a product with a config of its own.

Tiles of one size seldom fit: the last row or column of tiles computes elements that C does not have, and the last wave
of tiles leaves multiprocessors idle. So the first share is whole tiles or whole waves, and the second is what is left.
``docs/tuning.md`` states the rule.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.layout import Pair
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import choose, packing, whole_waves
from fastsgemm.heuristics.choose import Choice
from fastsgemm.heuristics.cost_model import CLOSE
from fastsgemm.heuristics.database_entries import Curve

Span = tuple[Pair, Pair]  # rows and columns: the first of them, and how many

_EDGE = 64  # rows or columns: most tiles have as many, or a multiple
_LEAST_MS = 0.05  # of a product that is cut
_LEAST_STEPS = 32  # of k: with fewer, a product waits for the memory, and how tiles fit does not matter
_FEW = 4  # blocks on each multiprocessor


class Cut(Struct, frozen=True):
    """C in two shares: its upper and lower rows, or its left and right columns.

    Attributes
    ----------
    axis : int
        0: rows are divided; 1: columns.
    at : int
        The first row or column of the second share.
    choices : (Choice, Choice)
        One for each share.
    ms : float
        The predicted time of both.
    second_first : bool
        Whether the second share is launched first. One of few blocks is, because then each multiprocessor gets as many
        of them as any other. Launched while the other share ends, they would all go to the first multiprocessors that
        have room. The first share must fill the device: else its blocks would crowd on the multiprocessors that have
        none of the second.
    """

    axis: int
    at: int
    choices: tuple[Choice, Choice]
    ms: float
    second_first: bool = False

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
    read = packing.operands(found.packed, a, b)
    least = choice.ms * (1.0 - packing.LEAST_GAIN if choice.rule == choose.EXACT else 1.0 / CLOSE)
    cut = None
    for axis, at, known in _offers(device, *read, c):
        of_first, of_second = _spans(axis, at, c.shape)
        main = variants.share(*read, c, *of_first)
        first = known or _choice(device, *main)
        # As if the second share took as long for each element as the first; where tiles fit worse, it takes longer.
        if first.ms is None or first.ms * c.shape[axis] / at >= least:
            continue
        rest = variants.share(a, b, c, *of_second)
        second = _choice(device, *rest)
        if second.ms is not None and first.ms + second.ms < least:
            least = first.ms + second.ms
            second_first = _fills(device, first, *main) and _has_few_blocks(device, second, *rest)
            cut = Cut(axis, at, (first, second), least, second_first)
    return cut


def _offers(device: DeviceTraits, a: Operand, b: Operand, c: Operand) -> Iterator[tuple[int, int, Choice | None]]:
    """Yield the cuts to consider: axis, first row or column of the second share, and choice for the first share.

    Without a choice, the first share gets that of any other product.
    """
    for axis, extent in enumerate(c.shape):
        edge = extent // _EDGE * _EDGE
        if 0 < edge < extent:
            yield axis, edge, None
    waves = whole_waves.quickest(device, a, b, c)
    if waves is not None:
        yield waves


def _spans(axis: int, at: int, shape: Pair) -> tuple[Span, Span]:
    first, second = (0, at), (at, shape[axis] - at)
    if axis == 0:
        return (first, (0, shape[1])), (second, (0, shape[1]))
    return ((0, shape[0]), first), ((0, shape[0]), second)


def _fills(device: DeviceTraits, choice: Choice, *share: Operand) -> bool:
    """Whether a share has as many blocks as fit on the device at a time, if that is known."""
    if not isinstance(choice.evidence, Curve):
        return False
    blocks, _ = _blocks(choice, *share)
    return blocks >= choice.evidence.blocks_per_sm * device.multiprocessors


def _has_few_blocks(device: DeviceTraits, choice: Choice, *share: Operand) -> bool:
    """Whether a share has few blocks that end late: those of rung 10, or of parts of K, are done soon anyway."""
    blocks, parts = _blocks(choice, *share)
    return not choice.rung.narrow and parts == 1 and blocks < _FEW * device.multiprocessors


def _blocks(choice: Choice, a: Operand, b: Operand, c: Operand) -> tuple[int, int]:
    """Return the blocks of a share, and into how many parts they divide K."""
    problem = variants.with_swap_ab(choice.rung, variants.dense_problem(a, b, c))
    parts, _ = grid.split(choice.config, problem.K)
    return grid.blocks(choice.config, problem), parts


def _choice(device: DeviceTraits, a: Operand, b: Operand, c: Operand) -> Choice:
    rung = packing.READER if a.padded or b.padded else None
    return choose.choose(device, rung, variants.dense_problem(a, b, c))
