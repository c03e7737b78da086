"""`fastsgemm.grouped_mm` on the simulated device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastsgemm.call.arrays.library import offsets_meta
from fastsgemm.call.grouped import make_grouped_plan
from fastsgemm.geometry.matrix import Base
from fastsgemm.request import PLAIN, Request
from fastsgemm.sim.gemm import Array, Reports, metas_of, run
from fastsgemm.sim.global_memory import misalignment
from fastsgemm.sim.machine import Machine


def grouped_mm(
    A: Array,
    B: Array,
    offsets: NDArray[Any],
    alpha: float,
    beta: float,
    C: Array,
    source: Array | None = None,
    machine: Machine | None = None,
    request: Request = PLAIN,
) -> Reports:
    """Compute C <- alpha * A @ B + beta * C for each group, or with beta times the source; return what was launched."""
    machine = machine or Machine()
    operands = (A, B, C) if source is None else (A, B, C, source)
    ends = offsets_meta(offsets.dtype, offsets.shape, tuple(step // offsets.itemsize for step in offsets.strides), 0)
    plan = make_grouped_plan(
        machine.device, request, metas_of(operands), ends, [misalignment(x) % 16 for x in operands]
    )
    arrays: dict[Base, NDArray[Any]] = dict(zip((Base.A, Base.B, Base.C, Base.SOURCE), operands, strict=False))
    arrays[Base.OFFSETS] = offsets
    return run(plan, machine, arrays, float(np.float32(alpha)), float(np.float32(beta)))
