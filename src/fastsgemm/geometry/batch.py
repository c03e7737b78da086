"""Batches: stacks of matrices seen as few dimensions as possible, and how kernels are told where each product lies.

Pure arithmetic on shapes and strides, both counted in elements.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import ClassVar

from msgspec import Struct

from fastsgemm.errors import ShapeError
from fastsgemm.geometry.matrix import Matrix
from fastsgemm.problem import MAX_BATCH, MAX_EXTENT, MAX_GRID

DIMENSIONS = 3  # of a batch in one launch; as in cuda_src/device/batch.cuh
_STRUCT = struct.Struct(f"3I4x{3 * DIMENSIONS}q")  # as `Batch` in cuda_src/device/batch.cuh
_SOURCE = struct.Struct(f"Q{2 + DIMENSIONS}q")  # as `Source` in cuda_src/device/source.cuh

Strides = tuple[int, ...]


class Batch(Struct, frozen=True, gc=False):
    """Products of one shape that a launch computes."""

    extents: tuple[int, ...] = ()  # at most three, each at least 2; none: one product
    a: Strides = ()  # elements from the operand of one product to that of the next, along each extent
    b: Strides = ()
    c: Strides = ()

    @property
    def count(self) -> int:
        """The number of products."""
        return prod(self.extents)

    @property
    def swapped(self) -> Batch:
        """The same products with A and B exchanged."""
        return Batch(self.extents, self.b, self.a, self.c)

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks along y and z, of which some may have nothing to do; none for one product.

        Raises
        ------
        ShapeError
            The grid would be larger than the hardware allows.
        """
        count = self.count
        if count == 1:
            return ()
        if count > MAX_BATCH:
            raise ShapeError(f"a batch of {count} products is too large, the limit is {MAX_BATCH}")
        deep = -(-count // MAX_GRID)
        return (-(-count // deep), deep)

    def with_source(self, source: Matrix | None) -> Batch | BatchAndSource:
        """Return the last argument of a kernel: itself, or with the source that the kernel reads."""
        return self if source is None else BatchAndSource(self, source)

    @property
    def packed(self) -> bytes:
        """The argument of a kernel that reads no source."""
        missing = DIMENSIONS - len(self.extents)
        none, inner = (0,) * missing, ((1,) * missing + self.extents)[1:]
        return _STRUCT.pack(self.count, *inner, *none, *self.a, *none, *self.b, *none, *self.c)


ONE_PRODUCT = Batch()
ADDRESS_PLACE = _STRUCT.size  # of the source's address in a packed `BatchAndSource`, in bytes


class BatchAndSource(Struct, frozen=True, gc=False):
    """The last argument of a kernel that reads a source: what beta multiplies where that is not C itself."""

    batch: Batch
    source: Matrix

    @property
    def grid(self) -> tuple[int, ...]:
        """That of the batch."""
        return self.batch.grid

    def packed(self, address: int) -> bytes:
        """Return the kernels' argument, with the source at this address."""
        steps = self.source.steps
        missing = DIMENSIONS - len(steps)
        return self.batch.packed + _SOURCE.pack(address, *self.source.inner_strides, *(0,) * missing, *steps)


_GROUPS = struct.Struct("Qq")  # as `Groups` in cuda_src/device/groups.cuh


class GroupedBatch(Struct, frozen=True, gc=False):
    """The last argument of a kernel whose products are groups of rows, columns or k; the batch has one extent."""

    batch: Batch
    ends: Matrix  # of the groups: a vector of 32-bit words
    source: Matrix | None = None  # what beta multiplies, if that is not C

    @property
    def addresses(self) -> tuple[tuple[int, Matrix], ...]:
        """Where in the packed argument an address lies, in bytes, and whose it is."""
        ends = (len(self._before), self.ends)
        return (ends,) if self.source is None else ((ADDRESS_PLACE, self.source), ends)

    @property
    def packed(self) -> bytes:
        """The argument, with addresses of 0."""
        return self._before + _GROUPS.pack(0, *self.ends.strides)

    @property
    def _before(self) -> bytes:
        return self.batch.packed if self.source is None else BatchAndSource(self.batch, self.source).packed(0)


_GROUPED_ROWS = struct.Struct("qQqqq")  # as `GroupedRows` in cuda_src/device/grouped_rows.cuh


class GroupedRows(Struct, frozen=True, gc=False):
    """The last argument of a kernel of rung 11 whose rows are in groups, each with its own B."""

    ends: Matrix  # of the groups: a vector of 32-bit words
    step_b: int  # elements from the B of a group to that of the next
    source_column: int  # from a column of the source to the next; 0 without one
    source: ClassVar[None] = None  # it has arguments of its own

    @property
    def addresses(self) -> tuple[tuple[int, Matrix], ...]:
        """Where in the packed argument an address lies, in bytes, and whose it is."""
        return ((8, self.ends),)

    @property
    def packed(self) -> bytes:
        """The argument, with addresses of 0."""
        return _GROUPED_ROWS.pack(self.source_column, 0, *self.ends.strides, *self.ends.shape, self.step_b)


def merged(a: Matrix, b: Matrix, c: Matrix, *source: Matrix, fold: bool = True) -> list[Matrix]:
    """Return the same operands as matrices, of one batch with as few dimensions as its strides allow.

    The dimensions of the batch are merged where one stride serves both. With `fold`, a batch that shares B, or A, is
    merged into the rows, or columns, of one product where A and C, or B and C, lie so. A batch of symmetric results
    must not be folded: the taller product is not symmetric.

    A, B and C are vectors, matrices or batches that fit together; see `fastsgemm.call.checks.result_shape`. A source
    broadcasts to the shape of C.
    """
    if len(a.shape) == len(b.shape) == len(c.shape) == 2:
        return [a, b, *[_broadcast(each, c.shape) for each in (c, *source)]]
    vector_a, vector_b = len(a.shape) == 1, len(b.shape) == 1
    operands = [_as_row(a) if vector_a else a, _as_column(b) if vector_b else b]
    for each in (c, *source):
        array = _broadcast(each, c.shape)
        if vector_b:
            array = _as_column(array)
        operands.append(_as_row(array) if vector_a else array)
    extents = operands[2].extents
    if not extents:
        return operands
    operands = _ordered([_repeated(each, extents) for each in operands])
    operands = _with_even_steps(operands)
    return _largest_last(_folded(operands) if fold else operands)


def _as_row(x: Matrix) -> Matrix:
    """Return an array with rows of one element before its last dimension."""
    return x.as_strided((*x.shape[:-1], 1, x.shape[-1]), (*x.strides[:-1], 0, x.strides[-1]))


def _as_column(x: Matrix) -> Matrix:
    """Return an array with columns of one element after its last dimension."""
    return x.as_strided((*x.shape, 1), (*x.strides, 0))


def _broadcast(x: Matrix, shape: tuple[int, ...]) -> Matrix:
    """Return an array broadcast to `shape`; strides along an extent of 1 are 0."""
    return x.as_strided(shape, _broadcast_strides(x.shape, x.strides, shape))


def _repeated(x: Matrix, extents: tuple[int, ...]) -> Matrix:
    """Return matrices repeated to a batch of these extents."""
    return x.as_strided((*extents, *x.shape[-2:]), (*_broadcast_strides(x.extents, x.steps, extents), *x.strides[-2:]))


def _broadcast_strides(shape: Strides, strides: Strides, target: Strides) -> Strides:
    own = (0 if extent == 1 else step for extent, step in zip(shape, strides, strict=True))
    return (0,) * (len(target) - len(shape)) + tuple(own)


def _with_batch(matrix: Matrix, dimensions: Sequence[int]) -> Matrix:
    """Return the matrices with these dimensions of the batch, in this order."""
    shape, strides = matrix.shape, matrix.strides
    return matrix.as_strided(
        (*(shape[d] for d in dimensions), *shape[-2:]), (*(strides[d] for d in dimensions), *strides[-2:])
    )


def _ordered(operands: list[Matrix]) -> list[Matrix]:
    """Leave out dimensions of one product, and sort the others by how far they step in C, the farthest first."""
    c = operands[2]
    order = sorted((d for d, extent in enumerate(c.extents) if extent != 1), key=lambda d: -abs(c.strides[d]))
    return [_with_batch(each, order) for each in operands]


def _with_even_steps(operands: list[Matrix]) -> list[Matrix]:
    """Merge neighbouring dimensions where every operand steps evenly through both."""
    d = len(operands[2].extents) - 1
    while d > 0:
        inner = operands[2].shape[d]
        if all(each.strides[d - 1] == inner * each.strides[d] for each in operands):
            operands = [_merged_into(each, d) for each in operands]
        d -= 1
    return operands


def _merged_into(matrix: Matrix, d: int) -> Matrix:
    """Return the matrices with dimension d - 1 of the batch in dimension d."""
    shape, strides = matrix.shape, matrix.strides
    return matrix.as_strided(
        (*shape[: d - 1], shape[d - 1] * shape[d], *shape[d + 1 :]), strides[: d - 1] + strides[d:]
    )


def _largest_last(operands: list[Matrix]) -> list[Matrix]:
    """Put the dimensions that a launch has no room for, each index of which takes one, first: the smallest."""
    extents = operands[2].extents
    inside = sorted(sorted(range(len(extents)), key=lambda d: extents[d])[-DIMENSIONS:])
    order = [d for d in range(len(extents)) if d not in inside] + inside
    return [_with_batch(each, order) for each in operands]


def _folded(operands: list[Matrix]) -> list[Matrix]:
    """Make one product of several that share B, or A."""
    d = len(operands[2].extents) - 1
    while d >= 0:
        for axis, shared in ((0, 1), (1, 0)):  # rows, where B is shared; columns, where A is
            others = [each for each in range(len(operands[2].extents)) if each != d]
            taller = [
                _with_batch(each, others) if which == shared else _fold(each, axis, d, others)
                for which, each in enumerate(operands)
            ]
            whole = [each for each in taller if each is not None]
            alone = operands[shared].strides[d] == 0 != operands[1 - shared].strides[d]
            if alone and len(whole) == len(operands) and whole[2].rows_and_columns[axis] <= MAX_EXTENT:
                operands = whole
                break
        d -= 1
    return operands


def _fold(matrix: Matrix, axis: int, d: int, others: Sequence[int]) -> Matrix | None:
    """Return matrices with dimension d of the batch in their rows (axis 0) or columns, or None where they cannot be."""
    rest = _with_batch(matrix, others)
    shape, strides = list(matrix.rows_and_columns), list(matrix.inner_strides)
    lines, step = shape[axis], matrix.strides[d]
    if lines != 1 and step != lines * strides[axis]:
        return None
    shape[axis], strides[axis] = matrix.shape[d] * lines, step if lines == 1 else strides[axis]
    whole = matrix.as_strided((*rest.shape[:-2], *shape), (*rest.strides[:-2], *strides))
    if matrix.stored is not None and whole.stored is None:
        return None  # it would have to be packed
    return whole
