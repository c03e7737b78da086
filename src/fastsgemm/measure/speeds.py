"""Summaries of speeds relative to another library."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Summary:
    """The summary of some speeds for a table."""

    number: int
    mean: float  # geometric
    slowest: float
    lost: int  # number below 1
    ahead: float  # the share at 1 or better
    near: float  # the share at 0.95 or better


def of_rows(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the speeds of the rows of a run, relative to cuBLAS."""
    return [row["percent"] / 100 for row in rows]


def summary(speeds: Sequence[float]) -> Summary:
    """Summarise at least one speed."""
    lost = sum(speed < 1.0 for speed in speeds)
    ahead, near = (sum(speed >= limit for speed in speeds) / len(speeds) for limit in (1.0, 0.95))
    return Summary(len(speeds), statistics.geometric_mean(speeds), min(speeds), lost, ahead, near)
