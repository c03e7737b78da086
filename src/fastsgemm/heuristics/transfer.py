"""Carry the times of a config over to a device that they were not measured on.

What a block costs at each load depends on how many blocks an SM of the device holds, on how many FMAs it starts in a
cycle, and on clock and memory. `transferred` takes the first two from the architecture. The others scale the times of
all configs about alike, so that a choice needs them less. `measured` takes everything from four times on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import astuple, replace

from fastsgemm.device import DeviceInfo
from fastsgemm.heuristics.curve_fit import Fit, with_digits
from fastsgemm.heuristics.curve_problems import TINY, loads, problems_of
from fastsgemm.heuristics.fitted import CurveNumbers, Line
from fastsgemm.known_devices import limits_of
from fastsgemm.problem import Problem

SOURCE = "sm_90"  # the architecture whose shipped curves are carried over to those that have none
Lines = tuple[Line, ...]  # of one config, by load
_MOST = 10.0  # times longer or shorter than predicted: more is a mishap of one measurement


def transferred(fit: Fit, device: DeviceInfo, arch: str) -> Fit:
    """Return a fit as it is expected on a device, of a curve that was measured on one of the architecture `arch`.

    Nothing changes within an architecture.
    """
    here, there = limits_of(device.arch), limits_of(arch)
    if here is None or there is None or device.arch == arch:
        return fit
    config, blocks = fit.curve.config, fit.blocks_per_sm
    if there.lanes > here.lanes and not fit.rung.narrow:  # rung 10 waits for memory
        # No faster than FMAs start, at the share of their peak that the config reaches in a full wave.
        slower = there.lanes / here.lanes / blocks

        def limited(lines: Lines) -> Lines:
            least = slower * lines[-2].slope
            of_loads = zip(lines, loads(blocks), strict=True)
            return tuple(line._replace(slope=max(line.slope, least * load)) for line, load in of_loads)

        fit = replace(fit, numbers=_of_lines(fit.numbers, limited))
    return with_blocks(fit, here.blocks_of(config.threads, config.shared_bytes), device.multiprocessors)


def with_blocks(fit: Fit, blocks: int, multiprocessors: int) -> Fit:
    """Return a fit for a device with so many SMs, of which each holds at most so many blocks at a time."""
    measured, blocks = fit.blocks_per_sm, max(1, min(blocks, fit.blocks_per_sm))
    form = problems_of(fit.curve.config, blocks, multiprocessors)
    numbers = fit.numbers if blocks == measured else _of_lines(fit.numbers, lambda lines: _cut(lines, measured, blocks))
    return replace(fit, problems=form, numbers=numbers)


def probes(fit: Fit) -> tuple[Problem, Problem, Problem, Problem]:
    """Return the problems whose times correct a fit.

    They are a full wave at which nearly all time is what blocks cost once, deep products of one block on each SM and of
    a full wave, and the one that reads memory most.
    """
    form, full = fit.problems, float(fit.blocks_per_sm)
    return form.at(full, TINY, 0), form.at(1.0, form.deep, 0), form.at(full, form.deep, 0), form.streams()[0]


class Factors(NamedTuple):
    """How many times as long as expected a config takes on a device, and at how much of the rate it reads memory."""

    once: float  # what blocks cost once
    one: float  # steps of k at a load of one block on each SM
    most: float  # steps of k in full waves
    rate: float


def measured(fit: Fit, times: Mapping[Problem, float]) -> Factors:
    """Return the factors of a fit that the times of its `probes` give, in ms."""
    tiny, single, full, stream = probes(fit)
    lines = fit.numbers.lines[0]
    few, deep = fit.few, fit.depth(fit.problems.deep)
    once = _factor(times[tiny], lines[-2].at(few))

    def of_steps(line: Line, ms: float) -> float:
        return _factor(ms - once * line.at(few), line.at(deep) - line.at(few))

    rate = _factor(4.0 * (stream.M + stream.N) * stream.K / times[stream], fit.numbers.bandwidth[0])
    return Factors(once, of_steps(lines[1], times[single]), of_steps(lines[-2], times[full]), rate)


def corrected(fit: Fit, factors: Factors) -> CurveNumbers:
    """Return the numbers of a fit, scaled by these factors.

    That of steps of k changes with the logarithm of the load, from one block on each SM to full waves.
    """
    blocks, few = fit.blocks_per_sm, fit.few

    def scaled(line: Line, load: float) -> Line:
        share = math.log(min(max(load, 1.0), blocks)) / math.log(blocks) if blocks > 1 else 1.0
        steps = factors.one + (factors.most - factors.one) * share
        slope, extra = steps * line.slope, steps * line.extra
        start = factors.once * line.at(few) - slope * few - extra * min(few - line.bend, 0.0)
        return Line(max(0.0, start), slope, line.bend, extra)

    numbers = _of_lines(
        fit.numbers, lambda lines: tuple(scaled(line, load) for line, load in zip(lines, loads(blocks), strict=True))
    )
    numbers = replace(numbers, bandwidth=tuple(factors.rate * each for each in numbers.bandwidth))
    return CurveNumbers(*with_digits(astuple(numbers)))


def _of_lines(numbers: CurveNumbers, change: Callable[[Lines], Lines]) -> CurveNumbers:
    aligned, ragged = numbers.lines
    return replace(numbers, lines=(change(aligned), change(ragged)))


def _cut(lines: Lines, measured: int, blocks: int) -> Lines:
    """Return the lines of a config of which fewer blocks fit on an SM at a time than where they were measured.

    Several full waves cost as many times more than one as they do there.
    """
    *whole, full, heavy = lines
    fewer = [_between([*whole, full], loads(measured), load) for load in loads(blocks)[:-1]]
    last = fewer[-1]
    start, slope = (after / max(before, 1e-30) for before, after in zip(full[:2], heavy[:2], strict=True))
    return (*fewer, Line(start * last.start, slope * last.slope, last.bend, slope * last.extra))


def _between(lines: Sequence[Line], measured: Sequence[float], load: float) -> Line:
    """Return the line at a load of at most a full wave: between two that were measured, each number is interpolated."""
    above = next(place for place, high in enumerate(measured) if high >= load)
    if measured[above] == load:
        return lines[above]
    low, high = lines[above - 1], lines[above]
    share = (load - measured[above - 1]) / (measured[above] - measured[above - 1])
    return Line(*(a + share * (b - a) for a, b in zip(low, high, strict=True)))._replace(bend=high.bend)


def _factor(measured: float, predicted: float) -> float:
    return min(_MOST, max(1.0 / _MOST, measured / predicted)) if predicted > 0.0 else 1.0
