import json
from dataclasses import replace

import pytest

from fastsgemm import device, explain, preparation, resources, rungs
from fastsgemm.errors import ConfigError, DeviceError, NoDriverError, ShapeError, UnknownRungError
from fastsgemm.heuristics import choose, cutting, database_writing, fp16x3, packing
from fastsgemm.heuristics.cutting import Cut
from fastsgemm.heuristics.database_entries import Content
from fastsgemm.heuristics.explanation import Explanation, device_at
from fastsgemm.jit.source import helper_spec
from fastsgemm.problem import Problem, spell
from fastsgemm.progress import Bar
from fastsgemm.request import resolve
from fastsgemm.tuning import tuner
from fastsgemm.tuning.plan import plan_run
from fastsgemm.tuning.spaces import CLASSIC


def test_a_published_record_is_explained():
    found = explain(1000, 1000, 1000, rung="autotuned", device="sm_86")
    text = str(found)
    assert found.choice.rule == choose.NEAREST
    assert "1000 x 1000 x 1000, NN, on NVIDIA RTX A6000 (sm_86)" in text
    assert "BM=128 BN=128 BK=16 TM=8 TN=8" in text
    assert "published record for NVIDIA RTX A6000 at 4096,4096,4096 (shipped; https://" in text


def test_generic_constants_are_explained(tuning_folder):
    real = resources._PACKAGE.parent.parent / "tuning_db"
    for name in ("generic", "sm_75"):
        (tuning_folder / f"{name}.json").write_text((real / f"{name}.json").read_text())
    text = str(explain(64, 64, 64, device="sm_75"))
    assert "hand-picked record for every architecture" in text
    assert "any device of sm_75" in text


def test_predictions_and_alternatives_are_shown(evaluator, data_folder):
    planned = plan_run(evaluator.device, rung="autotuned", quick=True)
    outcome = tuner.carry_out(planned, evaluator, Bar(False), 1e9)
    choice = choose.choose(evaluator.device, rungs.find("autotuned"), Problem(1111, 2222, 333, "TN"))
    text = str(Explanation(evaluator.device, Problem(1111, 2222, 333, "TN"), choice))
    assert len(outcome.curves) == len(CLASSIC.quick)
    assert "predicted: of the configs with a measured curve" in text
    assert "measured times on Fake 9000 (yours; driver 580.0, NVRTC 13.0, 2026-01-01)" in text
    assert text.count("ms predicted  ") == 4
    assert "TFLOP/s (predicted)" in text
    assert str(choice.config) in text


def test_the_parts_of_k_are_shown(evaluator, data_folder):
    """Of the choice and of the alternatives, each with the division that it would have."""
    tuner.carry_out(plan_run(evaluator.device, rung="pipelined", quick=True), evaluator, Bar(False), 1e9)
    problem = Problem(65, 66, 65537)
    choice = choose.choose(evaluator.device, rungs.find("pipelined"), problem)
    text = str(Explanation(evaluator.device, problem, choice))
    assert choice.rule == choose.PREDICTED and choice.config.SPLIT_K > 1
    assert str(choice.config) in text and f"SPLIT_K={choice.config.SPLIT_K}" in text
    assert text.count("SPLIT_K=") == 1 + text.count("ms predicted  ")
    assert choice.options[0].config == choice.config
    json.loads(json.dumps(Explanation(evaluator.device, problem, choice).json()))


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
    (found,) = tuner.carry_out(planned, evaluator, Bar(False)).tuned
    assert found.problem == Problem(64, 64, 64, "NT", 512)
    for count, rule in ((512, choose.EXACT), (511, choose.PREDICTED), (1, choose.PREDICTED)):
        problem = Problem(64, 64, 64, "NT", count)
        choice = choose.choose(evaluator.device, rungs.find("pipelined"), problem)
        text = str(Explanation(evaluator.device, problem, choice))
        assert choice.rule == rule and ("exact: this problem was tuned" in text) is (count == 512)
        assert ("measured record for Fake 9000 at 64,64,64,NT,x512 (yours" in text) is (count == 512)


def test_the_default_rung_is_that_of_sgemm():
    assert explain(64, 64, 64, device="sm_80").rung == "pipelined"
    assert explain(64, 8, 64, device="sm_80").rung == "skinny"


@pytest.mark.parametrize("arch", ["sm_42", "generic", "../sm_80", ""])
def test_an_unknown_architecture_is_an_error(arch):
    with pytest.raises(ConfigError, match="sm_90"):
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
    assert found.rung == "fp16x3" and f" gets fp16x3 {found.fp16x3.config}, quicker than " in repr(found)


