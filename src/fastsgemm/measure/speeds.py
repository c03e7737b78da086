"""Speeds relative to another library, summed up."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Data = dict[str, Any]


def of_rows(rows: Sequence[Data]) -> list[float]:
    """Return the speeds of the rows of a run, relative to cuBLAS."""
    return [row["percent"] / 100 for row in rows]


def summary(speeds: Sequence[float]) -> Data:
    """Return what a table shows of some speeds.

    Returns
    -------
    dict
        Their ``number``, the geometric ``mean`` and the ``slowest``; how many are ``lost``, which is below 1; and which
        share is ``ahead``, at 1 or better, and ``near``, at 0.95 or better.
    """
    ahead, near = (sum(speed >= least for speed in speeds) / len(speeds) for least in (1.0, 0.95))
    return {
        "number": len(speeds),
        "mean": statistics.geometric_mean(speeds),
        "slowest": min(speeds),
        "lost": sum(speed < 1.0 for speed in speeds),
        "ahead": ahead,
        "near": near,
    }
