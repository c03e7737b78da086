#!/usr/bin/env python3
"""Time what `sgemm` gets on a device whose architecture is not in the database, beside cuBLAS and the shipped data.

    tests/benchmarks/unknown_device.py --json FILE                without times, and after the first call
    tests/benchmarks/unknown_device.py --full FOLDER --json FILE  also after a full run, whose data folder this is
    tests/benchmarks/unknown_device.py --tune FOLDER              make such a folder: a full run with nothing known

The records, curves and rates of the device's architecture are hidden; its curves remain as those of another. All states
are timed in turns on problems that no tuning uses. The table has the mean speed beside the shipped data and cuBLAS.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastsgemm import device, preparation
from fastsgemm.call.driver import multiply
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.heuristics import database, device_database, transfer
from fastsgemm.heuristics.database_entries import Content
from fastsgemm.measure import cublas, environment, problem_sets
from fastsgemm.measure.operands import Memory, lent, views
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.problem import Problem, format_problem
from fastsgemm.progress import Bar
from fastsgemm.request import of_problem, resolve
from fastsgemm.tuning import candidates, tuner

SEED = 5211
SECONDS = 0.03  # of timing for each problem and state
SHIPPED = "shipped"
_ELSEWHERE = "elsewhere"  # the name of the architecture of the curves that are carried over


def sets(count: int) -> dict[str, tuple[str, list[Problem]]]:
    """Return the precision and the problems of each set."""
    problem_sets.SEED = SEED
    of_sizes = [sample.problem for sample in problem_sets.all_sizes()]
    of_large = [sample.problem for sample in problem_sets.large(count)]
    return {
        "shapes": ("ieee", [sample.problem for sample in problem_sets.NAMED]),
        "4096^3": ("ieee", [sample.problem for sample in problem_sets.LAYOUTS]),
        "random": ("ieee", of_sizes[:: max(1, len(of_sizes) // count)]),
        "large": ("ieee", of_large),
        "batches": ("ieee", [sample.problem for sample in problem_sets.BATCHES]),
        "fp16x3": ("fp16x3", of_large[::2]),
    }


@contextmanager
def state(name: str, folder: Path | None, arch: str) -> Iterator[None]:
    """Let the database be what it is in a state: with the user's results in a folder, and without those of `arch`.

    The curves of `arch` are there under another name, as those to carry over. Of its rates the tiles stay known, since
    no other architecture runs them.
    """
    real, changed = database.shipped, (candidates, database, device_database)

    def hidden(asked: str) -> Content:
        if asked == _ELSEWHERE:
            return real(transfer.SOURCE)
        return Content(arch, 0, rates=real(arch).rates) if asked == arch else real(asked)

    os.environ["FASTSGEMM_DATA_DIR"] = str(folder or "/dev/null/none")
    if name != SHIPPED:
        database.shipped = hidden
        for module in changed:
            module.SOURCE = _ELSEWHERE  # type: ignore[attr-defined]
    database.forget()
    try:
        yield
    finally:
        database.shipped = real
        for module in changed:
            module.SOURCE = transfer.SOURCE  # type: ignore[attr-defined]
        database.forget()


def run(folders: dict[str, Path | None], count: int) -> dict[str, Any]:
    """Time all sets in all states."""
    gpu, seconds = device.open_gpu(0), {}
    with device.current(gpu):
        with state("first call", folders["first call"], gpu.arch):
            began = time.monotonic()
            outcome = tuner.tune(quick=True)
            seconds["first call"] = time.monotonic() - began
        tables = {name: gpu.with_own_tables() for name in folders}
        memory, stopwatch, rows = Memory(gpu), Stopwatch(gpu), []
        for set_name, (precision, problems) in sets(count).items():
            request = resolve(None, None, precision)
            for name, folder in folders.items():
                with state(name, folder, gpu.arch):
                    needed = preparation.kernels_of(gpu, request, problems, "", Bar(False))
                    for _ in preparation.compiled(needed, gpu.arch, Bar(False)):
                        pass
                    for problem in problems:  # each table keeps its plan
                        given = views(problem, memory.holding(problem))
                        multiply(tables[name], LEGACY_STREAM, of_problem(request, problem), given, 1.0, 0.0)
            for problem in problems:
                arrays = memory.holding(problem)
                given, baseline = views(problem, arrays), cublas.product(*lent(problem, arrays))
                asked = of_problem(request, problem)
                works = [partial(multiply, one, LEGACY_STREAM, asked, given, 1.0, 0.0) for one in tables.values()]
                ms = stopwatch.medians([*works, *([baseline.work] if baseline else [])], SECONDS)
                rows.append(
                    {"set": set_name, "problem": format_problem(problem)}
                    | dict(zip((*tables, "cublas"), ms, strict=False))
                )
        stopwatch.close()
        memory.close()
    return environment.facts(gpu) | {"seconds": seconds, "gain": outcome.gain, "rows": rows}


def report(found: dict[str, Any]) -> None:
    """Print the means of each set: relative to the shipped data, and to cuBLAS with how many were lost."""
    rows = found["rows"]
    states = [name for name in rows[0] if name not in ("set", "problem", "cublas")]
    print(
        f"{found['device']}: the first call took {found['seconds']['first call']:.1f} s, predicted gain {found['gain']}"
    )
    print(f"{'set':10}" + "".join(f"{name:>24}" for name in states))
    for name in dict.fromkeys(row["set"] for row in rows):
        of_set, cells = [row for row in rows if row["set"] == name], []
        for one in states:
            beside = statistics.geometric_mean(row[SHIPPED] / row[one] for row in of_set)
            ratios = [row["cublas"] / row[one] for row in of_set]
            lost = sum(ratio < 1 for ratio in ratios)
            cells.append(f"{beside:.3f} {statistics.geometric_mean(ratios):.3f} ({lost} of {len(ratios)})")
        print(f"{name:10}" + "".join(f"{cell:>24}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--full", type=Path)
    parser.add_argument("--tune", type=Path)
    parser.add_argument("--count", type=int, default=80)
    arguments = parser.parse_args()
    if arguments.tune:
        with state("full", arguments.tune, device.described(0)[1]):
            print(tuner.tune())
        return
    with tempfile.TemporaryDirectory() as folder:
        folders: dict[str, Path | None] = {"no times": None, "first call": Path(folder)}
        folders |= {"full": arguments.full} if arguments.full else {}
        found = run(folders | {SHIPPED: None}, arguments.count)
    report(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
