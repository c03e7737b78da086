import itertools
import json
from dataclasses import replace

import pytest
from msgspec import structs
from quick_configs import quick_configs

from fastsgemm import device, explain, preparation, resources, rungs
from fastsgemm.command_line import _parser
from fastsgemm.errors import ConfigError, DeviceError, NoDriverError, PrecisionError, ShapeError, UnknownRungError
from fastsgemm.heuristics import explanation, fp16x3
from fastsgemm.heuristics.choice import EXACT, NEAREST, PREDICTED
from fastsgemm.heuristics.explanation import device_at
from fastsgemm.jit.source import helper_spec
from fastsgemm.problem import Problem, format_problem
from fastsgemm.progress import Bar
from fastsgemm.request import Request, resolve
from fastsgemm.tuning import tuner
from fastsgemm.tuning.plan import plan_run, tunable


def explained(device, rung, problem):
    """Return what a device that is no part of the data gets."""
    return explanation.explained(device, problem, Request(rungs.find(rung)))


def test_a_published_record_is_explained():
    found = explain(1000, 1000, 1000, rung="autotuned", device="sm_86")
    text = str(found)
    assert found.choice.rule == NEAREST
    assert "1000 x 1000 x 1000, NN, on NVIDIA RTX A6000 (sm_86)" in text
    assert "BM=128 BN=128 BK=16 TM=8 TN=8" in text
    assert "published record for NVIDIA RTX A6000 at 4096,4096,4096 (shipped; https://" in text


def test_generic_constants_are_explained(tuning_folder):
    real = resources._PACKAGE.parent.parent / "tuning_db"
    for name in ("generic", "sm_75"):
        (tuning_folder / f"{name}.json").write_text((real / f"{name}.json").read_text())
    text = str(explain(64, 64, 64, device="sm_75"))
    assert "hand-picked record for every architecture" in text
    assert "Tesla T4 (sm_75)" in text


def test_predictions_and_alternatives_are_shown(evaluator, data_folder):
    planned = plan_run(evaluator.device, rung="pipelined", quick=True)
    outcome = tuner.run_plan(planned, evaluator, Bar(False), 1e9)
    found = explained(evaluator.device, "pipelined", Problem(1111, 2222, 333, "TN"))
    text = str(found)
    assert len(outcome.curves) == len(quick_configs("pipelined"))
    assert "predicted: of the configs with a measured curve" in text
    assert "times on NVIDIA H200, corrected on Fake 9000 (yours; driver 580.0, NVRTC 13.0, 2026-01-01)" in text
    assert text.count("ms  as they lie: pipelined") == 4
    assert "TFLOP/s (predicted)" in text
    assert str(found.choice.config) in text


def test_the_parts_of_k_are_shown(evaluator, data_folder):
    """Of the choice and of the alternatives, each with the division that it would have."""
    tuner.run_plan(plan_run(evaluator.device, rung="pipelined", quick=True), evaluator, Bar(False), 1e9)
    problem = Problem(65, 66, 65537)
    found = explained(evaluator.device, "pipelined", problem)
    text, config = str(found), found.choice.config
    assert found.choice.rule == PREDICTED and config.SPLIT_K > 1
    assert str(config) in text and f"SPLIT_K={config.SPLIT_K}" in text
    assert text.count("SPLIT_K=") == 1 + text.count("ms  as they lie: ")
    assert found.alternatives[0].config == config
    assert len(json.loads(json.dumps(found.json()))["ways"]) == len(found.alternatives)


def test_as_json_it_is_plain_data():
    found = explain(4096, 4096, 4096, rung="warptiled", device="sm_80")
    again = json.loads(json.dumps(found.json()))
    assert again["problem"] == {"M": 4096, "N": 4096, "K": 4096, "layout": "NN", "batch": 1}
    assert again["rule"] == "exact" and again["constants"]["WN"] == 64


def test_a_column_is_explained_as_what_is_computed():
    assert explain(4096, 1, 512, device="sm_80").problem == Problem(1, 4096, 512, "NT")


def test_rung_11_is_for_batches_of_as_many_products_as_sgemm_gives_it():
    few, many = (
        explain(4096, 4096, 4096, device="sm_90", precision="fp16x3", batch=fp16x3.MOST_PRODUCTS + more)
        for more in (0, 1)
    )
    assert (few.rung, many.rung) == ("fp16x3", "pipelined")
    assert "at most 1024 products, this has 1025" in str(many)


