"""Which rung and config a problem gets with ``batch_invariant=True``. Every legal one gives the same bits.

Rung 9 follows the rule of `fastsgemm.heuristics.choose`. The records are those of `fastsgemm.rungs.BATCH_INVARIANT`.
Curves of rung 9 count too, where their config can sum in this order: a curve knows nothing of segments, and adding up
their sums in shared memory costs less than one percent. K is not split, or each segment is a part.

A C of one row or column gets `fastsgemm.rungs.SKINNY_IN_ORDER` where the database has records of it for the
architecture: the record of the problem, or of the nearest one. It has no curves.
"""

from __future__ import annotations

import math
from functools import partial

from fastsgemm import rungs
from fastsgemm.config import SEGMENT, Config, PipelinedConfig
from fastsgemm.device import DeviceInfo, DeviceTraits, info_of
from fastsgemm.errors import ConfigError
from fastsgemm.geometry.grid import tiles
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choose import EXACT, NEAREST, PREDICTED, Choice, Option, distance, fits_of, is_comparable
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.database import kept
from fastsgemm.heuristics.database_entries import GENERIC, Curve, Record
from fastsgemm.problem import Problem
from fastsgemm.rungs import BATCH_INVARIANT, PIPELINED_IN_ORDER, SKINNY_IN_ORDER, Rung


def choose(device: DeviceTraits, problem: Problem, rung: Rung = BATCH_INVARIANT) -> Choice:
    """Return the rung and config that sum in the order of docs/order-of-summation.md, and why it is this one.

    Parameters
    ----------
    device : Device
    problem : Problem
    rung : Rung
        `SKINNY_IN_ORDER`, `PIPELINED_IN_ORDER`, or `BATCH_INVARIANT` for either of them.

    Raises
    ------
    ConfigError
        The database has none that is legal on this device.
    """
    return _choose(info_of(device), problem, rung)


@kept
def _choose(device: DeviceInfo, problem: Problem, rung: Rung) -> Choice:
    records = _records(device, SKINNY_IN_ORDER, problem)
    if rung is SKINNY_IN_ORDER:
        return _skinny(device, records, problem)
    known = any(record.arch == device.arch for record in records)
    if rung is not PIPELINED_IN_ORDER and known and min(problem.M, problem.N) == 1:
        return _skinny(device, records, problem)
    return _pipelined(device, problem)


def _skinny(device: DeviceInfo, records: tuple[Record, ...], problem: Problem) -> Choice:
    if not records:
        raise _none_legal(device, SKINNY_IN_ORDER)
    exact = _exact(records, device, problem)
    if exact is not None:
        return Choice(SKINNY_IN_ORDER, exact.config, EXACT, exact, exact.ms)
    swapped = partial(with_swap_ab, SKINNY_IN_ORDER)  # problems as the rung computes them
    near = min(records, key=lambda one: distance(one.problem and swapped(one.problem), swapped(problem)))
    return Choice(SKINNY_IN_ORDER, near.config, NEAREST, near, None)


def _pipelined(device: DeviceInfo, problem: Problem) -> Choice:
    look = partial(_options, device, problem)
    records = _records(device, BATCH_INVARIANT, problem)
    exact = _exact(records, device, problem)
    if exact is not None:
        config = rungs.in_order(exact.config, problem.K)
        return Choice(BATCH_INVARIANT, config, EXACT, exact, exact.ms, look)
    predicted = _predictions(device, problem)
    if predicted:
        ms, config, curve = predicted[0]
        return Choice(BATCH_INVARIANT, config, PREDICTED, curve, ms, look)
    if not records:
        raise _none_legal(device, BATCH_INVARIANT)
    near = min(records, key=lambda record: distance(record.problem, problem))
    parts = 2 if tiles(near.config, problem) * problem.batch < device.multiprocessors else 1
    config = rungs.in_order(near.config.replace(SPLIT_K=parts), problem.K)
    return Choice(BATCH_INVARIANT, config, NEAREST, near, None)


def _exact(records: tuple[Record, ...], device: DeviceInfo, problem: Problem) -> Record | None:
    return next((record for record in records if record.problem == problem and record.device == device.name), None)


def _none_legal(device: DeviceInfo, rung: Rung) -> ConfigError:
    return ConfigError(f"no record of rung {rung.name} is legal with {device.shared_limit} bytes of shared memory")


def _records(device: DeviceInfo, rung: Rung, problem: Problem) -> tuple[Record, ...]:
    """Return the records that can be the nearest one of a problem."""
    return tuple(record for record in _legal_records(device, rung) if is_comparable(record, problem))


@kept
def _legal_records(device: DeviceInfo, rung: Rung) -> tuple[Record, ...]:
    """Return the records for the device, then those for all."""
    files = [database.of_rung(arch, rung.name) for arch in (device.arch, GENERIC)]
    ours = (each for file in files for each in file.records if not rung.violations(each.config, device.shared_limit))
    return tuple(sorted(ours, key=lambda record: record.device != device.name))


@kept
def _model(device: DeviceInfo) -> CostModel | None:
    """Return the cost model of the curves that count: those of the device itself, if there are any."""
    files = [database.of_rung(device.arch, rung.name) for rung in (BATCH_INVARIANT, rungs.RUNGS[8])]
    curves = [curve for file in files for curve in file.curves if _sums_in_order(curve.config)]
    own = [curve for curve in curves if curve.device == device.name]
    fits = fits_of(own or curves)
    if not fits:
        return None
    return CostModel(fits, device.multiprocessors, device.shared_limit, database.fitted(device.arch))


@kept
def _in_order(device: DeviceInfo, parts: int) -> tuple[Config | None, ...]:
    """Return for each config of the model the one that sums in order, with K in one part or each segment a part.

    None stands for one that is not legal.
    """
    model = _model(device)
    configs = [] if model is None else [fit.curve.config.replace(SPLIT_K=parts) for fit in model.fits]
    found = (rungs.in_order(config, SEGMENT + 1) for config in configs)
    return tuple(None if BATCH_INVARIANT.violations(config, device.shared_limit) else config for config in found)


def _sums_in_order(config: Config) -> bool:
    return isinstance(config, PipelinedConfig) and not config.replace(SEGMENT=SEGMENT).order_violations()


def _predictions(device: DeviceInfo, problem: Problem) -> list[tuple[float, Config, Curve]]:
    """Return each legal config that counts with its predicted time, the quickest first."""
    model = _model(device)
    if model is None:
        return []
    found: list[tuple[float, Config, Curve] | None] = [None] * len(model.fits)
    # K in one part, or a part for each segment.
    for parts, steps in ((1, problem.K), (2, SEGMENT)) if problem.K > SEGMENT else ((2, SEGMENT),):
        for place, (ms, config) in enumerate(
            zip(model.in_parts(problem, steps), _in_order(device, parts), strict=True)
        ):
            known = found[place]
            if config is not None and ms < (math.inf if known is None else known[0]):
                found[place] = ms, config, model.fits[place].curve
    return sorted((one for one in found if one is not None), key=lambda one: one[0])


def _options(device: DeviceInfo, problem: Problem) -> tuple[Option, ...]:
    return tuple(Option(config, ms) for ms, config, _ in _predictions(device, problem))
