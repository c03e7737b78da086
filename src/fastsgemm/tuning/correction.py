"""Correct curves of another device by four times of each config on this one, and say what that gains."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from msgspec.structs import asdict, replace

from fastsgemm.config import Config
from fastsgemm.heuristics import database
from fastsgemm.heuristics.alternatives import SKINNY
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.curve_fit import Fit, fit
from fastsgemm.heuristics.database_entries import Curve, points_of
from fastsgemm.heuristics.device_database import device_database
from fastsgemm.heuristics.fitted import CurveNumbers
from fastsgemm.heuristics.products import Product
from fastsgemm.heuristics.transfer import Factors, corrected, measured, probes, with_blocks
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung
from fastsgemm.tuning.evaluator import Evaluator, job_of, largest_job
from fastsgemm.tuning.outcome import Outcome
from fastsgemm.tuning.portfolio import base_config
from fastsgemm.tuning.search import Sweep
from fastsgemm.tuning.spaces import skinny, standard_set

_REPEATS = 3  # measurements of each time
# Standard deviation of a factor of a config, as times of one differ. The configs of rung 10 all wait for memory and
# have factors in common: with their own, products of few rows were 2 to 30 % slower on an H100.
_NOISE = 0.03
_KERNELS = 0.8  # share of the time that compiling may take
_CLOSE = 1.1  # times longer than the least that a curve predicts: a config that may be the quickest
_MOST_TRIED = 4  # of these, on each problem


def correct_curves(rung: Rung, sweep: Sweep, outcome: Outcome) -> None:
    """Add the corrected curves of a rung to the outcome, the most useful config first, as far as the time allows.

    Those that the user measured in full on this device stay as they are.
    """
    device = sweep.evaluator.device
    own = (curve for curve in database.own(device.arch).curves if curve.device == device.name)
    if any(curve.rung == rung.name and curve.transferred_from is None for curve in own):
        return
    fits = device_database(device, "shipped").of(rung).fits
    needed = [[job_of(device.arch, rung, fit.curve.config, problem) for problem in probes(fit)] for fit in fits]
    largest = [largest_job(rung, fit.curve.config) for fit in fits]  # last: they only show which configs spill here
    with sweep.within(_KERNELS):
        ready = sweep.prepare((*(job for jobs in needed for job in jobs), *largest), in_order=True)
    sweep.progress.begin("time", _REPEATS * sum(map(len, needed)))
    timed: list[tuple[Fit, dict[Problem, float]]] = []
    for expected, jobs, most in zip(fits, needed, largest, strict=True):
        if all(ready.get(job, "") is None for job in jobs) and ready.get(most) is None:
            blocks = min(map(sweep.evaluator.blocks_per_sm, jobs))
            here = with_blocks(expected, blocks, device.multiprocessors)
            times = {problem: sweep.measure(problem, rung, here.curve.config, _REPEATS) for problem in probes(here)}
            known = {problem: ms for problem, ms in times.items() if ms is not None}
            if len(known) == len(times):  # else a product failed, or the time is up
                timed.append((here, known))
                outcome.transferred.append(expected)
    noise = math.inf if rung.narrow else _NOISE
    factors = shrunk([measured(here, times) for here, times in timed], noise)
    outcome.curves += [
        _curve(here, times, corrected(here, of_config), sweep.evaluator)
        for (here, times), of_config in zip(timed, factors, strict=True)
    ]
    outcome.complete &= not sweep.late and all(job in ready for jobs in needed for job in jobs)


def shrunk(of_configs: Sequence[Factors], noise: float) -> list[Factors]:
    """Return factors with less noise: each is drawn to the mean of all configs, by as much as noise explains.

    Where the factors of the configs differ no more than times of one config do, all get their mean. This is the
    estimator of James and Stein for means of known variance, of logarithms (Efron and Morris, JASA 68 (1973), 117).
    """
    columns = []
    for column in zip(*of_configs, strict=True):
        logarithms = [math.log(factor) for factor in column]
        mean = statistics.fmean(logarithms)
        spread = statistics.variance(logarithms) if len(logarithms) > 1 else math.inf
        kept = max(0.0, 1.0 - noise**2 / spread) if spread else 0.0
        columns.append([math.exp(mean + kept * (each - mean)) for each in logarithms])
    return [Factors(*factors) for factors in zip(*columns, strict=True)]


def close_configs(rung: Rung, outcome: Outcome, problem: Problem) -> list[Config]:
    """Return the configs that corrected curves predict to be about the quickest for a problem, the best first."""
    device = outcome.device
    fits = [fit(curve) for curve in outcome.curves if curve.rung == rung.name]
    if not fits:
        return []
    model = CostModel(fits, device.multiprocessors, device.shared_limit, database.fitted(device.arch))
    ranking = model.predict([Product(problem, rung.narrow)]).ranking()
    return [pick.config for pick in ranking if (pick.ms or 0.0) <= _CLOSE * (ranking[0].ms or 0.0)][:_MOST_TRIED]


def predicted_gain(outcome: Outcome) -> float:
    """Return how many times as fast as before the standard set is, by the corrected curves: the mean of predictions."""
    device, fitted = outcome.device, database.fitted(outcome.device.arch)
    before, after = (
        CostModel(fits, device.multiprocessors, device.shared_limit, fitted)
        for fits in (outcome.transferred, [fit(curve) for curve in outcome.curves])
    )
    gains = []
    for problem in (*standard_set.STANDARD, *skinny.NARROW):
        product = Product(problem, SKINNY.suits(problem.M, problem.N))
        times = {(option.curve.config, parts): ms for option, parts, ms in after.predict([product]).options()}
        chosen = before.predict([product]).best()
        if chosen is not None:
            gains.append(times[base_config(chosen.config), chosen.config.split_k] / min(times.values()))
    return statistics.geometric_mean(gains)


def _curve(here: Fit, times: Mapping[Problem, float], numbers: CurveNumbers, evaluator: Evaluator) -> Curve:
    """Return the corrected curve of a config."""
    return replace(
        here.curve,
        device=evaluator.device.name,
        transferred_from=here.curve.device,
        multiprocessors=evaluator.device.multiprocessors,
        blocks_per_sm=here.blocks_per_sm,
        points=points_of(times.items()),
        numbers=numbers,
        **asdict(evaluator.tools),
    )
