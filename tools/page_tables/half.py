"""The table of 16-bit operands in docs/usage.md, from docs/data/half.json, which tests/benchmarks/half.py writes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from page_tables.markdown import Data, header, line

NOT_MEASURED = "*Not measured yet: run `tests/benchmarks/half.py --json docs/data/half.json` on a GPU.*"
_CAST, _HALF = "cast, cuBLAS FP32", "cuBLAS 16 bits"


def texts(runs: Sequence[Data]) -> dict[str, str]:
    """Return the tables of each device by their name."""
    return {"half": "\n\n".join(map(_text, runs)) or NOT_MEASURED}


def _text(run: Data) -> str:
    sets: dict[str, list[Mapping[str, Any]]] = {}
    for row in run["rows"]:
        sets.setdefault(row["set"], []).append(row)
    lines = header("products", "number", "ieee", "fp16x3", "fp16x3, split", "fp16x3 / cuBLAS in 16 bits", "error")
    for name, rows in sets.items():
        speeds = [_speeds(rows, kind, _CAST) for kind in ("ieee", "fp16x3", "fp16x3, split")]
        error = max(row["errors"]["fp16x3"] / row["errors"][_CAST] for row in rows)
        lines.append(line(name, len(rows), *speeds, _speeds(rows, "fp16x3", _HALF), f"{error:.2f}"))
    place = f"On one {run['device']}, torch {run['torch']}, {run['date']}."
    return "\n".join([place, "", *lines])


def _speeds(rows: Sequence[Mapping[str, Any]], kind: str, other: str) -> str:
    """Return the geometric mean and the least of the speeds of a kind relative to another; a dash where none has it."""
    speeds = [row["us"][other] / row["us"][kind] for row in rows if other in row["us"]]
    return f"{statistics.geometric_mean(speeds):.2f}, {min(speeds):.2f}" if speeds else "-"
