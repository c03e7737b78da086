"""Split-K: each part of K writes its partial sums to workspace, and a second kernel adds them up.

It adds them in a fixed order, so the same call gives the same bits every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm.call import workspace
from fastsgemm.call.dispatch import KernelLaunch
from fastsgemm.call.prepared import Prepared, Reduction
from fastsgemm.errors import ShapeError
from fastsgemm.geometry.grid import MAX_BLOCKS
from fastsgemm.geometry.layout import ITEM
from fastsgemm.jit import kernel

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_EARLY = 90  # the first architecture that can launch a kernel before the kernel it depends on has ended


def reduction(gpu: Gpu, launch: KernelLaunch, stream: Any) -> Reduction:
    """Return the second launch of a product whose K is split.

    Raises
    ------
    ShapeError
        The grid would have more blocks than the hardware allows.
    CaptureError
        The kernel is not loaded yet and `stream` is being captured.
    """
    config = reduction_config(launch, gpu.arch)
    return Reduction(kernel.helper(gpu, launch.reduction, stream), config)


def reduction_config(launch: KernelLaunch, arch: str) -> Any:
    """Return the ``cuda.core.LaunchConfig`` of the kernel that adds up the partial sums of a product.

    On sm_90 and later, with cuda.core 1.2 and later, the kernel is launched while the parts are still being computed.

    Raises
    ------
    ShapeError
        The grid would have more blocks than the hardware allows.
    """
    from cuda.core import LaunchConfig

    blocks, threads = launch.reduction_blocks
    if blocks > MAX_BLOCKS:
        raise ShapeError(
            f"split-K of {launch.M} x {launch.N} needs {blocks} blocks to add up, the limit of a grid is {MAX_BLOCKS}"
        )
    early = hasattr(LaunchConfig, "programmatic_stream_serialization") and int(arch.removeprefix("sm_")) >= _EARLY
    options = {"programmatic_stream_serialization": True} if early else {}
    return LaunchConfig(grid=blocks, block=threads, **options)


def launch(
    gpu: Gpu,
    handle: int,
    ready: Prepared,
    reduction: Reduction,
    addresses: tuple[int, int, int],
    alpha: np.float32,
    beta: np.float32,
) -> None:
    """Launch a product whose K is split, then the reduction of its partial sums.

    Parameters
    ----------
    gpu : Gpu
    handle : int
        The raw stream.
    ready : Prepared
        A prepared product; its `launch` is not None.
    reduction : Reduction
        `ready.reduction`.
    addresses : tuple of int
        The addresses of the caller's A, B and C.
    alpha, beta : numpy.float32

    Raises
    ------
    DeviceMemoryError
        The device has no room for the partial sums.
    """
    product: KernelLaunch = ready.launch  # type: ignore[assignment]
    a, b, c = addresses
    stream = gpu.stream(handle)
    size = ITEM * int(product.parts) * product.parts_apart
    partial_sums = workspace.allocate(gpu, handle, size, "the partial sums of split-K")
    try:
        gpu.launch(stream, ready.config, ready.kernel, *product.partial_arguments(a, b, partial_sums, alpha))
        arguments = product.reduction_arguments(partial_sums, c, alpha, beta)
        gpu.launch(stream, reduction.config, reduction.kernel, *arguments)
    finally:
        workspace.free(gpu, handle, partial_sums)
