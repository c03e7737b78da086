"""Packing: operands without a unit stride are copied to row-major workspace, and C is copied back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from fastsgemm.call import workspace
from fastsgemm.call.arrays import View
from fastsgemm.geometry.layout import ITEM
from fastsgemm.jit import kernel
from fastsgemm.jit.source import HELPERS

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_COPY = "copy_strided"
_THREADS = HELPERS[_COPY]["THREADS"]

Three = tuple[bool, bool, bool]


@contextmanager
def packed(gpu: Gpu, handle: int, views: tuple[View, View, View], which: Three, read: Three) -> Iterator[list[View]]:
    """Yield A, B and C with packed copies of those that `which` marks; afterwards copy a packed C back.

    Parameters
    ----------
    gpu : Gpu
    handle : int
        The raw stream.
    views : tuple of View
        A, B and C.
    which : tuple of bool
        Which operands to copy.
    read : tuple of bool
        Which operands the product reads; copies of the others are not initialised.
    """
    kernel.helper(gpu, _COPY, gpu.stream(handle))  # raises in a capture, before anything is captured
    taken = []
    given = list(views)
    try:
        for i, name in enumerate("ABC"):
            if which[i]:
                (rows, columns), _, ordinal, *_ = views[i][1]
                what = f"a packed copy of {name}, which an operand with a unit stride does not need"
                address = workspace.allocate(gpu, handle, ITEM * rows * columns, what)
                taken.append(address)
                given[i] = address, ((rows, columns), (columns, 1), ordinal, None, False)
                if read[i]:
                    copy(gpu, handle, views[i], given[i])
        yield given
        if which[2]:
            copy(gpu, handle, given[2], views[2])
    finally:
        for address in taken:
            workspace.free(gpu, handle, address)


def copy(gpu: Gpu, handle: int, source: View, target: View) -> None:
    """Copy a matrix on the device, between any strides."""
    from cuda.core import LaunchConfig

    rows, columns = source[1][0]
    count = rows * columns
    if count == 0:
        return
    stream = gpu.stream(handle)
    grid = LaunchConfig(grid=-(-count // _THREADS), block=_THREADS)
    extents = (np.int32(rows), np.int32(columns))
    from_, to = (source[0], *source[1][1]), (target[0], *target[1][1])
    gpu.launch(stream, grid, kernel.helper(gpu, _COPY, stream), *extents, *from_, *to)
