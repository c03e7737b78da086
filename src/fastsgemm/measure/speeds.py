"""Speeds relative to another library, summed up."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Summary:
    """What a table shows of some speeds."""

    number: int
    mean: float  # geometric
    slowest: float
    lost: int  # how many are below 1
    ahead: float  # the share at 1 or better
    near: float  # the share at 0.95 or better


def of_rows(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the speeds of the rows of a run, relative to cuBLAS."""
    return [row["percent"] / 100 for row in rows]


def summary(speeds: Sequence[float]) -> Summary:
    """Sum up some speeds, of which there is at least one."""
    lost = sum(speed < 1.0 for speed in speeds)
    ahead, near = (sum(speed >= least for speed in speeds) / len(speeds) for least in (1.0, 0.95))
    return Summary(len(speeds), statistics.geometric_mean(speeds), min(speeds), lost, ahead, near)
