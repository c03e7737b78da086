"""Packing: operands are copied to workspace that a kernel can read, or reads faster.

Those without a unit stride are copied to row-major workspace, and C is copied back afterwards. A and B of a large
product may be copied to aligned lines; `fastsgemm.heuristics.ways` says when.
"""

from __future__ import annotations

import numpy as np

from fastsgemm.call import dispatch
from fastsgemm.call.matrix import Matrix
from fastsgemm.call.plan import Address, Draft
from fastsgemm.geometry.batch import Batch
from fastsgemm.geometry.layout import ITEM, row_major
from fastsgemm.geometry.variants import Operand
from fastsgemm.jit import kernel
from fastsgemm.jit.source import HELPERS

_COPY = "copy_strided"
_THREADS = HELPERS[_COPY]["THREADS"]
_OF_BLOCK = _THREADS * HELPERS[_COPY]["ELEMENTS"]  # elements

Extents = tuple[int, ...]


def reserve(draft: Draft, operand: Matrix, extents: Extents) -> Matrix:
    """Return a place in workspace for a row-major copy of an operand; a matrix that a batch shares has one copy.

    Parameters
    ----------
    draft : Draft
    operand : Matrix
    extents : tuple of int
        Of the batch.
    """
    rows, columns = operand.shape
    own = tuple(1 if step == 0 else extent for step, extent in zip(operand.steps, extents, strict=True))
    copies = row_major(own, size=rows * columns)
    steps = tuple(0 if extent == 1 else step for extent, step in zip(own, copies, strict=True))
    size = ITEM * rows * columns * Batch(own).count
    address = draft.reserve(size, "packed copies of operands without a unit stride")
    return Matrix(address, operand.shape, (columns, 1), steps=steps)


def add_packed(draft: Draft, operand: Matrix, extents: Extents, only_for: str) -> Matrix:
    """Add the step that copies an operand to workspace, and return the copy.

    Parameters
    ----------
    draft : Draft
    operand : Matrix
    extents : tuple of int
        Of the batch.
    only_for : str
        The scalar without which it is not read; the copy is then not initialised.
    """
    copy = reserve(draft, operand, extents)
    add_copy(draft, operand, copy, extents, only_for)
    return copy


def add_copy(draft: Draft, source: Matrix, target: Matrix, extents: Extents, only_for: str = "") -> None:
    """Add the step that copies matrices, between any strides; the target's steps of 0 are taken once."""
    rows, columns = source.shape
    kept = [d for d, step in enumerate(target.steps) if step]
    batch = Batch(
        tuple(extents[d] for d in kept), tuple(source.steps[d] for d in kept), (0,) * len(kept),
        tuple(target.steps[d] for d in kept),
    )  # fmt: skip
    copying = kernel.helper(draft.gpu, _COPY, draft.handle)
    count = rows * columns
    if count > 0:
        draft.add(
            copying, (-(-count // _OF_BLOCK), *batch.grid), _THREADS, np.int32(rows), np.int32(columns),
            source.address, *source.strides, target.address, *target.strides, batch, only_for=only_for,
        )  # fmt: skip


def add_lines(draft: Draft, address: Address, operand: Operand, packed: Operand) -> Address:
    """Add the step that copies A or B to aligned lines, and return where they are.

    Parameters
    ----------
    draft : Draft
    address : Address
        Of the operand.
    operand : Operand
    packed : Operand
        What `Operand.packed` returned.
    """
    launch = dispatch.pack_launch(operand, packed)
    lines = draft.reserve(launch.size, "packed copies of A and B")
    packing = kernel.helper(draft.gpu, "pack", draft.handle)
    draft.add(packing, (launch.blocks,), launch.threads, *launch.arguments(address, lines), only_for="alpha")
    return lines
