"""Batches: stacks of matrices seen as few dimensions as possible, and how kernels are told where each product lies.

Pure arithmetic on shapes and strides, both counted in elements.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import gcd, prod
from typing import Any

from msgspec import Struct

from fastsgemm.config import VECTOR
from fastsgemm.errors import ShapeError
from fastsgemm.geometry import layout
from fastsgemm.geometry.layout import ITEM, Lying, Pair, stored
from fastsgemm.problem import MAX_BATCH, MAX_EXTENT, MAX_GRID

DIMENSIONS = 3  # of a batch in one launch; as in cuda_src/device/batch.cuh
_STRUCT = struct.Struct(f"3I4x{3 * DIMENSIONS}q")  # as `Batch` in cuda_src/device/batch.cuh
_SOURCE = struct.Struct(f"Q{2 + DIMENSIONS}q")  # as `Source` in cuda_src/device/source.cuh

Strides = tuple[int, ...]


class Batch(Struct, frozen=True):
    """Products of one shape that a launch computes.

    Attributes
    ----------
    extents : tuple of int
        At most three, each at least 2. None: one product.
    a, b, c : tuple of int
        Elements from the operand of one product to that of the next, along each extent.
    """

    extents: tuple[int, ...] = ()
    a: Strides = ()
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

    @property
    def packed(self) -> bytes:
        """The argument of a kernel that reads no source."""
        missing = DIMENSIONS - len(self.extents)
        none, inner = (0,) * missing, ((1,) * missing + self.extents)[1:]
        return _STRUCT.pack(self.count, *inner, *none, *self.a, *none, *self.b, *none, *self.c)


ONE_PRODUCT = Batch()
ADDRESS_PLACE = _STRUCT.size  # of the source's address in a packed `BatchAndSource`, in bytes


class Source(Struct, frozen=True):
    """What beta multiplies where that is not C itself: matrices of the shape of C, with any strides.

    Attributes
    ----------
    strides : (int, int)
        In elements. 0 repeats one row, or column, for all of C.
    steps : tuple of int
        Elements from the matrix of one product to that of the next, along each extent of the batch.
    misalignment : int
        The address of element (0, 0) modulo 16, in bytes.
    """

    strides: Pair
    steps: Strides = ()
    misalignment: int = 0

    @property
    def transposed(self) -> Source:
        """The same memory seen as the transposed matrices."""
        return Source(self.strides[::-1], self.steps, self.misalignment)

    def offset(self, first: Pair) -> int:
        """Return the distance of element `first` from element (0, 0), in bytes."""
        return layout.offset(first, self.strides)

    def block(self, first: Pair) -> Source:
        """Return the part of it that begins at element `first`."""
        return Source(self.strides, self.steps, (self.misalignment + self.offset(first)) % (ITEM * VECTOR))

    @property
    def width(self) -> int:
        """Floats that a kernel can read together along the rows, whose length is a multiple of 4: 4 or 1."""
        together = self.strides[1] == 1 and self.misalignment == 0
        return VECTOR if together and gcd(VECTOR, self.strides[0], *self.steps) == VECTOR else 1


class BatchAndSource(Struct, frozen=True):
    """The last argument of a kernel that reads a source.

    Attributes
    ----------
    batch : Batch
    source : Source
    address : object
        What stands for the address of the source: an address of a later call or, simulated, a name.
    """

    batch: Batch
    source: Source
    address: Any

    def packed(self, address: int) -> bytes:
        """Return the kernels' argument, with the source at this address."""
        missing = DIMENSIONS - len(self.source.steps)
        return self.batch.packed + _SOURCE.pack(address, *self.source.strides, *(0,) * missing, *self.source.steps)


class Stack(Struct, frozen=True):
    """An operand: matrices of one shape.

    Attributes
    ----------
    shape, strides : (int, int)
        Of each matrix.
    steps : tuple of int
        Elements from one matrix to the next, along each extent of the batch; 0 where they are the same one.
    """

    shape: Pair
    strides: Pair
    steps: Strides = ()


def stacks(a: Lying, b: Lying, c: Lying, source: Lying | None = None) -> tuple[tuple[int, ...], list[Stack]]:
    """Return the extents of the batch, the outermost first, and how A, B, C and `source` lie.

    The dimensions of the batch are merged where one stride serves both, and a batch that shares B, or A, is merged into
    the rows, or columns, of one product where A and C, or B and C, lie so.

    Parameters
    ----------
    a, b, c : tuple of sequence of int
        Shape and strides of arrays that fit together; see `fastsgemm.call.checks.result_shape`.
    source : tuple of sequence of int, optional
        An array that broadcasts to the shape of C.
    """
    vector_a, vector_b = len(a[0]) == 1, len(b[0]) == 1
    result = tuple(c[0])
    arrays = [_matrices(a, 0 if vector_a else None), _matrices(b, 1 if vector_b else None)]
    for array in [c] if source is None else [c, source]:
        shape, strides = _broadcast(array, result)
        if vector_b:
            shape, strides = (*shape, 1), (*strides, 0)
        if vector_a:
            shape, strides = (*shape[:-1], 1, shape[-1]), (*strides[:-1], 0, strides[-1])
        arrays.append((shape, strides))
    extents = arrays[2][0][:-2]
    if not extents:
        return (), [Stack((rows, columns), (down, right)) for (rows, columns), (down, right) in arrays]
    found = []
    for shape, strides in arrays:
        steps = _broadcast((shape[:-2], strides[:-2]), extents)[1]
        found.append(Stack((shape[-2], shape[-1]), (strides[-2], strides[-1]), steps))
    extents, found = _ordered(extents, found)
    extents, found = _merged(extents, found)
    return _largest_last(*_folded(extents, found))


