"""The programs under the switch of PyTorch run in small on the CPU, and notice products that are wrong."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "programs"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="tests/benchmarks is part of a checkout only")


@pytest.fixture
def run(monkeypatch, on_host):
    """The module run.py; it and the programs are forgotten afterwards, because their names are common ones."""
    monkeypatch.syspath_prepend(FOLDER)
    before = {*sys.modules}
    import run

    monkeypatch.setattr(run.harness, "TURNS", (1, 1))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # those of PyTorch and those of NumPy would wait for each other's
    yield run
    torch.set_num_threads(threads)
    for name in {path.stem for path in FOLDER.glob("*.py")} - before:
        sys.modules.pop(name, None)


@pytest.fixture
def harness(run):
    return run.harness


def in_small(run, tmp_path, *names):
    """Run programs; return the exit status, and what was measured."""
    written = tmp_path / "found.json"
    status = run.main([*names, "--device", "cpu", "--small", "--seconds", "0", "--json", str(written)])
    return status, json.loads(written.read_text()) if written.exists() else {}


def test_programs_that_need_no_package_run_on_the_cpu(run, tmp_path, capsys):
    names = ("mlp", "newton_schulz", "shampoo", "pca", "neighbours", "compiled")
    status, measured = in_small(run, tmp_path, *names)
    shown = capsys.readouterr().out
    assert status == 0
    assert [*measured] == [f"{name} on CPU" for name in names]
    for case in [case for program in measured.values() for case in program["cases"]]:
        assert {*case["ms"]} == {"PyTorch", "ieee", "fp16x3"} and min(case["ms"].values()) > 0
        assert {*case["difference"]} == {"ieee", "fp16x3"} and max(case["difference"].values()) < 1e-5
        assert case["share"] == {"ieee": 1.0, "fp16x3": 1.0}
        assert f"{case['what']}, ms" in shown


def test_calls_are_timed_alone_and_between_other_operators(run, tmp_path, monkeypatch):
    import calls

    monkeypatch.setattr(calls, "ROUNDS", (1, 1))
    status, measured = in_small(run, tmp_path, "calls")
    assert status == 0
    assert len(measured["calls on CPU"]["calls"]) == 13
    for row in measured["calls on CPU"]["calls"]:
        assert {*row["host_us"]} == {"PyTorch", "ieee", "fp16x3"}
        assert all(us["alone"] > 0 for us in row["host_us"].values())


def test_a_program_whose_package_is_missing_is_skipped_and_says_so(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    status, measured = in_small(run, tmp_path, "encoder")
    assert (status, measured) == (0, {})
    assert "skipped: needs transformers, which is not installed" in capsys.readouterr().out


def test_an_unknown_program_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        run.main(["mpl", "--device", "cpu"])
    assert "there is no program mpl" in capsys.readouterr().err


def test_products_that_differ_are_an_error(harness, monkeypatch):
    from fastsgemm.torch import products

    real = products.on_host
    monkeypatch.setattr(products, "on_host", lambda a, b, c, alpha, *rest: real(a, b, c, 1.01 * alpha, *rest))
    x = torch.rand(8, 8)
    with pytest.raises(ValueError, match=r"one product: ieee differs by 1.0e-02, more than 1.0e-04"):
        harness.measure({"one product": lambda device: lambda: x @ x}, "cpu", 0)


@pytest.mark.parametrize("apart", [False, True])
def test_kinds_are_compared_on_builds_that_are_the_same_and_timed_on_one_of_them_or_apart(harness, monkeypatch, apart):
    monkeypatch.setattr(harness, "TURNS", (2, 2))
    built, ran = [], []

    def build(device):
        x, number = torch.rand(4, 4), len(built)
        built.append(x)
        return lambda: ran.append(number) or x @ x

    (case,) = harness.measure({"one product": build}, "cpu", 0, apart=apart)["cases"]
    assert len(built) == 3 and all(torch.equal(each, built[0]) for each in built)
    more = harness.WARMED + 2 * (harness.WARM_UP + harness.TIMED)
    assert [ran.count(number) for number in range(3)] == ([1 + more] * 3 if apart else [1 + 3 * more, 1, 1])
    assert case["steps"] == 2 * harness.TIMED and case["device_ms"] == {}


def test_each_kind_of_products_is_the_first_of_every_third_turn(harness):
    orders = [harness.in_order(turn) for turn in range(6)]
    assert [order[0] for order in orders] == [*harness.PRODUCTS] * 2
    assert all(sorted(order) == sorted(harness.PRODUCTS) for order in orders)


def test_the_switch_goes_on_before_every_kind_and_off_again_before_pytorchs_own(harness, monkeypatch):
    real, turned = harness.fastsgemm.torch.enabled, []

    @contextmanager
    def enabled(precision, device):
        turned.append("on")
        with real(precision, device=device) as switch:
            yield switch
        turned.append("off")

    monkeypatch.setattr(harness.fastsgemm.torch, "enabled", enabled)
    x = torch.rand(4, 4)
    for name, before in (("PyTorch", ["on", "off"]), ("ieee", ["on"])):
        turned.clear()
        with harness.products(name, "cpu") as switch:
            assert turned == before
            x @ x
        assert turned == ["on", "off"]
        assert switch is None if name == "PyTorch" else switch.report().calls == 1


def test_the_recorder_meets_every_product_once(harness, monkeypatch):
    called = []
    with harness._Recorder() as met:
        x = torch.rand(3, 5, requires_grad=True)
        for _ in range(2):
            torch.addmm(torch.rand(4), x, torch.rand(5, 4)).sum().backward()
        torch.mm(x.detach(), torch.rand(6, 5).t())
    real = harness._alike
    monkeypatch.setattr(harness, "_alike", lambda x, device: called.append(tuple(x.stride())) or real(x, device))
    met.prepare("ieee", "cpu")
    assert len(met._calls) == 3 and (1, 5) in called  # addmm, the gradient of x, and mm of a transposed operand
