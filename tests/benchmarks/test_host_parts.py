"""The parts of a call that need no card: planning, choosing a record, making source, NumPy's product."""

import numpy as np
import pytest

from fastsgemm import database, layout, plan, rungs, sgemm, source
from fastsgemm.plan import Operand, Problem
from fastsgemm.source import Variant

SHARED = 227 * 1024  # bytes a block may ask for on sm_90
RUNG = rungs.find("warptiled")
PROBLEM = Problem(4096, 4096, 4096)


def plan_a_call():
    how = layout.stored((4096, 4096), (4096, 1))
    operand = Operand((4096, 4096), how)
    call = plan.call_for(operand, operand, operand)
    return plan.variant_for(RUNG, call)


def choose():
    database.choose.cache_clear()
    return database.choose("NVIDIA H200", "sm_90", SHARED, RUNG, PROBLEM)


def generate():
    return source.generate(RUNG, database.choose("NVIDIA H200", "sm_90", SHARED, RUNG, PROBLEM).config, Variant())


@pytest.mark.parametrize("part", [plan_a_call, choose, generate], ids=lambda part: part.__name__)
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
