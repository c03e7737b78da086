"""What the tuning database knows that holds on one device: records and curves by rung and order of summation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache, cached_property, partial

from fastsgemm import rungs
from fastsgemm.config import SEGMENT, Config, PipelinedConfig, Violation
from fastsgemm.device import DeviceInfo, DeviceTraits
from fastsgemm.errors import ConfigError
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import database
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.curve_fit import Fit, fit
from fastsgemm.heuristics.database import cached
from fastsgemm.heuristics.database_entries import GENERIC, Content, Curve, HandPicked, Record
from fastsgemm.heuristics.transfer import SOURCE, transferred
from fastsgemm.problem import Problem, format_problem, octaves
from fastsgemm.progress import warn
from fastsgemm.rungs import Rung


def knows(device: DeviceTraits) -> bool:
    """Whether the database has records or curves of a default rung for this architecture, generic ones apart."""
    content, names = database.load(device.arch), {rung.name for rung in rungs.DEFAULTS}
    return any(entry.rung in names for entry in (*content.records, *content.curves))


class DeviceDatabase:
    """What the database knows for one device. A file is read when its first entry is asked for.

    With `only`, ``shipped`` leaves the user's own results out, and ``user`` those of this architecture that were
    shipped.
    """

    def __init__(self, device: DeviceInfo, only: str | None = None) -> None:
        self.device, self.fitted = device, database.fitted(device.arch)
        self._of, self._model = cache(partial(RungDatabase, device, only)), cache(self._made)

    def of(self, rung: Rung, in_order: bool = False) -> RungDatabase:
        """Return what is known of a rung, as it sums in any order or in one."""
        return self._of(rung, in_order)

    def model(self, *considered: Rung, in_order: bool = False) -> CostModel | None:
        """Return the cost model of the curves of these rungs, or None if there are none."""
        return self._model(considered, in_order)

    def _made(self, considered: tuple[Rung, ...], in_order: bool) -> CostModel | None:
        fits, device = [fit for rung in considered for fit in self.of(rung, in_order).fits], self.device
        return CostModel(fits, device.multiprocessors, device.shared_limit, self.fitted, in_order) if fits else None


device_database = cached(DeviceDatabase)


class RungDatabase:
    """The records and curves of one rung with sums in any order, or in one.

    They are looked at in four tiers: those of this very device, those of its architecture, curves that are carried over
    from another architecture, and what holds for all. In each tier the user's own results come first. The first tier
    that has curves is the last that is looked at for a record of a problem. For one order of summation, that is the
    first with curves that were measured for it.
    """

    def __init__(self, device: DeviceInfo, only: str | None, rung: Rung, in_order: bool) -> None:
        self._device, self._only, self._rung, self._in_order = device, only, rung, in_order

    @property
    def is_measured(self) -> bool:
        """Whether the architecture has records of its own."""
        return any(content.records for content in self._of_arch)

    @property
    def fits(self) -> tuple[Fit, ...]:
        """The fits of the curves with a legal config, of the first tier that has any."""
        return self._looked_at[1]

    def exact(self, problem: Problem) -> Record | None:
        """Return the record of this very problem: of two the first, which is the user's own.

        One that is not legal is passed over with a warning: somebody may have edited it.
        """
        for record in self._looked_at[0].get(problem, ()):
            broken = self._violations(record.config)
            if not broken:
                return record
            place = f"the record of rung {record.rung} for {format_problem(problem)}"
            warn(f"{place} is passed over: {broken[0]}")
        return None

    def nearest(self, problem: Problem) -> Record:
        """Return the nearest record that can stand for a problem without times.

        Another layout is farther than any distance in octaves between the extents.

        Raises
        ------
        ConfigError
            There is no record that is legal on the device.
        """
        for content in self._tiers():
            near = [
                record
                for record in content.records
                if _is_comparable(record, problem) and not self._violations(record.config)
            ]
            if near:
                return min(near, key=lambda record: self._distance(record.problem, problem))
        limit = self._device.shared_limit
        raise ConfigError(
            f"no record of rung {self._rung.name} is legal with {limit} bytes of shared memory; name a config that is, "
            "or give a new rung its record by tools/add_generic_record.py"
        )

    def _distance(self, recorded: Problem | None, problem: Problem) -> tuple[int, float]:
        if recorded is None:
            return 1, math.inf
        recorded, problem = with_swap_ab(self._rung, recorded), with_swap_ab(self._rung, problem)
        return int(recorded.layout != problem.layout), octaves(recorded, problem)

    def _violations(self, config: Config) -> list[Violation]:
        return self._rung.violations(config, self._device.shared_limit)

    def _tiers(self) -> Iterator[Content]:
        yield from self._of_arch
        yield self._transferred
        yield self._of_all

    @cached_property
    def _of_arch(self) -> tuple[Content, Content]:
        return self._tier(self._device.arch, True), self._tier(self._device.arch, False)

    @cached_property
    def _transferred(self) -> Content:
        """The curves that were shipped for the architecture from which others are predicted."""
        curves = () if self._device.arch == SOURCE else filter(self._suits, database.shipped(SOURCE).curves)
        return Content(SOURCE, 0, curves=tuple(curves))

    @cached_property
    def _of_all(self) -> Content:
        return self._tier(GENERIC, False)

    def _tier(self, arch: str, here: bool) -> Content:
        """Return the entries of a file for the rung that are of this very device, or that are not."""
        content = database.load(arch, None if arch == GENERIC else self._only)
        records = tuple(record for record in content.records if self._holds(record, here))
        curves = tuple(curve for curve in content.curves if self._holds(curve, here))
        return Content(arch, 0, records, curves)

    @cached_property
    def _looked_at(self) -> tuple[dict[Problem | None, list[Record]], tuple[Fit, ...]]:
        """The records by problem, of the tiers up to the first that has fits, and these fits."""
        records: dict[Problem | None, list[Record]] = {}
        found: tuple[Fit, ...] = ()
        for content in self._tiers():
            for record in content.records:
                if not isinstance(record, HandPicked):
                    records.setdefault(record.problem, []).append(record)
            # Those that were measured for one order come first.
            ordered = sorted(content.curves, key=lambda curve: self._in_order and curve.config.segment == 0)
            fits = fits_of(curve for curve in ordered if not self._violations(_legal_form(curve.config)))
            for_order = bool(fits) and bool(fits[0].curve.config.segment)
            if fits and (not found or for_order):
                found = tuple(self._here(fit, content.arch) for fit in fits)
            if for_order or (found and not self._in_order):
                break
        return records, found

    def _here(self, fit: Fit, arch: str) -> Fit:
        """Return a fit for this device, of a curve from the file of `arch`."""
        return fit if fit.curve.device == self._device.name else transferred(fit, self._device, arch)

    def _holds(self, entry: Record | Curve, here: bool) -> bool:
        return (entry.device == self._device.name) is here and self._suits(entry)

    def _suits(self, entry: Record | Curve) -> bool:
        """Whether an entry is of the rung, and sums in order if that is asked for."""
        if entry.rung != self._rung.name:
            return False
        return _sums_in_order(entry) if self._in_order else not entry.config.segment


def fits_of(curves: Iterable[Curve]) -> tuple[Fit, ...]:
    """Return the fits of curves. A curve that lacks points is left out with a warning.

    Of two curves of one config the first counts: the user's own.
    """
    fits: dict[Config, Fit | None] = {}
    for curve in curves:
        config = _legal_form(curve.config)
        if config not in fits:
            fits[config] = None
            try:
                fits[config] = fit(curve)
            except ValueError as error:
                warn(f"a curve of {curve.device} is left out: {error}")
    return tuple(fitted_curve for fitted_curve in fits.values() if fitted_curve is not None)


def _legal_form(config: Config) -> Config:
    """Return a config as far as a curve knows it: without segments, whose rules depend on how K is split."""
    return config.replace(SEGMENT=0) if isinstance(config, PipelinedConfig) and config.SEGMENT else config


def _sums_in_order(entry: Record | Curve) -> bool:
    """Whether a record sums in one order, or the config of a curve can: a curve knows nothing of segments."""
    config = entry.config
    if isinstance(entry, Record) or not isinstance(config, PipelinedConfig):
        return config.segment > 0
    return not config.replace(SEGMENT=SEGMENT).order_violations()


def _is_comparable(record: Record, problem: Problem) -> bool:
    """Whether a record can stand for a problem: it is of one product, or of as many, and as symmetric."""
    recorded = record.problem
    return recorded is None or (recorded.batch in (1, problem.batch) and recorded.symmetric <= problem.symmetric)
