"""The table of docs/grouped-products.md, from what tests/benchmarks/grouped.py wrote to docs/data."""

from __future__ import annotations

from page_tables.markdown import table
from page_tables.runs import Data, Stored, place, runs

NOT_MEASURED = "*Not measured yet: run `tests/benchmarks/grouped.py --json docs/data/grouped.json` on a GPU.*"
_OTHERS = {"PyTorch": "PyTorch's grouped_mm", "padded": "padded bmm", "dense": "one dense product"}


def texts(data: Stored) -> dict[str, str]:
    """Return the tables of each device by their name."""
    return {"grouped": "\n\n".join(map(_text, runs(data, "grouped"))) or NOT_MEASURED}


def _text(run: Data) -> str:
    """Return the speed of grouped products relative to other ways, a line for each problem."""
    heads = ("product", "tokens x groups x K x N", "µs", "TFLOP/s", *(f"times {name}" for name in _OTHERS.values()))
    lines = []
    for row in run["rows"]:
        us = row["us"]
        relative = (f"{us[name] / us['grouped_mm']:.2f}" if us.get(name) else "" for name in _OTHERS)
        problem = " x ".join(str(row[name]) for name in ("T", "groups", "K", "N"))
        lines.append((row["product"], problem, f"{us['grouped_mm']:.0f}", f"{row['tflops']:.1f}", *relative))
    return f"On {place(run)}.\n\n{table(heads, lines)}"
