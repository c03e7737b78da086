"""Which config of rung 9 a problem gets with ``batch_invariant=True``. Every legal one gives the same bits.

The rule is that of `fastsgemm.heuristics.choose`. The records are those of the rung `fastsgemm.rungs.BATCH_INVARIANT`.
Curves of rung 9 count too, where their config can sum in this order: a curve knows nothing of segments, and adding up
their sums in shared memory costs less than one percent. K is not split, or each segment is a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from fastsgemm import rungs
from fastsgemm.config import SEGMENT, Config, PipelinedConfig
from fastsgemm.errors import ConfigError, ShapeError
from fastsgemm.geometry.grid import tiles
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choose import EXACT, NEAREST, PREDICTED, Choice, DeviceTraits, Option, distance, kept
from fastsgemm.heuristics.cost_model import CostModel
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
    parts = 2 if tiles(near.config, problem) < place.multiprocessors else 1
    config = rungs.in_order(near.config.replace(SPLIT_K=parts), problem.K)
    return Choice(BATCH_INVARIANT, config, NEAREST, near, None)


@kept
def _records(place: _Place) -> tuple[Record, ...]:
    """Return the records for the device, then those for all."""
    found = (*database.load(place.arch).records, *database.load(GENERIC).records)
    ours = (record for record in found if record.rung == BATCH_INVARIANT.name and place.allows(record.config))
    return tuple(sorted(ours, key=lambda record: record.device != place.name))


@kept
def _models(place: _Place) -> tuple[tuple[Curve, CostModel], ...]:
    """Return the curves that count and their cost models; those of the device itself, if there are any."""
    curves = [curve for curve in database.load(place.arch).curves if _sums_in_order(curve.config)]
    own = [curve for curve in curves if curve.device == place.name]
    found = {}
    for curve in own or curves:
        if curve.config not in found:  # the user's own take the place of what was shipped
            found[curve.config] = curve, CostModel(curve)
    return tuple(found.values())


def _sums_in_order(config: Config) -> bool:
    return isinstance(config, PipelinedConfig) and not config.replace(SEGMENT=SEGMENT).order_violations()


def _predictions(place: _Place, problem: Problem) -> list[tuple[float, Config, Curve]]:
    found = []
    for curve, model in _models(place):
        try:
            options = [
                (model.predict_split(problem, config, place.multiprocessors), config)
                for config in _splits(curve.config, problem)
                if place.allows(config)
            ]
        except ShapeError:  # so many blocks of this size do not fit a grid
            continue
        if options:
            ms, config = min(options, key=lambda option: option[0])
            found.append((ms, config, curve))
    return sorted(found, key=lambda one: one[0])


def _splits(config: Config, problem: Problem) -> Iterator[Config]:
    """Yield the config with K in one part and with a part for each segment."""
    for parts in (1, 2) if problem.K > SEGMENT else (2,):
        yield rungs.in_order(config.replace(SPLIT_K=parts), problem.K)


def _options(place: _Place, problem: Problem) -> tuple[Option, ...]:
    return tuple(Option(config, ms) for ms, config, _ in _predictions(place, problem))
