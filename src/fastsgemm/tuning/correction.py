"""Correct curves of another device by four times of each config on this one, and say what that gains."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec.structs import asdict, replace

from fastsgemm.heuristics import database
from fastsgemm.heuristics.alternatives import SKINNY
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.curve_fit import Fit, fit
from fastsgemm.heuristics.database_entries import Curve, points_of
from fastsgemm.heuristics.device_database import device_database
from fastsgemm.heuristics.products import Product
from fastsgemm.heuristics.transfer import corrected, probes, with_blocks
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung
from fastsgemm.tuning.evaluator import Job, job_of, largest_job
from fastsgemm.tuning.outcome import Outcome
from fastsgemm.tuning.portfolio import base_config
from fastsgemm.tuning.search import Sweep
from fastsgemm.tuning.spaces import skinny, standard_set

_REPEATS = 3  # measurements of each time
_KERNELS = 0.8  # share of the time that compiling may take


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
    for expected, jobs, most in zip(fits, needed, largest, strict=True):
        works = all(ready.get(job, "") is None for job in jobs) and ready.get(most) is None
        curve = _corrected(expected, jobs, sweep) if works else None
        if curve is not None:
            outcome.curves.append(curve)
            outcome.transferred.append(expected)
    outcome.complete &= not sweep.late and all(job in ready for jobs in needed for job in jobs)


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


def _corrected(expected: Fit, jobs: Sequence[Job], sweep: Sweep) -> Curve | None:
    """Return the curve of a config, or None if a product fails or the time is up."""
    evaluator, curve = sweep.evaluator, expected.curve
    expected = with_blocks(expected, min(map(evaluator.blocks_per_sm, jobs)), evaluator.device.multiprocessors)
    times: dict[Problem, float] = {}
    for problem in probes(expected):
        ms = sweep.measure(problem, expected.rung, curve.config, _REPEATS)
        if ms is None:
            return None
        times[problem] = ms
    return replace(
        curve,
        device=evaluator.device.name,
        transferred_from=curve.device,
        multiprocessors=evaluator.device.multiprocessors,
        blocks_per_sm=expected.blocks_per_sm,
        points=points_of(times.items()),
        numbers=corrected(expected, times),
        **asdict(evaluator.tools),
    )
