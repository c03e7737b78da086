"""Packing: operands are copied to workspace that a kernel can read, or reads faster.

Those without a unit stride are copied to row-major workspace, and C is copied back afterwards. A and B of a large
product may be copied to aligned lines; `fastsgemm.heuristics.ways` says when.
"""

from __future__ import annotations

import numpy as np

from fastsgemm.call.plan import Draft, When, Write
from fastsgemm.geometry.batch import Batch
from fastsgemm.geometry.layout import ITEM
from fastsgemm.geometry.matrix import Matrix
from fastsgemm.geometry.variants import Operand
from fastsgemm.jit.source import HELPERS, helper_spec

_THREADS = HELPERS["copy_strided"]["THREADS"]
_OF_BLOCK = _THREADS * HELPERS["copy_strided"]["ELEMENTS"]  # elements
_PACK = HELPERS["pack"]


def reserve(draft: Draft, operand: Matrix) -> Matrix:
    """Return a place in workspace for a row-major copy of an operand; a matrix that a batch shares has one copy."""
    return operand.copy_at(draft.reserve(operand.nbytes, "packed copies of operands without a unit stride"))


def add_packed(draft: Draft, operand: Matrix, when: When) -> Matrix:
    """Add the launch that copies an operand to workspace where it is read, and return the copy."""
    copy = reserve(draft, operand)
    add_copy(draft, operand, copy, when)
    return copy


def add_copy(draft: Draft, source: Matrix, target: Matrix, when: When = When.ALWAYS) -> None:
    """Add the launch that copies matrices, between any strides; those that the target repeats are copied once."""
    distinct = [d for d, step in enumerate(target.steps) if step]
    batch = Batch(
        tuple(target.shape[d] for d in distinct), tuple(source.strides[d] for d in distinct), (0,) * len(distinct),
        tuple(target.strides[d] for d in distinct),
    )  # fmt: skip
    rows, columns = target.rows_and_columns
    count = rows * columns
    if count > 0:
        draft.add(
            helper_spec("copy_strided"), (-(-count // _OF_BLOCK), *batch.grid), _THREADS,
            (np.int32(rows), np.int32(columns), source, *source.inner_strides, target, *target.inner_strides, batch),
            writes=(Write(target),), when=when,
        )  # fmt: skip


def add_lines(draft: Draft, matrix: Matrix, operand: Operand, packed: Operand) -> Matrix:
    """Add the launch that copies A or B to aligned lines, and return these, with what pads them.

    Parameters
    ----------
    draft : Draft
    matrix : Matrix
    operand, packed : Operand
        How it lies, and what `Operand.packed` returned.
    """
    lines, length = operand.shape[::-1] if packed.how.trans else operand.shape
    along = operand.how.trans == packed.how.trans  # the lines run as in the operand
    from_line, from_step = (operand.how.ld, 1) if along else (1, operand.how.ld)
    to_line, tile = packed.how.ld, _PACK["TILE"]
    shape = (packed.line, lines) if packed.how.trans else (lines, packed.line)
    address = draft.reserve(ITEM * lines * to_line, "packed copies of A and B")
    target = Matrix(address, shape, packed.strides, name=f"{matrix.name} packed")
    draft.add(
        helper_spec("pack"), (-(-lines // tile) * -(-length // tile),), _PACK["THREADS"],
        (np.int32(lines), np.int32(length), matrix, from_line, from_step, target, to_line),
        writes=(Write(target),), when=When.READS,
    )  # fmt: skip
    return target
