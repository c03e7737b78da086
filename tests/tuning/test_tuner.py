import inspect
import json
import math
import warnings
from contextlib import suppress
from dataclasses import replace

import pytest
import scalar_cost_model
from check_records import faults_of_file
from quick_configs import quick_configs

import fastsgemm
from fastsgemm import resources, rungs
from fastsgemm.config import PipelinedConfig
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import ConfigError, DeviceMemoryError, RecordError, ShapeError, TuningError, UnknownRungError
from fastsgemm.geometry import variants
from fastsgemm.heuristics import cost_model, database
from fastsgemm.heuristics.choice import EXACT, PREDICTED, choose, choose_config
from fastsgemm.heuristics.partial_accumulators import chains_needed, shortened
from fastsgemm.problem import LAYOUTS, Problem, format_problem
from fastsgemm.progress import Bar
from fastsgemm.request import Request
from fastsgemm.tuning import tuner
from fastsgemm.tuning.candidates import of_space, of_suitable_size, with_each_split, with_filling_split
from fastsgemm.tuning.checkpoint import Checkpoint
from fastsgemm.tuning.evaluator import job_of, largest_job
from fastsgemm.tuning.outcome import Outcome
from fastsgemm.tuning.plan import RunPlan, plan_run
from fastsgemm.tuning.portfolio import base_config, portfolio
from fastsgemm.tuning.rung_tuning import MOST_FLOPS_OF_SHORT, RungTuning
from fastsgemm.tuning.search import Result, Sweep
from fastsgemm.tuning.spaces import AUTOTUNED, PIPELINED, SKINNY, WARPTILED, pipelined, skinny, standard_set

DEVICE = DeviceInfo("Fake 9000", "sm_90", 232448, 132)
WARP = rungs.find("warptiled")
MEDIUM = PipelinedConfig(
    64, 128, 8, 16, 4, 64, 64, 2,
    GROUP_M=8, MIN_BLOCKS=1, ORDER=1, FRAGMENTS=2, CP_ASYNC=1, SPREAD=2, SPLIT_K=1,
)  # fmt: skip
SHAPE = "1024,1024,1024"
THREE_SHAPES = (SHAPE, "256,256,256", "512,512,8192")
LIMITS = database.search_limits()
QUICK = {rung: quick_configs(rung) for rung in ("autotuned", "pipelined", "warptiled")}
SLOW = pytest.mark.slow


@pytest.fixture
def go(evaluator, data_folder):
    """Return a function that tunes on the fake evaluator."""

    def go(shapes=(SHAPE,), budget=math.inf, store=True, **options):
        plan = plan_run(evaluator.device, shapes, **options)
        return tuner.run_plan(plan, evaluator, Bar(False), budget, store=store)

    return go


def checkpoint(data_folder):
    return data_folder / "tuning" / "Fake-9000.jsonl"


# Plans


def test_the_default_is_the_standard_set_of_every_tunable_rung(evaluator):
    planned = plan_run(evaluator.device)
    assert [space.rung for space in planned.spaces] == ["pipelined", "skinny", "warptiled", "autotuned"]
    wanted = [
        standard_set.STANDARD + pipelined.BATCHES + pipelined.HUGE,
        skinny.NARROW + skinny.NARROW_BATCHES,
        standard_set.STANDARD,
        standard_set.STANDARD,
    ]
    assert [planned.of(space) for space in planned.spaces] == wanted
    everything = [problem for problems in wanted for problem in problems]
    assert set(planned.everything) == {format_problem(problem) for problem in everything}


def test_a_quick_run_tunes_what_sgemm_uses(evaluator):
    assert [space.rung for space in plan_run(evaluator.device, quick=True).spaces] == ["pipelined", "skinny"]
    assert [space.rung for space in plan_run(evaluator.device, rung=8, quick=True).spaces] == ["warptiled"]


def test_a_quick_run_corrects_curves_and_tunes_no_problem(evaluator):
    planned = plan_run(evaluator.device, quick=True)
    assert [planned.corrects(space) for space in planned.spaces] == [True, True] and planned.everything == []
    assert "rung pipelined: 21 configs, four times of each" in str(planned) and "rung fp16x3: three times" in str(
        planned
    )
    assert planned.json()["candidates"] == {"pipelined": 21, "skinny": 16} and planned.rates


def test_batches_are_tuned_on_the_rungs_that_sgemm_uses(evaluator):
    """The other rungs compute them too, for whoever asks."""
    single, batch, narrow = Problem(64, 64, 64), Problem(64, 64, 64, "NT", 512), Problem(64, 8, 64, batch=512)
    planned = plan_run(evaluator.device, [single, batch, narrow])
    tuned = {space.rung: planned.of(space) for space in planned.spaces}
    assert tuned == {
        "pipelined": (single, batch, narrow),
        "skinny": (narrow,),
        "warptiled": (single,),
        "autotuned": (single,),
    }
    assert [space.rung for space in plan_run(evaluator.device, [batch]).spaces] == ["pipelined"]
    assert [space.rung for space in plan_run(evaluator.device, [narrow]).spaces] == ["pipelined", "skinny"]
    (space,) = plan_run(evaluator.device, [batch], rung="warptiled").spaces
    assert plan_run(evaluator.device, [batch], rung="warptiled").of(space) == (batch,)


def test_given_problems_are_tuned_on_the_rungs_that_suit_them(evaluator):
    narrow, wide = Problem(1000, 32, 500), Problem(33, 1000, 500)
    planned = plan_run(evaluator.device, [narrow, wide])
    tuned = {space.rung: planned.of(space) for space in planned.spaces}
    assert tuned["skinny"] == (narrow,) and tuned["pipelined"] == tuned["autotuned"] == (narrow, wide)
    (space,) = plan_run(evaluator.device, [narrow, wide], rung="skinny").spaces
    assert plan_run(evaluator.device, [narrow, wide], rung="skinny").of(space) == (
        narrow,
        wide,
    )  # whoever asks gets it


