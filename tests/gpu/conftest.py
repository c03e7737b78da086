"""Fixtures of the GPU tests. Products of small whole numbers are exact, so most results are compared bit by bit."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from fastsgemm import device
from fastsgemm.heuristics import choose as heuristics
from fastsgemm.heuristics import cutting, packing


@pytest.fixture
def gpu():
    """The first device, current in this thread."""
    opened = device.open_gpu(0)
    switched = opened.enter()
    yield opened
    if switched:
        opened.leave()


def one_chain(config):
    """Return the config whose sums are one chain of FMAs."""
    names = {"SPLIT_K", "SLICED_K", "PARTIAL_ACCUMULATORS"} & config.declared().keys()
    return config.replace(**dict.fromkeys(names, 1))


@pytest.fixture
def undivided(gpu, monkeypatch):
    """A sum is one chain, whatever the database says, so that the bits are those of rung 1."""
    real = heuristics.choose

    def choose(device_info, rung, problem):
        choice = real(device_info, rung, problem)
        return replace(choice, config=one_chain(choice.config))

    real_select = packing.select

    def select(*given, **named):
        selected = real_select(*given, **named)
        return structs.replace(selected, choice=replace(selected.choice, config=one_chain(selected.choice.config)))

    monkeypatch.setattr(heuristics, "choose", choose)
    monkeypatch.setattr(packing, "select", select)
    monkeypatch.setattr(cutting, "find", lambda *given: None)  # rung 10 may compute a share
    gpu.forget_problems()
    yield
    gpu.forget_problems()


@pytest.fixture
def whole():
    """Return a function that makes a float32 matrix of small whole numbers, another one each time."""
    generator = np.random.default_rng(21)
    return lambda *shape: generator.integers(-4, 5, shape).astype(np.float32)


@pytest.fixture(scope="session")
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("this PyTorch sees no device")
    return found


@pytest.fixture(scope="session")
def ask_for_room(torch):
    """Return a function that skips tests beyond 2^31 elements where other processes have left too little memory."""

    def ask():
        torch.cuda.empty_cache()
        if torch.cuda.mem_get_info()[0] < 30 * 2**30:
            pytest.skip("less than 30 GiB of memory free")

    return ask


@pytest.fixture
def room(torch, ask_for_room):
    """Room for one such test, which is given back after it."""
    ask_for_room()
    yield
    torch.cuda.empty_cache()


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def jax():
    found = pytest.importorskip("jax")
    if found.default_backend() != "gpu":
        pytest.skip("this JAX sees no device")
    return found


@pytest.fixture
def make_busy(torch):
    """Return a function that keeps a raw stream of the device busy for about a fifth of a second."""

    def queue(handle):
        with torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle > 2 else torch.cuda.default_stream()):
            torch.cuda._sleep(400_000_000)  # clock cycles

    return queue
