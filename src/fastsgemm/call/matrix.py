"""An operand of a plan: where it will be, and how it lies there."""

from __future__ import annotations

from dataclasses import dataclass

from fastsgemm.call.plan import Address
from fastsgemm.geometry import layout
from fastsgemm.geometry.layout import Pair, Stored


@dataclass(frozen=True)
class Matrix:
    """An operand of a plan.

    Attributes
    ----------
    address : Address
        Of element (0, 0).
    shape, strides : (int, int)
        Both in elements.
    misalignment : int
        The address modulo 16, in bytes.
    """

    address: Address
    shape: Pair
    strides: Pair
    misalignment: int = 0

    @property
    def how(self) -> Stored | None:
        """How the kernels can read it, or None where it has no unit stride."""
        return layout.stored(self.shape, self.strides)

    @property
    def transposed(self) -> Matrix:
        """The same memory seen as the transposed matrix."""
        return Matrix(self.address, self.shape[::-1], self.strides[::-1], self.misalignment)