@pytest.mark.parametrize("shape", ["64,32,16,NT,x512", (64, 32, 16, "NT", "x512"), Problem(64, 32, 16, "NT", 512)])
def test_a_batch_may_be_written_in_several_ways(evaluator, shape):
    assert plan_run(evaluator.device, [shape]).problems == (Problem(64, 32, 16, "NT", 512),)


@pytest.mark.parametrize("shape", ["64,32,16,TN", (64, 32, 16, "TN"), Problem(64, 32, 16, "TN")])
def test_a_shape_may_be_written_in_several_ways(evaluator, shape):
    planned = plan_run(evaluator.device, [shape, shape], rung=8)
    assert planned.problems == (Problem(64, 32, 16, "TN"),) == planned.of(planned.spaces[0])


@pytest.mark.parametrize("shapes", ["512", (4096, 4096, 4096), [512]])
def test_one_problem_is_no_list_of_problems(evaluator, shapes):
    with pytest.raises(ShapeError, match="a list of problems"):
        plan_run(evaluator.device, shapes)


def test_a_column_is_tuned_as_what_is_computed(evaluator):
    assert plan_run(evaluator.device, [(4096, 1, 512)]).problems == (Problem(1, 4096, 512, "NT"),)
    assert plan_run(evaluator.device, ["4096,1,512,x8"]).problems == (Problem(1, 4096, 512, "NT", 8),)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rung": "naive"}, ConfigError, "naive has no search space"),
        ({"rung": "fastest"}, UnknownRungError, "fastest"),
        ({"shapes": [(1, 2)]}, ShapeError, "M,N,K"),
        ({"shapes": [(0, 1, 1)]}, ShapeError, "must be ints from 1 to"),
        ({"shapes": ["1,1,1,x0"]}, ShapeError, "a batch has 1 to"),
        ({"shapes": [Problem(1, 1, 1, batch=0)]}, ShapeError, "a batch has 1 to"),
    ],
)
def test_bad_plans_are_refused(evaluator, options, error, message):
    with pytest.raises(error, match=message):
        plan_run(evaluator.device, **options)


def test_a_plan_says_what_it_will_try(evaluator):
    text = str(plan_run(evaluator.device, [SHAPE], rung="autotuned", quick=True))
    assert f"rung autotuned: {len(QUICK['autotuned'])} candidates of a quick run" in text
    assert SHAPE in text


# One problem


def test_one_problem_is_tuned_stored_and_used(evaluator, go, data_folder):
    outcome = go(rung="warptiled")
    found = outcome.tuned[0]
    everything = of_space(WARPTILED, evaluator.device.shared_limit)
    assert found.ms <= min(evaluator.formula(config, Problem(1024, 1024, 1024)) for config in everything)
    chosen = choose_config(evaluator.device, WARP, Problem(1024, 1024, 1024))
    assert (chosen.config, chosen.rule) == (found.config, EXACT)
    assert chosen.evidence.source == "driver 580.0, NVRTC 13.0, 2026-01-01"
    assert outcome.path == database.user_folder() / "tuning_db" / "sm_90.json"
    assert faults_of_file(outcome.path.read_text(), "sm_90") == []
    assert not checkpoint(data_folder).exists()


@pytest.mark.parametrize(
    "problem", [Problem(64, 64, 64, "NT", 512), Problem(16, 64, 512, batch=96)], ids=format_problem
)
@pytest.mark.parametrize("quick", [False, True])
def test_a_batch_is_tuned_stored_and_used(evaluator, go, problem, quick):
    """On batched kernels, and for this size only."""
    outcome = go([problem], quick=quick)
    assert all(job.variant.batched for job in evaluator.checked if job != largest_job(job.rung, job.config))
    assert {timed for timed, _ in evaluator.timed} == {problem}
    found = min(outcome.tuned, key=lambda one: one.ms)
    assert {one.rung for one in outcome.tuned} == {"pipelined", *(["skinny"] if problem.M == 16 else [])}
    assert faults_of_file(outcome.path.read_text(), "sm_90") == []
    extents, operands = variants.extents_of(problem), variants.dense_operands(problem)
    chosen = choose(evaluator.device, Request(), *operands, extents=extents)
    assert (chosen.rung.name, chosen.config) == (found.rung, found.config)
    for other in (replace(problem, batch=problem.batch + 1), replace(problem, batch=1)):
        choice = choose_config(evaluator.device, None, other)
        assert choice.rule != EXACT and choice.evidence.device != evaluator.device.name


def test_single_products_do_not_decide_what_is_tried_on_a_huge_batch(evaluator, data_folder):
    problems = (Problem(256, 256, 256), Problem(512, 512, 512), Problem(32, 32, 32, batch=2**26))
    assert problems[-1].flops > 10**12
    small = {"BM": (32, 128), "BN": (32, 256), "TM": (4, 8), "WNITER": (1,)}
    space = replace(PIPELINED, grid={**PIPELINED.grid, **small}, problems=problems, anchors=problems[:2], variants=())
    tuner.run_plan(RunPlan(evaluator.device, (), (space,), False), evaluator, Bar(False), math.inf)
    batch = {base_config(config) for problem, config in evaluator.timed if problem == problems[-1]}
    assert len(batch) > 9  # eight that won on the largest single product, and the shipped one


@pytest.mark.parametrize(
    ("batch", "first", "most"), [(1, 64, 256), (2, 32, 192), (8, 8, 48), (100, 1, 3), (1000, 1, 1)]
)
def test_the_products_of_a_batch_share_the_device_before_k_is_split(batch, first, most):
    """With tiles of 64 x 128 on 132 multiprocessors, of which two blocks each are full."""
    rung, problem = rungs.find("pipelined"), Problem(64, 512, 65536, batch=batch)
    filling = with_filling_split(rung, MEDIUM, problem, 132)
    assert first == filling.SPLIT_K
    assert max(config.SPLIT_K for config in with_each_split(rung, MEDIUM, problem, 132)) == most


