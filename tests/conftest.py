"""Fixtures that several test files share, and the rule that GPU tests are skipped where there is no card."""

import os
import warnings
from functools import cache

import numpy as np
import pytest
from hypothesis import settings

from fastsgemm import cache as kernel_cache
from fastsgemm import device, host
from fastsgemm.errors import DeviceError

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")


@cache
def missing_card():
    """Return why GPU tests cannot run here, or None."""
    try:
        device.probe()
    except DeviceError as error:
        return f"no card: {error}"
    return None


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and missing_card():
        pytest.skip(missing_card())


def forget_the_machine():
    """Forget what was found out about the machine, and that it was warned about."""
    device.probe.cache_clear()
    device.host_backend.cache_clear()
    host._warned = False
    kernel_cache._warned = False


@pytest.fixture(scope="session", autouse=True)
def kernel_folder(tmp_path_factory):
    """Keep the user's own kernel cache out of it; FASTSGEMM_CACHE_DIR makes kernels survive the session."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("FASTSGEMM_CACHE_DIR"):
            patch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.fixture
def fresh_machine():
    """A process that has not looked at its machine yet, and forgets afterwards what it saw."""
    forget_the_machine()
    yield
    forget_the_machine()


@pytest.fixture
def on_host(fresh_machine, monkeypatch):
    """Host arrays are multiplied by NumPy, whatever the machine has; the one warning is past."""
    monkeypatch.setenv("FASTSGEMM_DEVICE", "host")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        host._say_once()


@pytest.fixture
def no_driver(fresh_machine, monkeypatch):
    """A machine without an NVIDIA driver."""
    from cuda.bindings import driver

    def missing(flags):
        raise RuntimeError("libcuda.so.1: cannot open shared object file")

    monkeypatch.delenv("FASTSGEMM_DEVICE", raising=False)
    monkeypatch.setattr(driver, "cuInit", missing)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def random():
    """Return a function that makes a float32 matrix of normal numbers, the same in every run."""
    generator = np.random.default_rng(20)
    return lambda *shape: generator.standard_normal(shape).astype(np.float32)
