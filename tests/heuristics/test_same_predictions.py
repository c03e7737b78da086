"""The arrays of the cost model against the rule written out for one config and one problem."""

import random

import pytest
import scalar_cost_model

from fastsgemm import rungs
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import ShapeError
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import database, partial_accumulators
from fastsgemm.heuristics.choice import PREDICTED, choose_config
from fastsgemm.heuristics.cost_model import CLOSE, CostModel
from fastsgemm.heuristics.curve_fit import fit
from fastsgemm.problem import LAYOUTS, Problem
from fastsgemm.tuning.portfolio import base_config

H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
FITTED = database.fitted("sm_90")
BATCHES, PROBLEMS = 100, 100
ROUNDING = 1e-5  # of a predicted time: the numbers of a curve have 7 digits
SHIPPED = [curve for curve in database.shipped("sm_90").curves if not curve.config.segment]
CURVES = {rung.name: [c for c in SHIPPED if c.rung == rung.name] for rung in rungs.DEFAULTS}
SCALAR = {name: [(c.config, scalar_cost_model.CostModel(c)) for c in curves] for name, curves in CURVES.items()}


def drawn(seed):
    """Return problems with extents of 1 to 2^20, small, narrow and large, aligned and odd, in all layouts."""
    generator = random.Random(seed)
    for _ in range(PROBLEMS):
        most = generator.choice((4, 8, 13, 20))
        steps = generator.choices((1, 2, 4, 64), k=3)
        M, N, K = (max(1, int(2 ** generator.uniform(0, most)) // step * step) for step in steps)
        yield Problem(M, N, K, generator.choice(LAYOUTS))


def scalar_options(rung, problem):
    """Return every option of a rung with its time: (sums that should not be shared out, ms), config."""
    faced = with_swap_ab(rung, problem)
    for config, model in SCALAR[rung.name]:
        try:
            for parts in scalar_cost_model.splits(config, faced, H200.multiprocessors) if rung.splits else [1]:
                option = config.replace(SPLIT_K=parts) if rung.splits else config
                ms = model.predict_split(problem, option, H200.multiprocessors)
                used = partial_accumulators.shortened(option, problem.K, H200.shared_limit)
                few = partial_accumulators.splits_few(rung, used, problem)
                own = model.accumulators_costs[problem.layout]
                yield (few, ms * scalar_cost_model.accumulators_factor(used, FITTED, own)), used
        except ShapeError:  # so many blocks of this size do not fit a grid
            continue


@pytest.mark.sampled(every=50)
@pytest.mark.parametrize("seed", range(BATCHES))
def test_a_problem_gets_the_config_that_the_written_rule_gives(seed):
    for problem in drawn(seed):
        found = choose_config(H200, None, problem, only="shipped")
        if found.rule != PREDICTED:
            continue
        suited = [rung for rung in rungs.DEFAULTS if rung.suits(problem.M, problem.N)]
        options = [option for rung in suited for option in scalar_options(rung, problem)]
        (few, least), _ = min(options, key=lambda option: option[0])
        most = least * CLOSE * (1 + 1e-12)
        allowed = [(base_config(config), time) for time, config in options if time[0] == few and time[1] <= most]
        # The config that the database has first; of its numbers of parts the fastest.
        first = allowed[0][0]
        of_first = [time for config, time in allowed if config == first]
        assert base_config(found.config) == first, problem
        assert found.ms == pytest.approx(min(of_first)[1], rel=ROUNDING), problem


@pytest.mark.sampled(every=50)
@pytest.mark.parametrize("seed", range(BATCHES))
@pytest.mark.parametrize("name", CURVES)
def test_every_option_has_the_time_of_the_written_rule(name, seed):
    rung = rungs.find(name)
    model = CostModel([fit(curve) for curve in CURVES[name]], H200.multiprocessors, H200.shared_limit, FITTED)
    for problem in [one for one in list(drawn(seed))[:25] if one.K > partial_accumulators.FEW]:
        expected = {}
        for config, scalar in SCALAR[name]:
            faced = with_swap_ab(rung, problem)
            try:
                for parts in scalar_cost_model.splits(config, faced, H200.multiprocessors) if rung.splits else [1]:
                    option = config.replace(SPLIT_K=parts) if rung.splits else config
                    expected[config, parts] = scalar.predict_split(problem, option, H200.multiprocessors)
            except ShapeError:
                continue
        found = {(fit.curve.config, parts): ms for fit, parts, ms in model.times(problem)}
        assert found == pytest.approx(expected, rel=ROUNDING), problem
