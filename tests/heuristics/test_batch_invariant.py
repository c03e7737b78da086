"""Which config a problem gets with ``batch_invariant=True``."""

import itertools
from dataclasses import replace

import entries
import pytest
from msgspec import structs
from msgspec.structs import replace as replace_struct

from fastsgemm import explain, rungs
from fastsgemm.config import (
    SEGMENT,
    F16DirectConfig,
    Fp16x3Config,
    Fp16x3MmaConfig,
    PipelinedConfig,
    SkinnyInOrderConfig,
)
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import ConfigError
from fastsgemm.geometry import variants
from fastsgemm.geometry.variants import dense_operands
from fastsgemm.heuristics import database
from fastsgemm.heuristics.alternatives import Search
from fastsgemm.heuristics.choice import EXACT, GIVEN, NEAREST, PREDICTED, choose
from fastsgemm.heuristics.database_entries import Content, points_of
from fastsgemm.heuristics.device_database import device_database
from fastsgemm.problem import DTYPES, LAYOUTS, Problem, as_data
from fastsgemm.request import Request, resolve

H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
PIPELINED = rungs.RUNGS[8]
SLICED = PipelinedConfig(32, 32, 64, 4, 4, 16, 32, 1, SLICED_K=4)


def pick(device, problem, rung=None):
    return Search(device_database(device), Request(rung, batch_invariant=True)).pick(problem)


def file_of(choice, arch="sm_90"):
    return database.origin_of(choice.evidence, arch)[0]


def options(device, problem):
    return Search(device_database(device), Request(None, batch_invariant=True)).ranking(problem)


def test_a_tuned_problem_gets_its_record():
    choice = pick(H200, Problem(4096, 4096, 4096))
    record = next(
        one
        for one in database.load("sm_90").records
        if one.rung == "pipelined" and one.config.segment and one.problem == Problem(4096, 4096, 4096)
    )
    assert (choice.rule, choice.evidence, choice.ms) == (EXACT, record, record.ms)
    assert choice.config == record.config and choice.config.segment == SEGMENT


@pytest.mark.parametrize("name", ["NVIDIA H200", "another sm_90"])
def test_another_problem_is_predicted_from_curves_of_configs_that_can_sum_in_order(name):
    device = DeviceInfo(name, "sm_90", 232448, 120)
    for extents in ((4000, 4000, 4000), (2, 5000, 5000), (300, 300, 30000), (300, 300, 300)):
        choice = pick(device, Problem(*extents))
        assert choice.rule == PREDICTED and choice.ms > 0
        ranked = options(device, Problem(*extents))
        assert ranked[0].config == choice.config
        for option in ranked:
            assert PIPELINED.violations(option.config, device.shared_limit) == []
            assert (option.config.SLICED_K, option.config.PARTIAL_ACCUMULATORS) == (1, 1)


def test_k_is_shared_out_where_c_has_few_tiles_and_not_where_it_has_many():
    assert pick(H200, Problem(130, 130, 30000)).config.split_k > 1
    assert pick(H200, Problem(5000, 5000, 5000)).config.split_k == 1


def test_one_segment_needs_no_shared_memory_for_sums():
    config = pick(H200, Problem(5000, 5000, SEGMENT)).config
    assert config.shared_bytes == config.replace(SEGMENT=0).shared_bytes


def test_a_curve_that_lacks_points_is_one_warning_and_left_out(data_folder):
    whole, broken = [one for one in database.load("sm_90").curves if one.config.segment][:2]
    mine = [
        structs.replace(whole, device="Fake 9000"),
        structs.replace(broken, device="Fake 9000", points=points_of([*broken.times.items()][2:])),
    ]
    database.save(Content("sm_90", 232448, (), tuple(mine)))
    device = DeviceInfo("Fake 9000", "sm_90", 232448, 132)
    with pytest.warns(RuntimeWarning, match="a curve of Fake 9000 is left out: the curve has no time for"):
        choice = pick(device, Problem(4000, 4000, 4000))
    assert choice.evidence == mine[0] and len(options(device, Problem(4000, 4000, 4000))) == 1


