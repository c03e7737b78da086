"""What the benchmarks share: the problem size, a device made ready, and a clock that runs on reported times."""

import sys

import pytest

from fastsgemm.ladder import info
from fastsgemm.problem import Problem

DEFAULT_SIZE = 4096
TRIAL_SIZE = 256  # where benchmarks only have to run, not to measure


def pytest_addoption(parser):
    parser.addoption("--size", type=int, default=DEFAULT_SIZE, help="M = N = K of the ladder's benchmark")


def measuring(config):
    """Whether times are wanted; --benchmark-disable runs everything once and cheaply."""
    return config.getoption("benchmark_enable") or not config.getoption("benchmark_disable")


def pytest_benchmark_update_machine_info(config, machine_info):
    machine_info["fastsgemm"] = info.collect(Problem(DEFAULT_SIZE, DEFAULT_SIZE, DEFAULT_SIZE)).json()
    loaded = [name for name in ("torch", "cupy") if name in sys.modules]
    machine_info["packages"] = {name: sys.modules[name].__version__ for name in loaded}


class ReportedClock:
    """A timer for pytest-benchmark that advances by the seconds that a measurement reports."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def run(self, measure):
        self.now += measure()


@pytest.fixture
def clock(request):
    clock = ReportedClock()
    request.node.add_marker(pytest.mark.benchmark(timer=clock))
    return clock


@pytest.fixture
def reported(clock, benchmark):
    """Return a function that fills a benchmark of `group` with the seconds that `measure` returns, `rounds` times."""

    def fill(group, measure, rounds):
        benchmark.group = group
        benchmark.pedantic(clock.run, args=(measure,), rounds=rounds)
        return benchmark

    return fill


@pytest.fixture(scope="session")
def rounds(request):
    """Return a function from the rounds that a measurement takes to those to run here."""
    return lambda wanted: wanted if measuring(request.config) else 1


@pytest.fixture(scope="session")
def size(request):
    return request.config.getoption("--size", DEFAULT_SIZE) if measuring(request.config) else TRIAL_SIZE
