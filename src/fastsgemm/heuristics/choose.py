"""The choice of rung and config for a problem; ``docs/tuning.md`` states the rule.

Answers are kept per problem, so the second question about a problem is a look-up.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Protocol

from fastsgemm import rungs
from fastsgemm.config import Config
from fastsgemm.errors import ConfigError, ShapeError
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import database, partial_accumulators
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.database_entries import GENERIC, Content, Curve, Fitted, Record
from fastsgemm.problem import Problem, octaves
from fastsgemm.rungs import Rung

_MOST_PROBLEMS = 65536  # whose answers are kept

EXACT, PREDICTED, NEAREST = _RULES = ("exact", "predicted", "nearest")


class DeviceTraits(Protocol):
    """What the choice looks at: an opened `fastsgemm.device.Gpu`, or a description of a device."""

    @property
    def name(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def shared_limit(self) -> int: ...
    @property
    def multiprocessors(self) -> int: ...


@dataclass(frozen=True)
class Option:
    """A config that could be used, with what is known of its time on the problem.

    Attributes
    ----------
    config : Config
    ms : float or None
        Measured or predicted device time.
    """

    config: Config
    ms: float | None


@dataclass(frozen=True)
class Choice:
    """The config that a problem gets, and why.

    Attributes
    ----------
    rung : Rung
    config : Config
    rule : str
        ``exact``: the problem itself was tuned. ``predicted``: the least predicted time. ``nearest``: no times are
        known, and this record's problem is the nearest.
    evidence : Record or Curve
        The record or curve that the choice is based on.
    ms : float or None
        Measured or predicted device time.
    look : callable
        Returns `options`.
    """

    rung: Rung
    config: Config
    rule: str
    evidence: Record | Curve
    ms: float | None
    look: Callable[[], tuple[Option, ...]] = field(default=tuple, compare=False, repr=False)

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The other configs that are known, the fastest first.

        They are computed when first asked for, because only an explanation needs them.
        """
        return self.look()

    # What `python -m fastsgemm` shows of it.

    @property
    def arch(self) -> str:
        """The architecture of the file that the evidence is in, or ``generic``."""
        return self.evidence.arch

    @property
    def device(self) -> str | None:
        """The device that the evidence is from."""
        return self.evidence.device

    @property
    def origin(self) -> str:
        """``measured``, ``predicted``, ``published`` or ``hand-picked``."""
        return self.evidence.origin if isinstance(self.evidence, Record) else PREDICTED

    @property
    def source(self) -> str:
        """Where a published one is from, or what was measured with."""
        return self.evidence.source if isinstance(self.evidence, Record) else f"from {self.evidence.tools}"


def choose(device: DeviceTraits, rung: Rung | None, problem: Problem, only: str | None = None) -> Choice:
    """Return the config of `rung` for `problem` on `device`, and why.

    Parameters
    ----------
    device : Device
    rung : Rung or None
        None: of the default rungs that suit the problem, the one that is known, or else predicted, to be quickest.
    problem : Problem
    only : str, optional
        ``shipped`` leaves the user's own results out, ``user`` those of this architecture that were shipped.

    Raises
    ------
    ConfigError
        The database has none that is legal on this device.
    """
    # The products of a batch share out the multiprocessors, as far as waves of blocks and split-K are concerned.
    multiprocessors = device.multiprocessors / problem.batch
    place = (device.name, device.arch, device.shared_limit, multiprocessors)
    if rung is not None:
        return _choose(*place, rung, problem, only)
    suited = (rung for rung in rungs.DEFAULTS if rung.suits(problem.M, problem.N))
    return min((_choose(*place, rung, problem, only) for rung in suited), key=partial(_rank, problem))


def _rank(problem: Problem, choice: Choice) -> tuple[bool, int, float, int]:
    """Return a sort key: error, rule, time, then rung number.

    Choices without a time sort last within their rule. Of equals the higher rung wins, because it is the more special.
    """
    split = partial_accumulators.splits_few(choice.rung, choice.config, with_swap_ab(choice.rung, problem))
    return split, _RULES.index(choice.rule), math.inf if choice.ms is None else choice.ms, -choice.rung.number


def forget() -> None:
    """Forget what was chosen, because the database has changed."""
    database.forget()
    _known.cache_clear()
    _choose.cache_clear()


def knows(device: DeviceTraits) -> bool:
    """Whether the database has records or curves of a default rung for this architecture, generic ones apart."""
    content = database.load(device.arch)
    known = {record.rung for record in content.records} | {curve.rung for curve in content.curves}
    return not known.isdisjoint(rung.name for rung in rungs.DEFAULTS)


