"""Shared by the benchmarks: the problem size, and a clock driven by reported times."""

import sys

import pytest

from fastsgemm import device
from fastsgemm.command_line import info
from fastsgemm.measure import environment
from fastsgemm.measure.problem_sets import SIZES
from fastsgemm.problem import Problem

DEFAULT_SIZE = 4096
TRIAL_SIZE = 256  # if benchmarks only have to run and nothing is measured


def pytest_addoption(parser):
    parser.addoption("--size", type=int, default=DEFAULT_SIZE, help="M = N = K of the ladder's benchmark")


def measuring(config):
    """Return whether to measure; with --benchmark-disable everything only runs once, at a small size."""
    return config.getoption("benchmark_enable") or not config.getoption("benchmark_disable")


def pytest_benchmark_update_machine_info(config, machine_info):
    collected = info.collect(Problem(DEFAULT_SIZE, DEFAULT_SIZE, DEFAULT_SIZE))
    machine_info["fastsgemm"] = collected.json()
    machine_info["facts"] = environment.facts(device.open_gpu(0)) if collected.devices else {}
    machine_info["sizes"] = SIZES
    loaded = [name for name in ("torch", "cupy") if name in sys.modules]
    machine_info["packages"] = {name: sys.modules[name].__version__ for name in loaded}


class ReportedClock:
    """A timer for pytest-benchmark that advances by the seconds a measurement returns."""

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
    """Return a function that runs `measure` `rounds` times and records the seconds it returns, in `group`."""

    def fill(group, measure, rounds):
        benchmark.group = group
        benchmark.pedantic(clock.run, args=(measure,), rounds=rounds)
        return benchmark

    return fill


@pytest.fixture(scope="session")
def measured(request):
    """Whether to measure, rather than only run everything once."""
    return measuring(request.config)


@pytest.fixture(scope="session")
def rounds(measured):
    """Return a function that maps the rounds of a measurement to the rounds to run: 1 if nothing is measured."""
    return lambda wanted: wanted if measured else 1


@pytest.fixture(scope="session")
def size(request, measured):
    return request.config.getoption("--size", DEFAULT_SIZE) if measured else TRIAL_SIZE