def _matrices(array: Lying, missing: int | None) -> tuple[tuple[int, ...], Strides]:
    """Return shape and strides with the dimension that a vector lacks."""
    shape, strides = tuple(array[0]), tuple(array[1])
    if missing is None:
        return shape, strides
    return ((1, *shape), (0, *strides)) if missing == 0 else ((*shape, 1), (*strides, 0))


def _broadcast(array: Lying, shape: Sequence[int]) -> tuple[tuple[int, ...], Strides]:
    """Return shape and strides of an array broadcast to `shape`; strides along an extent of 1 are 0."""
    missing = len(shape) - len(array[0])
    steps = (0 if own == 1 else step for own, step in zip(*array, strict=True))
    return tuple(shape), (0,) * missing + tuple(steps)


def _ordered(extents: tuple[int, ...], found: list[Stack]) -> tuple[tuple[int, ...], list[Stack]]:
    """Leave out dimensions of one product, and sort the others by how far they step in C, the farthest first."""
    kept = sorted((d for d, extent in enumerate(extents) if extent != 1), key=lambda d: -abs(found[2].steps[d]))
    return tuple(extents[d] for d in kept), [
        Stack(each.shape, each.strides, tuple(each.steps[d] for d in kept)) for each in found
    ]


def _merged(extents: tuple[int, ...], found: list[Stack]) -> tuple[tuple[int, ...], list[Stack]]:
    """Merge neighbouring dimensions where every operand steps evenly through both."""
    d = len(extents) - 1
    while d > 0:
        inner = extents[d]
        if all(each.steps[d - 1] == inner * each.steps[d] for each in found):
            extents = (*extents[: d - 1], extents[d - 1] * inner, *extents[d + 1 :])
            found = [_without(each, d - 1) for each in found]
        d -= 1
    return extents, found


def _largest_last(extents: tuple[int, ...], found: list[Stack]) -> tuple[tuple[int, ...], list[Stack]]:
    """Put the dimensions that a launch has no room for, each index of which takes one, first: the smallest."""
    inside = sorted(sorted(range(len(extents)), key=lambda d: extents[d])[-DIMENSIONS:])
    order = [d for d in range(len(extents)) if d not in inside] + inside
    return tuple(extents[d] for d in order), [
        Stack(each.shape, each.strides, tuple(each.steps[d] for d in order)) for each in found
    ]


def _without(stack: Stack, d: int) -> Stack:
    return Stack(stack.shape, stack.strides, stack.steps[:d] + stack.steps[d + 1 :])


def _folded(extents: tuple[int, ...], found: list[Stack]) -> tuple[tuple[int, ...], list[Stack]]:
    """Make one product of several that share B, or A."""
    d = len(extents) - 1
    while d >= 0:
        for axis, shared in ((0, 1), (1, 0)):  # rows, where B is shared; columns, where A is
            taller = [each if which == shared else _fold(each, axis, d, extents[d]) for which, each in enumerate(found)]
            whole = [each for each in taller if each is not None]
            alone = found[shared].steps[d] == 0 != found[1 - shared].steps[d]
            if alone and len(whole) == len(found) and whole[2].shape[axis] <= MAX_EXTENT:
                found = [_without(each, d) for each in whole]
                extents = extents[:d] + extents[d + 1 :]
                break
        d -= 1
    return extents, found


def _fold(stack: Stack, axis: int, d: int, extent: int) -> Stack | None:
    """Return a stack with a dimension of the batch in its rows (axis 0) or columns, or None where one stride cannot."""
    rows, step = stack.shape[axis], stack.steps[d]
    if rows != 1 and step != rows * stack.strides[axis]:
        return None
    stride = step if rows == 1 else stack.strides[axis]
    shape = (extent * rows, stack.shape[1]) if axis == 0 else (stack.shape[0], extent * rows)
    strides = (stride, stack.strides[1]) if axis == 0 else (stack.strides[0], stride)
    if stored(stack.shape, stack.strides) is not None and stored(shape, strides) is None:
        return None  # it would have to be packed
    return Stack(shape, strides, stack.steps)
