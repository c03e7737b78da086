"""The table of 16-bit operands in docs/usage.md, from docs/data/half.json, which tests/benchmarks/half.py writes."""

from __future__ import annotations

from collections.abc import Sequence

from fastsgemm.measure import speeds
from page_tables.markdown import table
from page_tables.runs import Data, Stored, place, runs

NOT_MEASURED = "*Not measured yet: run `tests/benchmarks/half.py --json docs/data/half.json` on a GPU.*"
_CAST, _HALF = "cast, cuBLAS FP32", "cuBLAS 16 bits"


def texts(data: Stored) -> dict[str, str]:
    """Return the tables of each device by their name."""
    return {"half": "\n\n".join(map(_text, runs(data, "half"))) or NOT_MEASURED}


def _text(run: Data) -> str:
    sets: dict[str, list[Data]] = {}
    for row in run["rows"]:
        sets.setdefault(row["set"], []).append(row)
    heads = ("products", "number", "ieee", "fp16x3", "fp16x3, split", "fp16x3 / cuBLAS in 16 bits", "error")
    lines = []
    for name, rows in sets.items():
        of_cast = (_speeds(rows, kind, _CAST) for kind in ("ieee", "fp16x3", "fp16x3, split"))
        error = max(row["errors"]["fp16x3"] / row["errors"][_CAST] for row in rows)
        lines.append((name, len(rows), *of_cast, _speeds(rows, "fp16x3", _HALF), f"{error:.2f}"))
    return f"On {place(run)}.\n\n{table(heads, lines)}"


def _speeds(rows: Sequence[Data], kind: str, other: str) -> str:
    """Return the geometric mean and the least of the speeds of a kind relative to another; a dash where none has it."""
    relative = [row["us"][other] / row["us"][kind] for row in rows if other in row["us"]]
    if not relative:
        return "-"
    found = speeds.summary(relative)
    return f"{found.mean:.2f}, {found.slowest:.2f}"