def test_a_batch_fills_the_device_before_k_is_split():
    alone, many = (explain(256, 256, 4096, device="sm_90", batch=count) for count in (1, 1000))
    assert alone.choice.config.split_k > 1 == many.choice.config.split_k
    assert str(many).startswith("problem    1000 times 256 x 256 x 4096") and many.json()["problem"]["batch"] == 1000
    assert alone.choice.ms < many.choice.ms < 1000 * alone.choice.ms
    with pytest.raises(ShapeError, match="a batch has 1 to 4294836225 products, got 0"):
        explain(64, 64, 64, device="sm_90", batch=0)


def test_a_tuned_batch_is_explained_and_another_size_is_not_taken_for_it(evaluator, data_folder):
    planned = plan_run(evaluator.device, ["64,64,64,NT,x512"], rung="pipelined", quick=True)
    (found,) = tuner.run_plan(planned, evaluator, Bar(False)).tuned
    assert found.problem == Problem(64, 64, 64, "NT", 512)
    for count, rule in ((512, EXACT), (511, PREDICTED), (1, PREDICTED)):
        problem = Problem(64, 64, 64, "NT", count)
        explanation = explained(evaluator.device, "pipelined", problem)
        text = str(explanation)
        assert explanation.choice.rule == rule and ("exact: this problem was tuned" in text) is (count == 512)
        assert ("measured record for Fake 9000 at 64,64,64,NT,x512 (yours" in text) is (count == 512)


@pytest.mark.parametrize("extent", "MNK")
def test_groups_are_explained(extent):
    found = explain(4096, 1408, 2048, device="NVIDIA H200", batch=64, ragged=extent)
    text = str(found)
    assert f"4096 x 1408 x 2048, NN, {extent} in 64 groups, on NVIDIA H200 (sm_90)" in text
    assert found.rung == "pipelined" and found.choice.config.split_k == 1 and found.command is None
    assert "predicted from times that were measured on this device" in text
    assert found.alternatives[0] == found.choice and len(found.alternatives) > 4
    assert found.json()["problem"]["ragged"] == extent
    in_order = explain(4096, 1408, 2048, device="NVIDIA H200", batch=64, ragged=extent, batch_invariant=True)
    assert in_order.choice.config.segment == 1024
    unmeasured = explain(4096, 1408, 2048, device="sm_75", batch=64, ragged=extent)
    assert unmeasured.choice.config.split_k == 1 and unmeasured.command.startswith("fastsgemm tune")
    with pytest.raises(PrecisionError, match="needs precision 'ieee' for groups, got 'fp16x3'"):
        explain(64, 64, 64, device="sm_90", batch=8, ragged=extent, precision="fp16x3", batch_invariant=True)
    with pytest.raises(ConfigError, match="computed by rung 9 pipelined, got 10 skinny"):
        explain(64, 64, 64, device="sm_90", batch=8, ragged=extent, rung="skinny")


def test_groups_of_rows_on_tensor_cores():
    def why(device="NVIDIA H200", ragged="M", K=2048, groups=64):
        return explain(16384, 1408, K, device=device, batch=groups, ragged=ragged, precision="fp16x3")

    found = why()
    assert found.rung == "fp16x3" and "quicker than the IEEE kernel of rung pipelined: " in str(found)
    assert found.choice.config.SPLIT_K == 1 and found.choice.ms < found.choice.ieee_ms
    assert found.alternatives[1].rung.name == "pipelined"
    for other, reason in (
        (why(ragged="K"), "groups of rows of a row-major result only"),
        (why(ragged="N"), "groups of rows of a row-major result only"),
        (why(K=8), "so few steps of k err less"),
        (explain(2000, 64, 64, device="H200", batch=9, ragged="M", precision="fp16x3"), "rung pipelined is quicker"),
        (why(groups=70000), "more or larger than rung 11 computes by one launch"),
        (why(device="sm_75"), "need sm_80 or later"),
        (why(device="sm_86"), "nobody measured fp16x3 on sm_86"),
    ):
        assert other.rung == "pipelined" and reason in other.choice.why, reason


