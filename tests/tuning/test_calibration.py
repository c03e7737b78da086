"""The calibration of curves: how far predictions are off on other problems, for the steps of K alone."""

import math
from contextlib import contextmanager

import curves as curves_again
import entries
import pytest
from check_records import faults_of_file
from msgspec import structs

from fastsgemm import device, rungs
from fastsgemm.config import PipelinedConfig
from fastsgemm.heuristics import curve_fit, database
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.curve_problems import problems_of
from fastsgemm.heuristics.database_entries import points_of
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.problem import Problem
from fastsgemm.tuning import tuner
from fastsgemm.tuning.calibration import calibrated
from fastsgemm.tuning.spaces import pipelined, standard_set

CONFIG = PipelinedConfig(64, 64, 16, 8, 4, 32, 64, 2)
DEEP = [Problem(64 * n, 64 * n + 64, 4096) for n in range(4, 12)]


def curve():
    """A curve of blocks that cost 4 us and 10 ns a step, of which two fit on a multiprocessor."""

    def ms(problem):
        waves = math.ceil(math.ceil(problem.M / 64) * math.ceil(problem.N / 64) / 264)
        return waves * (0.004 + 1e-5 * problem.K)

    points = points_of((p, ms(p)) for p in problems_of(CONFIG, 2, 132).problems())
    return entries.curve("pipelined", CONFIG, 2, points)


def predicted(one, problem):
    model = CostModel([curve_fit.fit(one)], 132, 232448, Fitted())
    return {parts: ms for _, parts, ms in model.times(problem)}


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.5])
def test_the_steps_of_k_are_scaled_to_what_was_measured(factor):
    plain = predicted_steps = curve()

    def measure(problem, rung, config):
        assert rung is rungs.find("pipelined")
        once, twice = (predicted(structs.replace(plain, calibration=c), problem)[config.SPLIT_K] for c in (1.0, 2.0))
        return once + (factor - 1) * (twice - once)

    (found,) = calibrated([predicted_steps], DEEP, measure, 232448, Fitted())
    assert found.calibration == pytest.approx(factor, rel=1e-6)
    assert predicted(found, DEEP[0])[1] == pytest.approx(measure(DEEP[0], rungs.find("pipelined"), CONFIG), rel=1e-6)


def test_a_calibration_changes_only_the_steps_of_k():
    short = Problem(512, 512, 8)
    assert predicted(structs.replace(curve(), calibration=2.0), short)[1] == pytest.approx(predicted(curve(), short)[1])


def test_a_curve_that_was_timed_too_seldom_stays_as_it_is():
    (found,) = calibrated([curve()], DEEP[:2], lambda *_: 100.0, 232448, Fitted())
    assert found.calibration == 1.0
    (found,) = calibrated([curve()], DEEP, lambda *_: None, 232448, Fitted())
    assert found.calibration == 1.0


def test_problems_whose_time_is_mostly_that_of_the_blocks_do_not_count():
    shallow = [Problem(64 * n, 64, 16) for n in range(1, 8)]
    (found,) = calibrated([curve()], shallow, lambda *_: 100.0, 232448, Fitted())
    assert found.calibration == 1.0


def test_one_mishap_does_not_decide():
    (found,) = calibrated([curve()], DEEP, lambda *_: 1e6, 232448, Fitted())
    assert found.calibration == pytest.approx(3.0)


def test_the_problems_are_none_that_is_tuned():
    assert not {*pipelined.CALIBRATION} & {*standard_set.STANDARD, *standard_set.ANCHORS}
    assert {p.layout for p in pipelined.CALIBRATION} == {"NN", "NT", "TN", "TT"}


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
    assert faults_of_file(database.dumps(content), "sm_90") == []
