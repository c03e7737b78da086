"""From the measured points of a curve to the numbers that predict any problem: lines in K, and factors of their times.

Every config has the same numbers. Where its kernel lacks an effect, the number says so: a factor of 1, a share of 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastsgemm import rungs
from fastsgemm.geometry.grid import tiles
from fastsgemm.heuristics import probes
from fastsgemm.heuristics.database_entries import Curve
from fastsgemm.heuristics.probes import LAYOUTS, STACKED, TINY, Probes
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung


@dataclass(frozen=True)
class Line:
    """Time at one load in ms: ``start + slope * K``, and ``extra * (K - bend)`` more where K is less than `bend`.

    Attributes
    ----------
    start, slope : float
    bend : float
        0 if the time is one straight line.
    extra : float
    """

    start: float
    slope: float
    bend: float = 0.0
    extra: float = 0.0

    def at(self, depth: float) -> float:
        """Return the time at this depth."""
        return self.start + self.slope * depth + self.extra * min(depth - self.bend, 0.0)


@dataclass(frozen=True)
class Fit:
    """What the cost model knows of one config.

    Attributes
    ----------
    curve : Curve
    rung : Rung
    probes : Probes
    tail : (float, float)
        What a ragged last tile costs, in steps of k: once, and for each of its steps.
    lines : tuple of tuple of Line
        Of aligned and of ragged operands, one for each of `fastsgemm.heuristics.probes.loads`.
    layouts : Mapping of str to tuple of (float, float)
        For each layout except NN its time relative to NN, for aligned and for ragged operands: at a load of 1 and of a
        full wave.
    bandwidth : float
        Bytes of A and B that a ms reads, at most.
    guard : float
        Slowdown of reading where C is smaller than a tile and the copies check bounds.
    shared : float
        Share of the time of reading that rows of tiles have in common, because they read the same part of B.
    """

    curve: Curve
    rung: Rung
    probes: Probes
    tail: tuple[float, float]
    lines: tuple[tuple[Line, ...], tuple[Line, ...]]
    layouts: Mapping[str, tuple[tuple[float, float], tuple[float, float]]]
    bandwidth: float
    guard: float
    shared: float

    def depth(self, K: int) -> float:
        """Return K with the steps of a ragged last tile weighted by what they cost."""
        return _depth(self.tail, self.curve.config.tile_k, K)


def fit(curve: Curve) -> Fit:
    """Return the numbers of a curve.

    Raises
    ------
    ValueError
        The curve lacks a point that every prediction needs.
    """
    return _Fitting(curve).result()


def _depth(tail: tuple[float, float], step: int, K: int) -> float:
    rest = K % step
    once, each = tail
    return K - rest + (once + each * rest if rest else 0.0)


class _Fitting:
    """The steps of `fit`, which read the measured times."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._probes = probes.probes_of(curve.config, curve.blocks_per_sm, curve.multiprocessors)
        self._known = {point.problem: point.ms for point in curve.points}
        # A quick curve has fewer points; see `Probes.problems`.
        self._quick = self._probes.quick_leaves_out_tails and self._known.keys().isdisjoint(self._probes.tails())

    def result(self) -> Fit:
        form = self._probes
        aligned, ragged = self._straight(0), self._straight(1)
        tail = self._tail(aligned[1].slope, ragged[1].slope)
        # The ragged times hold the first step of a last tile: take out what `_depth` adds for it.
        extra = self._depth(tail, form.deep + 1) - (form.deep + 1)
        ragged = [Line(max(0.0, line.start - line.slope * extra), line.slope) for line in ragged]
        stream = form.stream()
        bandwidth = 4.0 * (stream.M + stream.N) * stream.K / self._ms(stream)
        return Fit(
            self._curve,
            rungs.find(self._curve.rung),
            form,
            tail,
            (self._bent(aligned, tail, 0), self._bent(ragged, tail, 1)),
            {layout: (self._factors(layout, 0), self._factors(layout, 1)) for layout in LAYOUTS},
            bandwidth,
            self._guard(stream),
            self._shared(stream),
        )

    def _ms(self, problem: Problem) -> float:
        try:
            return self._known[problem]
        except KeyError:
            raise ValueError(f"the curve has no time for {problem}") from None

    def _depth(self, tail: tuple[float, float], K: int) -> float:
        return _depth(tail, self._curve.config.tile_k, K)

    def _straight(self, ragged: int) -> list[Line]:
        """Return for each load the straight line through the times at two depths."""
        form = self._probes
        depth = TINY if ragged and self._quick else form.shallow
        found = []
        for load in probes.loads(self._curve.blocks_per_sm):
            shallow, deep = (self._ms(form.at(load, K + ragged, ragged)) for K in (depth, form.deep))
            slope = max(0.0, deep - shallow) / (form.deep - depth)
            found.append(Line(max(0.0, shallow - slope * (depth + ragged)), slope))
        return found

    def _bent(self, lines: list[Line], tail: tuple[float, float], ragged: int) -> tuple[Line, ...]:
        """Return the lines through the times at a tiny K as well, where the curve has these."""
        low = self._depth(tail, TINY + ragged)
        found = []
        for load, line in zip(probes.loads(self._curve.blocks_per_sm), lines, strict=True):
            ms = self._known.get(self._probes.at(load, TINY + ragged, ragged))
            if ms is not None and low < self._probes.shallow:
                bend = self._probes.bend
                if low >= bend or line.at(bend) < ms:  # the line would predict less than was measured
                    bend = float(self._probes.shallow)
                line = Line(line.start, line.slope, bend, (line.at(bend) - ms) / (bend - low) - line.slope)
            found.append(line)
        return tuple(found)

    def _factors(self, layout: str, ragged: int) -> tuple[float, float]:
        """Return the time in this layout relative to NN, at a load of 1 and of a full wave."""
        form = self._probes
        if form.at(1.0, form.deep + ragged, ragged, layout) not in self._known:
            ragged = 0  # a quick curve
        light, heavy = (
            self._ms(form.at(load, form.deep + ragged, ragged, layout))
            / self._ms(form.at(load, form.deep + ragged, ragged))
            for load in (1.0, float(self._curve.blocks_per_sm))
        )
        return light, heavy

    def _tail(self, aligned: float, ragged: float) -> tuple[float, float]:
        """Return what a ragged last tile costs, in steps of k, given what a step costs in both cases."""
        step = self._curve.config.tile_k
        if step < 3 or self._quick:
            return 0.0, 1.0
        form = self._probes
        four, shortest, longest = map(self._ms, form.tails())
        each = max(0.0, longest - shortest) / (step - 2) / (ragged or 1e-9)
        whole = self._ms(form.at(1.0, form.shallow, 0))
        return max(0.0, (four - whole) / (aligned or 1e-9) - 4 * each), each

    def _guard(self, stream: Problem) -> float:
        guarded = self._probes.guarded()
        return 1.0 if guarded is None else max(1.0, self._known.get(guarded, 0.0) / self._ms(stream))

    def _shared(self, stream: Problem) -> float:
        stacked = self._probes.stacked()
        if stacked is None or stacked not in self._known:
            return 0.0
        whole = self._curve.config.kernel
        low, high = (self._ms(problem) / tiles(whole, problem) for problem in (stream, stacked))
        return min(1.0, max(0.0, (1 - high / low) / (1 - 1 / STACKED)))