@pytest.mark.parametrize(
    ("shape", "first", "divisions"),
    [
        ((64, 64, 65536), 256, {1, *(2 << i for i in range(8)), *(3 << i for i in range(7))}),
        ((1024, 1024, 1024), 2, {1, 2, 3, 4, 6, 8, 12}),
        ((2048, 2048, 4096), 1, {1, 2, 3}),
        ((4096, 4096, 4096), 1, {1}),
        ((64, 64, 16), 1, {1}),
    ],
    ids=str,
)
def test_every_split_that_is_worth_it_is_tried_and_the_one_that_fills_the_device_first(shape, first, divisions):
    """With tiles of 64 x 128 on 132 multiprocessors, of which two blocks each are full."""
    rung, problem = rungs.find("pipelined"), Problem(*shape)
    for given in (MEDIUM, replace(MEDIUM, SPLIT_K=2)):
        found = with_each_split(rung, given, problem, 132)
        assert {config.SPLIT_K for config in found} == divisions and len(found) == len(divisions)
        assert {replace(config, SPLIT_K=1) for config in found} == {MEDIUM}
        assert with_filling_split(rung, given, problem, 132) == replace(MEDIUM, SPLIT_K=first)


def test_a_rung_without_split_k_is_tried_as_it_is():
    config, problem = QUICK["warptiled"][0], Problem(64, 64, 65536)
    assert with_each_split(WARP, config, problem, 132) == [config]
    assert with_filling_split(WARP, config, problem, 132) == config


def test_a_deep_problem_is_tuned_in_parts_stored_and_used(evaluator, go):
    problem = Problem(64, 64, 65536)
    outcome = go(("64,64,65536",), rung="pipelined", quick=True)
    found = outcome.tuned[0].config
    assert found.SPLIT_K > 8
    assert outcome.tuned[0].ms == min(
        evaluator.formula(replace(config, SPLIT_K=parts), problem)
        for config in QUICK["pipelined"]
        for parts in cost_model.splits(config, problem, evaluator.device.multiprocessors)
    )
    assert f"SPLIT_K={found.SPLIT_K}" in outcome.path.read_text().replace('"SPLIT_K": ', "SPLIT_K=")
    assert faults_of_file(outcome.path.read_text(), "sm_90") == []
    chosen = choose_config(evaluator.device, rungs.find("pipelined"), problem)
    assert (chosen.config, chosen.rule) == (found, EXACT)


def test_refinements_of_the_best_are_tried(evaluator, go):
    go(rung="warptiled")
    tried = {config for _, config in evaluator.timed}
    assert {config.PREFETCH for config in tried} == {0, 1} and {config.GROUP_M for config in tried} == {1, 4, 8, 16}


def test_the_winner_is_compared_with_what_is_shipped_and_with_cublas(evaluator, go):
    evaluator.baseline_ms = 0.25
    outcome = go(rung="autotuned")
    found = outcome.tuned[0]
    shipped = choose_config(evaluator.device, rungs.find("autotuned"), Problem(1024, 1024, 1024), only="shipped").config
    assert found.shipped_config == shipped
    assert found.shipped_ms == evaluator.formula(shipped, Problem(1024, 1024, 1024))
    assert found.cublas_ms == 0.25
    record = outcome.content.records[0]
    assert record.cublas_ratio == 0.25 / found.ms
    row = outcome.json()["results"][0]
    assert row["of_cublas"] == 0.25 / found.ms and row["of_shipped"] == found.shipped_ms / found.ms
    assert f"{100 * row['of_cublas']:.1f}%" in str(outcome)
    json.dumps(outcome.json())


@pytest.mark.parametrize("rung", ["warptiled", "pipelined"])
def test_a_quick_run_keeps_what_a_full_run_found(evaluator, go, rung):
    """Its own candidates are few, so it times the config that the user has on record, too."""
    (full,), (quick,) = go(rung=rung).tuned, go(rung=rung, quick=True).tuned
    assert full.ms < full.shipped_ms and quick.ms <= full.ms
    chosen = choose_config(evaluator.device, rungs.find(rung), Problem(1024, 1024, 1024))
    assert (chosen.config, chosen.rule) == (quick.config, EXACT)


def test_a_quick_run_keeps_one_chain_that_a_full_run_found_as_accurate_as_cublas(evaluator, go):
    """It measures no errors, and by the length of K alone the sums would be made of several chains."""
    evaluator.cublas_error, formula = 1.0, evaluator.formula
    evaluator.formula = lambda config, problem: formula(config, problem) * (1 + config.PARTIAL_ACCUMULATORS / 100)
    shape = [(4096, 4096, 4096)]
    (full,), (quick,) = go(shape, rung="pipelined").tuned, go(shape, rung="pipelined", quick=True).tuned
    assert full.config.PARTIAL_ACCUMULATORS == 1
    assert (quick.config, quick.ms) == (full.config, full.ms)
    known = {full.config: 1.01, full.shipped_config: 1.02}  # with one chain, all others are quicker
    evaluator.formula = lambda config, problem: known.get(config, 0.98 + 0.02 * config.PARTIAL_ACCUMULATORS)
    (again,) = go(shape, rung="pipelined", quick=True).tuned
    assert (again.config, again.ms) == (full.config, 1.01)


@pytest.mark.parametrize("budget", [math.inf, 1.0])
@pytest.mark.parametrize("quick", [True, False])
def test_a_config_on_record_that_spills_by_now_is_passed_over(evaluator, go, quick, budget):
    """What is called shipped stays the shipped config."""
    (found,) = go(rung="pipelined").tuned
    evaluator.compile_failures[found.config.kernel] = "spills 8 bytes"
    outcome = go(rung="pipelined", quick=quick, budget=budget)
    (other,) = outcome.tuned
    assert other.config != found.config and other.shipped_config == found.shipped_config
    assert set(outcome.failures) <= {"spills 8 bytes"}


def test_a_quick_run_asks_no_other_library(evaluator, go):
    evaluator.baseline_ms = 0.25
    outcome = go(rung="autotuned", quick=True)
    assert outcome.tuned[0].cublas_ms is None and " - " in str(outcome)
    assert {config for _, config in evaluator.timed} <= {*QUICK["autotuned"], outcome.tuned[0].shipped_config}


