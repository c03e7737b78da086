"""A quick run: curves of another device, corrected by four times of each config."""

import math
import random
import statistics

import pytest
from check_records import faults_of_file
from msgspec import structs
from quick_configs import quick_configs

from fastsgemm import known_devices, rungs
from fastsgemm.device import DeviceInfo, info_of
from fastsgemm.errors import TuningError
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choice import EXACT, PREDICTED, choose_config
from fastsgemm.heuristics.database_entries import Content
from fastsgemm.heuristics.transfer import Factors
from fastsgemm.problem import Problem
from fastsgemm.progress import Bar
from fastsgemm.tuning import tuner
from fastsgemm.tuning.correction import shrunk
from fastsgemm.tuning.plan import plan_run

DEVICES = [info_of(known_devices.find(name)) for name, arch in known_devices.known().items() if arch != "sm_90"]
LARGE = Problem(4000, 4000, 4000)


def quick_run(evaluator, budget=None, **options):
    return tuner.run_plan(plan_run(evaluator.device, quick=True, **options), evaluator, Bar(False), budget)


@pytest.fixture
def unknown(evaluator, data_folder):
    evaluator.device = DeviceInfo("Fake 4090", "sm_89", 101376, 128)
    return evaluator


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
def test_it_leaves_a_database_that_is_fit_to_be_shipped(evaluator, data_folder, device):
    evaluator.device = device
    outcome = quick_run(evaluator)
    assert outcome.complete and faults_of_file(outcome.path.read_text(), device.arch) == []
    legal = {
        name: [c for c in quick_configs(name) if c.shared_bytes <= device.shared_limit]
        for name in ("pipelined", "skinny")
    }
    assert {name: [c.config for c in outcome.curves if c.rung == name] for name in legal} == legal
    chosen = choose_config(device, None, LARGE)
    assert chosen.rule == PREDICTED and chosen.evidence.device == device.name
    assert chosen.evidence.transferred_from == "NVIDIA H200"


def test_each_config_is_timed_four_times_and_as_the_device_is(unknown):
    outcome = quick_run(unknown)
    assert len(outcome.curves) == 37
    kernels = {rung: len(quick_configs(rung)) for rung in ("pipelined", "skinny")}
    first = [job for job in unknown.compiled if job.rung.name == "pipelined"][: 2 * kernels["pipelined"]]
    assert len({job.config for job in first}) == kernels["pipelined"]  # and the largest of each, which spills first
    for curve in outcome.curves:
        assert 2 <= len(curve.times) <= 4  # several are one problem where one block fills an SM, and on rung 10
        assert curve.blocks_per_sm <= unknown.blocks_per_sm(
            next(j for j in unknown.compiled if j.config == curve.config)
        )
        for problem, ms in curve.times.items():
            assert ms == pytest.approx(unknown.formula(curve.config, problem), rel=1e-4)


def test_choices_follow_the_device_and_not_the_one_that_was_measured_before(unknown):
    """On this one large tiles are slow."""
    before = choose_config(unknown.device, None, LARGE).config
    assert (before.BM, before.BN) == (128, 256)
    usual = unknown.formula
    unknown.formula = lambda config, problem: usual(config, problem) * (3.0 if config.BM * config.BN > 16384 else 1.0)
    outcome = quick_run(unknown)
    after = choose_config(unknown.device, None, LARGE).config
    assert after.BM * after.BN <= 16384
    assert outcome.gain > 1.1 and f"{outcome.gain - 1:.1%} faster than without" in str(outcome)
    assert outcome.json()["gain"] == outcome.gain


