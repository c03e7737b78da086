"""Choose how a product is computed: list the ways, predict them in one table, take the least.

The ways are those of `fastsgemm.heuristics.ways`, and with precision fp16x3 rung 11. ``docs/tuning.md`` states
the rules.
"""

from __future__ import annotations

import math
from functools import partial

from msgspec.structs import replace

from fastsgemm import rungs
from fastsgemm.device import DeviceInfo, DeviceTraits, info_of
from fastsgemm.geometry import variants
from fastsgemm.geometry.batch import DIMENSIONS
from fastsgemm.geometry.fp16x3 import TileConfig
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import fp16x3
from fastsgemm.heuristics.database import cached
from fastsgemm.heuristics.knowledge import knowledge
from fastsgemm.heuristics.shares import EXACT, GIVEN, NEAREST, PREDICTED, Choice, Pick, Share, Way
from fastsgemm.heuristics.ways import AS_THEY_LIE, Search
from fastsgemm.problem import Problem
from fastsgemm.request import Request
from fastsgemm.rungs import SKINNY_IN_ORDER, Rung

__all__ = ["EXACT", "GIVEN", "NEAREST", "PREDICTED", "Choice", "Share", "Way", "choose", "choose_config"]


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
        tensor = fp16x3.choose(device, problem, request)
        if tensor.tile is not None:
            return tensor
        ieee = _choose(device, Request(symmetric=request.symmetric, gram=request.gram), a, b, c, extents)
        return replace(ieee, why=tensor.why, tensor_ms=tensor.tensor_ms, ieee_ms=tensor.ieee_ms)
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