@pytest.mark.parametrize(("extents", "parts"), [((1, 4000, 5000), 1), ((5000, 1, 3000), 1), ((1, 1, 999_000), 2)])
def test_one_row_or_column_gets_rung_10_where_it_was_measured(extents, parts):
    choice = pick(H200, Problem(*extents))
    assert (choice.rung, choice.rule, file_of(choice)) == (rungs.SKINNY_IN_ORDER, NEAREST, "sm_90")
    assert choice.config.split_k == parts
    assert pick(H200, Problem(2, 4000, 5000)).rung is PIPELINED
    elsewhere = structs.replace(H200, name="an A100", arch="sm_80")
    assert pick(elsewhere, Problem(*extents)).rung is PIPELINED


def test_a_device_without_records_of_rung_10_uses_it_where_it_is_named():
    choice = pick(DeviceInfo("a T4", "sm_75", 65536, 40), Problem(9, 9, 9), rungs.SKINNY_IN_ORDER)
    assert (choice.rung, choice.rule, file_of(choice, "sm_75")) == (rungs.SKINNY_IN_ORDER, NEAREST, "generic")


def test_a_problem_that_was_tuned_on_rung_10_gets_its_record(data_folder):
    config = SkinnyInOrderConfig(1, 16, 64, 2, 3)
    mine = entries.measured("skinny_in_order", config, Problem(1, 4096, 4096), 0.02, device=H200.name)
    database.save(Content("sm_90", 232448, (mine,)))
    choice = pick(H200, Problem(1, 4096, 4096))
    assert (choice.rule, choice.config, choice.ms) == (EXACT, config, 0.02)


@pytest.mark.parametrize("rung", [PIPELINED, rungs.SKINNY_IN_ORDER], ids=str)
def test_a_record_of_a_batch_is_of_no_batch_of_another_size(data_folder, rung):
    config = {
        "pipelined": SLICED.replace(SLICED_K=1, SEGMENT=SEGMENT),
        "skinny_in_order": SkinnyInOrderConfig(1, 16, 64, 2, 3),
    }
    device, problem = DeviceInfo("a T4", "sm_75", 65536, 40), Problem(1, 64, 64, batch=8)
    mine = entries.measured(rung.name, config[rung.name], problem, 0.02, device=device.name)
    database.save(Content("sm_75", 65536, (mine,)))
    found = {count: pick(device, replace(problem, batch=count), rung) for count in (7, 8, 1)}
    rule, file = (PREDICTED, "sm_90") if rung is PIPELINED else (NEAREST, "generic")
    assert {count: choice.rule for count, choice in found.items()} == {7: rule, 8: EXACT, 1: rule}
    files = {count: file_of(choice, "sm_75") for count, choice in found.items()}
    assert files == {7: file, 8: "sm_75", 1: file}


def test_of_no_times_the_nearest_record_of_as_many_products_is_taken(data_folder):
    device, problem = DeviceInfo("a T4", "sm_75", 65536, 40), Problem(1, 64, 64, batch=8)
    config = SkinnyInOrderConfig(1, 16, 64, 2, 3)
    mine = entries.measured("skinny_in_order", config, problem, 0.02, device=device.name)
    database.save(Content("sm_75", 65536, (mine,)))
    assert pick(device, replace(problem, K=65), rungs.SKINNY_IN_ORDER).evidence.problem == problem


def test_an_unknown_architecture_is_predicted_from_curves_that_were_measured_for_one_order():
    device = DeviceInfo("a T4", "sm_75", 65536, 40)
    choice = pick(device, Problem(4096, 4096, 4096))
    assert (choice.rule, file_of(choice, "sm_75")) == (PREDICTED, "sm_90")
    assert PIPELINED.violations(choice.config, 64 * 1024) == []


