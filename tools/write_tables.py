#!/usr/bin/env python3
"""Write the tables of README.md and docs/ from the JSON files of docs/data and tuning_db.

    tools/write_tables.py build/benchmarks.json   first update docs/data from a run of make bench
    tools/write_tables.py                         write all tables
    tools/write_tables.py --check                 write nothing; exit 1 if a table differs from its data

docs/data/ratios.json, from which ``fastsgemm predict`` takes cuBLAS's times, is made of the other files, too.

A run of ``tests/benchmarks/test_fp16x3.py`` alone updates only docs/data/fp16x3.json. A run on another device than that
of the pages updates docs/data/NAME-DEVICE.json instead, of which README.md and pages show the most important. A table
stands between <!-- NAME:begin --> and <!-- NAME:end -->. Do not edit it by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import generated
from generated import ROOT
from page_tables import (
    benchmarks,
    cublaslt,
    findings,
    fp16x3,
    grouped,
    half,
    headline,
    jax,
    machine_code,
    order,
    packs,
    prediction,
    pytorch,
    simulation,
    symmetric,
    tuning,
)
from page_tables.markdown import fill
from page_tables.runs import Data, Stored, file_of, read_data

from fastsgemm.measure.prediction import FILE

_OF_PAGES = (
    benchmarks, simulation, machine_code, cublaslt, fp16x3, order, pytorch, symmetric, half, jax, headline, tuning,
    grouped, prediction, packs, findings,
)  # fmt: skip


def contents(data: Stored) -> dict[str, str]:
    """Return the text of every table by its name; `data` is what `read_data` returns."""
    return {name: text for module in _OF_PAGES for name, text in module.texts(data).items()}


def _keep(run: Data, folder: Path) -> None:
    """Write what the tables need of a run; raise `ValueError` if it has nothing."""
    reduced = {"fp16x3": fp16x3.reduce(run)}
    if reduced["fp16x3"] is None or benchmarks.has_ladder(run):
        reduced["benchmarks"] = benchmarks.reduce(run)
    for name, data in reduced.items():
        if data is not None:
            path = file_of(folder, name, data["device"])
            if name == "benchmarks" and path.exists():
                benchmarks.keep_first_results(data, json.loads(path.read_text(encoding="utf-8")))
            path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the program; the module docstring describes it."""
    parser = generated.parser(__doc__)
    parser.add_argument("run", nargs="?", type=Path, help="JSON of make bench")
    options = parser.parse_args(arguments)
    if options.run is not None:
        try:
            _keep(json.loads(options.run.read_text(encoding="utf-8")), root / "docs" / "data")
        except (OSError, ValueError) as error:
            parser.error(f"{options.run}: {error}")
    data = read_data(root)
    ratios = {root / "docs" / "data" / FILE: prediction.ratios(data)}  # before the tables, which rest on it
    outdated = generated.update(ratios, "write_tables.py", options.check)
    texts = contents(data)
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    wanted = {path: fill(path.read_text(encoding="utf-8"), texts) for path in pages}
    return outdated | generated.update(wanted, "write_tables.py", options.check)


if __name__ == "__main__":
    sys.exit(main())
