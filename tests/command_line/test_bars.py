"""Bars of a terminal are as long as their numbers say."""

from fastsgemm.command_line import bars, main


def test_a_bar_is_as_long_as_its_share():
    assert bars.bar(0.0) == ""
    assert bars.bar(1.0) == "█" * 50
    assert bars.bar(0.5) == "█" * 25
    assert bars.bar(0.01) == "▌"


def test_a_measured_ladder_is_shown_by_its_rate():
    rows = [{"name": "naive", "number": 1, "tflops": 0.5}, {"name": "cuBLAS", "number": None, "tflops": 50.0}]
    first, second = bars.text({"rows": rows}).splitlines()[1:]
    assert first == "1 naive         ▌ 0.5"
    assert second == "cuBLAS          " + 50 * "█" + " 50"


def test_a_wrong_result_has_no_bar():
    rows = [{"name": "naive", "number": 1, "tflops": None}, {"name": "cuBLAS", "number": None, "tflops": 50.0}]
    assert bars.text({"rows": rows}).splitlines()[1] == "1 naive          0"


def test_a_simulated_ladder_is_shown_by_its_share_of_fmas(capsys):
    assert main(["ladder", "--device", "sim", "--size", "32", "--rung", "1", "--rung", "3", "--plot"]) == 0
    shown = capsys.readouterr().out.splitlines()[-3:]
    assert shown[0] == "FMAs, % of all instructions"
    first, third = (float(line.split()[-1]) for line in shown[1:])
    assert 5 < first < third < 50
