"""From the measured points of a curve to the numbers that predict any problem: lines in K, and factors of their times.

Every config has the same numbers. Where its kernel lacks an effect, the number says so: a factor of 1, a share of 0.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fastsgemm import rungs
from fastsgemm.geometry.grid import tiles
from fastsgemm.heuristics import curve_problems
from fastsgemm.heuristics.curve_problems import LAYOUTS, STACKED, TINY, CurveProblems
from fastsgemm.heuristics.database_entries import Curve
from fastsgemm.heuristics.fitted import AtLoads, CurveNumbers, Factors, Line
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung

_LEAST_FACTOR = 0.1  # of a layout: less is a mishap of one measurement
_DIGITS = 7  # of a number: measured times have 5


class Fit(Struct, frozen=True):
    """What the cost model knows of one config."""

    curve: Curve
    rung: Rung
    problems: CurveProblems  # for the device whose times are predicted
    numbers: CurveNumbers

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that fit on a multiprocessor at a time."""
        return self.problems.blocks_per_sm

    def depth(self, K: int) -> float:
        """Return the steps of k that K costs: those of a ragged last tile cost more."""
        return _depth(self.numbers.tail, self.curve.config.tile_k, K)

    @property
    def few(self) -> float:
        """Steps at which nearly all time is what a block costs once."""
        return self.depth(TINY)

    @property
    def bend(self) -> float:
        """The depth from which on the time is a straight line."""
        return self.problems.bend if self.problems.bend > self.few else float(self.problems.shallow)

    def line(self, line: Line) -> tuple[float, float, float]:
        """Return the time of few steps in ms, and what a step takes from there: anywhere, and below the bend more."""
        few, bend = self.few, self.bend
        below = line.extra * (line.bend - few) / (bend - few) if line.bend > few and bend > few else 0.0
        return line.at(few), line.slope, below


def fit(curve: Curve) -> Fit:
    """Return what the cost model knows of the config of a curve: the stored numbers, else those of its points.

    Raises
    ------
    ValueError
        The curve has no stored numbers, and lacks a point that every prediction needs.
    """
    form = curve_problems.problems_of(curve.config, curve.blocks_per_sm, curve.multiprocessors)
    return Fit(curve, rungs.find(curve.rung), form, curve.numbers or numbers_of(curve))


def numbers_of(curve: Curve) -> CurveNumbers:
    """Return the numbers that the points of a curve give, whatever is stored.

    Raises
    ------
    ValueError
        The curve lacks a point that every prediction needs.
    """
    return _Fitting(curve).result()


def with_numbers(curve: Curve) -> Curve:
    """Return a curve as a file has it: rounded, with the numbers that its points give, or none if these are too few.

    Only curves of the default rungs have them, because only a first call that names no rung must not wait for a fit.
    Those of a curve that was carried over from another device do not follow from its points alone: they stay.
    """
    curve, numbers = curve.rounded, None
    if curve.transferred_from is not None:
        return curve
    if rungs.find(curve.rung) in rungs.DEFAULTS:
        with suppress(ValueError):
            numbers = numbers_of(curve)
    return replace(curve, numbers=numbers)


def _depth(tail: tuple[float, float], step: int, K: int) -> float:
    rest = K % step
    once, per_step = tail
    return K - rest + (once + per_step * rest if rest else 0.0)


def with_digits(value: Any) -> Any:
    """Return a number with the digits that are stored, or a tuple of such numbers of the same type and nesting."""
    if isinstance(value, Line):
        return Line(*map(with_digits, value))
    return tuple(map(with_digits, value)) if isinstance(value, tuple) else float(f"{value:.{_DIGITS}g}")