def test_the_default_rung_is_that_of_sgemm():
    assert explain(64, 64, 64, device="sm_80").rung == "pipelined"
    assert explain(64, 8, 64, device="sm_80").rung == "skinny"


@pytest.mark.parametrize("arch", ["sm_42", "generic", "../sm_80", ""])
def test_an_unknown_architecture_is_an_error(arch):
    with pytest.raises(DeviceError, match="sm_90"):
        explain(64, 64, 64, device=arch)


def test_errors_of_the_caller():
    with pytest.raises(ShapeError, match="M, N and K"):
        explain(0, 64, 64, device="sm_80")
    with pytest.raises(ShapeError, match="layout"):
        explain(64, 64, 64, layout="XX", device="sm_80")
    with pytest.raises(UnknownRungError):
        explain(64, 64, 64, rung="fastest", device="sm_80")


def test_without_a_driver_a_device_is_not_there(no_driver):
    with pytest.raises(NoDriverError, match='name it: device="NVIDIA H200" or device="sm_90" in Python'):
        explain(64, 64, 64)


@pytest.mark.parametrize(("name", "arch"), [("NVIDIA H200", "sm_90"), ("Tesla T4", "sm_75")])
def test_a_device_may_be_named(name, arch):
    found = explain(4096, 4096, 4096, device=name)
    assert (found.device.name, found.device.arch) == (name, arch)
    assert found.choice == explain(4096, 4096, 4096, device=arch).choice


def test_its_repr_is_one_line_with_the_answer():
    assert repr(explain(64, 64, 64, "TN", rung="warptiled", device="sm_80")).startswith(
        "<Explanation, to be printed: 64,64,64,TN on NVIDIA A100-SXM4-40GB (sm_80) gets warptiled BM="
    )
    found = explain(4096, 4096, 4096, device="NVIDIA H200", precision="fp16x3")
    assert found.rung == "fp16x3" and f" gets fp16x3 {found.choice.config}, quicker than " in repr(found)


def test_a_device_that_is_there_is_asked(monkeypatch, evaluator):
    monkeypatch.setattr(device, "open_gpu", lambda ordinal: evaluator.device)
    assert explain(64, 64, 64).device == evaluator.device


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
@pytest.mark.parametrize(
    "problem",
    [
        Problem(494, 1342, 177, "TT"),
        Problem(60, 2639, 7878),
        Problem(62, 5960, 6767),
        Problem(4096, 4096, 4096),
        Problem(1, 4096, 4096),
    ],
    ids=format_problem,
)
def test_what_is_explained_is_what_a_call_launches(problem, precision):
    info = device_at("NVIDIA H200")
    found = explain(problem.M, problem.N, problem.K, problem.layout, device="NVIDIA H200", precision=precision)
    kernels = preparation.kernels_of(info, resolve(precision=precision), [problem], "", Bar(False))
    products = [dict(each.constants) for each in kernels if each.file[0].isdigit() and "fp16x3" not in each.file]
    configs = [] if found.choice.tensor_cores else [found.choice.config.compiled]
    assert all(any(config.items() <= one.items() for config in configs) for one in products)
    assert len(configs) == len(products)
    assert bool(found.choice.packed and configs) is (helper_spec("pack") in kernels)


def test_rung_11_is_not_explained_where_sgemm_refuses_it():
    with pytest.raises(DeviceError, match="needs a device of sm_80 or later, got sm_75"):
        explain(64, 64, 64, rung="fp16x3", device="sm_75")
    with pytest.raises(ShapeError, match="at most 1024 products, got 1025"):
        explain(64, 64, 64, rung="fp16x3", device="sm_90", batch=1025)


def test_packed_operands_and_other_ways_are_named():
    found = explain(3001, 3003, 3005, "NT", device="NVIDIA H200")
    text, row = str(found), found.json()
    assert "packed     A and B first\n" in text and row["packed"] == ["A", "B"]
    assert found.choice.pick.ms < found.choice.ms  # with packing
    names = [way.name for way in found.alternatives]
    assert names[0] == "A and B packed" and "as they lie" in names
    assert f"others     {found.alternatives[1].ms:.4g} ms  {names[1]}: pipelined " in text
    assert f"time       {found.choice.ms:.4g} ms" in text and "(predicted)" in text


MEASURE = "measure what is predicted here, on one NVIDIA H200: fastsgemm tune"


