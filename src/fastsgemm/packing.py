"""Operands without a unit stride: copied to row-major workspace before the product, C scattered back after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from fastsgemm import kernel
from fastsgemm.arrays import DeviceArray, View

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_THREADS = 256  # as in cuda_src/copy_strided.cu

Three = tuple[bool, bool, bool]


@contextmanager
def packed(gpu: Gpu, handle: int, views: tuple[View, View, View], which: Three, read: Three) -> Iterator[list[View]]:
    """Give the body A, B and C with copies in place of those that `which` marks; then scatter C's copy back.

    The workspace comes from the card's pool and goes back in stream order, so nothing waits.

    Parameters
    ----------
    gpu : Gpu
    handle : int
        The raw stream.
    views : tuple of View
        A, B and C.
    which : tuple of bool
        Those to copy.
    read : tuple of bool
        Those whose values matter; the copies of the others start undefined.
    """
    workspace = []
    given = list(views)
    try:
        for i in range(3):
            if which[i]:
                made = DeviceArray(tuple(views[i][1][0]), gpu, handle)
                workspace.append(made)
                if read[i]:
                    copy(gpu, handle, views[i], made.view)
                given[i] = made.view
        yield given
        if which[2]:
            copy(gpu, handle, given[2], views[2])
    finally:
        for made in workspace:
            made.close()


def copy(gpu: Gpu, handle: int, source: View, target: View) -> None:
    """Copy a matrix on the device, between any two layouts."""
    from cuda.core import LaunchConfig

    rows, columns = source[1][0]
    count = rows * columns
    if count == 0:
        return
    stream = gpu.stream(handle)
    grid = LaunchConfig(grid=-(-count // _THREADS), block=_THREADS)
    extents = (np.int32(rows), np.int32(columns))
    from_, to = (source[0], *source[1][1]), (target[0], *target[1][1])
    gpu.launch(stream, grid, kernel.get_copy(gpu, stream), *extents, *from_, *to)
