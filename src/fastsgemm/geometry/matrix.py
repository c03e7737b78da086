"""`Matrix`: matrices that lie somewhere in memory, with any strides; and `Operand`: the same as a kernel reads them."""

from __future__ import annotations

import operator
from enum import IntEnum
from math import gcd, prod

from msgspec import Struct
from msgspec.structs import replace

from fastsgemm.config import VECTOR
from fastsgemm.geometry import layout
from fastsgemm.geometry.layout import ITEM, LeadingDimension, Meta, Pair, vector_width
from fastsgemm.problem import DType

VECTOR_BYTES = ITEM * VECTOR  # of the widest load
_CACHE_LINE = 32  # floats: of which each line of a packed operand begins with a new one


class Base(IntEnum):
    """What an address is counted from, in the order in which a call gives these addresses."""

    A = 0
    B = 1
    C = 2  # what is written
    SPLIT_A = 3
    SPLIT_B = 4
    SOURCE = 5  # what beta multiplies, where that is not what is written
    WORKSPACE = 6
    OFFSETS = 3  # the ends of groups, of a call that has no operand split before


class Address(Struct, frozen=True, gc=False):
    """A device address of a later call: some bytes after the first element of an operand, or in the workspace."""

    base: Base
    offset: int = 0

    def __add__(self, count: int) -> Address:
        return Address(self.base, self.offset + count)


