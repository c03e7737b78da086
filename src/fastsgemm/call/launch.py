"""One product on device addresses: look up what has been prepared, then launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm.call import checks, packing, split_k
from fastsgemm.call.arrays import Meta, View
from fastsgemm.call.prepare import Prepared, prepare
from fastsgemm.config import Config
from fastsgemm.geometry import grid, layout
from fastsgemm.rungs import Rung

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_MOST_PLANS = 16384  # per device; then the look-up table starts again


def run(
    gpu: Gpu,
    handle: int,
    a: View,
    b: View,
    c: View,
    alpha: np.float32,
    beta: np.float32,
    rung: Rung | None = None,
    config: Config | None = None,
) -> None:
    """Compute C <- alpha * A @ B + beta * C on views of device memory; see `fastsgemm.sgemm` for the errors.

    Parameters
    ----------
    gpu : Gpu
        The device, current in this thread.
    handle : int
        The raw stream.
    a, b, c : View
        Address and meta of A, B and C.
    alpha, beta : numpy.float32
    rung : Rung, optional
    config : Config, optional
    """
    pa, a_meta = a
    pb, b_meta = b
    pc, c_meta = c
    key = (a_meta, b_meta, c_meta, pa & 15, pb & 15, pc & 15, rung, config)
    ready = gpu.plans.get(key) or _first_call(gpu, handle, a, b, c, rung, config)
    a_low, a_high, b_low, b_high, c_low, c_high = ready.ranges
    if pc + c_low < pa + a_high and pa + a_low < pc + c_high:
        check_overlap("A", pa - pc, c_meta, a_meta)
    if pc + c_low < pb + b_high and pb + b_low < pc + c_high:
        check_overlap("B", pb - pc, c_meta, b_meta)
    launch = ready.launch
    if launch is None:
        if not ready.empty:
            read = (bool(alpha), bool(alpha), bool(beta))
            with packing.packed(gpu, handle, (a, b, c), ready.packing, read) as views:
                run(gpu, handle, views[0], views[1], views[2], alpha, beta, rung, config)
        return
    K, alpha = grid.steps(launch.K, alpha, beta)
    if launch.swap_ab:
        pa, pb = pb, pa
    if launch.parts is not None:
        split_k.run(gpu, handle, launch, launch.parts, K, (pa, pb, pc), alpha, beta)
        return
    gpu.launch(
        gpu.stream(handle), launch.config, launch.kernel,
        launch.M, launch.N, K, alpha, pa, launch.lda, pb, launch.ldb, beta, pc, launch.ldc, *launch.split,
    )  # fmt: skip


def _first_call(gpu: Gpu, handle: int, a: View, b: View, c: View, rung: Rung | None, config: Config | None) -> Prepared:
    misaligned = (a[0] & 15, b[0] & 15, c[0] & 15)
    ready = prepare(gpu, handle, (a[1], b[1], c[1]), misaligned, rung, config)
    remember(gpu, (a[1], b[1], c[1], *misaligned, rung, config), ready)
    return ready


def remember(gpu: Gpu, key: Any, plan: Any) -> None:
    """Keep what was prepared for a call, for the next one like it."""
    if len(gpu.plans) >= _MOST_PLANS:
        gpu.plans.clear()
    gpu.plans[key] = plan


def check_overlap(name: str, distance: int, c: Meta, other: Meta) -> None:
    """Refuse C sharing an element with operand `name`, whose first element lies `distance` bytes from that of C."""
    checks.apart(name, layout.overlap(distance, c[0], c[1], other[0], other[1]))
