"""A file of rates of rung 11 as msgspec types, which check the type and range of every field while they decode it.

They are imported late, by what reads a file, and apart from those of `fastsgemm.heuristics.database_reading`, because a
first choice of another rung does not need them. ``tuning_db/README.md`` describes the format.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.json import Decoder

from fastsgemm.heuristics.database_reading import Date, Extent, Multiprocessors, Text

Positive = Annotated[float, Meta(ge=1e-9, le=1e9)]  # so that a predicted time is a finite number


class TileLine(Struct, forbid_unknown_fields=True):
    """A tile of rung 11."""

    constants: dict[str, int]
    least_k: Extent
    step_us: Positive
    tile_us: Positive
    most_k: Extent | None = None


class RatesFile(Struct, forbid_unknown_fields=True):
    """A file of what was measured of rung 11."""

    schema: Literal[1]
    arch: Text
    device: Text
    multiprocessors: Multiprocessors
    times: dict[str, Positive]
    origin: Literal["measured"]
    driver: Text
    nvrtc: Text
    date: Date
    tiles: Annotated[list[TileLine], Meta(min_length=1)]
    least_gflop: dict[str, Positive] | None = None


RATES = Decoder(RatesFile)