class Matrix(Struct, frozen=True, gc=False):
    """A matrix in memory, or a batch of them; for arrays of a kernel's own, any array."""

    address: Address  # of the first element
    # In elements: the extents of the batch, rows and columns. A stride of 0 repeats the same elements.
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    misalignment: int = 0  # the address modulo 16, in bytes
    name: str = ""  # for messages and the counts of the simulated device
    dtype: DType = DType.F32  # of its elements; what a kernel counts in 32-bit integers passes for float32

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return self.dtype.item

    @property
    def rows_and_columns(self) -> Pair:
        """The shape of each matrix."""
        return self.shape[-2:]  # type: ignore[return-value]

    @property
    def inner_strides(self) -> Pair:
        """Elements from one row to the next, and from one column to the next."""
        return self.strides[-2:]  # type: ignore[return-value]

    @property
    def extents(self) -> tuple[int, ...]:
        """Those of the batch, the outermost first."""
        return self.shape[:-2]

    @property
    def steps(self) -> tuple[int, ...]:
        """Elements from one matrix to the next, along each extent of the batch."""
        return self.strides[:-2]

    @property
    def stored(self) -> LeadingDimension | None:
        """How the kernels can read it, or None where it has no unit stride."""
        return layout.stored(self.shape[-2:], self.strides[-2:])  # type: ignore[arg-type]  # two of each

    @property
    def operand(self) -> Operand:
        """These matrices as a kernel reads them, or their copies if neither of their strides is 1."""
        shape, how = self.rows_and_columns, self.stored
        if how is None:
            return Operand(
                shape, LeadingDimension(False, shape[1]), 0, self.copy_at(self.address).steps, False, self.dtype
            )
        return Operand(shape, how, self.misalignment, self.steps, False, self.dtype)

    def as_strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Matrix:
        """Return the same memory with another shape and other strides, from the same first element on."""
        return Matrix(self.address, shape, strides, self.misalignment, self.name, self.dtype)

    @property
    def transposed(self) -> Matrix:
        """The same memory seen as the transposed matrices."""
        (*extents, rows, columns), (*steps, down, right) = self.shape, self.strides
        return self.as_strided((*extents, columns, rows), (*steps, right, down))

    def is_transpose_of(self, other: Matrix) -> bool:
        """Return whether these are the other matrices transposed, in the same memory."""
        return self.address == other.address and self.dtype is other.dtype and layout.is_transpose(self, other)

    def named(self, name: str) -> Matrix:
        """Return the same memory with another name."""
        return replace(self, name=name)

    @property
    def width(self) -> int:
        """Elements that can be read together along the rows, if their length is a multiple of 4: 4 or 1."""
        together = self.strides[-1] == 1 and self.misalignment % (VECTOR * self.item) == 0
        return VECTOR if together and gcd(VECTOR, *self.strides[:-1]) == VECTOR else 1

    def at(self, index: tuple[int, ...]) -> Matrix:
        """Return the matrices at this index of the outermost extents of the batch."""
        if not index:
            return self
        outer, elements = len(index), sum(map(operator.mul, index, self.strides))
        return self._part(elements, self.shape[outer:], self.strides[outer:])

    def block(self, first: Pair, shape: Pair) -> Matrix:
        """Return the block of this shape that begins at element `first`, of each matrix."""
        if first == (0, 0) and shape == self.shape[-2:]:
            return self
        down, right = self.strides[-2:]
        return self._part(first[0] * down + first[1] * right, (*self.shape[:-2], *shape), self.strides)

    def copy_at(self, address: Address, dtype: DType | None = None, ld: int | None = None) -> Matrix:
        """Return a row-major copy at an address that is a multiple of 16; what the batch repeats is copied once.

        Of its own type, or of another one; dense, or with rows that begin `ld` elements apart.
        """
        dtype = self.dtype if dtype is None else dtype
        own = self.distinct.extents
        rows, columns = self.rows_and_columns
        ld = columns if ld is None else ld
        apart = layout.row_major(own, rows * ld)
        steps = (0 if extent == 1 else step for extent, step in zip(own, apart, strict=True))
        return Matrix(address, self.shape, (*steps, ld, 1), 0, f"{self.name} packed", dtype)

    @property
    def distinct(self) -> Matrix:
        """The same matrices without those that the batch repeats."""
        extents = tuple(1 if step == 0 else extent for step, extent in zip(self.steps, self.extents, strict=True))
        return self.as_strided((*extents, *self.shape[-2:]), self.strides)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, each counted once."""
        return self.item * prod(self.distinct.shape)

    def _part(self, elements: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Matrix:
        """Return what begins so many elements after the first."""
        offset = self.item * elements
        misalignment = (self.misalignment + offset) % VECTOR_BYTES
        return Matrix(self.address + offset, shape, strides, misalignment, self.name, self.dtype)


class Operand(Struct, frozen=True):
    """A matrix that the kernels can read as it lies."""

    shape: Pair
    how: LeadingDimension
    misalignment: int = 0  # the address of element (0, 0) modulo 16, in bytes
    steps: tuple[int, ...] = ()  # elements from one matrix to the next along each extent of a batch
    padded: bool = False  # after each line, memory up to the end of a whole vector can be read; see `packed`
    dtype: DType = DType.F32

    @property
    def transposed(self) -> Operand:
        """The same memory seen as the transposed matrix."""
        how = LeadingDimension(not self.how.trans, self.how.ld)
        return Operand(self.shape[::-1], how, self.misalignment, self.steps, self.padded, self.dtype)

    @property
    def line(self) -> int:
        """Elements of a line that can be read."""
        line = self.shape[0] if self.how.trans else self.shape[1]
        return -(-line // VECTOR) * VECTOR if self.padded else line

    @property
    def width(self) -> int:
        """Elements that a load of this operand may have: 4, 2 or 1."""
        return gcd(vector_width(self.how.ld, self.line, self.misalignment, self.dtype.item), *self.steps)

    @property
    def strides(self) -> Pair:
        """Elements from one row to the next, and from one column to the next."""
        return (1, self.how.ld) if self.how.trans else (self.how.ld, 1)

    def packed(self, trans: bool) -> Operand:
        """Return a float32 copy of this operand in aligned lines of whole vectors, column-major if `trans`."""
        line = self.shape[0] if trans else self.shape[1]
        return Operand(self.shape, LeadingDimension(trans, -(-line // _CACHE_LINE) * _CACHE_LINE), padded=True)

    @property
    def cast(self) -> Operand:
        """This operand as float32: itself, or a dense copy of one product, whose lines run the same way."""
        if not self.dtype:
            return self
        return Operand(self.shape, LeadingDimension(self.how.trans, self.shape[0] if self.how.trans else self.shape[1]))


def operand_of(array: Meta) -> Operand:
    """Return an aligned array, whose dimensions before the last two are those of a batch, as a kernel reads it."""
    return Matrix(Address(Base.A), tuple(array.shape), tuple(array.strides), dtype=array.dtype).operand
