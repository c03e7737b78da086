"""Compare two runs of the benchmark on one device, figure by figure.

A figure is a ratio within one run: speed relative to cuBLAS, host time of a call relative to that of PyTorch or CuPy,
or a geometric mean of these. Times in milliseconds move with clocks and machines, the ratios do not; so
pytest-benchmark's own comparison, which is of times, is not used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from fastsgemm.measure.problem_sets import SETS_OF_A_RUN

LIMIT = 0.95  # of the older figure; below it is slower, unless it is noise
STANDARD_ERRORS = 2.0  # noise, in standard errors of both figures
_BESIDE = {
    "sgemm, C given": ("torch.mm(out=)", "cupy.matmul(out=)"),
    "sgemm, new result": ("torch.mm", "cupy.matmul"),
}

Data = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A ratio; larger is better."""

    ratio: float
    noise: float  # relative standard error of the ratio
    tests: tuple[str, ...]  # pytest ids of the benchmarks that measure it


def figures(data: Data, in_means: Container[str] | None = None) -> dict[str, Figure]:
    """Return the figures of a run by name. A figure has the same name in every run.

    The means are over the problems named in `in_means`; by default over all.
    """
    by_name: dict[str, Figure] = {}
    means: dict[str, Figure] = {}
    for name in SETS_OF_A_RUN:
        set_figures = {f"{name} {_problem(row)}": _figure(row["percent"] / 100, row) for row in data.get(name, ())}
        averaged = [figure for problem, figure in set_figures.items() if in_means is None or problem in in_means]
        if averaged:
            mean = statistics.geometric_mean(figure.ratio for figure in averaged)
            noise = math.hypot(*(figure.noise for figure in averaged)) / len(averaged)
            means[f"geometric mean of {name}"] = Figure(
                mean, noise, tuple(test for figure in averaged for test in figure.tests)
            )
        by_name |= set_figures
    for row in data["ladder"]:
        if row["number"] and row["percent"] is not None:
            by_name[f"rung {row['name']}"] = _figure(row["percent"] / 100, row)
    calls = {row["call"]: row for row in data["calls"]}
    for ours, baselines in _BESIDE.items():
        for row in (row for row in data["calls"] if row["call"] == ours):
            baseline = next((calls[x] for x in baselines if x in calls and calls[x]["kind"] == row["kind"]), None)
            if baseline is not None:
                ratio = baseline["us_per_call"] / row["us_per_call"]
                by_name[f"host time of {ours}, {row['kind']}"] = _figure(ratio, row, baseline)
    return by_name | means


def _problem(row: Data) -> str:
    batch = f",x{row['batch']}" if row["batch"] > 1 else ""
    dtypes = f",{row['dtypes']}" if "dtypes" in row else ""
    return f"{row['M']},{row['N']},{row['K']},{row['layout']}{dtypes}{batch} ld {row['lda']},{row['ldb']},{row['ldc']}"


def _figure(ratio: float, *rows: Data) -> Figure:
    noise = math.hypot(*(row["noise"] for row in rows))
    return Figure(ratio, noise, tuple(row["test"] for row in rows if "test" in row))


def fallen(stored: Mapping[str, Figure], measured: Mapping[str, Figure]) -> list[str]:
    """Return the names of the figures that are below the limit by more than the noise."""
    return [name for name, new in measured.items() if name in stored and _is_slower(stored[name], new)]


def _is_slower(old: Figure, new: Figure) -> bool:
    return new.ratio < LIMIT * old.ratio * (1 - STANDARD_ERRORS * math.hypot(new.noise, old.noise))


@dataclass(frozen=True)
class Verdict:
    """How one figure changed."""

    name: str
    old: float | None  # None if that run lacks it
    new: float | None
    noise: float  # relative standard error of the quotient
    verdict: str  # `slower`, `faster`, `same`, `new` or `gone`


def verdicts(old: Data, new: Data) -> list[Verdict]:
    """Return how every figure changed between two runs: slower ones first, the worst of them first."""
    before, after = comparable(old, new)
    all_verdicts = [_verdict(name, before.get(name), after.get(name)) for name in before | after]
    order = ("slower", "faster", "same", "new", "gone")
    return sorted(all_verdicts, key=lambda x: (order.index(x.verdict), (x.new or 1.0) / (x.old or 1.0)))


def comparable(old: Data, new: Data) -> tuple[dict[str, Figure], dict[str, Figure]]:
    """Return the figures of both runs, with means over their common problems, because others cannot be compared."""
    common = figures(old).keys() & figures(new).keys()
    return figures(old, common), figures(new, common)


def _verdict(name: str, old: Figure | None, new: Figure | None) -> Verdict:
    if new is None:
        return Verdict(name, old.ratio if old else None, None, 0.0, "gone")
    if old is None:
        return Verdict(name, None, new.ratio, 0.0, "new")
    noise = math.hypot(old.noise, new.noise)
    verdict = "slower" if _is_slower(old, new) else "faster" if _is_slower(new, old) else "same"
    return Verdict(name, old.ratio, new.ratio, noise, verdict)