@dataclass(frozen=True)
class _Known:
    """What one tier of the database knows of a rung."""

    records: tuple[Record, ...]
    curves: tuple[Curve, ...]

    @cached_property
    def models(self) -> tuple[tuple[Curve, CostModel], ...]:
        """The cost models of the curves, made when first needed."""
        return tuple(_models(self.curves))


@lru_cache(maxsize=_MOST_PROBLEMS)
def _choose(
    name: str, arch: str, shared_limit: int, multiprocessors: float, rung: Rung, problem: Problem, only: str | None
) -> Choice:
    tiers = _known(name, arch, shared_limit, rung, only)
    for tier in tiers:
        place = (tier, problem, multiprocessors, rung, shared_limit, database.fitted(arch))
        exact = next((r for r in tier.records if r.problem == problem and r.origin != "hand-picked"), None)
        if exact is not None:
            return Choice(rung, exact.config, EXACT, exact, exact.ms, partial(_alternatives, *place))
        predicted = _predictions(*place)
        if predicted:
            ms, config, curve = predicted[0]
            return Choice(rung, config, PREDICTED, curve, ms, partial(_alternatives, *place))
    for tier in tiers:
        if tier.records:
            near = min(tier.records, key=lambda record: _distance(record.problem, problem))
            others = tuple(Option(record.config, None) for record in tier.records if record is not near)
            config = partial_accumulators.shortened(
                near.config, with_swap_ab(rung, problem), shared_limit, database.fitted(arch)
            )
            return Choice(rung, config, NEAREST, near, None, partial(tuple, others))
    raise ConfigError(f"no record of rung {rung.name} is legal with {shared_limit} bytes of shared memory")


@lru_cache(maxsize=256)
def _known(name: str, arch: str, shared_limit: int, rung: Rung, only: str | None) -> tuple[_Known, ...]:
    """Return the tiers: this very device, its architecture, and what holds everywhere; the user's own come first."""
    own, generic = database.load(arch), database.load(GENERIC)

    def usable(entry: Record | Curve) -> bool:
        if only is not None and entry.arch != GENERIC and entry.user is not (only == "user"):
            return False
        return entry.rung == rung.name and not rung.violations(entry.config, shared_limit)

    def tier(content: Content, here: bool) -> _Known:
        records = tuple(entry for entry in content.records if (entry.device == name) is here and usable(entry))
        curves = tuple(entry for entry in content.curves if (entry.device == name) is here and usable(entry))
        return _Known(records, curves)

    return tier(own, True), tier(own, False), tier(generic, False)


def _models(curves: Iterable[Curve]) -> Iterator[tuple[Curve, CostModel]]:
    seen: set[Config] = set()
    for curve in curves:
        if curve.config not in seen:  # the user's own take the place of what was shipped
            seen.add(curve.config)
            try:
                yield curve, CostModel(curve)
            except ValueError as error:
                warnings.warn(f"a curve of {curve.device} is left out: {error}", RuntimeWarning, stacklevel=2)


def _predictions(
    tier: _Known, problem: Problem, multiprocessors: float, rung: Rung, shared_limit: int, fitted: Fitted
) -> list[tuple[float, Config, Curve]]:
    faced = with_swap_ab(rung, problem)

    def complete(config: Config) -> tuple[float, Config]:
        config = partial_accumulators.shortened(config, faced, shared_limit, fitted)
        return partial_accumulators.cost(config, fitted), config

    found = []
    for curve, model in tier.models:
        try:
            ms, config = model.best(problem, multiprocessors, complete)
        except ShapeError:  # so many blocks of this size do not fit a grid
            continue
        found.append((ms, config, curve))
    return sorted(found, key=lambda one: (partial_accumulators.splits_few(rung, one[1], faced), one[0]))


def _alternatives(
    tier: _Known, problem: Problem, multiprocessors: float, rung: Rung, shared_limit: int, fitted: Fitted
) -> tuple[Option, ...]:
    predicted = _predictions(tier, problem, multiprocessors, rung, shared_limit, fitted)
    return tuple(Option(config, ms) for ms, config, _ in predicted)


def _distance(known: Problem | None, problem: Problem) -> tuple[int, float]:
    """Return how far apart two problems are: another layout first, then the octaves between their extents."""
    if known is None:
        return 1, math.inf
    return int(known.layout != problem.layout), octaves(known, problem)
