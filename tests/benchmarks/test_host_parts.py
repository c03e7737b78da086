"""Host time of what needs no device: planning, choosing a config, generating source, NumPy's product, simulation."""

import random as randomness
from itertools import count

import numpy as np
import pytest

from fastsgemm import VectorizedConfig, rungs, sgemm
from fastsgemm.command_line import info
from fastsgemm.command_line.info import DeviceRow
from fastsgemm.geometry import layout, variants
from fastsgemm.geometry.matrix import Operand
from fastsgemm.geometry.variants import Variant
from fastsgemm.heuristics.choice import choose as choose_way
from fastsgemm.heuristics.choice import choose_config as choose_any
from fastsgemm.heuristics.database import forget
from fastsgemm.jit import source
from fastsgemm.measure import simulated_ladder
from fastsgemm.problem import LAYOUTS, Problem
from fastsgemm.request import Request

H200 = DeviceRow(0, "NVIDIA H200", "sm_90", 132, 227 * 1024)
RUNG = rungs.find("vectorized")
CONFIG = VectorizedConfig(BM=128, BN=128, BK=8, TM=8, TN=8)
never_seen = count(4096)
drawn = randomness.Random(0)


def plan_a_call():
    how = layout.stored((4096, 4096), (4096, 1))
    operand = Operand((4096, 4096), how)
    call = variants.call_for(operand, operand, operand)
    return variants.variant_for(RUNG, call, CONFIG, 16)


def choose():
    return info.choose(H200, RUNG, Problem(4096, 4096, next(never_seen)))


def choose_default():
    """Choose as `sgemm` does for a new shape of which nothing has been seen."""
    return choose_any(H200, None, Problem(1000, 2000, next(never_seen)))


def choose_batch():
    """Choose for another batch of a layer, of which N and K have been seen."""
    return choose_any(H200, None, Problem(next(never_seen), 4096, 4096, "NT"))


def choose_narrow():
    """Choose between two rungs."""
    return choose_any(H200, None, Problem(17, next(never_seen), 4096, "NT"))


def choose_new():
    """Select config and packing as `sgemm` does, for random new shapes of every size, half of them aligned."""
    step = drawn.choice((1, 8))
    M, N, K = (max(step, int(2 ** drawn.uniform(0, 13)) // step * step) for _ in range(3))
    return choose_way(H200, Request(), *variants.dense_operands(Problem(M, N, K, drawn.choice(LAYOUTS))))


def read_database():
    """Read the tuning database and make the cost model of the default rungs, as the first call of a process does."""
    forget()
    return choose_any(H200, None, Problem(17, 4096, next(never_seen)))


def generate():
    return source.rung_spec(RUNG, CONFIG, Variant()).text


PARTS = [plan_a_call, choose, choose_default, choose_batch, choose_narrow, choose_new, read_database, generate]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_part(part, benchmark):
    benchmark.group = "host parts"
    assert benchmark(part)


@pytest.mark.parametrize("size", [64, 512])
def test_host_product(size, benchmark, on_host, random):
    A, B, C = random(size, size), random(size, size), np.empty((size, size), np.float32)
    benchmark.group = f"host product, {size}"
    benchmark(lambda: sgemm(A, B, C=C))


@pytest.mark.parametrize("size", [64, 512])
def test_numpy_product(size, benchmark, random):
    A, B, C = random(size, size), random(size, size), np.empty((size, size), np.float32)
    benchmark.group = f"host product, {size}"
    benchmark(lambda: np.matmul(A, B, out=C))


@pytest.mark.parametrize("rung", rungs.IEEE, ids=lambda rung: rung.name)
def test_simulated_rung(rung, benchmark, measured):
    if not measured:
        pytest.skip("seconds each; run by make bench")
    benchmark.group = "simulated rungs, 128 x 128 x 128"
    benchmark.pedantic(simulated_ladder.climb, args=(Problem(128, 128, 128), [rung]), rounds=1)
