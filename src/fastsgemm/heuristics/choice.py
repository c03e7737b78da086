"""Choose how a product is computed: list the ways, predict them in one table, take the least.

The ways are those of `fastsgemm.heuristics.alternatives`, and with precision fp16x3 rung 11. ``docs/tuning.md`` states
the rules.
"""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from fastsgemm import rungs
from fastsgemm.config import SEGMENT
from fastsgemm.device import DeviceInfo, DeviceTraits, info_of
from fastsgemm.errors import ConfigError, PrecisionError
from fastsgemm.geometry import variants
from fastsgemm.geometry.batch import DIMENSIONS
from fastsgemm.geometry.matrix import Operand
from fastsgemm.heuristics import conversion, fp16x3
from fastsgemm.heuristics.alternatives import READER, SKINNY, Search
from fastsgemm.heuristics.database import cached
from fastsgemm.heuristics.device_database import device_database
from fastsgemm.heuristics.selection import EXACT, GIVEN, NEAREST, PREDICTED, UNPACKED, Choice, Selection, comparable
from fastsgemm.problem import FLOAT32, Problem, Ragged
from fastsgemm.request import Request
from fastsgemm.rungs import SKINNY_IN_ORDER, Rung

__all__ = [
    "EXACT",
    "GIVEN",
    "NEAREST",
    "PREDICTED",
    "Choice",
    "alternatives",
    "check_grouped",
    "choose",
    "choose_config",
    "choose_grouped",
    "grouped_alternatives",
]


def choose(
    device: DeviceTraits, request: Request, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...] = ()
) -> Choice:
    """Return how a product is computed: by the caller's rung and config where both are given, else as is predicted.

    Operands are packed only if neither is given, and not of a batch. `extents` are those of the batch: where it has
    more than a launch has room for, the operands have the steps of the last ones.

    Raises
    ------
    ConfigError
        The database has no config that is legal on this device.
    """
    return _choose(info_of(device), request, a, b, c, extents)


def alternatives(
    device: DeviceTraits, request: Request, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...] = ()
) -> tuple[Choice, ...]:
    """Return the ways that `choose` compared, the one that is taken first, and each config for operands as they lie.

    There are none where the config is the caller's.
    """
    if request.config is not None:
        return ()
    if request.tensor_cores and request.batch_invariant:  # no other way sums in this order
        first = choose(device, request, a, b, c, extents)
        return (first,) if first.tensor_cores else alternatives(device, request.ieee, a, b, c, extents)
    if request.tensor_cores:
        first, ieee = choose(device, request, a, b, c, extents), alternatives(device, request.ieee, a, b, c, extents)
        return (first, *ieee) if first.tensor_cores else ieee
    if c.how.trans:
        turned = alternatives(device, _transposed(request), b.transposed, a.transposed, c.transposed, extents)
        return tuple(alternative.transposed for alternative in turned)
    if a.dtype or b.dtype:
        best, *others = _of_halves(info_of(device), request, a, b, c, extents)
        fitted, as_float32 = (
            device_database(info_of(device)).fitted,
            alternatives(device, request, a.cast, b.cast, c, extents),
        )
        others += [conversion.converted(alternative, fitted, a, b, extents) for alternative in as_float32[1:]]
        return (best, *sorted(others, key=lambda alternative: comparable(alternative.ms)))
    extents, search = extents[-DIMENSIONS:], Search(device_database(info_of(device)), request)
    best, *others = search.alternatives(a, b, c, extents)
    problem = variants.dense_problem(a, b, c, extents=extents)
    ranking = [Choice(pick.taken, pick.ms) for pick in search.ranking(problem)]
    compared = {alternative.config for alternative in (best, *others) if alternative.name == UNPACKED}
    rest = [alternative for alternative in ranking if alternative.config not in compared]
    return (best, *sorted([*others, *rest], key=lambda alternative: comparable(alternative.ms)))


def choose_config(device: DeviceTraits, rung: Rung | None, problem: Problem, only: str | None = None) -> Selection:
    """Return the rung and config that compute a problem as it lies.

    Without a rung, it is the quickest of the default rungs that suit the problem. For `only`, see
    `fastsgemm.heuristics.device_database.DeviceDatabase`.

    Raises
    ------
    ConfigError
        The database has no config that is legal on this device.
    """
    return _choose_config(info_of(device), rung, problem, only)


