"""The choice of rung and config for a problem; ``docs/tuning.md`` states the rule.

Answers are kept per problem, so the second question about a problem is a look-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

from msgspec import Struct

from fastsgemm import rungs
from fastsgemm.config import Config, Violation
from fastsgemm.device import DeviceInfo, DeviceTraits, info_of
from fastsgemm.errors import ConfigError
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import database, partial_accumulators
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.curve_fit import Fit, fit
from fastsgemm.heuristics.database import kept
from fastsgemm.heuristics.database_entries import GENERIC, Content, Curve, Record
from fastsgemm.problem import Problem, octaves, spell
from fastsgemm.progress import warn
from fastsgemm.rungs import Rung

EXACT, PREDICTED, NEAREST = _RULES = ("exact", "predicted", "nearest")


class Option(Struct, frozen=True):
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
    return _choose(_knowledge(info_of(device), only), None if rung is None else rung.name, problem)


def knows(device: DeviceTraits) -> bool:
    """Whether the database has records or curves of a default rung for this architecture, generic ones apart."""
    found = (database.of_rung(device.arch, rung.name) for rung in rungs.DEFAULTS)
    return any(content.records or content.curves for content in found)


def model(device: DeviceTraits, rung: Rung) -> CostModel | None:
    """Return the cost model from which problems of `rung` are predicted, or None if there are no curves."""
    known = _knowledge(info_of(device), None)
    tier = next((tier for tier in known.tiers(rung) if tier.fits), None)
    return None if tier is None else known.model(tier)


class _Knowledge:
    """What the database knows that holds on one device, and the cost models of its curves."""

    def __init__(self, device: DeviceInfo, only: str | None) -> None:
        self._device, self._only = device, only
        self.shared_limit = device.shared_limit
        self.fitted = database.fitted(device.arch)
        self._tiers: dict[tuple[str, int], _Tier] = {}
        self._models: dict[tuple[_Tier, ...], CostModel] = {}

    def tiers(self, rung: Rung) -> Iterator[_Tier]:
        """Yield what is known of a rung: on this very device, on its architecture, and everywhere.

        In each tier the user's own results come first. A file is read when its tier is asked for.
        """
        for number, (arch, here) in enumerate(
            ((self._device.arch, True), (self._device.arch, False), (GENERIC, False))
        ):
            tier = self._tiers.get((rung.name, number))
            if tier is None:
                content = database.of_rung(arch, rung.name)
                tier = self._tiers[rung.name, number] = self._tier(content, rung, here)
            yield tier

    def _tier(self, content: Content, rung: Rung, here: bool) -> _Tier:
        def holds(entry: Record | Curve) -> bool:
            if (entry.device == self._device.name) is not here:
                return False
            return self._only is None or entry.arch == GENERIC or entry.user is (self._only == "user")

        def violations(config: Config) -> list[Violation]:
            return rung.violations(config, self.shared_limit)

        return _Tier(tuple(filter(holds, content.records)), tuple(filter(holds, content.curves)), violations)

    def model(self, *tiers: _Tier) -> CostModel:
        """Return the cost model of the curves of one or more tiers."""
        if tiers not in self._models:
            fits = [fit for tier in tiers for fit in tier.fits]
            self._models[tiers] = CostModel(fits, self._device.multiprocessors, self.shared_limit, self.fitted)
        return self._models[tiers]


class _Tier:
    """The records and curves of one rung that hold equally well on the device.

    Whether a config is legal there is looked at when its record or the curves are needed.
    """

    def __init__(
        self, records: tuple[Record, ...], curves: tuple[Curve, ...], violations: Callable[[Config], list[Violation]]
    ) -> None:
        self._records, self._curves, self._violations = records, curves, violations
        self._measured: dict[Problem | None, list[Record]] = {}
        for record in records:
            if record.origin != "hand-picked":
                self._measured.setdefault(record.problem, []).append(record)

    def exact(self, problem: Problem) -> Record | None:
        """Return the record of this very problem: of two the first, which is the user's own.

        One that is not legal is passed over with a warning: somebody may have edited it.
        """
        for record in self._measured.get(problem, ()):
            broken = self._violations(record.config)
            if not broken:
                return record
            place = f"the record of rung {record.rung} for {spell(problem)}"
            warn(f"{place} is passed over: {broken[0]}")
        return None

    def comparable(self, problem: Problem) -> tuple[Record, ...]:
        """Return the records with a legal config that can be the nearest one of a problem."""
        return tuple(one for one in self._records if is_comparable(one, problem) and not self._violations(one.config))

    @cached_property
    def fits(self) -> tuple[Fit, ...]:
        """The fits of the curves with a legal config, made when first needed."""
        return fits_of(curve for curve in self._curves if not self._violations(curve.config))


def fits_of(curves: Iterable[Curve]) -> tuple[Fit, ...]:
    """Return the fits of curves. A curve that lacks points is left out with a warning.

    Of two curves of one config the first counts: the user's own.
    """
    found: dict[Config, Fit | None] = {}
    for curve in curves:
        if curve.config not in found:
            found[curve.config] = None
            try:
                found[curve.config] = fit(curve)
            except ValueError as error:
                warn(f"a curve of {curve.device} is left out: {error}")
    return tuple(one for one in found.values() if one is not None)


@kept
def _knowledge(device: DeviceInfo, only: str | None) -> _Knowledge:
    return _Knowledge(device, only)


@kept
def _choose(known: _Knowledge, name: str | None, problem: Problem) -> Choice:
    """Return the choice for a problem among the default rungs that suit it, or of the named rung."""
    if name is not None:
        suited = [rungs.find(name)]
    else:
        suited = [rung for rung in rungs.DEFAULTS if rung.suits(problem.M, problem.N)]
    found: list[Choice] = []
    curves: dict[str, _Tier] = {}
    for rung in suited:
        for tier in known.tiers(rung):
            record = tier.exact(problem)
            if record is not None:
                look = partial(_options, known, tier, problem)
                found.append(Choice(rung, record.config, EXACT, record, record.ms, look))
                break
            if tier.fits:
                curves[rung.name] = tier
                break
    # A measured time beats a predicted one, unless the sum is one that threads should not share out.
    if curves and (not found or problem.K <= partial_accumulators.FEW):
        best = known.model(*curves.values()).best(problem)
        if best is not None:
            look = partial(_options, known, curves[best.fit.rung.name], problem)
            found.append(Choice(best.fit.rung, best.config, PREDICTED, best.fit.curve, best.ms, look))
    if not found:
        found = [_nearest(known, rung, problem) for rung in suited]
    return min(found, key=partial(_rank, problem)) if len(found) > 1 else found[0]


def _options(known: _Knowledge, tier: _Tier, problem: Problem) -> tuple[Option, ...]:
    ranking = known.model(tier).ranking(problem) if tier.fits else ()
    return tuple(Option(one.config, one.ms) for one in ranking)


def _nearest(known: _Knowledge, rung: Rung, problem: Problem) -> Choice:
    """Return the choice where no times are known: the record of the nearest problem.

    Raises
    ------
    ConfigError
        There is no record that is legal on the device.
    """
    comparable = (tier.comparable(problem) for tier in known.tiers(rung))
    records = next((found for found in comparable if found), None)
    if records is None:
        raise ConfigError(f"no record of rung {rung.name} is legal with {known.shared_limit} bytes of shared memory")
    near = min(records, key=lambda record: distance(record.problem, problem))
    others = tuple(Option(record.config, None) for record in records if record is not near)
    faced = with_swap_ab(rung, problem)
    config = partial_accumulators.shortened(near.config, faced, known.shared_limit, known.fitted)
    return Choice(rung, config, NEAREST, near, None, partial(tuple, others))


def _rank(problem: Problem, choice: Choice) -> tuple[bool, int, float, int]:
    """Return a sort key: error, rule, time, then rung number.

    Choices without a time sort last within their rule. Of equals the higher rung wins, because it is the more special.
    """
    split = partial_accumulators.splits_few(choice.rung, choice.config, with_swap_ab(choice.rung, problem))
    return split, _RULES.index(choice.rule), math.inf if choice.ms is None else choice.ms, -choice.rung.number


def is_comparable(record: Record, problem: Problem) -> bool:
    """Return whether a record can be the nearest one of a problem: it is of one product, or of as many products."""
    return record.problem is None or record.problem.batch in (1, problem.batch)


def distance(known: Problem | None, problem: Problem) -> tuple[int, float]:
    """Return how far apart two problems are: another layout first, then the octaves between their extents."""
    if known is None:
        return 1, math.inf
    return int(known.layout != problem.layout), octaves(known, problem)
