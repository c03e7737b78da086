import dataclasses
import math

import pytest
from quick_configs import quick_configs

from fastsgemm import rungs
from fastsgemm.errors import TuningError
from fastsgemm.problem import Problem
from fastsgemm.progress import Bar
from fastsgemm.tuning.checkpoint import Checkpoint
from fastsgemm.tuning.evaluator import job_of
from fastsgemm.tuning.search import Effort, Round, Sweep

RUNG = rungs.find("warptiled")
PROBLEM = Problem(1024, 1024, 1024)
FEW = quick_configs("warptiled")
EFFORT = Effort((Round(1.0, 1, 1), Round(0.5, 4, 3), Round(0.0, 2, 5)), beside_cublas=True)


@pytest.fixture
def sweep(evaluator):
    """Return a function that makes a sweep on the fake evaluator."""

    def make(checkpoint=None, seconds=math.inf):
        return Sweep(evaluator, checkpoint or Checkpoint(None, {}), Bar(False), evaluator.now + seconds)

    return make


def search(sweep, candidates=FEW, problem=PROBLEM):
    return sweep.search(problem, RUNG, candidates, "test", EFFORT)


def test_the_fastest_wins(evaluator, sweep):
    result = search(sweep())
    best = min(FEW, key=lambda config: evaluator.formula(config, PROBLEM))
    assert result.best == (best, evaluator.formula(best, PROBLEM))
    assert set(result.times) == set(FEW)
    assert result.complete and result.failures == {} and result.cublas_ms is None


def test_each_kernel_is_compiled_and_checked_once_before_it_is_timed(evaluator, sweep):
    tried = sweep()
    search(tried)
    search(tried, problem=Problem(2048, 1024, 1024))  # of the same variant
    assert len(evaluator.compiled) == len(evaluator.checked) == len(FEW)
    search(tried, problem=Problem(2047, 1023, 1023))
    assert len(evaluator.compiled) == 2 * len(FEW)


class Phases(Bar):
    """Counts the steps of each phase."""

    def __init__(self):
        super().__init__(False)
        self.seen = []

    def begin(self, what, count):
        self.seen.append([what, count, 0])

    def step(self):
        self.seen[-1][2] += 1

    def best(self, text):
        pass


def test_measuring_does_not_end_the_phase_that_is_shown(sweep):
    tried = sweep()
    tried.progress = Phases()
    tried.prepare(job_of("sm_90", RUNG, config, PROBLEM) for config in FEW)
    tried.progress.begin("time", 3 * len(FEW))
    for config in FEW:
        tried.measure(PROBLEM, RUNG, config, 3)
    steps = len(FEW)
    assert tried.progress.seen == [["compile", steps, steps], ["check", steps, steps], ["time", 3 * steps, 3 * steps]]


def test_the_slow_are_dropped_by_rounds(evaluator, sweep):
    search(sweep())
    counts = sorted(
        sum(config == timed for _, timed in evaluator.timed[1:]) for config in FEW
    )  # the first run warms up
    half = len(FEW) // 2
    assert counts == [1] * half + [1 + 3] * (half - 2) + [1 + 3 + 5] * 2


def test_rounds_shuffle_and_repeat(evaluator, sweep):
    search(sweep())
    timed = [config for _, config in evaluator.timed][1:]  # the first run warms up
    first = timed[: len(FEW)]
    assert first != list(FEW) and set(first) == set(FEW)
    second = timed[len(FEW) :]
    half = len(FEW) // 2
    assert set(second[:half]) == set(second[half : 2 * half])
    assert second[:half] != second[half : 2 * half]


def test_long_products_are_repeated_less(evaluator, sweep):
    evaluator.formula = lambda config, problem: 100.0 + FEW.index(config)
    search(sweep())
    assert sum(config == FEW[0] for _, config in evaluator.timed) <= 1 + 1 + 2 + 2


def test_cublas_runs_in_turns_with_the_last_few(evaluator, sweep):
    evaluator.baseline_ms = 0.5
    assert search(sweep()).cublas_ms == 0.5


