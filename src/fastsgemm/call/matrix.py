"""An operand of a plan: where it will be, and how it lies there."""

from __future__ import annotations

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

    def moved(self, count: int) -> Matrix:
        """The first matrices of a batch, the batch beginning `count` elements further on."""
        return replace(
            self, address=self.address + ITEM * count, misalignment=(self.misalignment + ITEM * count) % _VECTOR
        )

    @property
    def transposed(self) -> Matrix:
        """The same memory seen as the transposed matrix."""
        return Matrix(self.address, self.shape[::-1], self.strides[::-1], self.misalignment, self.steps)
