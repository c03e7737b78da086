"""Fixtures of the GPU tests. Products of small whole numbers are exact, so most results are compared bit by bit."""

import numpy as np
import pytest
from msgspec import structs

from fastsgemm import device, sgemm
from fastsgemm.call import product
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.problem import Problem


@pytest.fixture
def gpu():
    """The first device, current in this thread."""
    opened = device.open_gpu(0)
    switched = opened.enter()
    yield opened
    if switched:
        opened.leave()


def one_chain(device_info, rung, config):
    """Return the config, or that of a large square where it is not legal then, with one chain of FMAs per sum."""
    large = choose_config(device_info, rung, Problem(4096, 4096, 4096)).config
    names = {"SPLIT_K", "SLICED_K", "PARTIAL_ACCUMULATORS"} & config.declared().keys()
    undivided = (one.replace(**dict.fromkeys(names, 1)) for one in (config, large))
    return next(one for one in undivided if not rung.violations(one, device_info.shared_limit))


@pytest.fixture
def undivided(gpu, monkeypatch):
    """A sum is one chain, whatever the database says, so that the bits are those of rung 1."""
    real = product.choose

    def choose(device_info, request, a, b, c, extents=()):
        choice = real(device_info, request, a, b, c, extents)
        pick = choice.pick._replace(known=one_chain(device_info, choice.rung, choice.config))
        return structs.replace(choice, pick=pick)

    monkeypatch.setattr(product, "choose", choose)
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
def differing(torch):
    """Return a function that repeats a call a hundred times beside another one and counts what has other bits."""

    def count(call, other):
        first = call()
        beside, big = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
        torch.cuda.synchronize()
        different = torch.zeros((), device="cuda", dtype=torch.int64)
        for _ in range(100):
            with torch.cuda.stream(beside):
                sgemm(big, big)
                other()
            different += (call() != first).sum()
        torch.cuda.synchronize()
        return different.item()

    return count


@pytest.fixture
def make_busy(torch):
    """Return a function that keeps a raw stream of the device busy for about a fifth of a second."""

    def queue(handle):
        with torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle > 2 else torch.cuda.default_stream()):
            torch.cuda._sleep(400_000_000)  # clock cycles

    return queue
