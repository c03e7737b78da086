"""The script that compute-sanitizer runs, on a device made of NumPy: what it calls has not changed its form."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from fastsgemm.geometry.layout import Meta, row_major
from fastsgemm.problem import DType

SCRIPT = Path(__file__).parents[1] / "gpu" / "sanitize.py"


class HostArray:
    """A `DeviceArray` in host memory."""

    def __init__(self, shape, gpu, handle, dtype=DType.F32):
        self.shape, self._dtype = shape, dtype
        self._values = np.zeros(shape, np.uint16) if dtype else np.full(shape, np.nan, np.float32)

    @property
    def view(self):
        return self._values.ctypes.data, Meta(self.shape, row_major(self.shape), self._dtype)

    def upload(self, source):
        self._values[...] = source

    def download(self, target):
        target[...] = self._values

    def close(self):
        pass


@pytest.fixture
def script(device, monkeypatch):
    spec = importlib.util.spec_from_file_location("sanitize", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DeviceArray", HostArray)
    monkeypatch.setattr(module, "Lent", lambda array, meta: None)
    monkeypatch.setattr(module, "fp16x3_configs", lambda gpu: [None])
    every = module.ways_of_halves(device)
    monkeypatch.setattr(module, "ways_of_halves", lambda gpu: [way for way in every if way[3] == "ieee"])
    return module


@pytest.mark.parametrize("faults", ["faults_of_ieee", "faults_of_triangles", "faults_of_halves"])
def test_nothing_is_wrong_and_what_is_wrong_is_found(script, device, monkeypatch, faults):
    find, generator = getattr(script, faults), np.random.default_rng(3)
    assert list(find(device, generator)) == []
    multiply = script.multiply
    monkeypatch.setattr(script, "multiply", lambda *given: multiply(*given[:4], given[4] + 0.5, *given[5:]))
    assert len(list(find(device, generator))) > 20