def test_curves_of_this_very_device_that_were_measured_for_no_order_come_after_those_for_one(data_folder):
    """Else a device that was tuned would choose among configs that no one measured for this."""
    whole = next(one for one in database.load("sm_90").curves if one.rung == "pipelined" and not one.config.segment)
    database.save(Content("sm_90", 232448, (), (structs.replace(whole, device="Fake 9000"),)))
    device = DeviceInfo("Fake 9000", "sm_90", 232448, 132)
    assert Search(device_database(device), Request(None)).pick(Problem(4000, 4000, 4000)).evidence.device == "Fake 9000"
    assert pick(device, Problem(4000, 4000, 4000)).evidence.device == "NVIDIA H200"


def test_no_legal_record_is_an_error():
    with pytest.raises(ConfigError, match=r"no record of rung pipelined is legal with 16 bytes .*; name a config"):
        pick(DeviceInfo("tiny", "sm_75", 16, 4), Problem(64, 64, 64))


def test_explain_says_which_config_it_is():
    found = explain(4096, 4096, 4096, device="NVIDIA H200", batch_invariant=True)
    assert found.rung == "pipelined" and "SEGMENT=1024" in str(found)


TENSOR_CORES = resolve(precision="fp16x3", batch_invariant=True)


def explained(problem, device="NVIDIA H200"):
    data = as_data(problem)
    return explain(**data, device=device, precision="fp16x3", batch_invariant=True)


