"""An operand of a plan: where it will be, and how it lies there."""

from __future__ import annotations

import operator

from msgspec import Struct
from msgspec.structs import replace

from fastsgemm.call.plan import Address
from fastsgemm.geometry import layout
from fastsgemm.geometry.batch import Strides
from fastsgemm.geometry.layout import ITEM, Pair, Stored

_VECTOR = 16  # bytes of the widest load


class Matrix(Struct, frozen=True):
    """An operand of a plan.

    Attributes
    ----------
    address : Address
        Of element (0, 0).
    shape, strides : (int, int)
        Both in elements.
    misalignment : int
        The address modulo 16, in bytes.
    steps : tuple of int
        Elements from one matrix to the next along each extent of a batch, and 0 where they are the same.
    """

    address: Address
    shape: Pair
    strides: Pair
    misalignment: int = 0
    steps: Strides = ()

    @property
    def how(self) -> Stored | None:
        """How the kernels can read it, or None where it has no unit stride."""
        return layout.stored(self.shape, self.strides)

    def at(self, index: tuple[int, ...]) -> Matrix:
        """Return the matrices at this index of the outermost extents of the batch."""
        if not index:
            return self
        bytes_on = ITEM * sum(map(operator.mul, index, self.steps))
        return replace(
            self, address=self.address + bytes_on, misalignment=(self.misalignment + bytes_on) % _VECTOR,
            steps=self.steps[len(index) :],
        )  # fmt: skip

    @property
    def transposed(self) -> Matrix:
        """The same memory seen as the transposed matrix."""
        return Matrix(self.address, self.shape[::-1], self.strides[::-1], self.misalignment, self.steps)
