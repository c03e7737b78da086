"""The calibration of curves: how far predictions are off on other problems, for the steps of K alone."""

import math
from contextlib import contextmanager

import curves as curves_again
import pytest
from msgspec import structs

from fastsgemm import device, rungs
from fastsgemm.config import PipelinedConfig
from fastsgemm.heuristics import curve_fit, database_reading, database_writing
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.database_entries import Curve, Fitted, Point, Tools
from fastsgemm.heuristics.probes import probes_of
from fastsgemm.problem import Problem
from fastsgemm.tuning import problem_sets, tuner
from fastsgemm.tuning.calibration import calibrated, contenders

CONFIG = PipelinedConfig(64, 64, 16, 8, 4, 32, 64, 2)
DEEP = [Problem(64 * n, 64 * n + 64, 4096) for n in range(4, 12)]
TOOLS = Tools("driver", "13.0", "2026-01-01")


def curve(config=CONFIG, step=1e-5):
    """A curve of blocks that cost 4 us and, if nothing else is said, 10 ns a step; two fit on a multiprocessor."""

    def ms(problem):
        waves = math.ceil(math.ceil(problem.M / 64) * math.ceil(problem.N / 64) / 264)
        return waves * (0.004 + step * problem.K)

    points = tuple(Point(p, ms(p)) for p in probes_of(config, 2, 132).problems())
    return Curve("sm_90", "Fake 9000", 132, "pipelined", config, 2, points, TOOLS)


def predicted(one, problem):
    model = CostModel([curve_fit.fit(one)], 132, 232448, Fitted())
    return {parts: ms for _, parts, ms in model.times(problem)}


def calibrated_on(problems, measure, curves=None):
    curves = [curve()] if curves is None else curves
    return calibrated(curves, contenders(curves, problems, 232448, Fitted()), measure)


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.5])
def test_the_steps_of_k_are_scaled_to_what_was_measured(factor):
    plain = curve()

    def measure(problem, rung, config):
        assert rung is rungs.find("pipelined")
        once, twice = (predicted(structs.replace(plain, calibration=c), problem)[config.SPLIT_K] for c in (1.0, 2.0))
        return once + (factor - 1) * (twice - once)

    (found,) = calibrated_on(DEEP, measure, [plain])
    assert found.calibration == pytest.approx(factor, rel=1e-6)
    assert predicted(found, DEEP[0])[1] == pytest.approx(measure(DEEP[0], rungs.find("pipelined"), CONFIG), rel=1e-6)


def test_a_calibration_changes_only_the_steps_of_k():
    short = Problem(512, 512, 8)
    assert predicted(structs.replace(curve(), calibration=2.0), short)[1] == pytest.approx(predicted(curve(), short)[1])


def test_a_curve_that_cannot_be_timed_stays_as_it_is():
    (found,) = calibrated_on(DEEP, lambda *_: None)
    assert found.calibration == 1.0


def test_only_the_fastest_configs_of_a_problem_are_timed():
    """The fewer a config's steps cost, the faster it is; each is timed with the parts of K of its least time."""
    configs = [CONFIG.replace(GROUP_M=group) for group in (1, 2, 3, 4, 5, 6, 7, 8, 9)]
    curves = [curve(config, step=1e-5 * (1 + n)) for n, config in enumerate(configs)]
    asked = contenders(curves, DEEP, 232448, Fitted())
    assert {one.problem for one in asked} <= {*DEEP} and {one.config.kernel for one in asked} == {*configs[:6]}
    for one in asked:
        mine = next(each for each in curves if each.config == one.config.kernel)
        assert one.ms == pytest.approx(min(predicted(mine, one.problem).values()))


def test_a_config_that_is_seldom_fast_gets_about_the_mean_of_all():
    """It is among the fastest on one problem, and its steps take twice as long there as is predicted."""
    often, seldom = curve(), curve(CONFIG.replace(GROUP_M=3))
    asked = contenders([often], DEEP, 232448, Fitted())
    others = len(asked)
    asked.append(asked[0]._replace(config=asked[0].config.replace(GROUP_M=3)))

    def measure(problem, rung, config):
        known = next(one for one in asked if one.problem == problem)
        return known.ms + known.steps * (1.0 if config.GROUP_M == 3 else 0.0)

    first, second = calibrated([often, seldom], asked, measure)
    mean = math.log(2.0) / (others + 1)
    assert math.log(first.calibration) == pytest.approx(3 * mean / (others + 3))
    assert math.log(second.calibration) == pytest.approx((math.log(2.0) + 3 * mean) / 4)


def test_problems_whose_time_is_mostly_that_of_the_blocks_do_not_count():
    shallow = [Problem(64 * n, 64, 16) for n in range(1, 8)]
    (found,) = calibrated_on(shallow, lambda *_: 100.0)
    assert found.calibration == 1.0


def test_one_mishap_does_not_decide():
    (found,) = calibrated_on(DEEP, lambda *_: 1e6)
    assert found.calibration == pytest.approx(3.0)


def test_the_problems_are_none_that_is_tuned():
    assert not {*problem_sets.CALIBRATION} & {*problem_sets.STANDARD, *problem_sets.ANCHORS}
    assert {p.layout for p in problem_sets.CALIBRATION} == {"NN", "NT", "TN", "TT"}


def test_curves_are_measured_again_for_the_same_configs(evaluator, data_folder, monkeypatch, tmp_path):
    @contextmanager
    def evaluating(_):
        yield evaluator

    monkeypatch.setattr(device, "open_gpu", lambda ordinal: None)
    monkeypatch.setattr(tuner, "evaluating", evaluating)
    shipped = curves_again.database.shipped("sm_90")
    few = structs.replace(shipped, curves=tuple(one for one in shipped.curves if one.rung == "pipelined")[:2])
    monkeypatch.setattr(curves_again.database, "shipped", lambda arch: few)
    content = curves_again.measured(None)
    assert content.records == few.records and content.fitted == few.fitted
    fresh = [one for one in content.curves if one.device == evaluator.device.name]
    assert [one.config for one in fresh] == [one.config for one in few.curves]
    assert all(one.calibration != 1.0 for one in fresh)
    assert database_reading.faults(database_writing.dumps(content), "sm_90") == []