@pytest.mark.parametrize("rung", ["pipelined", "skinny"])
def test_a_quick_run_compiles_its_kernels_at_once(evaluator, go, monkeypatch, rung):
    """A few at a time leave cores idle."""
    batches = []
    compile_one_by_one = evaluator.compile

    def compile_batch(jobs):
        batches.append(list(jobs))
        return compile_one_by_one(jobs)

    monkeypatch.setattr(evaluator, "compile", compile_batch)
    assert go(None, rung=rung, quick=True).complete and len(batches) == 2  # to correct curves, and for what is close


def test_nothing_is_stored_unless_asked(go):
    assert go(rung="autotuned", store=False).path is None
    assert not (database.user_folder() / "tuning_db" / "sm_90.json").exists()


def test_failures_are_counted_by_reason(evaluator, go):
    evaluator.check_failures = dict.fromkeys(QUICK["autotuned"][:3], "it spills: 8 bytes\nand a log")
    outcome = go(rung="autotuned", quick=True)
    assert outcome.failures == {"it spills: 8 bytes": 3}


def test_rates_of_rung_11_that_cannot_be_measured_end_no_run_of_other_rungs(evaluator, go, data_folder, monkeypatch):
    def refused(quick):
        raise DeviceMemoryError("no room")

    monkeypatch.setattr(evaluator, "fp16x3_rates", refused)
    plan = replace(plan_run(evaluator.device, [SHAPE], rung="autotuned"), rates=True)
    outcome = tuner.run_plan(plan, evaluator, Bar(False), math.inf)
    assert len(outcome.tuned) == 1 and outcome.rates is None and outcome.failures == {"no room": 1}
    with pytest.raises(DeviceMemoryError):
        go(None, rung="fp16x3")


def test_when_nothing_works_the_error_says_why(evaluator, go):
    class All(dict):
        def get(self, key, default=None):
            return "NVRTC refused it"

    evaluator.compile_failures = All()
    with pytest.raises(TuningError, match="NVRTC refused it"):
        go(rung="autotuned", quick=True)


# The standard set


@pytest.mark.parametrize("quick", [pytest.param(False, marks=SLOW), True])
def test_the_standard_set_gives_a_record_a_problem_and_the_curves(evaluator, go, quick):
    outcome = go(None, rung="autotuned", quick=quick)
    assert [found.problem for found in outcome.tuned] == list(standard_set.STANDARD)
    assert len(outcome.curves) == (0 if quick else 24) and outcome.complete
    text = outcome.path.read_text()
    assert faults_of_file(text, "sm_90") == []
    assert len(text) < 100_000
    if quick:
        return
    assert choose_config(evaluator.device, rungs.find("autotuned"), Problem(1111, 222, 333)).rule == PREDICTED


@pytest.mark.parametrize("name", ["autotuned", *(pytest.param(n, marks=SLOW) for n in ("warptiled", "pipelined"))])
def test_the_choice_for_untuned_problems_is_good(evaluator, go, name):
    """Nearly as quick as the best of those whose sums have chains enough. Partial accumulators cost what is fitted."""
    outcome, fitted, limit = go(None, rung=name), database.fitted("sm_90"), evaluator.device.shared_limit

    def time(config):
        return evaluator.formula(config, problem) * scalar_cost_model.accumulators_factor(config, fitted)

    regrets = []
    for n in range(100):
        problem = Problem(50 + 37 * n, 60 + 41 * (n * 7 % 100), 70 + 29 * (n * 13 % 100))
        chosen = choose_config(evaluator.device, rungs.find(name), problem)
        options = [config for curve in outcome.curves for config in divided(curve.config, problem)]
        used = [shortened(config, problem.K, limit) for config in options]
        accurate = [one for one in used if not scalar_cost_model.has_too_few_chains(one, problem)]
        regrets.append(time(chosen.config) / min(map(time, accurate or used)) - 1)
    assert sum(regrets) / len(regrets) < 0.02 and sorted(regrets)[94] < 0.06


def test_a_huge_problem_tries_only_what_won_on_the_largest_one_before(evaluator, data_folder):
    (huge,), large = pipelined.HUGE, Problem(8192, 8192, 8192)
    problems = (*(Problem(n, n, n) for n in (256, 512, 1024)), large, huge)
    small = {"BM": (32, 128), "BN": (64, 256), "TM": (4, 8), "WNITER": (1,)}  # a tenth of the candidates
    space = replace(PIPELINED, grid={**PIPELINED.grid, **small}, problems=problems, anchors=problems[:4], variants=())
    outcome = tuner.run_plan(RunPlan(evaluator.device, (), (space,), False), evaluator, Bar(False), math.inf)
    shipped = base_config(outcome.tuned[-1].shipped_config)
    ranking = dict.fromkeys(map(base_config, outcome.timed["pipelined", large]))
    ranking.pop(shipped, None)
    tried = {base_config(config) for problem, config in evaluator.timed if problem == huge} - {shipped}
    assert 1 < len(tried) < len(ranking) and tried == set(list(ranking)[: len(tried)])
    assert outcome.tuned[-1].problem == huge


@SLOW
def test_a_problem_that_does_not_fit_the_device_is_left_out(evaluator, go, monkeypatch):
    whole = evaluator.operands

    def operands(problem):
        if problem == pipelined.HUGE[0]:
            raise DeviceMemoryError("no room for 3 GB")
        return whole(problem)

    monkeypatch.setattr(evaluator, "operands", operands)
    outcome = go(None, rung="pipelined")
    assert [found.problem for found in outcome.tuned] == [*standard_set.STANDARD, *pipelined.BATCHES]
    assert outcome.curves and any("no room" in failure for failure in outcome.failures)


def worthy(space, problem):
    """The candidates that are worth compiling for a problem on the device of the fake evaluator."""
    seen = variants.with_swap_ab(rungs.find(space.rung), problem)
    drawn = (c for c in of_space(space, DEVICE.shared_limit) if space.worth_trying(c, problem, LIMITS))
    return {*of_suitable_size([*drawn], seen, DEVICE.multiprocessors)}


def wholly_searched(space, problem, drawn):
    """Whether all candidates are to be tried: on anchors, and on short problems that the anchors' kernels serve."""
    rung = rungs.find(space.rung)
    at_hand = {job_of("sm_90", rung, c, anchor) for anchor in space.anchors for c in worthy(space, anchor)}
    served = all(job_of("sm_90", rung, config, problem) in at_hand for config in drawn)
    return problem in space.anchors or (served and problem.flops <= MOST_FLOPS_OF_SHORT)


