#!/usr/bin/env python3
"""Measure what `batch_invariant=True` costs beside cuBLAS and beside the default, for docs/batch-invariance.md.

    tests/benchmarks/one_order.py                     into docs/data/order.json; then run tools/write_tables.py
    tests/benchmarks/one_order.py --json found.json   into another file

Needs a device and PyTorch, through which cuBLAS is called.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from fastsgemm import device, sgemm
from fastsgemm.measure import suite
from fastsgemm.measure.problem_sets import LAYOUTS, NAMED, NARROW
from fastsgemm.measure.reference import largest_error
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.measure.versus import errors_against_float64
from fastsgemm.problem import LAYOUTS as LETTERS
from fastsgemm.problem import Problem
from fastsgemm.progress import track
from fastsgemm.tuning import first_use

KEPT = Path(__file__).resolve().parents[2] / "docs" / "data" / "order.json"
SECONDS = 0.1  # spent on timing each of the three, for one problem

_NAMED = [sample.problem for sample in NAMED]
_OTHERS = [
    *(sample.problem for sample in (*LAYOUTS, *NARROW)),
    *(Problem(rows, 4096, 4096) for rows in (2, 4, 64, 256, 512, 1024)),
    *(Problem(1, 11008, 4096), Problem(1, 4096, 11008), Problem(8, 11008, 4096), Problem(16, 8192, 8192)),
    *(Problem(1024, 1024, 1024, layout) for layout in LETTERS),
    *(Problem(n, n, n) for n in (700, 5000, 6144)),
]
PROBLEMS = dict.fromkeys(_NAMED, True) | {one: False for one in _OTHERS if one not in _NAMED}  # whether named


def operands(torch: Any, problem: Problem, place: str) -> tuple[Any, Any]:
    """Return normally distributed A and B."""
    M, N, K = problem.M, problem.N, problem.K
    torch.manual_seed(0)
    a, b = (
        torch.randn(shape[::-1], device=place).t() if letter == "T" else torch.randn(shape, device=place)
        for shape, letter in zip(((M, K), (K, N)), problem.layout, strict=True)
    )
    return a, b


def row(torch: Any, stopwatch: Any, problem: Problem, place: str = "cuda") -> dict[str, Any]:
    """Check and time one problem: in one order, by default, and by cuBLAS, in turns."""
    M, N, K = problem.M, problem.N, problem.K
    a, b = operands(torch, problem, place)
    results = {name: torch.full((M, N), math.nan, device=place) for name in ("", "default_", "cublas_")}
    works = [
        lambda: sgemm(a, b, C=results[""], batch_invariant=True),
        lambda: sgemm(a, b, C=results["default_"]),
        lambda: torch.mm(a, b, out=results["cublas_"]),
    ]
    for work in works:
        work()
    errors = [*map(errors_against_float64(torch, a, b), results.values())]
    if not all(error <= largest_error(K) for error in errors):  # one may be NaN
        raise ValueError(f"{problem}: the errors are {errors}")
    times = stopwatch.medians(works, SECONDS)
    return {
        "M": M,
        "N": N,
        "K": K,
        "layout": problem.layout,
        "named": PROBLEMS.get(problem, False),
        **{f"{name}ms": ms for name, ms in zip(results, times, strict=True)},
        **{f"{name}error": error for name, error in zip(results, errors, strict=True)},
    }


def measure() -> dict[str, Any]:
    """Return a row for each problem, and where and when they were measured."""
    torch = suite.import_torch()
    gpu = first_use.open_device(0)
    with device.current(gpu), closing(Stopwatch(gpu)) as stopwatch:
        rows = [row(torch, stopwatch, problem) for problem in track(PROBLEMS, "timing beside cuBLAS")]
    return suite.about(gpu, torch) | {"rows": rows}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, default=KEPT, metavar="FILE", help="its proof is kept")
    path = parser.parse_args(arguments).json
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found["cost"] = measure()
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
