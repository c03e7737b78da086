"""How much longer other problems take than the points of a curve say: the calibration of the cost model.

Curves are measured on nearly square grids of moderate depth. Cold operands, deep sums and narrow grids take longer, by
a factor that differs from config to config.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from fastsgemm.config import Config
from fastsgemm.heuristics import curve_fit
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.database_entries import Curve
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung

_LEAST_SHARE = 0.5  # of a predicted time that the steps of K take; with less, the time says little about them
_LEAST_TIMES = 3  # measured, without which a curve stays as it is
_MOST = 3.0  # a factor beyond this, or below its inverse, is a mishap of one measurement


def calibrated(
    curves: Sequence[Curve],
    problems: Iterable[Problem],
    measure: Callable[[Problem, Rung, Config], float | None],
    shared_limit: int,
    fitted: Fitted,
) -> list[Curve]:
    """Return curves of one device, of which there is one at least, with their calibration.

    `measure` returns the time of a config on a problem in ms, or None where it fails.
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
    factors: dict[Config, list[float]] = {curve.config: [] for curve in curves}
    for problem in problems:
        twice = {(fit.curve.config, parts): ms for fit, parts, ms in double.times(problem)}
        for config, (rung, parts, ms) in _best(single, problem).items():
            steps = twice[config, parts] - ms
            if steps >= _LEAST_SHARE * ms:
                measured = measure(problem, rung, config if parts == 1 else config.replace(SPLIT_K=parts))
                if measured is not None:
                    factors[config].append(min(_MOST, max(1 / _MOST, (measured - (ms - steps)) / steps)))
    return [replace(curve, calibration=_mean(factors[curve.config])) for curve in curves]


def _best(model: CostModel, problem: Problem) -> dict[Config, tuple[Rung, int, float]]:
    """Return for each config the parts of K with the least predicted time, and that time in ms."""
    best: dict[Config, tuple[Rung, int, float]] = {}
    for fit, parts, ms in model.times(problem):
        config = fit.curve.config
        if config not in best or ms < best[config][2]:
            best[config] = (fit.rung, parts, ms)
    return best


def _mean(factors: Sequence[float]) -> float:
    if len(factors) < _LEAST_TIMES:
        return 1.0
    return math.exp(statistics.fmean(map(math.log, factors)))
