"""What is called to compare with: PyTorch's product of matrices or of batches, here on the CPU."""

import os
from types import SimpleNamespace

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


@pytest.fixture
def libraries(monkeypatch):
    """The libraries that the process has loaded, by file; each is a number of its version."""
    there = {}

    def opened(name, mode):
        assert mode == os.RTLD_NOLOAD, "it would load a library that nobody uses"
        if name not in there:
            raise OSError(name)
        return SimpleNamespace(cublasLtGetVersion=Version(there[name]))

    monkeypatch.setattr(cublas.ctypes, "CDLL", opened)
    return there


class Version:
    restype = None

    def __init__(self, number):
        self.number = number

    def __call__(self):
        return self.number


@pytest.mark.parametrize(
    ("file", "number", "text"), [("libcublasLt.so.13", 130100, "13.1.0"), ("libcublasLt.so.12", 120803, "12.8.3")]
)
def test_the_version_is_that_of_the_loaded_library(libraries, file, number, text):
    assert cublas.version() is None
    libraries[file] = number
    assert cublas.version() == text


def test_no_library_is_loaded_to_ask_it():
    assert cublas.loaded("no_such_library") is None
