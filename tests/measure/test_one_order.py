"""The program that measures one order of summation, on the host: PyTorch's product replaces the kernels."""

import json

import pytest

from fastsgemm.problem import Problem

one_order = pytest.importorskip("one_order", reason="tests/benchmarks is part of a checkout only")


class GivenTimes:
    """A stopwatch that returns fixed times."""

    def medians(self, works, seconds):
        return [2.0, 1.0, 4.0]


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_a_row_has_the_times_and_errors_of_all_three(torch, monkeypatch, layout):
    asked = []

    def product(a, b, C, **options):
        asked.append((a.is_contiguous(), b.is_contiguous(), options))
        return torch.mm(a, b, out=C)

    monkeypatch.setattr(one_order, "sgemm", product)
    row = one_order.row(torch, GivenTimes(), Problem(33, 17, 40, layout), "cpu")
    assert (row["M"], row["N"], row["K"], row["layout"], row["named"]) == (33, 17, 40, layout, False)
    assert (row["ms"], row["default_ms"], row["cublas_ms"]) == (2.0, 1.0, 4.0)
    assert row["error"] == row["default_error"] == row["cublas_error"] < 1e-6
    rows_of_a, rows_of_b = (letter == "N" for letter in layout)
    assert asked == [(rows_of_a, rows_of_b, {"batch_invariant": True}), (rows_of_a, rows_of_b, {})]


@pytest.mark.parametrize("fault", [1.001, float("nan")])
@pytest.mark.parametrize("options", [{}, {"batch_invariant": True}])
def test_a_wrong_result_is_not_timed(torch, monkeypatch, fault, options):
    def product(a, b, C, **given):
        C.copy_(a @ b * (fault if given == options else 1.0))

    monkeypatch.setattr(one_order, "sgemm", product)
    monkeypatch.setattr(GivenTimes, "medians", lambda *_: pytest.fail("it was timed"))
    with pytest.raises(ValueError, match="errors are"):
        one_order.row(torch, GivenTimes(), Problem(33, 17, 40), "cpu")


def test_the_problems_are_those_of_the_stored_run_and_its_proof_is_kept(tmp_path, monkeypatch):
    stored = json.loads(one_order.KEPT.read_text())
    of_run = {Problem(row["M"], row["N"], row["K"], row["layout"]): row["named"] for row in stored["cost"]["rows"]}
    assert of_run == one_order.PROBLEMS
    path = tmp_path / "order.json"
    path.write_text(json.dumps(stored))
    monkeypatch.setattr(one_order, "measure", lambda: {"rows": []})
    one_order.main(["--json", str(path)])
    assert json.loads(path.read_text()) == {"cost": {"rows": []}, "proof": stored["proof"]}