@pytest.mark.parametrize("dtypes", ["f32xf32", "bf16xbf16", "bf16xf32", "bf16xf16"])
@pytest.mark.parametrize("device", ["NVIDIA H200", "A100", "4090"])
@pytest.mark.parametrize("K", [32, 255, 256, 8192, 8193, 20000])
def test_on_tensor_cores_chains_and_parts_depend_on_k_alone(dtypes, device, K):
    found = set()
    for M, N, layout, batch in itertools.product((1, 7, 64, 4096), (1, 33, 2048), LAYOUTS, (1, 8)):
        chosen = explained(Problem(M, N, K, layout, batch, dtypes=DTYPES[dtypes]), device).choice
        assert chosen.tensor_cores and not chosen.triangle
        found.add((type(chosen.config), chosen.config.SPLIT_K, getattr(chosen.config, "PROMOTE_STAGES", None)))
    ((kind, parts, stages),) = found
    direct = dtypes == "bf16xbf16" and device == "NVIDIA H200"
    assert kind is (F16DirectConfig if direct else Fp16x3Config if device == "NVIDIA H200" else Fp16x3MmaConfig)
    assert parts == (1 if direct else -(-K // 8192))
    assert stages == (None if kind is not Fp16x3Config else 2 if K >= 256 else 1)


def test_few_steps_of_k_are_left_to_the_order_of_ieee():
    for M, batch in ((1, 1), (4096, 1), (1, 5000)):
        found = explained(Problem(M, 64, 31, batch=batch))
        assert found.choice.config.segment == SEGMENT and "fewer" not in found.choice.why
    assert explained(Problem(1, 64, 32, batch=5000)).choice.tensor_cores


def test_a_device_without_tensor_cores_of_this_kind_sums_in_the_order_of_ieee():
    assert explained(Problem(64, 64, 500), "T4").choice.config.segment == SEGMENT


def test_a_config_gets_the_chains_and_the_parts_of_k():
    given = Fp16x3Config(64, 32, PROMOTE_STAGES=1, STAGES=5, SPLIT_K=3)
    problem = Problem(64, 64, 10000)
    chosen = choose(H200, replace_struct(TENSOR_CORES, config=given, rung=rungs.RUNGS[10]), *dense_operands(problem))
    assert chosen.config == given.replace(PROMOTE_STAGES=2, SPLIT_K=2)
    halves = replace(problem, layout="NT", dtypes=DTYPES["bf16xbf16"])
    for config, of in ((given, halves), (F16DirectConfig(), replace(problem, dtypes=DTYPES["bf16xf32"]))):
        request = replace_struct(TENSOR_CORES, config=config, rung=rungs.RUNGS[10])
        with pytest.raises(ConfigError, match=r"batch_invariant=True: .* another order|is for operands of"):
            choose(H200, request, *dense_operands(of))


def test_a_symmetric_result_of_pairs_is_computed_as_a_whole():
    assert not explained(Problem(300, 300, 500, "NT", symmetric=True)).choice.triangle
    assert explained(Problem(300, 300, 500, "NT", symmetric=True, dtypes=DTYPES["bf16xbf16"])).choice.triangle


@pytest.mark.parametrize("rung", ["naive", "warptiled", "skinny"])
def test_other_rungs_are_refused(rung):
    with pytest.raises(ConfigError, match=f"needs rung 9 pipelined or skinny_in_order, got .*{rung}"):
        rungs.batch_invariant(rungs.find(rung), None, "ieee")


def test_the_class_of_a_config_says_which_rung_it_is_for():
    skinny = SkinnyInOrderConfig(1, 32, 32, 4, 4)
    for rung in (None, rungs.SKINNY_IN_ORDER):
        assert rungs.batch_invariant(rung, skinny, "ieee") == (rungs.SKINNY_IN_ORDER, skinny)
    assert rungs.batch_invariant(rungs.SKINNY_IN_ORDER, None, "ieee") == (rungs.SKINNY_IN_ORDER, None)
    for rung in (None, PIPELINED):
        assert rungs.batch_invariant(rung, None, "ieee") == (rung, None)
        assert rungs.batch_invariant(rung, SLICED, "ieee") == (PIPELINED, SLICED.replace(SEGMENT=SEGMENT))
    assert pick(H200, Problem(1, 4096, 4096), PIPELINED).config.split_k == 2
    assert explain(1, 4096, 4096, rung="pipelined", device="sm_90", batch_invariant=True).rung == "pipelined"
    found = rungs.SKINNY_IN_ORDER.violations(skinny.replace(SPLIT_K=2), 232448)
    assert "WARPS must be 1 where SPLIT_K" in str(found[0])


@pytest.mark.parametrize(("K", "parts"), [(SEGMENT, 2), (SEGMENT + 1, 1)])
def test_the_callers_config_gets_segments_where_the_call_is_batch_invariant_and_only_there(K, parts):
    config = SLICED.replace(SLICED_K=1)
    for in_order, expected in ((False, config), (True, config.replace(SEGMENT=SEGMENT, SPLIT_K=parts))):
        request = resolve(config=config, batch_invariant=in_order)
        chosen = choose(H200, request, *variants.dense_operands(Problem(512, 512, K)))
        assert (chosen.rule, chosen.config) == (GIVEN, expected)


def test_configs_that_add_in_another_order_are_refused():
    with pytest.raises(ConfigError, match="needs a PipelinedConfig or a SkinnyInOrderConfig, got a SkinnyConfig"):
        rungs.batch_invariant(None, rungs.find("skinny").config(1, 32, 256, 4, 8), "ieee")
    with pytest.raises(ConfigError, match="rung skinny_in_order needs a SkinnyInOrderConfig, got a PipelinedConfig"):
        rungs.batch_invariant(rungs.SKINNY_IN_ORDER, SLICED, "ieee")
    rung, config = rungs.batch_invariant(rungs.find(9), SLICED, "ieee")
    with pytest.raises(ConfigError, match=r"SLICED_K must be 1 where SEGMENT"):
        rung.check(config, 232448)
    rung, config = rungs.batch_invariant(None, SLICED.replace(SLICED_K=1, BK=24, PARTIAL_ACCUMULATORS=4), "ieee")
    with pytest.raises(
        ConfigError, match=r"PARTIAL_ACCUMULATORS must be 1 .*SEGMENT must be a multiple of BK = 24, got 1024"
    ):
        rung.check(config, 232448)
