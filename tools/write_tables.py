#!/usr/bin/env python3
"""Write the measured tables of README.md and docs/ from a run of the benchmarks.

    tools/write_tables.py build/benchmarks.json   keep what they need in docs/data/benchmarks.json, then write them
    tools/write_tables.py                         write them from docs/data/benchmarks.json
    tools/write_tables.py --check                 change nothing; fail where a table is not what the data gives

A table stands between <!-- NAME:begin --> and <!-- NAME:end -->, and nobody edits it by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOT_MEASURED = "*Not measured yet: run `make bench` and then `make tables` on a machine with a card.*"

Data = dict[str, Any]


def reduce(run: Data) -> Data:
    """Return what the tables need of pytest-benchmark's JSON.

    Raises
    ------
    ValueError
        The run has no ladder: it was made without a card.
    """

    def of(group: str) -> list[Data]:
        return [one["extra_info"] for one in run["benchmarks"] if one["group"].startswith(group)]

    ladder = of("ladder")
    if not ladder:
        raise ValueError("the run holds no ladder: run make bench on a machine with a card")
    machine = run["machine_info"]["fastsgemm"]
    return {
        "date": run["datetime"][:10],
        "card": machine["cards"][0]["name"],
        "driver": machine["driver"],
        "nvrtc": machine["nvrtc"],
        "packages": run["machine_info"]["packages"],
        "ladder": sorted(ladder, key=lambda row: row["number"] or len(ladder)),
        "shapes": of("shapes"),
        "calls": of("host cost"),
        "first": of("first result"),
    }


def ladder_table(data: Data, literature: Data) -> str:
    """Every rung in the order of the ladder, then cuBLAS."""
    published = literature["percent_of_cublas"]
    first = data["ladder"][0]
    head = f"% of cuBLAS, [reference ladder]({literature['source']}) on an {literature['card']}"
    lines = [
        f"{first['M']} x {first['N']} x {first['K']} on {_machine(data)}.",
        "",
        *_header("rung", "ms", "TFLOP/s", "% of cuBLAS", head, "error"),
    ]
    for row in data["ladder"]:
        name = f"{row['number']} {row['name']}" if row["number"] else "cuBLAS"
        theirs = published.get(row["name"], 100.0)
        percent = "" if row["percent"] is None else f"{row['percent']:.1f}"
        lines.append(_line(name, f"{row['ms']:.3g}", f"{row['tflops']:.1f}", percent, theirs, f"{row['error']:.2e}"))
    return "\n".join(lines)


def shapes_table(data: Data, literature: Data) -> str:
    """`sgemm` beside cuBLAS over many shapes."""
    lines = [f"On {_machine(data)}.", "", *_header("M", "N", "K", "sgemm ms", "cuBLAS ms", "TFLOP/s", "% of cuBLAS")]
    for row in data["shapes"]:
        beside, percent = _beside(row)
        extents = (row["M"], row["N"], row["K"])
        lines.append(_line(*extents, f"{row['ms']:.4g}", beside, f"{row['tflops']:.1f}", percent))
    return "\n".join(lines)


def losses_text(data: Data, literature: Data) -> str:
    """One paragraph on the shapes where cuBLAS is faster."""
    compared = [row for row in data["shapes"] if row["percent"] is not None]
    lost = sorted((row for row in compared if row["percent"] < 100.0), key=lambda row: row["percent"])
    if not lost:
        return f"On {_machine(data)}, `sgemm` is as fast as cuBLAS or faster on all {len(compared)} shapes tried."
    listed = ", ".join(f"{row['M']} x {row['N']} x {row['K']} ({row['percent']:.0f} %)" for row in lost)
    return (
        f"On {_machine(data)}, cuBLAS is faster on {len(lost)} of the {len(compared)} shapes tried; "
        f"in percent of its speed, `sgemm` reaches: {listed}."
    )


def calls_table(data: Data, literature: Data) -> str:
    """What a call costs the host, and the time to the first result."""
    lines = [f"On {_machine(data)}.", "", *_header("call on 64 x 64 operands", "arrays", "host time, µs")]
    lines += [_line(f"`{row['call']}`", row["kind"], f"{row['us_per_call']:.2f}") for row in data["calls"]]
    lines += ["", *_header("first result in a fresh process", "ms")]
    lines += [_line(f"`{row['first']}`", f"{row['ms']:.0f}") for row in data["first"]]
    return "\n".join(lines)


TABLES: dict[str, Callable[[Data, Data], str]] = {
    "ladder": ladder_table,
    "shapes": shapes_table,
    "losses": losses_text,
    "calls": calls_table,
}


def fill(text: str, data: Data | None, literature: Data) -> str:
    """Return `text` with every table that it has a place for."""
    for name, table in TABLES.items():
        content = NOT_MEASURED if data is None else table(data, literature)
        place = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text = place.sub(lambda found, content=content: f"{found[1]}{content}\n{found[2]}", text)  # type: ignore[misc]
    return text


def _machine(data: Data) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in data["packages"].items())
    return f"one {data['card']}, driver {data['driver']}, NVRTC {data['nvrtc']}, {packages}, {data['date']}"


def _beside(row: Data) -> tuple[str, str]:
    if row["cublas_ms"] is None:
        return "", ""
    return f"{row['cublas_ms']:.4g}", f"{row['percent']:.0f}"


def _header(first: str, *rest: str) -> list[str]:
    return [_line(first, *rest), "|---|" + "---:|" * len(rest)]


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the program; see the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, help="JSON of make bench")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a table is out of date")
    options = parser.parse_args(arguments)
    kept = root / "docs" / "data" / "benchmarks.json"
    if options.run is not None:
        try:
            reduced = reduce(json.loads(options.run.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            parser.error(f"{options.run}: {error}")
        kept.write_text(json.dumps(reduced, indent=1) + "\n", encoding="utf-8")
    data = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else None
    literature = json.loads((root / "docs" / "data" / "literature.json").read_text(encoding="utf-8"))
    stale = []
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        wanted = fill(text, data, literature)
        if wanted != text:
            stale.append(path.name)
            if not options.check:
                path.write_text(wanted, encoding="utf-8")
    if options.check and stale:
        print(f"out of date: {', '.join(stale)}; run tools/write_tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
