"""Choose how a product is computed: list the ways, predict them in one table, take the least.

The ways are those of `fastsgemm.heuristics.ways`, and with precision fp16x3 rung 11. ``docs/tuning.md`` states
the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from fastsgemm import rungs
from fastsgemm.config import Config
from fastsgemm.device import DeviceInfo, DeviceTraits, info_of
from fastsgemm.geometry import variants
from fastsgemm.geometry.batch import DIMENSIONS
from fastsgemm.geometry.fp16x3 import TileConfig
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import fp16x3
from fastsgemm.heuristics.database import cached
from fastsgemm.heuristics.database_entries import Curve, Record
from fastsgemm.heuristics.knowledge import knowledge
from fastsgemm.heuristics.shares import EXACT, GIVEN, NEAREST, PREDICTED, Pick, Share, Way
from fastsgemm.heuristics.ways import AS_THEY_LIE, Search
from fastsgemm.problem import Problem
from fastsgemm.request import Request
from fastsgemm.rungs import SKINNY_IN_ORDER, Rung

__all__ = ["EXACT", "GIVEN", "NEAREST", "PREDICTED", "Choice", "Share", "Way", "choose", "choose_config"]


class Choice(Struct, frozen=True):
    """How a product is computed, and why.

    Attributes
    ----------
    shares : tuple of Share
        In the order in which they are launched; none where rung 11 computes the product.
    tile : Fp16x3Config, Fp16x3MmaConfig or None
        The config of rung 11; None: an IEEE kernel is quicker, or was asked for.
    trans_c : bool
        Rung 11 computes the transposed product.
    ms : float or None
        Measured or predicted device time, packing included.
    rule : str
        ``exact``: the problem itself was tuned. ``predicted``: the least predicted time. ``nearest``: no times are
        known, and this record's problem is the nearest. ``given``: the caller's config.
    evidence : Record, Curve or None
        The record or curve that the largest share rests on.
    why : str
        With precision fp16x3: why rung 11 is taken or not.
    triangle : bool
        One triangle of a symmetric result is computed.
    tensor_ms, ieee_ms : float or None
        With precision fp16x3: predicted time of rung 11, and of the IEEE kernel that it was compared with.
    look : callable
        Returns `ways`.
    """

    shares: tuple[Share, ...]
    tile: TileConfig | None = None
    trans_c: bool = False
    ms: float | None = None
    rule: str = GIVEN
    evidence: Record | Curve | None = None
    why: str = ""
    tensor_ms: float | None = None
    ieee_ms: float | None = None
    triangle: bool = False
    look: Callable[[], tuple[Way, ...]] = tuple

    @property
    def rung(self) -> Rung:
        """The rung of the largest share."""
        return rungs.find("fp16x3") if self.tile is not None else self._largest.rung

    @property
    def config(self) -> Config:
        """The config of the largest share, or the tile of rung 11."""
        return self._largest.config if self.tile is None else self.tile

    @property
    def packed(self) -> str:
        """Which of A and B are packed first: ``A``, ``B``, ``AB`` or nothing."""
        which = (any(flags) for flags in zip(*(share.packed for share in self.shares), strict=True))
        return "".join(name for name, packed in zip("AB", which, strict=False) if packed)

    @property
    def cut(self) -> str:
        """Where C is cut: before which ``row 4096`` or ``column 4096``, or nothing."""
        if len(self.shares) < 2:
            return ""
        row, column = max(one.rows[0] for one in self.shares), max(one.columns[0] for one in self.shares)
        return f"row {row}" if row else f"column {column}"

    @property
    def _largest(self) -> Share:
        return max(self.shares, key=lambda share: share.rows[1] * share.columns[1])

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways that were compared, the quickest first, and each config with operands as they lie.

        They are computed when asked for, because only an explanation needs them.
        """
        return self.look()


def choose(
    device: DeviceTraits, request: Request, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...] = ()
) -> Choice:
    """Return how a product is computed: by the caller's rung and config where both are given, else as is predicted.

    Operands are packed, and C is cut, only if neither is given.

    Parameters
    ----------
    device : DeviceTraits
    request : Request
    a, b, c : Operand
        As the caller passes them.
    extents : tuple of int
        Those of a batch, whose operands are never packed and whose C is never cut. Where a batch has more than a launch
        has room for, the operands have the steps of the last ones.

    Raises
    ------
    ConfigError
        The database has no config that is legal on this device.
    """
    return _choose(info_of(device), request, a, b, c, extents)


