"""What entries of a tuning file share: the types of their fields, with what their values may be."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fastsgemm.problem import MAX_EXTENT

Text = Annotated[str, Meta(min_length=1)]
Date = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
Extent = Annotated[int, Meta(ge=1, le=MAX_EXTENT)]
Layout = Literal["NN", "NT", "TN", "TT"]
Ms = Annotated[float, Meta(ge=1e-6, le=1e9)]  # a nanosecond to 12 days
Rate = Annotated[float, Meta(ge=1e-12, le=1e12)]  # TFLOP/s, or a speed relative to cuBLAS
Multiprocessors = Annotated[int, Meta(ge=1, le=2**16)]


class Tools(Struct, frozen=True):
    """What a measurement was made with."""

    driver: str  # version
    nvrtc: str  # version
    date: str  # year-month-day

    def __str__(self) -> str:
        return f"driver {self.driver}, NVRTC {self.nvrtc}, {self.date}"
