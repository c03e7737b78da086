"""What a choice is made of: shares of a product, and the ways to compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fastsgemm.config import Config
from fastsgemm.geometry.layout import Pair
from fastsgemm.heuristics.database_entries import Curve, Record
from fastsgemm.rungs import Rung

EXACT, PREDICTED, NEAREST, GIVEN = "exact", "predicted", "nearest", "given"

Packed = tuple[bool, bool]  # whether A and B are
NOTHING: Packed = (False, False)


class Share(Struct, frozen=True):
    """What one kernel computes of a product: all of C, or its upper or lower rows, or its left or right columns.

    Attributes
    ----------
    rung : Rung
    config : Config
    rows, columns : (int, int)
        The first of C, and how many.
    packed : (bool, bool)
        Whether it reads A and B packed; see `pack`.
    rule : str
    evidence : Record, Curve or None
        See `fastsgemm.heuristics.choice.Choice`.
    ms : float or None
        Measured or predicted device time.
    """

    rung: Rung
    config: Config
    rows: Pair
    columns: Pair
    packed: Packed
    rule: str
    evidence: Record | Curve | None
    ms: float | None

    @property
    def transposed(self) -> Share:
        """The same share of C^T = B^T A^T."""
        return replace(self, rows=self.columns, columns=self.rows, packed=self.packed[::-1])


class Way(Struct, frozen=True):
    """One way to compute a product.

    Attributes
    ----------
    name : str
        What distinguishes it from ``as they lie``: what is packed, and where C is cut.
    shares : tuple of Share
        In the order in which they are launched.
    ms : float or None
        Of all of it, packing included.
    cost : float
        What ways are compared by: `ms`, but more where sums have too few chains.
    triangle : bool
        One triangle of a symmetric result is computed.
    """

    name: str
    shares: tuple[Share, ...]
    ms: float | None
    cost: float
    triangle: bool = False

    @property
    def packed(self) -> Packed:
        """Whether its first share reads A and B packed."""
        return self.shares[0].packed

    @property
    def transposed(self) -> Way:
        """The same way to compute C^T = B^T A^T."""
        return replace(self, shares=tuple(share.transposed for share in self.shares))


class Pick(NamedTuple):
    """The config that one product gets; see `Share` and `Way`.

    Attributes
    ----------
    rung : Rung
    known : Config or callable
        The config, or what makes it: most products only have their times compared.
    rule : str
    evidence : Record or Curve
    ms : float or None
    cost : float
    """

    rung: Rung
    known: Config | Callable[[], Config]
    rule: str
    evidence: Record | Curve
    ms: float | None
    cost: float

    @property
    def config(self) -> Config:
        """The config, with the partial accumulators and parts of K that `ms` is for."""
        return self.known() if callable(self.known) else self.known

    def share(self, rows: Pair, columns: Pair, packed: Packed = NOTHING) -> Share:
        """Return this as a share of a product."""
        return Share(self.rung, self.config, rows, columns, packed, self.rule, self.evidence, self.ms)