def test_the_whole_space_is_searched_on_the_anchors_and_where_that_compiles_nothing(evaluator, go):
    go(None, rung="autotuned")
    found = set()
    for problem in standard_set.STANDARD:
        drawn = worthy(AUTOTUNED, problem)
        tried = {config for timed, config in evaluator.timed if timed == problem}
        assert (tried >= drawn) == wholly_searched(AUTOTUNED, problem, drawn)
        found.add((problem in standard_set.ANCHORS, tried >= drawn))
    assert found == {(True, True), (False, True), (False, False)}


@SLOW
def test_where_kernels_serve_nothing_else_the_best_of_the_nearest_anchor_are_tried(evaluator, go):
    nearest = {
        Problem(4096, 4096, 4096, "TT"): Problem(4096, 4096, 4096),
        Problem(2047, 1025, 511): Problem(2048, 2048, 2048),
        Problem(333, 777, 555): Problem(512, 512, 512),
    }
    assert set(nearest) <= set(PIPELINED.variants)
    go(None, rung="pipelined")
    for variant, anchor in nearest.items():
        drawn = worthy(PIPELINED, anchor)
        tried = {base_config(config) for problem, config in evaluator.timed if problem == variant}
        rung = rungs.find("pipelined")
        filling = {config: with_filling_split(rung, config, anchor, DEVICE.multiprocessors) for config in drawn}
        order = sorted(drawn, key=lambda config: evaluator.formula(filling[config], anchor))
        assert set(order[: len(order) // 6]) <= tried
        slow = set(order[len(order) // 2 :])
        assert len(slow & tried) < len(slow) / 3, (len(slow & tried), len(slow))  # as refinements of quick ones


def test_a_config_that_fails_on_a_probe_gets_no_curve(evaluator, data_folder):
    bad = QUICK["pipelined"][0]
    real = evaluator.time

    def time(rung, config, problem):
        if config == bad and problem.K == 128 + 4:
            return "launch failed"
        return real(rung, config, problem)

    evaluator.time = time
    assert [curve.config for curve in measure_curves(evaluator).curves] == [*QUICK["pipelined"][1:4]]


@pytest.mark.slow
def test_rung_10_has_a_standard_set_and_anchors_of_its_own(evaluator, go):
    outcome = go(None, rung="skinny")
    assert [found.problem for found in outcome.tuned] == [*skinny.NARROW, *skinny.NARROW_BATCHES]
    assert outcome.complete and 0 < len(outcome.curves) <= 24
    assert faults_of_file(outcome.path.read_text(), "sm_90") == []
    rung = rungs.find("skinny")
    assert choose_config(evaluator.device, rung, Problem(1111, 7, 333)).rule == PREDICTED
    assert choose_config(evaluator.device, rung, skinny.NARROW[0]).rule == EXACT
    searched, wholly = set(), set()
    for problem in skinny.NARROW:
        tried = {replace(config, SPLIT_K=1) for timed, config in evaluator.timed if timed == problem}
        drawn = worthy(SKINNY, problem)
        searched |= {problem} if tried >= drawn else set()
        wholly |= {problem} if wholly_searched(SKINNY, problem, drawn) else set()
    # The anchors of its layout lack two of its tiles, which are among the best of the dot products.
    assert searched == wholly | {Problem(1, 1024, 1024)}
    assert len(searched) < len(skinny.NARROW)


@pytest.mark.parametrize(("problem", "fits"), [
    (Problem(4224, 4096, 64), True), (Problem(4225, 4096, 64), False),  # 2112 tiles of 64 x 128 are 16 for each of 132
    (Problem(17, 33, 64), True), (Problem(16, 33, 64), False), (Problem(17, 32, 64), False),
], ids=str)  # fmt: skip
def test_what_is_compiled_for_an_anchor_has_tiles_of_about_its_size(problem, fits):
    others = [replace(MEDIUM, BM=16, BN=16), replace(MEDIUM, BM=128, BN=128)]  # one of which fits where it does not
    assert (MEDIUM in of_suitable_size([MEDIUM, *others], problem, 132)) is fits


@pytest.mark.parametrize(
    ("batch", "sides"), [(1, {16, 32, 64}), (131, {16, 32, 64}), (132, {16, 32}), (9999, {16, 32})]
)
def test_a_tile_is_less_than_twice_a_product_of_a_batch_that_fills_the_device(batch, sides):
    """Not smaller for the number of products: the tiles of one count."""
    drawn = of_suitable_size(of_space(PIPELINED, DEVICE.shared_limit), Problem(20, 20, 64, batch=batch), 132)
    assert max(max(config.BM, config.BN) for config in drawn) == max(sides)
    picked = database.candidates("pipelined", "picked")
    grid = [config for config in drawn if config not in picked]  # whose sides are powers of two
    assert {config.BM for config in grid} == {config.BN for config in grid} == sides


def test_where_no_tile_is_of_about_its_size_the_nearest_are_tried(evaluator, go):
    small, same = replace(MEDIUM, BM=32, BN=32), replace(MEDIUM, BM=128, BN=64)
    assert of_suitable_size([small, MEDIUM, same], Problem(16384, 16384, 64), 132) == [MEDIUM, same]
    assert of_suitable_size([small, MEDIUM, same], Problem(4, 4, 64), 132) == [small]
    assert of_suitable_size([], Problem(4, 4, 64), 132) == []
    problem = Problem(30000, 30000, 64)
    go([problem], rung="pipelined", store=False)
    tried = {(config.BM, config.BN) for timed, config in evaluator.timed if timed == problem}
    assert tried and min(BM * BN for BM, BN in tried) > 64 * 64


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("quick", [False, True])
def test_large_tiles_are_tried_in_every_layout_and_no_kernel_twice(evaluator, go, layout, quick):
    """Where no operand's k is contiguous, TN, CP_ASYNC of 2 and 3 do what CP_ASYNC = 1 does."""
    go([(4096, 4096, 4096, layout)], rung="pipelined", quick=quick)
    tried = {replace(config, SPLIT_K=1) for _, config in evaluator.timed}
    for area in (8192, 32768) if quick else (16384, 32768):
        assert any(area == config.BM * config.BN for config in tried)
    twins = [(c, less) for c in tried for less in range(1, c.CP_ASYNC) if replace(c, CP_ASYNC=less) in tried]
    assert layout != "TN" or twins == []


@pytest.mark.parametrize(("cublas_error", "chains"), [(1.0, {1}), (1e-9, {8})], ids=["as good", "much worse"])
def test_sums_are_made_of_short_chains_where_cublas_errs_less(evaluator, go, cublas_error, chains):
    """Not where it errs as much, and then the choice is by time alone."""
    evaluator.cublas_error = cublas_error
    outcome = go([(4096, 4096, 4096)], rung="pipelined")
    (found,) = outcome.tuned
    assert {found.config.PARTIAL_ACCUMULATORS} == chains


def test_configs_with_short_chains_are_looked_at_however_many_quicker_ones_err_more(evaluator, go):
    """Without them in the end the quickest config would get chains that it may not be quick with."""
    evaluator.cublas_error = 1e-9
    real = evaluator.formula

    def short(config):
        return config.SLICED_K * config.SPLIT_K >= 2  # as this problem needs

    evaluator.formula = lambda config, problem: (
        real(config, problem) * (100.0 if config.PARTIAL_ACCUMULATORS > 1 else 1.2 if short(config) else 1.0)
    )
    outcome = go([(512, 512, 512)], rung="pipelined")
    (found,) = outcome.tuned
    assert found.config.PARTIAL_ACCUMULATORS == 1 and short(found.config)


def test_without_cublas_the_length_of_k_decides(evaluator, go):
    evaluator.formula = lambda config, _: config.SLICED_K * config.SPLIT_K  # without these a sum is one chain
    long, short = go([(4096, 4096, 2048, "TN"), (4096, 4096, 128, "TN")], rung="pipelined").tuned
    needed = chains_needed(long.problem.K)
    one = long.config
    assert one.PARTIAL_ACCUMULATORS == -(-needed // (one.SLICED_K * one.SPLIT_K)) > 1
    assert short.config.PARTIAL_ACCUMULATORS == 1


def test_a_run_that_ends_while_it_times_partial_accumulators_stores_nothing_slower(
    evaluator, go, data_folder, monkeypatch
):
    """The config on record is accurate and may not have been timed again by then."""
    problem = Problem(1024, 1024, 16384)
    path = go([problem], rung="pipelined").path
    before, text = evaluator.formula(record_of(evaluator, problem), problem), path.read_text()
    ends, began, put = [], evaluator.now, Checkpoint.put

    def noted(self, asked, rung, config, turn, result):
        if turn.startswith("accumulators"):
            ends.append(evaluator.now - began)
        put(self, asked, rung, config, turn, result)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "put", noted)
        go([problem], rung="pipelined", quick=True)
    assert ends
    for budget in ends:
        path.write_text(text)
        database.forget()
        checkpoint(data_folder).unlink(missing_ok=True)
        go([problem], rung="pipelined", quick=True, budget=budget - 1e-9)
        assert evaluator.formula(record_of(evaluator, problem), problem) <= before


def record_of(evaluator, problem):
    """Return the config on record for a problem on rung 9 of this device."""
    chosen = choose_config(evaluator.device, rungs.find("pipelined"), problem)
    assert chosen.rule == EXACT and chosen.evidence.device == evaluator.device.name
    return chosen.config


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((1, 500), {1}), ((500, 1), {1}), ((4, 500), {1, 2, 4}), ((5, 500), {2, 4, 8}), ((500, 16), {4, 8, 16}),
     ((32, 500), {8, 16, 32}), ((500, 500), {8, 16, 32})],
    ids=str,
)  # fmt: skip
def test_a_block_of_rung_10_has_about_as_many_rows_as_there_are(shape, rows):
    tried = [c for c in of_space(SKINNY, 232448) if SKINNY.worth_trying(c, Problem(*shape, 1000), LIMITS)]
    assert {config.BM for config in tried} == rows
    assert all(PIPELINED.worth_trying(config, Problem(*shape, 1000), LIMITS) for config in QUICK["pipelined"])


@pytest.mark.parametrize(("problem", "small"), [(Problem(1024, 1024, 64), True), (Problem(4096, 4096, 64), False)])
def test_sliced_k_is_tried_on_a_large_c_only_with_many_results_a_thread(problem, small):
    few = PipelinedConfig(32, 32, 32, 4, 4, 16, 32, 1, SLICED_K=2)  # 16 results a thread
    many = PipelinedConfig(48, 128, 16, 4, 4, 48, 64, 2, SLICED_K=2)  # 96
    assert [PIPELINED.worth_trying(config, problem, LIMITS) for config in (few, many)] == [small, True]


def test_the_default_of_a_tuned_device_is_the_quicker_rung(evaluator, go):
    go(None, quick=True)
    for problem in (Problem(4, 4096, 4096), Problem(1000, 20, 3000, "NT"), Problem(3000, 3000, 100)):
        both = [
            choose_config(evaluator.device, rung, problem)
            for rung in rungs.DEFAULTS
            if rung.suits(problem.M, problem.N)
        ]
        chosen = choose_config(evaluator.device, None, problem)
        assert chosen.rule == PREDICTED or problem in skinny.NARROW + standard_set.STANDARD
        assert chosen.ms == min(choice.ms for choice in both if choice.rule == chosen.rule)


def divided(config, problem):
    """The config with many values of SPLIT_K, whether they are worth a trial or not."""
    if "SPLIT_K" not in config.declared():
        return [config]
    return [replace(config, SPLIT_K=2**power) for power in range(10)]


def test_a_portfolio_counts_a_config_by_its_best_division():
    a, b = QUICK["pipelined"][:2]
    times = {replace(a, SPLIT_K=1): 4.0, replace(a, SPLIT_K=4): 1.0, replace(b, SPLIT_K=1): 2.0}
    assert portfolio([Result(None, times, {}, None, True)], 1) == [a]
    assert set(portfolio([Result(None, times, {}, None, True)], 9)) == {a, b}


def test_a_portfolio_covers_every_problem_first():
    a, b, c, d = QUICK["warptiled"][:4]

    def result(**times):
        named = dict(zip("abcd", (a, b, c, d), strict=True))
        return Result(None, {named[name]: ms for name, ms in times.items()}, {}, None, True)

    results = [result(a=1.0, b=1.9, c=1.5, d=1.01), result(a=2.0, b=1.0, c=1.5, d=2.0)]
    assert set(portfolio(results, 2)) == {a, b}
    assert portfolio(results, 9)[2] in (c, d)
    assert len(portfolio(results, 9)) == 4
    assert portfolio([], 9) == []


def test_a_portfolio_starts_over_where_few_configs_were_timed_on_the_first_problem():
    a, b, c, d, e = QUICK["warptiled"][:5]
    tables = [{a: 1.0}, {b: 1.0, c: 1.3, d: 1.1, e: 1.2}]
    results = [Result(None, times, {}, None, True) for times in tables]
    assert portfolio(results, 9)[2:] == [d, e, c]


# Budget, interruption, resumption


@SLOW
@pytest.mark.parametrize(
    ("shapes", "budget"), [(None, 25), (None, 40), *((THREE_SHAPES, seconds) for seconds in (6, 20))], ids=str
)
def test_a_budget_is_kept_and_everything_gets_its_share(evaluator, go, budget, shapes):
    outcome = go(shapes, budget=budget)
    assert evaluator.now < budget + 0.5 and not outcome.complete
    expected = {"pipelined", "warptiled", "autotuned"} | ({"skinny"} if shapes is None else set())
    assert {found.rung for found in outcome.tuned} == expected
    tuned = {found.problem for found in outcome.tuned if found.rung == "pipelined"}
    assert len(tuned) >= 0.6 * len(standard_set.STANDARD if shapes is None else shapes)
    assert "run the same command again to resume" in str(outcome)


@SLOW
def test_with_a_budget_all_anchors_get_their_share(evaluator, go):
    outcome = go(None, rung="pipelined", budget=60, store=False)
    assert not outcome.complete
    tried = {problem: len({c for timed, c in evaluator.timed if timed == problem}) for problem in PIPELINED.variants}
    assert min(tried.values()) >= 20, tried


@SLOW
def test_where_the_nearest_anchor_gave_nothing_another_one_says_what_to_try(evaluator, go, monkeypatch):
    whole = evaluator.operands
    square = Problem(4096, 4096, 4096)

    def operands(problem):
        if problem == square:
            raise DeviceMemoryError("no room")
        return whole(problem)

    monkeypatch.setattr(evaluator, "operands", operands)
    go(None, rung="pipelined", store=False)
    tried = {base_config(c) for timed, c in evaluator.timed if timed == replace(square, layout="TT")}
    assert len(tried & worthy(PIPELINED, square)) > 80


@SLOW
@pytest.mark.parametrize(
    ("how", "budget"),
    [
        ({"quick": True}, tuner.QUICK_SECONDS),
        ({"quick": True, "shapes": standard_set.STANDARD}, tuner.QUICK_SECONDS),
        ({}, tuner.STANDARD_SECONDS),
    ],
)
def test_a_quick_run_and_the_standard_set_have_budgets_of_their_own(evaluator, data_folder, how, budget):
    evaluator.formula = lambda config, problem: 300.0
    outcome = tuner.run_plan(plan_run(evaluator.device, **how), evaluator, Bar(False))
    assert evaluator.now < budget + 3 and not outcome.complete


def test_problems_that_were_named_take_the_time_that_they_need(evaluator, go):
    evaluator.formula = lambda config, problem: 3000.0
    outcome = go(THREE_SHAPES, rung="autotuned")
    assert evaluator.now > tuner.STANDARD_SECONDS and outcome.complete


def test_a_run_without_time_for_the_config_on_record_leaves_the_record(evaluator, go):
    """What it has timed by then may be slower."""
    (full,) = go(rung="pipelined").tuned
    formula = evaluator.formula
    evaluator.formula = lambda config, problem: 50 * formula(config, problem)
    for tenths in range(2, 40, 12):
        with suppress(TuningError):  # no problem could be tuned
            go(rung="pipelined", budget=tenths / 10)
        chosen = choose_config(evaluator.device, rungs.find("pipelined"), Problem(1024, 1024, 1024))
        assert formula(chosen.config, Problem(1024, 1024, 1024)) <= full.ms


def measure_curves(evaluator, seconds=math.inf):
    """Measure the curves of a few configs as a run that has so much time left, and store them."""
    outcome, plan = Outcome(evaluator.device, evaluator.tools), plan_run(evaluator.device, rung=9)
    sweep = Sweep(evaluator, Checkpoint(None, {}), Bar(False), evaluator.now + seconds)
    RungTuning(plan, plan.spaces[0], sweep, outcome).measure_curves(QUICK["pipelined"][:4])
    database.save(outcome.content)
    return outcome


def test_curves_of_a_run_without_time_take_no_place_of_better_ones(evaluator, data_folder):
    """They are fewer, or are not calibrated."""

    def stored():
        return database.own("sm_90").curves

    before = evaluator.now
    assert measure_curves(evaluator).complete
    spent, full = evaluator.now - before, stored()
    assert len(full) == 4
    for share in (0.3, 0.6, 0.9, 0.99):
        assert not measure_curves(evaluator, share * spent).complete
        assert stored() == full
    evaluator.formula = lambda config, problem: 1.0
    assert measure_curves(evaluator).complete
    assert len(stored()) == 4 and stored() != full


def test_a_curve_needs_the_kernel_with_partial_accumulators_and_counts_its_blocks(evaluator, data_folder):
    """Not where slices make four chains."""
    configs = QUICK["pipelined"][:4]
    assert {config.SLICED_K for config in configs} == {1, 2, 4}
    evaluator.blocks_per_sm = lambda job: 3 - (job.config.PARTIAL_ACCUMULATORS > 1)
    counted = {curve.config: curve.blocks_per_sm for curve in measure_curves(evaluator).curves}
    assert counted == {config: 3 if config.SLICED_K == 4 else 2 for config in configs}
    evaluator.compile_failures |= {config.replace(PARTIAL_ACCUMULATORS=2): "spills 8 bytes" for config in configs}
    left = {curve.config for curve in measure_curves(evaluator).curves}
    assert left == {config for config in configs if counted[config] == 3}


def test_ctrl_c_keeps_everything_and_the_next_run_goes_on(evaluator, go, data_folder):
    evaluator.interrupt_after = 400
    with pytest.raises(KeyboardInterrupt):
        go((SHAPE, "256,256,256"), rung="autotuned")
    assert checkpoint(data_folder).exists()
    first = len(evaluator.timed)
    evaluator.interrupt_after = None
    resumed = go((SHAPE, "256,256,256"), rung="autotuned")
    total = len(evaluator.timed)
    evaluator.timed = []
    whole = go((SHAPE, "256,256,256"), rung="autotuned")
    assert total <= len(evaluator.timed) + 10  # but for the runs that warm up
    assert [(found.config, found.ms) for found in resumed.tuned] == [(found.config, found.ms) for found in whole.tuned]
    assert first < total


def test_what_was_finished_before_ctrl_c_is_stored(evaluator, go):
    calls = []
    baseline = type(evaluator).operands

    def operands(problem):
        calls.append(problem)
        if problem.M == 256:
            raise KeyboardInterrupt
        return baseline(evaluator, problem)

    evaluator.operands = operands
    with pytest.raises(KeyboardInterrupt):
        go((SHAPE, "256,256,256"), rung="autotuned")
    stored = [record.problem for record in database.own("sm_90").records]
    assert stored == [Problem(1024, 1024, 1024)]


def test_an_interrupted_run_says_that_it_resumes(evaluator, go, data_folder, capsys):
    evaluator.interrupt_after = 100
    with pytest.raises(KeyboardInterrupt):
        go(rung="autotuned")
    evaluator.interrupt_after = None
    tuner.run_plan(plan_run(evaluator.device, [SHAPE], rung="autotuned"), evaluator, Bar(True))
    assert "resuming from" in capsys.readouterr().err


@pytest.mark.parametrize("changed", [False, True], ids=["same kernels", "other kernels"])
def test_a_checkpoint_is_used_with_the_same_kernels_only(evaluator, go, monkeypatch, tmp_path, capsys, changed):
    evaluator.interrupt_after = 100
    with pytest.raises(KeyboardInterrupt):
        go(rung="autotuned")
    evaluator.interrupt_after = None
    if changed:
        real, folder = resources.folder, tmp_path / "cuda_src"
        folder.mkdir()
        (folder / "06_vectorized.cu").write_text("// faster")
        monkeypatch.setattr(resources, "folder", lambda name: folder if name == "cuda_src" else real(name))
    planned = plan_run(evaluator.device, [SHAPE], rung="autotuned")
    tuner.run_plan(planned, evaluator, Bar(True))
    assert ("resuming from" in capsys.readouterr().err) is not changed


def test_a_folder_that_cannot_be_written_is_an_error_of_ours(evaluator, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTSGEMM_DATA_DIR", str(tmp_path / "file"))
    with pytest.raises(TuningError, match="FASTSGEMM_DATA_DIR"), tuner.exclusive_lock(evaluator.device):
        pass
    with pytest.raises((RecordError, TuningError), match="FASTSGEMM_DATA_DIR"):
        tuner.run_plan(plan_run(evaluator.device, [SHAPE]), evaluator, Bar(False))


def test_a_file_system_without_locks_is_an_error_of_ours(evaluator, data_folder, monkeypatch):
    """So a first call on an unknown device warns, and goes on with the generic configs."""

    def missing(*_):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr("filelock.FileLock.acquire", missing)
    with pytest.raises(TuningError, match="FASTSGEMM_DATA_DIR"), tuner.exclusive_lock(evaluator.device):
        pass
    with pytest.raises(RecordError, match="FASTSGEMM_DATA_DIR"):
        database.save(Outcome(evaluator.device, evaluator.tools).content)


def test_one_tuner_at_a_time(evaluator, data_folder):
    second = tuner.exclusive_lock(evaluator.device)
    with (
        tuner.exclusive_lock(evaluator.device),
        pytest.raises(TuningError, match="another process is tuning Fake 9000"),
        second,
    ):
        pass
    with tuner.exclusive_lock(evaluator.device):
        pass


# The function


def test_the_function_tunes(evaluator, data_folder, monkeypatch):
    from contextlib import contextmanager

    @contextmanager
    def on_fake(gpu):
        yield evaluator

    monkeypatch.setattr("fastsgemm.device.open_gpu", lambda ordinal: None)
    monkeypatch.setattr(tuner, "evaluating", on_fake)
    outcome = fastsgemm.tune([(1024, 1024, 1024)], rung="autotuned", quick=True, progress=False)
    assert len(outcome.tuned) == 1 and outcome.path.exists()


def test_without_a_driver_the_function_says_so(no_driver):
    with pytest.raises(fastsgemm.NoDriverError):
        fastsgemm.tune(quick=True)


def test_every_parameter_is_documented():
    text = inspect.getdoc(fastsgemm.tune)  # Python 3.13 removes the indentation, older versions do not
    assert all(f"\n{name} : " in text for name in inspect.signature(fastsgemm.tune).parameters)


def test_a_run_warns_of_nothing(go):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        go(rung="autotuned", quick=True)


def test_a_winner_does_not_spill_on_other_operands_either(evaluator, go):
    pipelined, problem = rungs.find("pipelined"), Problem(1024, 1024, 1024)
    found = go((problem,), rung="pipelined", store=False)
    times = list(found.timed["pipelined", problem])
    best, second = times[0], next(config for config in times if config.kernel != times[0].kernel)
    assert found.tuned[0].config == best
    whole = evaluator.check
    evaluator.check = lambda job: "it spills" if job == largest_job(pipelined, best) else whole(job)
    assert go((problem,), rung="pipelined", store=False).tuned[0].config == second
