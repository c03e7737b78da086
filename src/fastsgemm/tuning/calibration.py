"""How much longer problems take than the points of a curve say: the calibration of the cost model.

Curves are measured on nearly square grids of moderate depth. Cold operands, deep sums and narrow grids take longer, by
a factor that differs from config to config. It is measured where it matters: on problems of which the config is
predicted to be among the fastest. There it includes that a config is predicted to be fast more often where its
prediction is too short.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from fastsgemm.config import Config
from fastsgemm.heuristics import curve_fit
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.database_entries import Curve, Fitted
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung

_CONTENDERS = 6  # the fastest configs of a problem, by prediction
_LEAST_SHARE = 0.5  # of a predicted time that the steps of K take; with less, the time says little about them
_PRIOR = 3  # a config gets the mean of all, as if measured so often, along with its own times
_MOST = 3.0  # a factor beyond this, or below its inverse, is a mishap of one measurement


class Contender(NamedTuple):
    """A config that is predicted to be among the fastest on a problem.

    Attributes
    ----------
    problem : Problem
    rung : Rung
    config : Config
        With the SPLIT_K of its least time.
    ms : float
        The predicted time, without a calibration.
    steps : float
        The part of it that the steps of K take.
    """

    problem: Problem
    rung: Rung
    config: Config
    ms: float
    steps: float


def contenders(
    curves: Sequence[Curve], problems: Iterable[Problem], shared_limit: int, fitted: Fitted
) -> list[Contender]:
    """Return the fastest configs of each problem, as far as their time is mostly that of the steps of K.

    Parameters
    ----------
    curves : sequence of Curve
        At least one, all of one device.
    problems : iterable of Problem
    shared_limit : int
        Shared memory that a block may opt in to on the device, in bytes.
    fitted : Fitted
    """
    single, double = (
        CostModel(
            [curve_fit.fit(replace(curve, calibration=factor)) for curve in curves],
            curves[0].multiprocessors,
            shared_limit,
            fitted,
        )
        for factor in (1.0, 2.0)
    )
    found = []
    for problem in problems:
        twice = {(fit.curve.config, parts): ms for fit, parts, ms in double.times(problem)}
        best = sorted(_best(single, problem).items(), key=lambda one: one[1][2])
        for config, (rung, parts, ms) in best[:_CONTENDERS]:
            steps = twice[config, parts] - ms
            if steps >= _LEAST_SHARE * ms:
                split = config if parts == 1 else config.replace(SPLIT_K=parts)
                found.append(Contender(problem, rung, split, ms, steps))
    return found


def calibrated(
    curves: Sequence[Curve],
    asked: Iterable[Contender],
    measure: Callable[[Problem, Rung, Config], float | None],
) -> list[Curve]:
    """Return curves with their calibration.

    Parameters
    ----------
    curves : sequence of Curve
    asked : iterable of Contender
        What is measured.
    measure : callable
        Returns the time of a config on a problem in ms, or None where it fails.
    """
    factors: dict[Config, list[float]] = {curve.config.kernel: [] for curve in curves}
    for one in asked:
        measured = measure(one.problem, one.rung, one.config)
        if measured is not None:
            factor = (measured - (one.ms - one.steps)) / one.steps
            factors[one.config.kernel].append(math.log(min(_MOST, max(1 / _MOST, factor))))
    every = [factor for seen in factors.values() for factor in seen]
    mean = statistics.fmean(every) if every else 0.0
    return [replace(curve, calibration=_calibration(factors[curve.config.kernel], mean)) for curve in curves]


def _best(model: CostModel, problem: Problem) -> dict[Config, tuple[Rung, int, float]]:
    """Return for each config the parts of K with the least predicted time, and that time in ms."""
    found: dict[Config, tuple[Rung, int, float]] = {}
    for fit, parts, ms in model.times(problem):
        config = fit.curve.config
        if config not in found or ms < found[config][2]:
            found[config] = (fit.rung, parts, ms)
    return found


def _calibration(logarithms: Sequence[float], mean: float) -> float:
    return math.exp((sum(logarithms) + _PRIOR * mean) / (len(logarithms) + _PRIOR))
