"""PyTorch's own samples of its products, with the switch on: results, layouts and gradients are PyTorch's."""

import pytest

pytest.importorskip("torch")

import opinfo_samples


@pytest.fixture(scope="module")
def operators():
    return opinfo_samples.operators()


def test_the_samples_of_pytorch(operators, on_host):
    results = [opinfo_samples.run(operator, "cpu") for operator in operators]
    assert {result.operator.split()[0] for result in results} == set(opinfo_samples.OPERATORS)
    assert sum(result.samples for result in results) > 50
    assert all(result.replaced or result.passed_on for result in results)
    assert sum(result.replaced for result in results) > 100


def test_a_wrong_product_is_noticed(operators, on_host, monkeypatch):
    from fastsgemm.torch import execution

    real = execution.on_host
    monkeypatch.setattr(execution, "on_host", lambda views, alpha, *rest: real(views, 2 * alpha, *rest))
    mm = next(operator for operator in operators if operator.name == "mm")
    with pytest.raises(AssertionError):
        opinfo_samples.run(mm, "cpu")
