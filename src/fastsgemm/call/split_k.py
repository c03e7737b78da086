"""Split-K: the parts of a product go to workspace, one beside the other, and a second kernel adds them up.

In a fixed order, so the same call gives the same bits every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm.call import workspace
from fastsgemm.errors import ShapeError
from fastsgemm.geometry.grid import MAX_BLOCKS
from fastsgemm.geometry.layout import ITEM

if TYPE_CHECKING:
    from fastsgemm.call.prepare import Launch
    from fastsgemm.device import Gpu
from fastsgemm.geometry.grid import reduction_blocks

_EARLY = 90  # the first architecture on which a kernel can be launched before the one that it waits for has ended
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


@dataclass(frozen=True)
class Reduction:
    """How the parts of a product are added up.

    Attributes
    ----------
    count : numpy.int32
        Parts.
    kernel : cuda.core.Kernel
        ``reduce_parts``.
    config : cuda.core.LaunchConfig
    strides : tuple of int
        Of C in floats, down and to the right.
    """

    count: np.int32
    kernel: Any
    config: Any
    strides: tuple[int, int]


def reduction(kernel: Any, M: int, N: int, count: int, strides: tuple[int, int], arch: str) -> Reduction:
    """Return how `count` parts of an (M, N) product are added up into a C with these strides.

    Where device and cuda.core can (from 1.2 on), the kernel is launched while the parts are still being computed.

    Raises
    ------
    ShapeError
        The grid would be larger than the hardware allows.
    """
    from cuda.core import LaunchConfig

    blocks, threads = reduction_blocks(M, N, count)
    if blocks > MAX_BLOCKS:
        raise ShapeError(f"split-K of {M} x {N} needs {blocks} blocks to add up, the limit of a grid is {MAX_BLOCKS}")
    early = hasattr(LaunchConfig, "programmatic_stream_serialization") and int(arch.removeprefix("sm_")) >= _EARLY
    options = {"programmatic_stream_serialization": True} if early else {}
    return Reduction(np.int32(count), kernel, LaunchConfig(grid=blocks, block=threads, **options), strides)


def run(
    gpu: Gpu,
    handle: int,
    launch: Launch,
    parts: Reduction,
    K: np.int32,
    addresses: tuple[int, int, int],
    alpha: np.float32,
    beta: np.float32,
) -> None:
    """Launch a product in parts and their sum.

    Parameters
    ----------
    gpu : Gpu
    handle : int
        The raw stream.
    launch : Launch
    parts : Reduction
    K : numpy.int32
        0 where A and B are not read.
    addresses : tuple of int
        Of the kernel's A, B and C.
    alpha, beta : numpy.float32

    Raises
    ------
    DeviceMemoryError
        There is no room for the parts.
    """
    pa, pb, pc = addresses
    M, N = launch.M, launch.N
    chunk, stride = launch.split  # type: ignore[misc]
    stream = gpu.stream(handle)
    place = workspace.allocate(gpu, handle, ITEM * int(parts.count) * stride, "the partial sums of split-K")
    try:
        gpu.launch(
            stream, launch.config, launch.kernel,
            M, N, K, _ONE, pa, launch.lda, pb, launch.ldb, _ZERO, place, int(N), chunk, stride,
        )  # fmt: skip
        gpu.launch(
            stream, parts.config, parts.kernel,
            M, N, parts.count, place, stride, alpha, beta, pc, *parts.strides,
        )  # fmt: skip
    finally:
        workspace.free(gpu, handle, place)
