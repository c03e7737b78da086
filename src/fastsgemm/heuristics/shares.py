"""A choice, and the shares of a product that it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fastsgemm import rungs
from fastsgemm.config import Config, HalfConfig
from fastsgemm.geometry.fp16x3 import TileConfig
from fastsgemm.geometry.layout import Pair
from fastsgemm.heuristics.database_entries import Evidence
from fastsgemm.rungs import Rung

EXACT, PREDICTED, NEAREST, GIVEN = "exact", "predicted", "nearest", "given"

Packed = tuple[bool, bool]  # whether A and B are
NOTHING: Packed = (False, False)
AS_THEY_LIE = "as they lie"  # operands


class Share(Struct, frozen=True):
    """What one kernel computes of a product: all of C, or its upper or lower rows, or its left or right columns."""

    rung: Rung
    config: Config
    rows: Pair  # the first of C, and how many
    columns: Pair
    packed: Packed  # whether it reads A and B packed; see `pack`
    # `exact`: the problem itself was tuned. `predicted`: the least predicted time. `nearest`: no times are known, and
    # this record's problem is the nearest. `given`: the caller's config.
    rule: str
    evidence: Evidence | None  # the record or curve that it rests on
    ms: float | None  # measured or predicted device time

    @property
    def transposed(self) -> Share:
        """The same share of C^T = B^T A^T."""
        return replace(self, rows=self.columns, columns=self.rows, packed=self.packed[::-1])


class Pick(NamedTuple):
    """The config that one product gets; see `Share` and `Choice`."""

    rung: Rung
    known: Config | Callable[[], Config]  # the config, or what makes it: most products only have their times compared
    rule: str
    evidence: Evidence
    ms: float | None
    cost: float

    @property
    def config(self) -> Config:
        """The config, with the partial accumulators and parts of K that `ms` is for."""
        return self.known() if callable(self.known) else self.known

    def share(self, rows: Pair, columns: Pair, packed: Packed = NOTHING) -> Share:
        """Return this as a share of a product."""
        return Share(self.rung, self.config, rows, columns, packed, self.rule, self.evidence, self.ms)


class Choice(Struct, frozen=True):
    """One way to compute a product, and why it was chosen."""

    shares: tuple[Share, ...]  # in the order in which they are launched; none where rung 11 computes the product
    tile: TileConfig | None = None  # the config of rung 11; None: an IEEE kernel is quicker, or was asked for
    trans_c: bool = False  # rung 11 computes the transposed product
    ms: float | None = None  # measured or predicted device time, packing included
    cost: float = math.inf  # what ways are compared by: `ms`, but more where sums have too few chains
    why: str = ""  # with precision fp16x3: why rung 11 is taken or not
    tensor_ms: float | None = None  # with precision fp16x3: predicted time of rung 11
    ieee_ms: float | None = None  # and of the IEEE kernel that it was compared with
    triangle: bool = False  # one triangle of a symmetric result is computed

    @property
    def direct(self) -> bool:
        """Whether rung 11 reads 16-bit operands as they lie, and splits none."""
        return isinstance(self.tile, HalfConfig)

    @property
    def rung(self) -> Rung:
        """The rung of the largest share."""
        return rungs.find("fp16x3") if self.tile is not None else self._largest.rung

    @property
    def config(self) -> Config:
        """The config of the largest share, or the tile of rung 11."""
        return self._largest.config if self.tile is None else self.tile

    @property
    def rule(self) -> str:
        """The rule that the largest share rests on; see `Share`."""
        return self._largest.rule if self.shares else PREDICTED

    @property
    def evidence(self) -> Evidence | None:
        """The record or curve that the largest share rests on."""
        return self._largest.evidence if self.shares else None

    @property
    def packed(self) -> str:
        """Which of A and B are packed first: ``A``, ``B``, ``AB`` or nothing."""
        which = (any(flags) for flags in zip(*(share.packed for share in self.shares), strict=True))
        return "".join(name for name, packed in zip("AB", which, strict=False) if packed)

    @property
    def cut(self) -> str:
        """Where C is cut: before which ``row 4096`` or ``column 4096``, or nothing."""
        if len(self.shares) < 2:
            return ""
        row, column = max(one.rows[0] for one in self.shares), max(one.columns[0] for one in self.shares)
        return f"row {row}" if row else f"column {column}"

    @property
    def name(self) -> str:
        """What distinguishes it from ``as they lie``: what is packed, and where C is cut."""
        name = f"{' and '.join(self.packed)} packed" if self.packed else AS_THEY_LIE
        name = f"one triangle, {name}" if self.triangle else name
        return f"{name}, cut before {self.cut}" if self.cut else name

    @property
    def transposed(self) -> Choice:
        """The same way to compute C^T = B^T A^T."""
        return replace(self, shares=tuple(share.transposed for share in self.shares))

    @property
    def _largest(self) -> Share:
        return max(self.shares, key=lambda share: share.rows[1] * share.columns[1])
