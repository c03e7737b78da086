"""Packing: operands are copied to workspace that a kernel can read, or reads faster; 16-bit ones may become float32.

Those without a unit stride are copied to row-major workspace, and C is copied back afterwards. A and B of a large
product may be copied to aligned lines; `fastsgemm.heuristics.alternatives` says when.
"""

from __future__ import annotations

import numpy as np

from fastsgemm.call.plan import Draft, When, Write
from fastsgemm.geometry.batch import Batch
from fastsgemm.geometry.layout import ITEM
from fastsgemm.geometry.matrix import Matrix, Operand
from fastsgemm.geometry.tensor_map import UNIT
from fastsgemm.jit.source import HELPERS, helper_spec
from fastsgemm.problem import DType

_THREADS = HELPERS["copy_strided"]["THREADS"]
_OF_BLOCK = _THREADS * HELPERS["copy_strided"]["ELEMENTS"]  # elements
_PACK = HELPERS["pack"]


def reserve(draft: Draft, operand: Matrix, dtype: DType | None = None, ld: int | None = None) -> Matrix:
    """Return a place in workspace for a row-major copy of an operand; a matrix that a batch shares has one copy.

    The copy has the operand's type, or another one, and is dense, or has this leading dimension.
    """
    dtype = operand.dtype if dtype is None else dtype
    purpose = "packed copies of operands without a unit stride" if dtype is operand.dtype else "float32 copies"
    columns = max(1, operand.shape[-1])
    size = operand.nbytes // operand.item // columns * (columns if ld is None else ld) * dtype.item
    return operand.copy_at(draft.reserve(size, purpose), dtype, ld)


def add_cast(draft: Draft, operand: Matrix, when: When) -> Matrix:
    """Add the launch that copies a 16-bit operand as float32; return the copy, whose lines run the same way."""
    turned = operand.stored is not None and operand.stored.trans
    lines = operand.transposed if turned else operand
    copy = reserve(draft, lines, DType.F32)
    add_copy(draft, lines, copy, when)
    return copy.transposed if turned else copy


def add_packed(draft: Draft, operand: Matrix) -> Matrix:
    """Add the launch that copies an operand to workspace where it is read, and return the copy."""
    copy = reserve(draft, operand)
    add_copy(draft, operand, copy, When.READS)
    return copy


def add_direct(draft: Draft, operand: Matrix) -> Matrix:
    """Add the launch that copies 16-bit rows to where tensor copies can read them, and return the copy.

    Its rows begin at multiples of 16 bytes.
    """
    columns = operand.shape[-1]
    ld = -(-columns * operand.item // UNIT) * UNIT // operand.item
    copy = reserve(draft, operand, ld=ld)
    add_copy(draft, operand, copy, When.READS)
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
            helper_spec("copy_strided", FROM=source.dtype, TO=target.dtype), (-(-count // _OF_BLOCK), *batch.grid),
            _THREADS,
            (np.int32(rows), np.int32(columns), source, *source.inner_strides, target, *target.inner_strides, batch),
            writes=(Write(target),), when=when,
        )  # fmt: skip


def add_lines(draft: Draft, matrix: Matrix, operand: Operand, packed: Operand) -> Matrix:
    """Add the launch that copies A or B to aligned lines, and return these, with what pads them.

    `operand` says how the matrix lies; `packed` is what its method `packed` returned.
    """
    lines, length = operand.shape[::-1] if packed.how.trans else operand.shape
    along = operand.how.trans == packed.how.trans  # the lines run as in the operand
    from_line, from_step = (operand.how.ld, 1) if along else (1, operand.how.ld)
    to_line, tile = packed.how.ld, _PACK["TILE"]
    shape = (packed.line, lines) if packed.how.trans else (lines, packed.line)
    address = draft.reserve(ITEM * lines * to_line, "packed copies of A and B")
    target = Matrix(address, shape, packed.strides, name=f"{matrix.name} packed")
    draft.add(
        helper_spec("pack", FROM=matrix.dtype), (-(-lines // tile) * -(-length // tile),), _PACK["THREADS"],
        (np.int32(lines), np.int32(length), matrix, from_line, from_step, target, to_line),
        writes=(Write(target),), when=When.READS,
    )  # fmt: skip
    return target