def choose_config(device: DeviceTraits, rung: Rung | None, problem: Problem, only: str | None = None) -> Pick:
    """Return the rung and config that compute a problem as it lies and whole.

    Parameters
    ----------
    device : DeviceTraits
    rung : Rung or None
        None: the quickest of the default rungs that suit the problem.
    problem : Problem
    only : str, optional
        See `fastsgemm.heuristics.knowledge.knowledge`.

    Raises
    ------
    ConfigError
        The database has no config that is legal on this device.
    """
    return _choose_config(info_of(device), rung, problem, only)


@cached
def _choose_config(device: DeviceInfo, rung: Rung | None, problem: Problem, only: str | None) -> Pick:
    search = Search(knowledge(device, only), rung, rung is SKINNY_IN_ORDER)
    return search.pick(problem)


@cached
def _choose(
    device: DeviceInfo, request: Request, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...]
) -> Choice:
    if c.how.trans:  # a kernel computes C^T = B^T A^T, whose rows are contiguous
        turned = replace(request, split=request.split[::-1], symmetric=request.symmetric.transposed)
        return _transposed(_choose(device, turned, b.transposed, a.transposed, c.transposed, extents))
    rung, in_order, sym = request.rung, request.batch_invariant, request.sym
    if request.precision == "fp16x3":
        layout = "NT"[a.how.trans] + "NT"[b.how.trans]
        problem = Problem(c.shape[0], c.shape[1], a.shape[1], layout, math.prod(extents))
        if request.config is not None:
            tile: TileConfig = request.config  # type: ignore[assignment]  # `fp16x3.check_config` saw to it
            return Choice((), tile, not sym and fp16x3.orientation(device, problem, tile), triangle=bool(sym))
        split_a, split_b = (not before for before in request.split)
        if request.gram:  # the pairs of one operand are those of the other
            split_a, split_b = split_a and split_b, False
        how = fp16x3.Symmetry(bool(sym), request.gram)
        tensor = fp16x3.choose(device, problem, (split_a, split_b), rung is not None, how)
        choice = Choice(
            (), tensor.config, tensor.trans_c, tensor.ms, PREDICTED, None, tensor.why, tensor.ms, tensor.ieee_ms,
            bool(sym),
        )  # fmt: skip
        if tensor.config is not None:
            return choice
        ieee = _choose(device, Request(symmetric=request.symmetric, gram=request.gram), a, b, c, extents)
        return replace(ieee, why=choice.why, tensor_ms=choice.tensor_ms, ieee_ms=choice.ieee_ms)
    if request.config is not None:
        rung = rung or rungs.of_config(request.config)
        config = rungs.in_order(request.config, a.shape[1]) if in_order else request.config
        share = Share(rung, config, (0, c.shape[0]), (0, c.shape[1]), (False, False), GIVEN, None, None)
        return Choice((share,), triangle=bool(sym) and rung.computes_triangles, look=lambda: ())
    extents = extents[-DIMENSIONS:]  # those of one launch
    search = Search(knowledge(device), rung, in_order)
    best = next(search.ways(request, a, b, c, extents))
    look = partial(_all_ways, search, request, (a, b, c), extents)
    first = max(best.shares, key=lambda share: share.rows[1] * share.columns[1])
    return Choice(best.shares, None, False, best.ms, first.rule, first.evidence, triangle=best.triangle, look=look)


def _transposed(choice: Choice) -> Choice:
    return replace(
        choice,
        shares=tuple(share.transposed for share in choice.shares),
        look=lambda: tuple(way.transposed for way in choice.look()),
    )


def _all_ways(
    search: Search,
    request: Request,
    operands: tuple[Operand, Operand, Operand],
    extents: tuple[int, ...],
) -> tuple[Way, ...]:
    """Return the ways that were compared, and those with every other config for operands as they lie."""
    best, *others = search.ways(request, *operands, extents)
    problem = variants.dense_problem(*operands, extents=extents)
    span = (0, problem.M), (0, problem.N)
    ranking = [Way(AS_THEY_LIE, (pick.share(*span),), pick.ms, pick.cost) for pick in search.ranking(problem)]
    known = {way.shares[0].config for way in (best, *others) if way.name == AS_THEY_LIE}
    more = [way for way in ranking if way.shares[0].config not in known]
    return (best, *sorted([*others, *more], key=lambda way: way.cost))
