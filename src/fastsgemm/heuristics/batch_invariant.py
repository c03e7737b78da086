"""Which config of rung 9 a problem gets with ``batch_invariant=True``. Every legal one gives the same bits.

The rule is that of `fastsgemm.heuristics.choose`. The records are those of the rung `fastsgemm.rungs.BATCH_INVARIANT`.
Curves of rung 9 count too, where their config can sum in this order: a curve knows nothing of segments, and adding up
their sums in shared memory costs less than one percent. K is not split, or each segment is a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fastsgemm import rungs
from fastsgemm.config import SEGMENT, Config, PipelinedConfig
from fastsgemm.errors import ConfigError
from fastsgemm.geometry.grid import tiles
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choose import EXACT, NEAREST, PREDICTED, Choice, DeviceTraits, Option, distance, kept
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.curve_fit import Fit, fit
from fastsgemm.heuristics.database_entries import GENERIC, Curve, Record
from fastsgemm.problem import Problem
from fastsgemm.rungs import BATCH_INVARIANT


@dataclass(frozen=True)
class _Place:
    """What the choice looks at of a device."""

    name: str
    arch: str
    shared_limit: int
    multiprocessors: int

    def allows(self, config: Config) -> bool:
        """Whether a config is legal."""
        return not BATCH_INVARIANT.violations(config, self.shared_limit)


def choose(device: DeviceTraits, problem: Problem) -> Choice:
    """Return the config of rung 9 that sums in the order of docs/order-of-summation.md, and why it is this one.

    Parameters
    ----------
    device : Device
    problem : Problem

    Raises
    ------
    ConfigError
        The database has none that is legal on this device.
    """
    return _choose(_Place(device.name, device.arch, device.shared_limit, device.multiprocessors), problem)


@kept
def _choose(place: _Place, problem: Problem) -> Choice:
    look = partial(_options, place, problem)
    records = _records(place)
    exact = next((record for record in records if record.problem == problem and record.device == place.name), None)
    if exact is not None:
        config = rungs.in_order(exact.config, problem.K)
        return Choice(BATCH_INVARIANT, config, EXACT, exact, exact.ms, look)
    predicted = _predictions(place, problem)
    if predicted:
        ms, config, curve = predicted[0]
        return Choice(BATCH_INVARIANT, config, PREDICTED, curve, ms, look)
    if not records:
        raise ConfigError(
            f"no record of rung {BATCH_INVARIANT.name} is legal with {place.shared_limit} bytes of shared memory"
        )
    near = min(records, key=lambda record: distance(record.problem, problem))
    parts = 2 if tiles(near.config, problem) * problem.batch < place.multiprocessors else 1
    config = rungs.in_order(near.config.replace(SPLIT_K=parts), problem.K)
    return Choice(BATCH_INVARIANT, config, NEAREST, near, None)


@kept
def _records(place: _Place) -> tuple[Record, ...]:
    """Return the records for the device, then those for all."""
    files = [database.of_rung(arch, BATCH_INVARIANT.name) for arch in (place.arch, GENERIC)]
    ours = (record for file in files for record in file.records if place.allows(record.config))
    return tuple(sorted(ours, key=lambda record: record.device != place.name))


@kept
def _model(place: _Place) -> CostModel | None:
    """Return the cost model of the curves that count: those of the device itself, if there are any."""
    files = [database.of_rung(place.arch, rung.name) for rung in (BATCH_INVARIANT, rungs.RUNGS[8])]
    curves = [curve for file in files for curve in file.curves if _sums_in_order(curve.config)]
    own = [curve for curve in curves if curve.device == place.name]
    fits: dict[Config, Fit] = {}
    for curve in own or curves:
        fits.setdefault(curve.config, fit(curve))  # the user's own take the place of what was shipped
    if not fits:
        return None
    return CostModel([*fits.values()], place.multiprocessors, place.shared_limit, database.fitted(place.arch))


def _sums_in_order(config: Config) -> bool:
    return isinstance(config, PipelinedConfig) and not config.replace(SEGMENT=SEGMENT).order_violations()


def _predictions(place: _Place, problem: Problem) -> list[tuple[float, Config, Curve]]:
    """Return each legal config that counts with its predicted time, the quickest first."""
    model = _model(place)
    if model is None:
        return []
    best: dict[Config, tuple[float, Config, Curve]] = {}
    # K in one part, or a part for each segment.
    for parts, steps in ((1, problem.K), (2, SEGMENT)) if problem.K > SEGMENT else ((2, SEGMENT),):
        for of, ms in model.in_parts(problem, steps):
            curve = of.curve
            config = rungs.in_order(curve.config.replace(SPLIT_K=parts), problem.K)
            if place.allows(config) and (curve.config not in best or ms < best[curve.config][0]):
                best[curve.config] = ms, config, curve
    return sorted(best.values(), key=lambda one: one[0])


def _options(place: _Place, problem: Problem) -> tuple[Option, ...]:
    return tuple(Option(config, ms) for ms, config, _ in _predictions(place, problem))