@cached
def _choose_config(device: DeviceInfo, rung: Rung | None, problem: Problem, only: str | None) -> Selection:
    request = Request(rung, batch_invariant=rung is SKINNY_IN_ORDER)
    return Search(device_database(device, only), request).pick(problem)


def check_grouped(request: Request) -> None:
    """Raise an error unless groups may be computed as requested.

    Raises
    ------
    ConfigError
        Another rung is named.
    PrecisionError
        Tensor cores have no one order of summation for groups.
    """
    if request.rung not in (None, READER):
        raise ConfigError(f"groups are computed by rung {READER}, got {request.rung}; leave the rung out")
    if request.tensor_cores and request.batch_invariant:
        raise PrecisionError(
            f"batch_invariant=True needs precision 'ieee' for groups, got {request.precision!r}; call sgemm for each "
            "group, or pass groups of one size as a batch without offsets"
        )


@cached
def choose_grouped(device: DeviceInfo, request: Request, problem: Problem) -> Choice:
    """Return how groups are computed: by rung 9 with the config for their mean, without split-K, or by rung 11.

    The kernels write rows: C is row-major.

    Raises
    ------
    ConfigError
        The database has no config that is legal on this device.
    """
    search, mean = _grouped(device, problem, request.batch_invariant)
    pick = search.pick(mean, problem.ragged).taken
    ieee = Choice(pick, pick.ms)
    return fp16x3.choose_grouped(device, problem, ieee) if request.tensor_cores and problem.K else ieee


def grouped_alternatives(device: DeviceInfo, request: Request, problem: Problem) -> tuple[Choice, ...]:
    """Return what `choose_grouped` takes, and then each other config that has a curve, the quickest first."""
    best = choose_grouped(device, request, problem)
    search, mean = _grouped(device, problem, request.batch_invariant)
    others = [pick.taken for pick in search.ranking(mean, problem.ragged)]
    return (best, *(Choice(pick, pick.ms) for pick in others if pick.config != best.config))


def _grouped(device: DeviceInfo, problem: Problem, in_order: bool) -> tuple[Search, Problem]:
    """Return what searches the config of groups, and the mean group for which it does."""
    mean = dataclasses.replace(problem.mean, dtypes=FLOAT32)
    if in_order and problem.ragged is Ragged.K:  # a group may have more steps than the mean: room for several segments
        mean = dataclasses.replace(mean, K=max(mean.K, SEGMENT + 1))
    return Search(device_database(device), Request(READER, batch_invariant=in_order)), mean


@cached
def _choose(
    device: DeviceInfo, request: Request, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...]
) -> Choice:
    if c.how.trans:  # a kernel computes C^T = B^T A^T, whose rows are contiguous
        return _choose(device, _transposed(request), b.transposed, a.transposed, c.transposed, extents).transposed
    if request.tensor_cores:
        return fp16x3.choose(device, request, a, b, c, extents, lambda: _choose(device, request.ieee, a, b, c, extents))
    if request.config is not None:
        rung = request.rung or rungs.of_config(request.config)
        config = rungs.in_order(request.config, a.shape[1]) if request.batch_invariant else request.config
        return Choice(Selection(rung, config, GIVEN), triangle=bool(request.sym) and rung.computes_triangles)
    if a.dtype or b.dtype:
        return _of_halves(device, request, a, b, c, extents)[0]
    return next(Search(device_database(device), request).alternatives(a, b, c, extents[-DIMENSIONS:]))  # of one launch


def _of_halves(
    device: DeviceInfo, request: Request, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...]
) -> list[Choice]:
    """Return the ways to compute a product of 16-bit operands, the one to take first.

    Rung 10 reads them as they lie; for the others they are converted to float32 first. Without times, the first of the
    two is taken, which moves less.
    """
    rung, data = request.rung, device_database(device)
    converted = conversion.converted(_choose(device, request, a.cast, b.cast, c, extents), data.fitted, a, b, extents)
    reads_halves = SKINNY.suits(*c.shape) if rung is None else rung.reads_halves
    if request.batch_invariant or request.sym or not reads_halves:
        return [converted]
    direct = conversion.as_they_lie(data, a, b, c, extents[-DIMENSIONS:])
    if rung is not None:
        return [direct]
    slower = direct.ms is not None and converted.ms is not None and converted.ms < direct.ms
    return [converted, direct] if slower else [direct, converted]


def _transposed(request: Request) -> Request:
    """Return the request for C^T = B^T A^T."""
    return replace(request, split=request.split[::-1], symmetric=request.symmetric.transposed)