@pytest.mark.parametrize("kind", ["compile_failures", "check_failures", "time_failures"])
def test_a_failing_candidate_is_a_value(evaluator, sweep, kind):
    best = min(FEW, key=lambda config: evaluator.formula(config, PROBLEM))
    getattr(evaluator, kind)[best] = "no good"
    result = search(sweep())
    assert result.failures == {best: "no good"}
    assert best not in result.times and len(result.times) == len(FEW) - 1
    assert result.complete


def test_when_all_fail_there_is_no_best(evaluator, sweep):
    evaluator.check_failures = dict.fromkeys(FEW, "no good")
    result = search(sweep())
    assert result.best is None and len(result.failures) == len(FEW)


def test_a_candidate_that_fails_in_the_last_round_does_not_win(evaluator, sweep):
    ranking = sorted(FEW, key=lambda config: evaluator.formula(config, PROBLEM))
    seen = []
    formula = evaluator.formula

    def fails_late(config, problem):
        seen.append(config)
        if config == ranking[0] and seen.count(config) > 5:
            evaluator.time_failures[config] = "launch failed"
        return formula(config, problem)

    evaluator.formula = fails_late
    result = search(sweep())
    assert result.best[0] == ranking[1]
    assert result.failures == {ranking[0]: "launch failed"}


def test_an_interrupted_search_goes_on_where_it_was(evaluator, sweep, tmp_path):
    path = tmp_path / "checkpoint.jsonl"
    evaluator.interrupt_after = 20
    with Checkpoint(path, {}) as checkpoint, pytest.raises(KeyboardInterrupt):
        search(sweep(checkpoint))
    measured = list(evaluator.timed)
    evaluator.interrupt_after, evaluator.timed = None, []
    with Checkpoint(path, {}) as checkpoint:
        assert checkpoint.found == len(measured) - 1  # all but the one that warms up
        result = search(sweep(checkpoint))
    assert result.times == search(sweep()).times
    again = [entry for entry in evaluator.timed[1 : len(FEW) - len(measured) + 2] if entry in measured]
    assert again == []


def test_a_failure_on_record_is_not_tried_again(evaluator, sweep, tmp_path):
    path = tmp_path / "checkpoint.jsonl"
    evaluator.compile_failures[FEW[3]] = "no good"
    with Checkpoint(path, {}) as checkpoint:
        search(sweep(checkpoint))
    evaluator.compiled = []
    with Checkpoint(path, {}) as checkpoint:
        result = search(sweep(checkpoint))
    assert result.failures == {FEW[3]: "no good"}
    assert FEW[3] not in [job.config for job in evaluator.compiled]


@pytest.mark.parametrize("broken", [FEW[5], FEW[0]], ids=["timed", "warming up"])
def test_what_breaks_the_context_is_on_record_when_the_run_ends(evaluator, sweep, tmp_path, broken):
    path = tmp_path / "checkpoint.jsonl"
    formula = evaluator.formula

    def breaks(config, problem):
        if config == broken:
            raise TuningError("a candidate broke the CUDA context")
        return formula(config, problem)

    evaluator.formula = breaks
    with Checkpoint(path, {}) as checkpoint, pytest.raises(TuningError):
        search(sweep(checkpoint))
    with Checkpoint(path, {}) as checkpoint:
        assert broken in search(sweep(checkpoint)).failures


def test_what_breaks_the_context_in_its_check_is_on_record(evaluator, sweep, tmp_path):
    path = tmp_path / "checkpoint.jsonl"
    check = evaluator.check

    def breaks(job):
        if job.config == FEW[5]:
            raise TuningError("a candidate broke the CUDA context")
        return check(job)

    evaluator.check = breaks
    with Checkpoint(path, {}) as checkpoint, pytest.raises(TuningError):
        search(sweep(checkpoint))
    with Checkpoint(path, {}) as checkpoint:
        assert FEW[5] in search(sweep(checkpoint)).failures


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.6])
def test_the_budget_is_kept_and_the_best_so_far_is_the_answer(evaluator, sweep, seconds):
    result = search(sweep(seconds=seconds))
    assert evaluator.now < seconds + 0.03  # what was under way is finished
    assert not result.complete
    assert result.best is not None
    assert result.best[1] == min(result.times.values())


