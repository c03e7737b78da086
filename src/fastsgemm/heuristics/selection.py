"""A choice: which kernel computes a product, with which config, and why."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fastsgemm.config import Config, F16DirectConfig
from fastsgemm.heuristics.database_entries import Evidence
from fastsgemm.problem import Problem, format_problem
from fastsgemm.rungs import PRECISIONS, Rung

EXACT, PREDICTED, NEAREST, GIVEN = "exact", "predicted", "nearest", "given"

Packed = tuple[bool, bool]  # whether A and B are
NOTHING: Packed = (False, False)
UNPACKED = "as they lie"  # operands


class Selection(NamedTuple):
    """The kernel that one product gets."""

    rung: Rung
    known: Config | Callable[[], Config]  # the config, or what makes it: most products only have their times compared
    # `exact`: the problem itself was tuned. `predicted`: the least predicted time. `nearest`: no times are known, and
    # this record's problem is the nearest. `given`: the caller's config.
    rule: str
    evidence: Evidence | None = None  # the record, curve or rates that it rests on
    ms: float | None = None  # measured or predicted device time

    @property
    def config(self) -> Config:
        """The config, with the partial accumulators and parts of K that `ms` is for."""
        return self.known() if callable(self.known) else self.known

    @property
    def taken(self) -> Selection:
        """The same with its config made."""
        return self._replace(known=self.config)


class Choice(Struct, frozen=True):
    """One way to compute a product, and why it was chosen."""

    pick: Selection
    ms: float | None = None  # measured or predicted device time, packing included
    packs: Packed = NOTHING  # whether the kernel reads A and B packed; see `fastsgemm.heuristics.alternatives.pack`
    trans_c: bool = False  # rung 11 computes the transposed product
    triangle: bool = False  # one triangle of a symmetric result is computed
    why: str = ""  # with precision fp16x3: why rung 11 is taken or not
    tensor_ms: float | None = None  # with precision fp16x3: predicted time of rung 11
    ieee_ms: float | None = None  # and of the IEEE kernel that it was compared with

    @property
    def direct(self) -> bool:
        """Whether rung 11 reads 16-bit operands as they lie, and splits none."""
        return isinstance(self.config, F16DirectConfig)

    @property
    def tensor_cores(self) -> bool:
        """Whether rung 11 computes it."""
        return self.rung.precision != PRECISIONS[0]

    @property
    def rung(self) -> Rung:
        """The rung of the kernel."""
        return self.pick.rung

    @property
    def config(self) -> Config:
        """The config of the kernel."""
        return self.pick.config

    @property
    def rule(self) -> str:
        """The rule that it rests on; see `Selection`."""
        return self.pick.rule

    @property
    def evidence(self) -> Evidence | None:
        """The record, curve or rates that it rests on."""
        return self.pick.evidence

    @property
    def packed(self) -> str:
        """Which of A and B are packed first: ``A``, ``B``, ``AB`` or nothing."""
        return "".join(name for name, packed in zip("AB", self.packs, strict=True) if packed)

    @property
    def name(self) -> str:
        """What is done to the operands first, and whether one triangle is computed."""
        name = f"{' and '.join(self.packed)} packed" if self.packed else UNPACKED
        name = "split" if self.tensor_cores and not self.direct else name
        return f"one triangle, {name}" if self.triangle else name

    def of(self, problem: Problem) -> str:
        """Return how a problem is computed, for people."""
        why = f"; {self.why}" if self.why else ""
        return f"chose rung {self.rung.name} for {format_problem(problem)}: {self.config}, {self.rule}{why}"

    @property
    def transposed(self) -> Choice:
        """The same way to compute C^T = B^T A^T."""
        return replace(self, packs=self.packs[::-1])


def comparable(ms: float | None) -> float:
    """Return a time to compare: infinity where it is not known."""
    return math.inf if ms is None else ms