def test_of_those_that_may_be_the_quickest_the_quickest_is_found(unknown):
    """The curves know nothing of what makes another config the quickest for 1000 x 1000 x 1000."""
    problem = Problem(1000, 1000, 1000)
    quick_run(unknown, rung="pipelined")
    tried = {config for asked, config in unknown.timed if asked == problem}
    assert 1 < len(tried) <= 4
    best, usual = sorted(tried, key=str)[-1], unknown.formula
    unknown.formula = lambda config, asked: usual(config, asked) * (0.5 if (config, asked) == (best, problem) else 1.0)
    outcome = quick_run(unknown, rung="pipelined")
    chosen = choose_config(unknown.device, rungs.find("pipelined"), problem)
    assert chosen.rule == EXACT and chosen.config == best
    assert all(tuned.problem.flops < 10**12 for tuned in outcome.tuned)


def test_the_most_useful_configs_come_first_where_the_time_is_short(unknown):
    whole = quick_run(unknown)
    (data := database.user_folder() / "tuning_db" / "sm_89.json").unlink()
    database.forget()
    unknown.now = 0.0
    part = quick_run(unknown, budget=0.6 * whole.seconds)
    assert not part.complete and data.exists() and 0 < len(part.curves) < 37
    of_rung = [curve.config for curve in part.curves if curve.rung == "pipelined"]
    assert of_rung == [*quick_configs("pipelined")][: len(of_rung)]


def test_what_fails_is_left_out(unknown):
    spills, breaks, *_ = quick_configs("pipelined")
    unknown.check_failures[spills] = "it spills: 8 bytes"
    unknown.time_failures[breaks] = "launch failed"
    outcome = quick_run(unknown, rung="pipelined")
    assert [curve.config for curve in outcome.curves] == [*quick_configs("pipelined")[2:]]
    assert choose_config(unknown.device, None, LARGE).evidence.device == "Fake 4090"


def test_what_was_measured_in_full_stays(unknown):
    outcome = quick_run(unknown)
    full = [structs.replace(curve, transferred_from=None) for curve in outcome.curves]
    rates = structs.replace(database.rates("sm_89"), device="Fake 4090")
    database.save(Content("sm_89", 101376, curves=tuple(full), rates=(rates,)))
    stored = database.own("sm_89")
    with pytest.raises(TuningError, match="nothing was tuned: its curves and rates were measured in full"):
        quick_run(unknown)
    assert database.own("sm_89") == stored
    with pytest.raises(TuningError, match="nothing was tuned: the budget was spent"):
        quick_run(unknown, budget=0.0, rung="warptiled")


def test_a_second_run_starts_from_the_shipped_times_again(unknown):
    """Else the corrections of two runs would be multiplied."""
    first = quick_run(unknown)
    assert [c.numbers for c in quick_run(unknown).curves] == [c.numbers for c in first.curves]


@pytest.mark.parametrize("rung", [None, "pipelined", "skinny"])
def test_the_gain_is_of_the_rungs_that_were_corrected(unknown, rung):
    outcome = quick_run(unknown, rung=rung)
    assert math.isfinite(outcome.gain) and outcome.gain >= 1.0
    assert {curve.rung for curve in outcome.curves} == ({rung} if rung else {r.name for r in rungs.DEFAULTS})


def test_noise_is_no_difference_of_configs():
    draw = random.Random(0)
    noisy = [Factors(*(1.3 * math.exp(draw.gauss(0.0, 0.02)) for _ in range(4))) for _ in range(20)]
    means = [math.exp(statistics.fmean(map(math.log, column))) for column in zip(*noisy, strict=True)]
    for factors in shrunk(noisy, 0.03):
        assert factors == pytest.approx(means)


def test_what_differs_by_more_than_noise_is_kept():
    real = [Factors(0.5, 1.0 + 0.1 * i, 2.0, 0.7) for i in range(12)]
    for before, after in zip(real, shrunk(real, 0.03), strict=True):
        assert after == pytest.approx(before, rel=0.01) and (after.once, after.most) == pytest.approx((0.5, 2.0))
    assert shrunk(real[:1], 0.03) == [pytest.approx(real[0])] and shrunk([], 0.03) == []