@pytest.mark.parametrize(
    ("asked", "last"),
    [
        ({}, "nothing: this problem was tuned on this device"),
        ({"M": 999}, f"{MEASURE} --rung pipelined --size 999,1000,1000"),
        ({"M": 8, "batch": 3}, f"{MEASURE} --rung skinny --size 8,1000,1000,x3"),
        ({"M": 4001, "N": 4001, "layout": "SYM"}, f"{MEASURE} --rung pipelined --size 4001,4001,1000,SYM"),
        ({"device": "sm_75"}, "correct times of another device, on one Tesla T4: fastsgemm tune --quick"),
        (
            {"device": "sm_75", "rung": 8},
            "measure times, from which every problem is predicted, on one Tesla T4: fastsgemm tune --rung warptiled",
        ),
        ({"rung": "smem_tiled"}, "nothing: no command searches the constants of rung smem_tiled"),
        ({"batch_invariant": True}, "nothing: no command searches the constants of the one order of summation"),
        ({"M": 1, "batch_invariant": True}, "nothing: no command searches the constants of the one order of summation"),
        ({"M": 4096, "N": 4096, "precision": "fp16x3"}, "nothing: its times were measured on this device"),
        (
            {"rung": "fp16x3", "device": "NVIDIA GeForce RTX 4090"},
            "measure its tiles and rates, on one NVIDIA GeForce RTX 4090: fastsgemm tune --rung fp16x3",
        ),
    ],
)
def test_it_ends_with_the_command_that_could_improve_it(asked, last):
    found = explain(**{"M": 1000, "N": 1000, "K": 1000, "device": "NVIDIA H200"} | asked)
    improve = str(found).splitlines()[-1]
    assert improve == f"improve    {last}"  # the command ends the line, so that it can be copied
    assert found.command == found.json()["command"] == (None if "nothing:" in last else last.partition(": ")[2])
    if found.command:
        _parser().parse_args(found.command.split()[1:])


def test_a_record_of_another_device_of_the_architecture_can_be_improved():
    """It decides there, but was not measured there."""
    found = explain(1000, 1000, 1000, device="NVIDIA H200")
    found = replace(found, device=structs.replace(found.device, name="NVIDIA GH200"))
    assert str(found).endswith("tune it, on one NVIDIA GH200: fastsgemm tune --rung pipelined --size 1000,1000,1000")


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_only_a_time_of_the_very_device_is_called_measured(name):
    text, here = str(explain(1000, 1000, 1000, device=name)), name == "NVIDIA H200"
    where = "this device" if here else "NVIDIA H200"
    origin = "measured" if here else "that of NVIDIA H200, not measured on this device"
    assert f"rule       exact: this problem was tuned on {where}\n" in text
    assert f"TFLOP/s ({origin})\n" in text


SHORTER_TIMES = {
    "a tuned config is left only for one predicted to take 6% less": (4096, 4096, 4096, "NN", False),
    "predictions within 2% count as equal": (2500, 1500, 3000, "NN", False),
    "does not compute one triangle alone": (500, 500, 100, "NN", True),
}


@pytest.mark.parametrize("why", SHORTER_TIMES)
def test_why_a_way_with_a_shorter_time_is_not_chosen(why):
    *problem, symmetric = SHORTER_TIMES[why]
    found = explain(*problem, device="NVIDIA H200", symmetric=symmetric)
    shorter = [way for way in found.alternatives if way.ms < found.choice.ms]
    reasons = {way["why_not"] for way in found.json()["ways"] if way["ms"] < found.choice.ms}
    assert shorter and why in reasons and f"{shorter[0].config} (" in str(found)
    assert not any(way["why_not"] for way in found.json()["ways"] if way["ms"] >= found.choice.ms)


def test_each_shorter_time_has_a_reason():
    for M, N, K in itertools.product((1, 20, 100, 1000, 4096), (33, 512, 3000), (64, 1000, 8192)):
        alternatives = explain(M, N, K, "NT", device="NVIDIA H200").json()["ways"]
        assert not [
            way for way in alternatives if way["ms"] < alternatives[0]["ms"] and way["why_not"] in ("", "not compared")
        ]


def test_a_rung_is_called_searched_where_it_can_be_tuned():
    assert {rung.name for rung in rungs.RUNGS if rung.searched} == {*tunable()}
