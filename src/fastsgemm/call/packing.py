"""Packing: operands are copied to workspace that a kernel can read, or reads faster.

Those without a unit stride are copied to row-major workspace, and C is copied back afterwards. A and B of a large
product may be copied to aligned lines; `fastsgemm.heuristics.packing` says when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastsgemm.call import dispatch
from fastsgemm.call.arrays import View
from fastsgemm.call.matrix import Matrix
from fastsgemm.call.plan import Address, Base, Draft
from fastsgemm.geometry.layout import ITEM
from fastsgemm.geometry.variants import Operand
from fastsgemm.jit import kernel
from fastsgemm.jit.source import HELPERS

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_COPY = "copy_strided"
_THREADS = HELPERS[_COPY]["THREADS"]


def add_packed(draft: Draft, operand: Matrix, only_for: str) -> Matrix:
    """Add the step that copies an operand to workspace, and return the copy.

    Parameters
    ----------
    draft : Draft
    operand : Matrix
    only_for : str
        The scalar without which it is not read; the copy is then not initialised.
    """
    rows, columns = operand.shape
    address = draft.reserve(ITEM * rows * columns, "packed copies of operands without a unit stride")
    copy = Matrix(address, operand.shape, (columns, 1))
    add_copy(draft, operand, copy, only_for)
    return copy


def add_copy(draft: Draft, source: Matrix, target: Matrix, only_for: str = "") -> None:
    """Add the step that copies a matrix, between any strides."""
    rows, columns = source.shape
    count = rows * columns
    copying = kernel.helper(draft.gpu, _COPY, draft.handle)
    if count > 0:
        draft.add(
            copying, (-(-count // _THREADS),), _THREADS, np.int32(rows), np.int32(columns),
            source.address, *source.strides, target.address, *target.strides, only_for=only_for,
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


def copy(gpu: Gpu, handle: int, source: View, target: View) -> None:
    """Copy a matrix on the device now, between any strides."""
    draft = Draft(gpu, handle)
    add_copy(draft, Matrix(Address(Base.A), *source[1][:2]), Matrix(Address(Base.C), *target[1][:2]))
    draft.plan(0).launch(gpu, handle, source[0], 0, target[0], 0.0, 0.0)
