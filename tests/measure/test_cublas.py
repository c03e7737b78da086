"""What is called to compare with: PyTorch's product of matrices or of batches, here on the CPU."""

import numpy as np
import pytest

from fastsgemm.measure import cublas


@pytest.fixture
def on_cpu(torch, monkeypatch):
    """PyTorch takes the CPU for a device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    precision = torch.get_float32_matmul_precision()
    yield torch
    torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize("batch", [(), (5,)], ids=["a matrix", "a batch"])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_product_goes_to_c_and_its_error_is_that_of_all_of_it(on_cpu, random, batch, transposed):
    a, b, c = random(*batch, 6, 7), random(*batch, 7, 8), np.full((*batch, 6, 8), np.nan, np.float32)
    given = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2) if transposed else b
    found = cublas.product(a, given, c)
    assert on_cpu.__version__ in found.name
    found.work()
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-5)
    assert found.error() < 1e-6
    c[..., -1, -1] += 1.0
    assert found.error() == pytest.approx(np.linalg.norm(c - exact) / np.linalg.norm(exact))
