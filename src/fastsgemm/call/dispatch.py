"""How a product is computed: the one place where the heuristics are asked."""

from __future__ import annotations

from math import prod

from msgspec import Struct

from fastsgemm import rungs
from fastsgemm.config import Config
from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import variants
from fastsgemm.geometry.batch import DIMENSIONS
from fastsgemm.geometry.fp16x3 import TileConfig
from fastsgemm.geometry.layout import Pair
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import batch_invariant, fp16x3, packing, selection
from fastsgemm.heuristics import choose as ieee
from fastsgemm.problem import Problem
from fastsgemm.request import PLAIN, Request
from fastsgemm.rungs import Rung


class Share(Struct, frozen=True):
    """What one kernel computes of a product: all of C, or its upper or lower rows, or its left or right columns.

    Attributes
    ----------
    rung : Rung
    config : Config
    a, b : Operand
        All of A and B as the kernel gets them: as they lie, or packed.
    rows, columns : (int, int)
        The first of C, and how many.
    """

    rung: Rung
    config: Config
    a: Operand
    b: Operand
    rows: Pair
    columns: Pair

    @property
    def firsts(self) -> tuple[Pair, Pair, Pair]:
        """The elements of A, B and C at which it begins."""
        (m, _), (n, _) = self.rows, self.columns
        return (m, 0), (0, n), (m, n)

    def operands(self, c: Operand) -> tuple[Operand, Operand, Operand]:
        """Return what it reads of A and B, and writes of C."""
        return variants.share(self.a, self.b, c, self.rows, self.columns)


class Choice(Struct, frozen=True):
    """How a product is computed.

    Attributes
    ----------
    shares : tuple of Share
        By IEEE kernels, in the order in which they are launched; none for rung 11.
    tile : Fp16x3Config, Fp16x3MmaConfig or None
        By rung 11, with this config.
    trans_c : bool
        Whether rung 11 computes the transposed product; for a column-major C, that of C^T = B^T A^T.
    """

    shares: tuple[Share, ...] = ()
    tile: TileConfig | None = None
    trans_c: bool = False


def choose(
    device: DeviceTraits, request: Request, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...] = ()
) -> Choice:
    """Return how a product is computed: as the caller asks, else as is known or predicted to be quickest.

    Parameters
    ----------
    device : DeviceTraits
    request : Request
    a, b, c : Operand
        As a kernel reads them, with their steps along the extents of one launch: the last three.
    extents : tuple of int
        Of a batch.
    """
    if request.tensor_cores:
        choice = _choose_fp16x3(device, request, a, b, c, prod(extents))
        if choice is not None:
            return choice
        request = PLAIN
    shares = choose_shares(device, request.rung, request.config, a, b, c, extents=extents[-DIMENSIONS:])
    return Choice(shares)


def _choose_fp16x3(
    device: DeviceTraits, request: Request, a: Operand, b: Operand, c: Operand, count: int
) -> Choice | None:
    """Return the choice of rung 11, or None where an IEEE kernel is quicker."""
    layout = "".join("NT"[each.how.trans] for each in (a, b))
    problem = Problem(c.shape[0], c.shape[1], a.shape[1], layout, count)
    not_split = (not request.split[0], not request.split[1])
    if c.how.trans:
        problem, not_split = problem.transposed, not_split[::-1]
    if request.config is not None:
        config: TileConfig = request.config  # type: ignore[assignment]  # `fp16x3.check_config` saw to it
        return Choice((), config, fp16x3.orientation(device, problem, config))
    chosen = fp16x3.choose(device, problem, not_split, forced=request.rung is not None)
    return None if chosen.config is None else Choice((), chosen.config, chosen.trans_c)


def choose_shares(
    device: DeviceTraits,
    rung: Rung | None,
    config: Config | None,
    a: Operand,
    b: Operand,
    c: Operand,
    *,
    extents: tuple[int, ...] = (),
) -> tuple[Share, ...]:
    """Return how a product is computed by IEEE kernels: by a rung and config that are given, else as is predicted.

    Operands are packed, and C is cut, only if neither is given. The shares are in the order in which they are launched.
    `extents` are those of a batch.
    """
    whole = (0, c.shape[0]), (0, c.shape[1])
    if rung is not None:
        if config is None:
            problem = variants.dense_problem(a, b, c, extents=extents)
            if rung in (*rungs.IN_ORDER, rungs.PIPELINED_IN_ORDER):
                choice = batch_invariant.choose(device, problem, rung)
            else:
                choice = ieee.choose(device, rung, problem)
            rung, config = choice.rung, choice.config
        config = rungs.in_order(config, a.shape[1]) if rung in rungs.IN_ORDER else config
        return (Share(rung, config, a, b, *whole),)
    selected = selection.select(device, a, b, c, extents=extents)
    packed = packing.operands(selected.packed, a, b)
    if selected.cut is None:
        return (Share(selected.choice.rung, selected.choice.config, *packed, *whole),)
    shares = [
        Share(choice.rung, choice.config, *operands, *span)
        for choice, operands, span in zip(
            selected.cut.choices, (packed, (a, b)), selected.cut.spans(c.shape), strict=True
        )
    ]
    return tuple(reversed(shares) if selected.cut.second_first else shares)
