"""What products would take: ours as `explain` says, cuBLAS's by the measured ratios nearest to them."""

import json

import numpy as np
import pytest

from fastsgemm.heuristics.explanation import device_at, explain
from fastsgemm.measure import prediction
from fastsgemm.measure.prediction import Measured, Run, nearest, predict
from fastsgemm.problem import Problem

H200, H100, A100 = map(device_at, ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"))
# Our times relative to cuBLAS's at 2^n, 2^n, 64 in two layouts. Those of TT are all the same.
RATIOS = {f"{2**n},{2**n},64": 0.5 + 0.01 * n for n in range(20)} | {f"{2**n},{2**n},64,TT": 2.0 for n in range(20)}


@pytest.fixture
def made_up(monkeypatch):
    """Every ratio of an H200 is 0.8."""
    runs = {"NVIDIA H200": Run("2026-01-02", {f"{n},{n},{n}": 0.8 for n in range(32, 64)})}
    monkeypatch.setattr(prediction, "measured", lambda: Measured(runs, "one NVIDIA H200, 2026-01-02", [10.0] * 8))


def test_the_nearest_problems_speak_for_a_size():
    def reference(n, layout):
        """Steps of n are two octaves, another layout is one."""
        found = [(2 * abs(m - n) + (layout != "NN"), 0.5 + 0.01 * m) for m in range(20)]
        found += [(2 * abs(m - n) + (layout != "TT"), 2.0) for m in range(20)]
        return np.quantile([ratio for _, ratio in sorted(found)[:15]], (0.25, 0.5, 0.75))

    for n, layout in ((0, "NN"), (10, "NN"), (10, "TT"), (19, "NN")):
        spread, octaves = nearest(Problem(2**n, 2**n, 64, layout), RATIOS)
        assert spread == pytest.approx(reference(n, layout)) and octaves == 0
    assert nearest(Problem(1024, 1024, 256), RATIOS)[1] == 2.0
    assert nearest(Problem(1024, 1024, 64, batch=8), RATIOS)[1] == 3.0


def test_our_times_are_those_of_explain_and_those_of_cublas_have_the_ratio(made_up):
    sizes = {"1024": 3, "4096,1,4096": 5, "512,512,512,NT,x4": 2}
    predicted = predict(H200, sizes.items())
    total = {"ieee": 0.0, "fp16x3": 0.0}
    for size, (calls, problem) in zip(
        predicted.sizes,
        ((3, (1024, 1024, 1024)), (5, (4096, 1, 4096)), (2, (512, 512, 512, "NT"))),
        strict=True,
    ):
        for precision in total:
            batch = 4 if "x4" in size.size else 1
            ms = explain(*problem, device="NVIDIA H200", precision=precision, batch=batch).choice.ms
            assert size.calls == calls and size.ms[precision] == pytest.approx(ms)
            total[precision] += calls * ms
        assert size.cublas_ms == pytest.approx([size.ms["ieee"] / 0.8] * 3)
    assert predicted.ms("ieee") == pytest.approx(total["ieee"]) and total["fp16x3"] < 0.8 * total["ieee"]
    assert predicted.ratio("ieee") == pytest.approx([0.8] * 3)
    assert predicted.ratio("fp16x3") == pytest.approx([0.8 * total["fp16x3"] / total["ieee"]] * 3)
    text = str(predicted)
    assert f"would take 0.80 with ieee (0.80 to 0.80) and {predicted.ratio('fp16x3').median:.2f} with fp16x3" in text
    assert "of 32 measured on one NVIDIA H200, 2026-01-02" in text
    assert "10 calls would take 0.1 to 0.1 ms less: 10 to 10 us each" in text
    assert "carried over" not in text and "transpose" not in text and "compared" not in text
    assert json.loads(json.dumps(predicted.json()))["ratios"]["ieee"]["median"] == pytest.approx(0.8)


def test_a_range_is_as_wide_as_the_ratios(monkeypatch):
    runs = {"NVIDIA H200": Run("2026-01-02", {f"{n},64,64": n / 100 for n in range(50, 65)})}
    monkeypatch.setattr(prediction, "measured", lambda: Measured(runs, "", [1.0, 2.0]))
    (low, median, high) = predict(H200, [("57,64,64", 7)]).ratio("ieee")
    assert (low, median, high) == pytest.approx((0.535, 0.57, 0.605))


def test_cublas_computes_all_of_a_symmetric_result(made_up):
    whole, symmetric = predict(H200, [("2048,2048,2048,NT", 1), ("2048,2048,2048,SYM", 1)]).sizes
    assert symmetric.ms["ieee"] < 0.7 * whole.ms["ieee"] and symmetric.cublas_ms == whole.cublas_ms
    assert "Of A times its transpose one triangle is computed" in str(predict(H200, [("2048,2048,2048,SYM", 3)]))


def test_operands_of_16_bits_are_not_compared(made_up):
    predicted = predict(H200, [("64,64,64", 2), ("64,64,64,NT,bf16xf32", 3)])
    assert [size.cublas_ms is None for size in predicted.sizes] == [False, True]
    assert predicted.ratio("ieee").median == pytest.approx(0.8) and predicted.sizes[1].ms["ieee"] > 0
    assert "3 of 5 calls are not compared" in str(predicted)
    alone = predict(H200, [("64,64,64,NT,bf16xf32", 3)])
    assert "cuBLAS was not measured on such products, so nothing says" in str(alone)


def test_a_size_unlike_all_that_were_measured_is_said(made_up):
    assert "No problem near" not in str(predict(H200, [("64", 1)]))
    assert "No problem near 100% of them" in str(predict(H200, [("1,1,1000000", 1)]))


def test_another_device_of_the_architecture_lends_its_ratios(made_up):
    predicted = predict(H100, [("64", 1)])
    assert predicted.cublas == "32 measured on one NVIDIA H200, 2026-01-02"
    assert predicted.ratio("ieee").median == pytest.approx(0.8)


def test_where_cublas_was_not_measured_only_ours_is_predicted():
    predicted = predict(A100, [("1024", 2), ("64", 1)])
    assert all(size.cublas_ms is None and size.ms["ieee"] > 0 for size in predicted.sizes)
    assert predicted.ratio("ieee") is None and predicted.json()["ratios"] == {}
    text = str(predicted)
    assert "Our times are carried over from NVIDIA H200." in text
    assert "cuBLAS was not measured on sm_80, so nothing says what this program would gain." in text
    assert "cuBLAS, ms" not in text


def test_no_products_and_many_sizes():
    assert str(predict(H200, [])) == "nothing to predict for NVIDIA H200: there were no products"
    many = str(predict(H200, [(f"{n},64,64", 1) for n in range(1, 26)]))
    assert "\n  and 5 more sizes\n" in many and "20,64,64" in many and "21,64,64" not in many


def test_the_shipped_ratios_are_of_both_devices_and_plausible():
    shipped = prediction.measured()
    assert {*shipped.runs} >= {H200.name, H100.name} and len(shipped.host_us) >= 4
    for run in shipped.runs.values():
        assert len(run.ratios) > 500 and 0.5 < np.median([*run.ratios.values()]) < 1