def test_a_last_round_that_the_budget_cuts_short_does_not_decide_by_who_came_first(evaluator, sweep):
    """It may time only the slower of two candidates again."""
    evaluator.formula = lambda config, problem: 100.0 + FEW.index(config)
    for tenths in range(7, 40):
        evaluator.now = 0.0
        result = search(sweep(seconds=tenths / 10))
        assert result.best[1] == min(result.times.values())


def test_long_products_do_not_outrun_the_budget(evaluator, sweep):
    evaluator.formula = lambda config, problem: 1000.0
    result = search(sweep(seconds=5))
    assert evaluator.now < 5 + 1.1  # one product more than there was time for
    assert not result.complete and 1 <= len(result.times) < len(FEW)


def test_a_drifting_clock_does_not_let_the_dropped_win(evaluator, sweep):
    formula = evaluator.formula
    evaluator.formula = lambda config, problem: formula(config, problem) * 1.05 ** len(evaluator.timed)
    result = search(sweep())
    last = [config for _, config in evaluator.timed[-5 * 2 :]]
    assert result.best[0] in last
    assert result.best[1] > min(result.times.values())


def test_without_time_nothing_is_started(evaluator, sweep):
    result = search(sweep(seconds=-1))
    assert result.best is None and not result.complete
    assert evaluator.compiled == evaluator.timed == []


def test_within_gives_a_share_of_the_time(evaluator, sweep):
    tried = sweep(seconds=10)
    with tried.within(0.5):
        assert tried.deadline == 5
        with tried.within(0.5):
            assert tried.deadline == 2.5
        evaluator.now = 6
        assert tried.late
    assert tried.deadline == 10 and not tried.late


def test_one_config_is_measured(evaluator, sweep):
    assert sweep().measure(PROBLEM, RUNG, FEW[0], 3) == evaluator.formula(FEW[0], PROBLEM)
    evaluator.check_failures[FEW[1]] = "no good"
    assert sweep().measure(PROBLEM, RUNG, FEW[1], 3) is None


def test_jobs_are_of_the_variant_of_the_problem():
    def variant(problem, rung=RUNG):
        return job_of("sm_90", rung, FEW[0], problem).variant

    assert variant(PROBLEM).vec_a == 4
    assert variant(Problem(1024, 1024, 1023)).vec_a == 1
    assert variant(PROBLEM, rungs.find("naive")).vec_a == 1
    assert variant(Problem(64, 64, 64, "TN")).trans_a
    assert job_of("sm_90", RUNG, FEW[0], PROBLEM) == job_of("sm_90", RUNG, FEW[0], PROBLEM)


def test_divisions_of_k_share_a_kernel(evaluator, sweep):
    """All of them are timed, and the one kernel is compiled and checked once."""
    rung, config = rungs.find("pipelined"), quick_configs("pipelined")[0]
    divided = [dataclasses.replace(config, SPLIT_K=parts) for parts in (1, 2, 4)]
    assert len({job_of("sm_90", rung, each, PROBLEM) for each in divided}) == 1
    result = sweep().search(PROBLEM, rung, divided, "test", EFFORT)
    assert set(result.times) == set(divided) and result.complete
    assert len(evaluator.compiled) == len(evaluator.checked) == 1


def test_a_kernel_that_fails_fails_for_every_division_of_k(evaluator, sweep):
    rung, config = rungs.find("pipelined"), quick_configs("pipelined")[0]
    divided = [dataclasses.replace(config, SPLIT_K=parts) for parts in (1, 2, 4)]
    evaluator.check_failures[config.kernel] = "no good"
    result = sweep().search(PROBLEM, rung, divided, "test", EFFORT)
    assert result.failures == dict.fromkeys(divided, "no good") and result.times == {}
