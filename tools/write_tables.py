#!/usr/bin/env python3
"""Write the tables of README.md and docs/ from the JSON files of docs/data and tuning_db.

    tools/write_tables.py build/benchmarks.json   first update docs/data from a run of make bench
    tools/write_tables.py                         write all tables
    tools/write_tables.py --check                 write nothing; exit 1 if a table differs from its data

A run of ``tests/benchmarks/test_fp16x3.py`` alone updates only docs/data/fp16x3.json. A run on another device than that
of the pages updates docs/data/NAME-DEVICE.json instead, of which README.md and pages show the most important. A table
stands between <!-- NAME:begin --> and <!-- NAME:end -->. Do not edit it by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import generated
from page_tables import (
    benchmarks,
    cublaslt,
    fp16x3,
    half,
    headline,
    jax,
    machine_code,
    order,
    pytorch,
    simulation,
    symmetric,
    tuning,
)
from page_tables.markdown import NOT_MEASURED, OF_SEVERAL, Data, fill, of_each, runs

from fastsgemm.heuristics.database import file_name

ROOT = Path(__file__).resolve().parent.parent
_FILES = (
    "benchmarks", "counters", "counts", "cublaslt", "fp16x3", "half", "hostile", "jax", "literature", "ncu", "order",
    "own_records", "pytorch", "sass", "symmetric",
)  # fmt: skip
NOT_ATTACKED = "*Not counted yet: run `make hostile`.*"


def contents(data: Mapping[str, Data | None]) -> dict[str, str]:
    """Return the text of every table by its name.

    Parameters
    ----------
    data : mapping
        As `read_data` returns it.
    """
    on_devices, counts = [*runs(data, "benchmarks")], data["counts"]
    measured = dict.fromkeys([*benchmarks.TABLES, *benchmarks.OF_EACH], NOT_MEASURED)
    if on_devices:
        run = on_devices[0] | {"literature": data["literature"]}
        measured = {name: table(run) for name, table in benchmarks.TABLES.items()}
        measured |= {name: of_each(on_devices, table) for name, table in benchmarks.OF_EACH.items()}
    assert counts is not None  # it needs no device and is always there
    return (
        measured
        | simulation.counts_texts(counts)
        | simulation.counters_texts(data["counters"])
        | machine_code.sass_texts(data["sass"])
        | machine_code.ncu_texts(data["ncu"])
        | cublaslt.texts(data)
        | fp16x3.texts([*runs(data, "fp16x3")])
        | order.texts(data["order"])
        | pytorch.texts(data["pytorch"])
        | symmetric.texts([*runs(data, "symmetric")])
        | half.texts([*runs(data, "half")])
        | jax.texts(data["jax"])
        | hostile_texts(data["hostile"])
        | headline.texts(data)
        | tuning.texts(data["own_records"])
    )


def hostile_texts(tried: Mapping[str, int] | None) -> dict[str, str]:
    """Return how many kinds of attack the hostile tests tried, and how often in all."""
    if tried is None:
        return {"hostile": NOT_ATTACKED}
    return {"hostile": f"The stored run tried {len(tried)} kinds of attack, {sum(tried.values()):,} times in all."}


def read_data(root: Path) -> dict[str, Data | None]:
    """Return what the files of docs/data hold by name; None for one that does not exist."""
    paths = {name: root / "docs" / "data" / f"{name}.json" for name in _FILES}
    paths |= {path.stem: path for name in OF_SEVERAL for path in (root / "docs" / "data").glob(f"{name}-*.json")}
    return {name: json.loads(path.read_text("utf-8")) if path.exists() else None for name, path in paths.items()}


def file_of(folder: Path, name: str, device: str) -> Path:
    """Return the file for runs on a device: NAME.json, or NAME-DEVICE.json where that of the pages is of another."""
    path = folder / f"{name}.json"
    of_pages = not path.exists() or json.loads(path.read_text(encoding="utf-8"))["device"] == device
    return path if of_pages else folder / f"{name}-{file_name(device)}.json"


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
    texts = contents(read_data(root))
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    wanted = {path: fill(path.read_text(encoding="utf-8"), texts) for path in pages}
    return generated.update(wanted, "write_tables.py", options.check)


if __name__ == "__main__":
    sys.exit(main())
