"""The programs under the switch of PyTorch run in small on the CPU, and notice products that are wrong."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "programs"
PROGRAMS = [path.stem for path in sorted(FOLDER.glob("*.py")) if "\ndef cases(small):" in path.read_text()]

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="tests/benchmarks is part of a checkout only")


@pytest.fixture
def run(monkeypatch, on_host):
    """The module run.py; it and the programs are forgotten afterwards, because their names are common ones."""
    monkeypatch.syspath_prepend(FOLDER)
    before = {*sys.modules}
    import run

    for name, value in {"TURNS": 1, "WARMED": 1, "WARM_UP": 0}.items():
        monkeypatch.setattr(run.harness, name, value)
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
    status = run.main(["--only", *names, "--device", "cpu", "--small", "--seconds", "0", "--json", str(written)])
    return status, json.loads(written.read_text()) if written.exists() else {}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_on_the_cpu_with_right_products(name, run, tmp_path, capsys):
    status, measured = in_small(run, tmp_path, name)
    shown = capsys.readouterr().out
    if "skipped: " in shown:
        pytest.skip(shown.partition("skipped: ")[2].partition("\n")[0])
    assert status == 0 and [*measured] == [f"{name} on CPU"]
    for case in measured[f"{name} on CPU"]["cases"]:
        assert {*case["ms"]} == {"PyTorch", "null", "ieee", "fp16x3"} and min(case["ms"].values()) > 0
        assert {*case["difference"]} == {"ieee", "fp16x3"} and max(case["difference"].values()) < 1e-4
        assert max(case["error"].values()) < 1e-5
        assert case["share"] == {"ieee": 1.0, "fp16x3": 1.0} and case["passed_on"] == {"ieee": [], "fp16x3": []}
        assert case["what"] in shown


def test_every_program_is_run_if_none_is_named(run):
    assert [*run.PROGRAMS] == PROGRAMS


def test_products_are_timed_in_steps_and_calls_with_changing_operands(run, tmp_path, monkeypatch):
    import calls

    for name, value in {"TURNS": 1, "STEPS": 1, "WARM_UP": 1}.items():
        monkeypatch.setattr(calls, name, value)
    status, measured = in_small(run, tmp_path, "calls")
    assert status == 0
    found = measured["calls on CPU"]
    assert [row["products"] for row in found["steps"]] == [40, 40, 40, 59, 30, 35, 20, 23, 40]  # backward, too
    for row in found["steps"]:
        assert {*row["step_us"]} == {"PyTorch", "null", "ieee", "fp16x3"} and min(row["step_us"].values()) > 0
    (row,) = found["calls"]
    assert len(row["us"]) == 7 and min(row["us"].values()) > 0


def test_the_sizes_of_a_program_are_those_of_its_products(run, tmp_path):
    import sizes

    file = tmp_path / "sizes.json"
    file.write_text('{"another program": {"8,8,8": 1}}')
    sizes.main([str(file), "--only", "mlp", "--small"])
    found = json.loads(file.read_text())
    # Four layers of 64 on a batch of 32: forward, the gradients of weights, and of all inputs but the first.
    wanted = {"32,64,64,NT": 4, "64,64,32,TN": 4, "32,64,64": 3}
    assert found == {"another program": {"8,8,8": 1}, "MLP, 64 x 4, training, batch 32": wanted}


def test_a_step_of_products_has_new_addresses(run, monkeypatch):
    import calls

    met = []
    monkeypatch.setattr(calls, "_measure_calls", lambda *_: None)
    monkeypatch.setattr(calls, "_measure_step", lambda what, step, product, device: met.append((step(), step())))
    calls.measure("cpu", True, 0)
    for step in met:
        addresses = [x.data_ptr() for results in step for x in results]
        assert len({*addresses}) == len(addresses)


def test_a_program_whose_package_is_missing_is_skipped_and_says_so(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    status, measured = in_small(run, tmp_path, "encoder")
    assert (status, measured) == (0, {})
    assert "encoder: skipped: needs transformers, which is not installed" in capsys.readouterr().out


def test_a_case_that_fails_is_a_line_and_the_others_are_measured(run, tmp_path, monkeypatch, capsys):
    import mlp

    right = mlp.cases(True)

    def fail(device):
        raise RuntimeError("no such step")

    monkeypatch.setattr(mlp, "cases", lambda small: {"a wrong one": fail} | right)
    status, measured = in_small(run, tmp_path, "mlp", "pca")
    assert status == 1 and [*measured] == ["mlp on CPU", "pca on CPU"]
    assert [case["what"] for case in measured["mlp on CPU"]["cases"]] == [*right]
    shown = capsys.readouterr().out
    assert "a wrong one: FAILED: RuntimeError: no such step\n" in shown and "failed: a wrong one\n" in shown


def test_excluded_programs_are_not_run(run, capsys):
    assert run.main(["--only", "mlp", "pca", "--exclude", "mlp", "--device", "cpu", "--small", "--seconds", "0"]) == 0
    shown = capsys.readouterr().out
    assert "principal components" in shown and "MLP" not in shown


def test_an_unknown_program_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        run.main(["--only", "mpl", "--device", "cpu"])
    assert "invalid choice: 'mpl'" in capsys.readouterr().err


def wrong_by(monkeypatch, factor):
    from fastsgemm import host

    real = host.sgemm
    monkeypatch.setattr(host, "sgemm", lambda how, a, b, c, alpha, *rest: real(how, a, b, c, factor * alpha, *rest))


def test_results_that_differ_are_an_error(harness, monkeypatch):
    wrong_by(monkeypatch, 1.01)
    x = torch.rand(8, 8)
    with pytest.raises(ValueError, match=r"one product: ieee differs by 1.0e-02, more than 1.0e-04"):
        harness.measure("one product", lambda device: lambda: x @ x, "cpu", 0)


def test_a_product_that_differs_from_float64_is_an_error(harness, monkeypatch):
    wrong_by(monkeypatch, 1.001)
    x = torch.rand(8, 8)
    for product in (lambda: x @ x, lambda: torch.addmm(torch.zeros(8), x, x, beta=2, alpha=3).relu_()):
        with pytest.raises(ValueError, match=r"one product: a product of ieee errs by 1.0e-03, more than 2.0e-05"):
            harness.measure("one product", lambda device, product=product: product, "cpu", 0, tolerance=1)


@pytest.mark.parametrize("apart", [False, True])
def test_kinds_are_compared_on_builds_that_are_the_same_and_timed_on_one_of_them_or_apart(harness, monkeypatch, apart):
    for name, value in {"TURNS": 2, "WARMED": 3, "WARM_UP": 2}.items():
        monkeypatch.setattr(harness, name, value)
    built, ran = [], []

    def build(device):
        x, number = torch.rand(4, 4), len(built)
        built.append(x)
        return lambda: ran.append(number) or x @ x

    case = harness.measure("one product", build, "cpu", 0, apart=apart)
    assert len(built) == 3 and all(torch.equal(each, built[0]) for each in built)
    turns = 2 * (2 + case["steps"])
    plain = 1 + 3 + 2 + 1 + 2 * turns  # compared, warmed, warmed up to choose the number of steps, and the null run
    assert [ran.count(number) for number in range(3)] == (
        [plain, 1 + 3 + turns, 1 + 3 + turns] if apart else [plain + 2 * (3 + turns), 1, 1]
    )
    assert case["steps"] == 1 and case["device_ms"] == {} and case["limit"] == "unknown"


def test_every_turn_has_each_kind_once_in_an_order_of_its_own(harness):
    turns = [tuple(turn) for turn in harness.turns(24)]
    assert len(turns) == 24 and all(sorted(turn) == sorted(harness.PRODUCTS) for turn in turns)
    assert len({*turns}) > 10 and {turn[0] for turn in turns} == {*harness.PRODUCTS}
    assert turns == [tuple(turn) for turn in harness.turns(24)]


@pytest.mark.parametrize(
    ("device_ms", "ahead", "limit"),
    [
        (8.9, True, "host"),
        (8.9, False, "host"),
        (9.1, True, "device"),
        (9.1, False, "unknown"),
        (None, True, "unknown"),
    ],
)
def test_the_host_is_the_limit_where_the_device_has_nothing_to_do(harness, device_ms, ahead, limit):
    assert harness.limited_by(10.0, device_ms, ahead) == limit


def test_the_summary_has_means_by_limit_and_what_is_slower_than_noise(run):
    def case(what, limit, null, ieee, fp16x3):
        return {"what": what, "limit": limit, "ms": {"PyTorch": 2.0, "null": null, "ieee": ieee, "fp16x3": fp16x3}}

    cases = [
        case("slow", "host", 2.0, 2.05, 2.0),
        case("noisy", "host", 1.9, 2.05, 2.2),
        case("fast", "device", 2.0, 1.0, 0.5),
    ]
    lines = "\n".join(run._summary(cases))
    assert "2 cases, limited by the host: geometric means null 0.975, ieee 1.025, fp16x3 1.049" in lines
    assert "1 cases, limited by the device: geometric means null 1.000, ieee 0.500, fp16x3 0.250" in lines
    assert "3 cases, all: geometric means null 0.983, ieee 0.807, fp16x3 0.650" in lines
    assert "with ieee: 1\n  slow" in lines and "with fp16x3: 1\n  noisy" in lines and "unknown" not in lines


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
    for name, before in (("PyTorch", ["on", "off"]), ("null", ["on", "off"]), ("ieee", ["on"])):
        turned.clear()
        with harness.products(name, "cpu") as switch:
            assert turned == before
            x @ x
        assert turned == ["on", "off"]
        assert switch.report().calls == 1 if name == "ieee" else switch is None


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
