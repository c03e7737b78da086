"""Numbers of a tuning file that were fitted to measurements: of a curve and of an architecture."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

_MOST = 1e30  # of a stored number: the product of several is still a float64
Least0 = Annotated[float, Meta(ge=0.0, le=_MOST)]
Factor = Annotated[float, Meta(ge=1e-30, le=_MOST)]
AtLoads = tuple[Factor, Factor, Factor]
Factors = tuple[AtLoads, AtLoads]


class Line(NamedTuple):
    """Time at one load in ms: ``start + slope * K``, and ``extra * (K - bend)`` more where K is less than `bend`."""

    start: Least0
    slope: Least0
    bend: Least0 = 0.0  # 0 if the time is one straight line
    extra: Annotated[float, Meta(ge=-_MOST, le=_MOST)] = 0.0

    def at(self, depth: float) -> float:
        """Return the time at this depth."""
        return self.start + self.slope * depth + self.extra * min(depth - self.bend, 0.0)


class CurveNumbers(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What `fastsgemm.heuristics.curve_fit` makes of the points of a curve, in the order in which a file has it."""

    tail: tuple[Least0, Least0]  # what a ragged last tile costs, in steps of k: once, and for each of its steps
    # Of aligned and of ragged operands, one for each of `fastsgemm.heuristics.curve_problems.loads`.
    lines: tuple[tuple[Line, ...], tuple[Line, ...]]
    # For each of `curve_problems.LAYOUTS` the time of the steps of K relative to NN, for aligned and for ragged
    # operands: at each of `curve_problems.CurveProblems.layout_loads`.
    layouts: tuple[Factors, Factors, Factors]
    # Bytes of A and B that a ms reads, at most: where most of them are of a row-major A, of a column-major A, of a row-
    # major B and of a column-major B.
    bandwidth: tuple[Factor, Factor, Factor, Factor]
    # Slowdown of reading where C is smaller than a tile and the copies check bounds.
    guard: Annotated[float, Meta(ge=1.0, le=_MOST)]
    # Share of the time of reading that rows of tiles have in common, because they read the same part of B.
    shared: Annotated[float, Meta(ge=0.0, le=1.0)]


class Fitted(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the heuristics that were measured on a device of an architecture.

    The defaults hold where no file has any: nothing costs more.
    """

    # Time with partial accumulators over the time without, for configs of which it was not measured. How many they are
    # matters less than what they take from the main loop: registers, and shared memory for other blocks.
    accumulators_cost: float = 1.0
    reduction_ms: float = 0.0  # least time of the second kernel of split-K
    reduction_ms_per_part: float = 0.0  # what each part of K adds to the time of that kernel, besides its bytes
    reduction_bytes_per_ms: float = 1e12  # rate at which it reads and writes partial sums, which are mostly in L2
    # Most tiles of K for which rung 9 computes the end of K first, where the end is less than a tile. With few tiles
    # that saves a wait for a copy; with more, the main loop without it is faster, because the compiler makes better
    # code of it.
    peeled_tiles: int = 0
    # Time of packing an operand of no elements, which is mostly the launch. A and B have one each.
    packing_ms: float = 0.0
    # Rate at which operands are packed or converted, in bytes read and written. 0: not measured, and none is packed.
    packing_bytes_per_ms: float = 0.0
    # Time of converting an operand of no elements to float32, which is mostly the launch.
    cast_ms: float = 0.0
    # Rate of the time that is lost where C is stored float by float although packed operands are read 16 bytes at a
    # time, in bytes of C. The curves know only problems where both or none are.
    odd_store_bytes_per_ms: float = 1e12
