"""Choose how a product is computed: list the ways, predict them in one table, take the least.

The ways are those of `fastsgemm.heuristics.ways`, and with precision fp16x3 rung 11. ``docs/tuning.md`` states
the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from fastsgemm import rungs
from fastsgemm.config import Config, Fp16x3Config
from fastsgemm.device import DeviceInfo, DeviceTraits, info_of
from fastsgemm.geometry import variants
from fastsgemm.geometry.batch import DIMENSIONS
from fastsgemm.geometry.fp16x3 import TileConfig, is_direct
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import fp16x3, half
from fastsgemm.heuristics.database import cached
from fastsgemm.heuristics.database_entries import Curve, Fitted, Record
from fastsgemm.heuristics.knowledge import knowledge
from fastsgemm.heuristics.shares import EXACT, GIVEN, NEAREST, PREDICTED, Pick, Share, Way
from fastsgemm.heuristics.ways import AS_THEY_LIE, SKINNY, Search
from fastsgemm.problem import Dtypes, Problem
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
    direct : bool
        It reads 16-bit operands as they lie, and splits none.
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
    direct: bool = False
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
        dtypes = Dtypes(a.dtype, b.dtype)
        problem = Problem(c.shape[0], c.shape[1], a.shape[1], layout, math.prod(extents), dtypes=dtypes)
        direct = not any(request.split) and is_direct(device.arch, a, b)
        if request.config is not None:
            tile: TileConfig = request.config  # type: ignore[assignment]  # `fp16x3.check_config` saw to it
            direct = direct and isinstance(tile, Fp16x3Config)
            trans_c = not sym and fp16x3.orientation(device, problem, tile)
            return Choice((), tile, trans_c, triangle=bool(sym), direct=direct)
        split_a, split_b = (not before for before in request.split)
        if request.gram:  # the pairs of one operand are those of the other
            split_a, split_b = split_a and split_b, False
        if direct:
            split_a = split_b = False
        how = fp16x3.Symmetry(bool(sym), request.gram)
        ieee = rival = None
        if rung is None and not dtypes.are_float32:
            ieee = _choose(device, _ieee(request), a, b, c, extents)
            rival = ieee.rung.name, ieee.ms
        tensor = fp16x3.choose(device, problem, (split_a, split_b), rung is not None, how, rival)
        choice = Choice(
            (), tensor.config, tensor.trans_c, tensor.ms, PREDICTED, None, tensor.why, tensor.ms, tensor.ieee_ms,
            bool(sym),
        )  # fmt: skip
        if tensor.config is not None:
            return replace(choice, direct=direct and isinstance(tensor.config, Fp16x3Config))
        ieee = ieee or _choose(device, _ieee(request), a, b, c, extents)
        return replace(ieee, why=choice.why, tensor_ms=choice.tensor_ms, ieee_ms=choice.ieee_ms)
    if request.config is not None:
        rung = rung or rungs.of_config(request.config)
        config = rungs.in_order(request.config, a.shape[1]) if in_order else request.config
        share = Share(rung, config, (0, c.shape[0]), (0, c.shape[1]), (False, False), GIVEN, None, None)
        return Choice((share,), triangle=bool(sym) and rung.computes_triangles, look=lambda: ())
    if a.dtype or b.dtype:
        return _choose_half(device, request, a, b, c, extents)
    extents = extents[-DIMENSIONS:]  # those of one launch
    search = Search(knowledge(device), rung, in_order)
    symmetric = partial(search.symmetric_ways, gram=request.gram, declared=bool(request.symmetric))
    list_ways = symmetric if sym else search.ways
    best = next(list_ways(a, b, c, extents))
    look = partial(_all_ways, search, list_ways, (a, b, c), extents)
    first = max(best.shares, key=lambda share: share.rows[1] * share.columns[1])
    return Choice(best.shares, None, False, best.ms, first.rule, first.evidence, triangle=best.triangle, look=look)


def _ieee(request: Request) -> Request:
    """Return the request that an IEEE kernel gets in place of rung 11."""
    return Request(symmetric=request.symmetric, gram=request.gram, takes_halves=request.takes_halves)


def _choose_half(
    device: DeviceInfo, request: Request, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...]
) -> Choice:
    """Return how a product of 16-bit operands is computed: as they lie by rung 10, or converted to float32 first."""
    rung, known = request.rung, knowledge(device)
    as_float32 = _choose(device, request, a.cast, b.cast, c, extents)
    converted = _converted(as_float32, known.fitted, a, b, extents)
    reads_halves = SKINNY.suits(*c.shape) if rung is None else rung.reads_halves
    if request.batch_invariant or request.sym or not reads_halves:
        return converted
    way = half.as_they_lie(known, a, b, c, extents[-DIMENSIONS:])
    [share] = way.shares
    direct = Choice(way.shares, ms=way.ms, rule=share.rule, evidence=share.evidence, look=lambda: (way,))
    return _quicker(direct, converted) if rung is None else direct


def _converted(choice: Choice, fitted: Fitted, a: Operand, b: Operand, extents: tuple[int, ...]) -> Choice:
    """Return the choice for float32 operands with the time that it takes to convert what has 16 bits."""

    def added(way: Choice | Way) -> float:
        flags = way.shares[0].packed if way.shares else (False, False)
        return sum(
            half.cast_ms(fitted, one, extents)
            for one, packed in zip((a, b), flags, strict=True)
            if one.dtype and not packed  # packing converts as it copies
        )

    def ways() -> tuple[Way, ...]:
        return tuple(
            replace(way, ms=None if way.ms is None else way.ms + added(way), cost=way.cost + added(way))
            for way in choice.look()
        )

    return replace(choice, ms=None if choice.ms is None else choice.ms + added(choice), look=ways)


def _quicker(direct: Choice, copied: Choice) -> Choice:
    """Return the quicker of two choices, with the ways of both. Without times it is the first, which moves less."""
    first = direct if direct.ms is None or copied.ms is None or direct.ms <= copied.ms else copied
    second = copied if first is direct else direct

    def ways() -> tuple[Way, ...]:
        best, *others = first.look()
        return (best, *sorted((*others, *second.look()), key=lambda way: way.cost))

    return replace(first, look=ways)


def _transposed(choice: Choice) -> Choice:
    return replace(
        choice,
        shares=tuple(share.transposed for share in choice.shares),
        look=lambda: tuple(way.transposed for way in choice.look()),
    )


def _all_ways(
    search: Search,
    list_ways: Callable[..., Iterator[Way]],
    operands: tuple[Operand, Operand, Operand],
    extents: tuple[int, ...],
) -> tuple[Way, ...]:
    """Return the ways that were compared, and those with every other config for operands as they lie."""
    best, *others = list_ways(*operands, extents)
    problem = variants.dense_problem(*operands, extents=extents)
    span = (0, problem.M), (0, problem.N)
    ranking = [Way(AS_THEY_LIE, (pick.share(*span),), pick.ms, pick.cost) for pick in search.ranking(problem)]
    known = {way.shares[0].config for way in (best, *others) if way.name == AS_THEY_LIE}
    more = [way for way in ranking if way.shares[0].config not in known]
    return (best, *sorted([*others, *more], key=lambda way: way.cost))