def test_a_device_that_is_there_is_asked(monkeypatch, evaluator):
    monkeypatch.setattr(device, "open_gpu", lambda ordinal: evaluator.device)
    assert explain(64, 64, 64).device == evaluator.device


def test_the_device_of_an_architecture_is_the_one_with_curves(evaluator, tuning_folder):
    database_writing.write(tuning_folder / "sm_90.json", Content("sm_90", 232448))
    assert device_at("sm_90").name == "any device of sm_90"


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
    ids=spell,
)
def test_what_is_explained_is_what_a_call_launches(problem, precision):
    info = device_at("NVIDIA H200")
    found = explain(problem.M, problem.N, problem.K, problem.layout, device="NVIDIA H200", precision=precision)
    kernels = preparation.kernels_of(info, resolve(precision=precision), [problem], "", Bar(False))
    [product] = (each for each in kernels if each.file[0].isdigit())
    assert found.choice.config.compiled.items() <= dict(product.constants).items() or "fp16x3" in product.file
    assert ("fp16x3" in product.file) is (found.rung == "fp16x3")
    assert bool(found.packed and found.rung != "fp16x3") is (helper_spec("pack") in kernels)


def test_packed_operands_are_named_where_an_ieee_kernel_keeps_the_promise_of_fp16x3(monkeypatch):
    choice = choose.choose(device_at("sm_75"), None, Problem(4096, 4096, 4096))
    selected = packing.Selection(choice, (True, False), 0.25)
    monkeypatch.setattr(packing, "select", lambda *_, **__: selected)
    assert explain(4096, 4096, 4096, device="sm_75", precision="fp16x3").packed == ("A",)


def test_rung_11_is_not_explained_where_sgemm_refuses_it():
    with pytest.raises(DeviceError, match="needs a device of sm_80 or later, any device of sm_75 is sm_75"):
        explain(64, 64, 64, rung="fp16x3", device="sm_75")
    with pytest.raises(ShapeError, match="at most 1024 products, got 1025"):
        explain(64, 64, 64, rung="fp16x3", device="sm_90", batch=1025)


def test_packed_operands_and_their_time_are_named(monkeypatch):
    choice = choose.choose(info := device_at("NVIDIA H200"), None, Problem(4096, 4096, 4096))
    selected = packing.Selection(choice, (True, True), 0.25)
    monkeypatch.setattr(packing, "select", lambda *_, **__: selected)
    found = explain(4096, 4096, 4096, device="NVIDIA H200")
    assert "packed     A and B first, 0.25 ms of the time" in str(found) and found.device == info
    assert found.json()["packed"] == ["A", "B"] and found.json()["ms"] == choice.ms + 0.25
    assert f"{choice.ms + 0.25:.4g} ms" in str(found)
    assert [row["ms"] for row in found.json()["options"]] == [option.ms + 0.25 for option in choice.options]
    other = next(option for option in choice.options if option.config != choice.config)
    assert f"{other.ms + 0.25:.4g} ms predicted" in str(found)  # comparable with the time above


def test_a_cut_its_shares_and_their_time_are_named(monkeypatch):
    choice = choose.choose(device_at("NVIDIA H200"), None, Problem(4096, 4096, 4096))
    first, second = replace(choice, ms=0.75, rule=choose.PREDICTED), replace(choice, ms=0.125)
    monkeypatch.setattr(cutting, "find", lambda *given: Cut(1, 4000, (first, second), 0.875))
    monkeypatch.setattr(packing, "select", lambda *_, **__: packing.Selection(choice, (True, False), 0.25))
    found = explain(4096, 4096, 4096, device="NVIDIA H200")
    text = str(found)
    assert f"cut        C is cut before column 4000, because the whole would take {choice.ms + 0.25:.4g} ms" in text
    assert f"share 1    0.75 ms, predicted: {choice.rung.name} {choice.config}\n" in text
    assert f"share 2    0.125 ms, exact: {choice.rung.name} {choice.config}\n" in text
    assert "time       1.125 ms" in text and "(predicted)" in text
    row = found.json()
    assert row["ms"] == 1.125
    assert [(share["rows"], share["columns"], share["ms"]) for share in row["cut"]] == [
        ([0, 4096], [0, 4000], 0.75), ([0, 4096], [4000, 96], 0.125),
    ]  # fmt: skip
    assert all((one["rung"], one["constants"]) == (choice.rung.name, choice.config.constants) for one in row["cut"])
