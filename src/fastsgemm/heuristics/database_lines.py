"""The lines of a tuning file as msgspec types, which check the type and range of every field while they decode it.

They are imported late, by what reads a file. ``tuning_db/README.md`` describes the format.
"""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from fastsgemm.heuristics.database_entries import CurveNumbers
from fastsgemm.problem import MAX_BATCH, MAX_EXTENT, Problem

Text = Annotated[str, Meta(min_length=1)]
Date = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
Extent = Annotated[int, Meta(ge=1, le=MAX_EXTENT)]
Layout = Literal["NN", "NT", "TN", "TT"]
Batch = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
Ms = Annotated[float, Meta(ge=1e-6, le=1e9)]  # a nanosecond to 12 days
Rate = Annotated[float, Meta(ge=1e-12, le=1e12)]  # TFLOP/s, or a speed relative to cuBLAS
Multiprocessors = Annotated[int, Meta(ge=1, le=2**16)]
Blocks = Annotated[int, Meta(ge=1, le=32)]  # resident on a multiprocessor, on every architecture
Calibration = Annotated[float, Meta(ge=0.1, le=10.0)]
_Cost = Annotated[float, Meta(ge=0.0, le=10.0)]
# By layout, or one number for all. msgspec 0.22 misreads a union with a tuple of fixed length, so this is a list.
AccumulatorsCost = Annotated[list[_Cost], Meta(min_length=4, max_length=4)] | _Cost
Row = tuple[Extent, Extent, Extent, Ms]  # M, N, K and the time


class AnyLine(Struct):
    """A line of any kind: only its rung is read."""

    rung: Text


class ProblemLine(Struct, forbid_unknown_fields=True):
    """A problem."""

    M: Extent
    N: Extent
    K: Extent
    layout: Layout
    batch: Batch = 1  # a record of one product has none

    @property
    def problem(self) -> Problem:
        """The same as `Problem`."""
        return Problem(self.M, self.N, self.K, self.layout, self.batch)


class MeasuredLine(Struct, tag_field="origin", tag="measured", forbid_unknown_fields=True):
    """A record that was measured."""

    rung: Text
    device: Text
    problem: ProblemLine
    constants: dict[str, int]
    ms: Ms
    tflops: Rate
    cublas_ratio: Rate | None
    driver: Text
    nvrtc: Text
    date: Date


class PublishedLine(Struct, tag_field="origin", tag="published", forbid_unknown_fields=True):
    """A record from somebody else."""

    rung: Text
    device: Text | None
    problem: ProblemLine | None
    constants: dict[str, int]
    source: Text


class HandPickedLine(PublishedLine, tag="hand-picked"):
    """A record that nobody measured."""


class CurveLine(Struct, forbid_unknown_fields=True):
    """A curve."""

    rung: Text
    device: Text
    multiprocessors: Multiprocessors
    constants: dict[str, int]
    blocks_per_sm: Blocks
    points: Raw  # `POINTS`
    driver: Text
    nvrtc: Text
    date: Date
    calibration: Calibration = 1.0  # a curve of an earlier version has neither
    accumulators_cost: AccumulatorsCost = 0.0
    numbers: CurveNumbers | None = None  # of schema 4, and of the default rungs


class CandidateLine(Struct, forbid_unknown_fields=True):
    """A config that tuning tries by name."""

    space: Text
    rung: Text
    use: Text
    constants: dict[str, int]


# A decoder looks at a type once.
ANY = Decoder(AnyLine)
RECORD = Decoder(MeasuredLine | PublishedLine | HandPickedLine)
CURVE = Decoder(CurveLine)
POINTS = Decoder(dict[Layout, list[Row]])
CANDIDATE = Decoder(CandidateLine)
