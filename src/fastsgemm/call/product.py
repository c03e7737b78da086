"""One product on device memory.

A first call takes five steps: check the operands, choose the config, compute the grid, get the kernel, launch. None of
them calls another. The result of the first four depends only on shapes, strides, alignment, rung and config, so it is
kept, and a later call with the same ones is a look-up and a launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm.call import checks, dispatch, packing, split_k
from fastsgemm.call.arrays import HOST, Meta, View
from fastsgemm.call.prepared import Prepared
from fastsgemm.config import Config
from fastsgemm.geometry import layout, variants
from fastsgemm.geometry.layout import Stored
from fastsgemm.geometry.variants import Operand
from fastsgemm.jit import kernel
from fastsgemm.rungs import Rung

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_MOST_PREPARED = 16384  # problems per device; then the table is emptied and starts again

Metas = tuple[Meta, Meta, Meta]
Misaligned = tuple[int, int, int]


def multiply(
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
    ready = gpu.prepared.get(key)
    if ready is None:
        ready = _prepare(gpu, handle, key[:3], key[3:6], rung, config)
        remember(gpu, key, ready)
    a_low, a_high, b_low, b_high, c_low, c_high = ready.ranges
    if pc + c_low < pa + a_high and pa + a_low < pc + c_high:
        check_overlap("A", pa - pc, c_meta, a_meta)
    if pc + c_low < pb + b_high and pb + b_low < pc + c_high:
        check_overlap("B", pb - pc, c_meta, b_meta)
    if ready.launch is None:
        if not ready.empty:
            read = (bool(alpha), bool(alpha), bool(beta))
            with packing.packed(gpu, handle, (a, b, c), ready.packing, read) as (a, b, c):
                multiply(gpu, handle, a, b, c, alpha, beta, rung, config)
    elif ready.reduction is not None:
        split_k.launch(gpu, handle, ready, ready.reduction, (pa, pb, pc), alpha, beta)
    else:
        gpu.launch(gpu.stream(handle), ready.config, ready.kernel, *ready.launch.arguments(pa, pb, pc, alpha, beta))


def remember(gpu: Gpu, key: Any, ready: Any) -> None:
    """Keep what was prepared for a call, for the next one like it."""
    if len(gpu.prepared) >= _MOST_PREPARED:
        gpu.prepared.clear()
    gpu.prepared[key] = ready


def _prepare(
    gpu: Gpu, handle: int, metas: Metas, misaligned: Misaligned, rung: Rung | None, config: Config | None
) -> Prepared:
    """Do all steps of a first call except the launch.

    Parameters
    ----------
    gpu : Gpu
    handle : int
        The raw stream, which may be capturing.
    metas : tuple of Meta
        Of A, B and C.
    misaligned : tuple of int
        The addresses of A, B and C modulo 16, in bytes.
    rung : Rung or None
    config : Config or None
    """
    from cuda.core import LaunchConfig

    check_operands(metas)
    rung = checks.config(rung, config, gpu.shared_limit)
    ready = _described(metas)
    if ready.empty or any(ready.packing):
        return ready
    operands = _operands(metas, misaligned)
    chosen = dispatch.choose_config(gpu, rung, config, *operands)
    rung, config = chosen.rung, chosen.config
    launch = dispatch.kernel_launch(gpu.arch, rung, config, variants.call_for(chosen.a, chosen.b, operands[2]))
    stream = gpu.stream(handle)
    reduction = split_k.reduction(gpu, launch, stream) if launch.parts > 1 else None
    return Prepared(
        ready.ranges,
        ready.packing,
        ready.empty,
        launch,
        kernel.get(gpu, rung, config, launch.variant, stream),
        LaunchConfig(grid=launch.blocks, block=config.threads, shmem_size=config.shared_bytes),
        reduction,
    )


def check_operands(metas: Metas) -> None:
    """Refuse operands that cannot be used, do not fit together or are on different devices."""
    places = {}
    for name, (_, _, ordinal, fault, _) in zip("ABC", metas, strict=True):
        if fault is not None:
            raise fault(name)
        places[name] = "the host" if ordinal == HOST else f"cuda:{ordinal}"
    checks.one_device(places)
    a, b, c = metas
    checks.shapes(a[0], b[0], c[0])
    checks.output(c[0], c[1], readonly=c[4])


def _described(metas: Metas) -> Prepared:
    """Return the part of the preparation that does not depend on the kernel."""
    a, b, c = (meta[:2] for meta in metas)
    ranges = (*layout.byte_range(*a), *layout.byte_range(*b), *layout.byte_range(*c))
    packed = (layout.stored(*a) is None, layout.stored(*b) is None, layout.stored(*c) is None)
    return Prepared(ranges, packed, empty=0 in c[0])


def _operands(metas: Metas, misaligned: Misaligned) -> list[Operand]:
    """Return A, B and C as `fastsgemm.geometry` describes operands; each of them has a unit stride."""
    return [
        Operand(tuple(shape), layout.stored(shape, strides) or Stored(False, 0), offset)
        for (shape, strides, *_), offset in zip(metas, misaligned, strict=True)
    ]


def check_overlap(name: str, distance: int, c: Meta, other: Meta) -> None:
    """Refuse C sharing an element with operand `name`, whose first element lies `distance` bytes from that of C."""
    checks.apart(name, layout.overlap(distance, c[0], c[1], other[0], other[1]))