class _Fitting:
    """The steps of `fit`, which read the measured times."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._step = curve.config.tile_k
        self._problems = curve_problems.problems_of(curve.config, curve.blocks_per_sm, curve.multiprocessors)
        self._times = curve.times
        self._loads = curve_problems.loads(curve.blocks_per_sm)

    def result(self) -> CurveNumbers:
        form = self._problems
        aligned, ragged = self._straight(0), self._straight(1)
        tail = self._tail(aligned[1].slope, ragged[1].slope)
        # The ragged times hold the first step of a last tile: take out what `_depth` adds for it.
        extra = _depth(tail, self._step, form.deep + 1) - (form.deep + 1)
        ragged = [Line(max(0.0, line.start - line.slope * extra), line.slope) for line in ragged]
        lines = self._bent(aligned, tail, 0), self._bent(ragged, tail, 1)
        stream = form.streams()[0]
        numbers = (
            tail,
            lines,
            self._layouts(lines, tail),
            self._bandwidth(),
            self._guard(stream),
            self._shared(stream, lines[0][-2].at(_depth(tail, self._step, TINY))),
        )
        return CurveNumbers(*with_digits(numbers))

    def _ms(self, problem: Problem) -> float:
        try:
            return self._times[problem]
        except KeyError:
            raise ValueError(f"the curve has no time for {problem}") from None

    def _straight(self, ragged: int) -> list[Line]:
        """Return for each load the straight line through the times at two depths."""
        shallow, deep = self._problems.shallow, self._problems.deep
        lines = []
        for load in self._loads:
            less, more = (self._ms(self._problems.at(load, K + ragged, ragged)) for K in (shallow, deep))
            slope = max(0.0, more - less) / (deep - shallow)
            lines.append(Line(max(0.0, less - slope * (shallow + ragged)), slope))
        return lines

    def _bent(self, lines: list[Line], tail: tuple[float, float], ragged: int) -> tuple[Line, ...]:
        """Return the lines through the times at a tiny K as well, where the curve has these.

        One that is longer than with the smaller depth was disturbed, and is left out.
        """
        low, shallow, bend = _depth(tail, self._step, TINY + ragged), float(self._problems.shallow), self._problems.bend
        if low >= shallow:
            return tuple(lines)
        fitted = []
        for line, load in zip(lines, self._loads, strict=True):
            ms = self._times.get(self._problems.at(load, TINY + ragged, ragged))
            if ms is not None and ms <= line.at(shallow):
                # The line must not predict less than was measured.
                end = shallow if low >= bend or line.at(bend) < ms else bend
                line = Line(line.start, line.slope, end, (line.at(end) - ms) / (end - low) - line.slope)
            fitted.append(line)
        return tuple(fitted)

    def _layouts(self, lines: tuple[tuple[Line, ...], ...], tail: tuple[float, float]) -> tuple[Factors, ...]:
        """Return `CurveNumbers.layouts`."""
        aligned, ragged = (self._factors(which, lines[which], tail) for which in (0, 1))
        return tuple(zip(aligned, ragged, strict=True))

    def _factors(self, ragged: int, lines: tuple[Line, ...], tail: tuple[float, float]) -> list[AtLoads]:
        """Return for each layout the time of the steps of K relative to NN, at `CurveProblems.layout_loads`."""
        few = _depth(tail, self._step, TINY)
        once = {load: line.at(few) for load, line in zip(self._loads, lines, strict=True)}  # whatever the layout
        factors = (self._relative(load, ragged, once[load]) for load in self._problems.layout_loads)
        return [*zip(*factors, strict=True)]

    def _relative(self, load: float, ragged: int, once: float) -> list[float]:
        """Return the times of the steps of K in each layout relative to NN, given what blocks cost once."""
        whole, *steps = (
            self._ms(self._problems.at(load, self._problems.deep + ragged, ragged, layout)) - once
            for layout in ("NN", *LAYOUTS)
        )
        return [max(_LEAST_FACTOR, step / whole) if whole > 0.0 else 1.0 for step in steps]

    def _tail(self, aligned: float, ragged: float) -> tuple[float, float]:
        """Return what a ragged last tile costs, in steps of k, given what a step costs in both cases."""
        if self._step < 3:
            return 0.0, 1.0
        four, shortest, longest = map(self._ms, self._problems.tails())
        per_step = max(0.0, longest - shortest) / (self._step - 2) / (ragged or 1e-9)
        whole = self._ms(self._problems.at(1.0, self._problems.shallow, 0))
        return max(0.0, (four - whole) / (aligned or 1e-9) - 4 * per_step), per_step

    def _bandwidth(self) -> tuple[float, ...]:
        """Return `CurveNumbers.bandwidth`."""
        streams = self._problems.streams()
        return tuple(4.0 * (stream.M + stream.N) * stream.K / self._ms(stream) for stream in streams)

    def _guard(self, stream: Problem) -> float:
        guarded = self._problems.guarded()
        return 1.0 if guarded is None else max(1.0, self._times.get(guarded, 0.0) / self._ms(stream))

    def _shared(self, stream: Problem, once: float) -> float:
        """Return `CurveNumbers.shared`, given what the blocks of a full wave cost once."""
        stacked = self._problems.stacked()
        if stacked is None or stacked not in self._times:
            return 0.0
        ms = self._times[stacked]
        whole = self._curve.config.kernel
        low, high = (self._ms(stream) - once) / tiles(whole, stream), (ms - once) / tiles(whole, stacked)
        return min(1.0, max(0.0, (1 - high / low) / (1 - 1 / STACKED))) if low > 0.0 else 0.0
