#!/usr/bin/env python3
"""Fail if a figure fell by 5 % against the stored run.

    tools/check_benchmarks.py build/benchmarks.json

A figure is a ratio measured within one run: speed relative to cuBLAS, host time of a call relative to that of PyTorch
or CuPy, or a geometric mean of these. It has fallen if it is below 95 % of the stored one by more than the noise of
both. Figures that have fallen are measured again on this machine, and reported if they fall each time. The exit code is
then 1. It is 2 if the runs cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_tables.benchmarks import SETS, reduce
from write_tables import ROOT

LIMIT = 0.95  # of the stored figure
STANDARD_ERRORS = 2.0  # noise, in standard errors of both figures
REPEATS = 2  # how often a fallen figure is measured again
_BESIDE = {
    "sgemm, C given": ("torch.mm(out=)", "cupy.matmul(out=)"),
    "sgemm, new result": ("torch.mm", "cupy.matmul"),
}

Data = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A ratio, of which larger is better.

    Attributes
    ----------
    ratio : float
    noise : float
        Relative standard error of the ratio.
    tests : tuple of str
        pytest ids of the benchmarks that measure it.
    """

    ratio: float
    noise: float
    tests: tuple[str, ...]


def figures(data: Data) -> dict[str, Figure]:
    """Return the figures in the output of `reduce` by name. A figure has the same name in every run."""
    found = {}
    for name in SETS:
        of_set = {f"{name} {_problem(row)}": _figure(row["percent"] / 100, row) for row in data[name]}
        if of_set:
            mean = statistics.geometric_mean(one.ratio for one in of_set.values())
            noise = math.hypot(*(one.noise for one in of_set.values())) / len(of_set)
            tests = tuple(test for one in of_set.values() for test in one.tests)
            found |= of_set | {f"geometric mean of {name}": Figure(mean, noise, tests)}
    for row in data["ladder"]:
        if row["number"] and row["percent"] is not None:
            found[f"rung {row['name']}"] = _figure(row["percent"] / 100, row)
    calls = {row["call"]: row for row in data["calls"]}
    for own, others in _BESIDE.items():
        for row in (row for row in data["calls"] if row["call"] == own):
            beside = next((calls[one] for one in others if one in calls and calls[one]["kind"] == row["kind"]), None)
            if beside is not None:
                ratio = beside["us_per_call"] / row["us_per_call"]
                found[f"host time of {own}, {row['kind']}"] = _figure(ratio, row, beside)
    return found


def _problem(row: Data) -> str:
    return f"{row['M']},{row['N']},{row['K']},{row['layout']} ld {row['lda']},{row['ldb']},{row['ldc']}"


def _figure(ratio: float, *rows: Data) -> Figure:
    """Return the figure of these rows. Older runs did not store noise; theirs counts as 0."""
    noise = math.hypot(*(row.get("noise", 0.0) for row in rows))
    return Figure(ratio, noise, tuple(row["test"] for row in rows if "test" in row))


def fallen(stored: Mapping[str, Figure], found: Mapping[str, Figure]) -> list[str]:
    """Return the names of the figures that are below the limit by more than the noise."""
    return [
        name
        for name, new in found.items()
        if name in stored
        and new.ratio < LIMIT * stored[name].ratio * (1 - STANDARD_ERRORS * math.hypot(new.noise, stored[name].noise))
    ]


def confirmed(
    stored: Mapping[str, Figure], found: Mapping[str, Figure], again: Callable[[Iterable[str]], Mapping[str, Figure]]
) -> dict[str, Figure]:
    """Return the figures that fell and then fell again in each of `REPEATS` calls of `again`."""
    suspects = {name: found[name] for name in fallen(stored, found)}
    for _ in range(REPEATS):
        if not suspects:
            break
        new = again(dict.fromkeys(test for one in suspects.values() for test in one.tests))
        still = {*fallen(stored, new)} | {*suspects} - {*new}  # figures that were not measured again stay suspects
        suspects = {name: new.get(name, one) for name, one in suspects.items() if name in still}
    return suspects


def measure_again(tests: Iterable[str]) -> dict[str, Figure]:
    """Run these benchmarks and return their figures."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "again.json"
        command = [sys.executable, "-m", "pytest", "-q", "--benchmark-enable", "--benchmark-only"]
        subprocess.run([*command, f"--benchmark-json={result}", *tests], cwd=ROOT, check=False, stdout=sys.stderr)
        if not result.exists():  # pytest failed and has printed the reason
            return {}
        return figures(reduce(json.loads(result.read_text(encoding="utf-8")), ladder=False))


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path, help="JSON of make bench")
    options = parser.parse_args(arguments)
    kept = root / "docs" / "data" / "benchmarks.json"
    try:
        stored = json.loads(kept.read_text(encoding="utf-8"))
        run = reduce(json.loads(options.run.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if stored["device"] != run["device"]:
        parser.error(f"{kept} is of one {stored['device']}, {options.run} of one {run['device']}")
    old, new = figures(stored), figures(run)
    common = old.keys() & new.keys()
    if not common:
        parser.error(f"{options.run} has no figure that {kept} has")
    found = confirmed(old, new, measure_again)
    for name, figure in found.items():
        print(f"{name}: {figure.ratio:.3f}, stored {old[name].ratio:.3f} ({figure.ratio / old[name].ratio - 1:+.1%})")
    print(f"{len(found)} of {len(common)} figures fell by 5 %; {len(old) - len(common)} stored ones were not measured")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
