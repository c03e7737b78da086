"""The benchmark results of one device that this version ships, shown on machines without a device."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastsgemm import resources, strict_json
from fastsgemm.measure import speeds
from fastsgemm.measure.problem_sets import SETS_OF_A_RUN
from fastsgemm.problem import Problem

Data = dict[str, Any]


@cache
def run() -> Data:
    """Return the shipped results, in the form of `fastsgemm.measure.suite.run`."""
    path = resources.folder("docs/data") / "benchmarks.json"
    data: Data = strict_json.decode(path.read_bytes(), dict[str, Any])
    return data


def problem() -> Problem:
    """Return the problem of the shipped ladder."""
    row = run()["ladder"][0]
    return Problem(row["M"], row["N"], row["K"])


def place() -> str:
    """Return where and when it was measured, as in ``one NVIDIA H200, 2026-01-02``."""
    return f"one {run()['device']}, {run()['date']}"


def summary() -> str:
    """Return one sentence about all problems except the ladder's, including those on which cuBLAS is faster."""
    total = speeds.summary(speeds.of_rows([row for name in SETS_OF_A_RUN for row in run().get(name, ())]))
    return (
        f"On {total.number} other problems sgemm has {total.mean:.2f} times the speed of cuBLAS (geometric mean); "
        f"cuBLAS is faster on {total.lost}."
    )
