"""What the simulated device counts, alone and beside Nsight Compute."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import convert

from fastsgemm.measure import counts
from fastsgemm.measure.counts import CountedRow, KernelRow, Table
from page_tables.markdown import Data, header, line

NOT_COUNTED = (
    "*Not measured yet: run `tests/sim/ncu_counters.py --json docs/data/counters.json` on a machine with a device.*"
)


def counts_texts(data: Data) -> dict[str, str]:
    """Return the simulated device's counts as tables: of all rungs for a square, and of the kernels of rung 11."""
    table = convert(data, Table)
    rungs = [(f"{row.number} {row.name}", row) for row in table.rows]
    arithmetic = [column for column in counts.ARITHMETIC if column[0] != "divergent"]  # no rung has divergent branches
    tables = [_table("rung", rungs, columns) for columns in (counts.MEMORY, arithmetic)]  # one is wider than a page
    texts = {"counts": "\n\n".join([f"{table.heading()}.", *tables])}
    if table.fp16x3 is not None:
        texts["counts-fp16x3"] = _table("kernel", [(row.name, row) for row in table.fp16x3.kernels], counts.KERNEL)
    return texts


def _table(
    first: str, rows: Sequence[tuple[str, CountedRow | KernelRow]], columns: Sequence[tuple[str, str, str]]
) -> str:
    heads = header(first, *(f"{group} {name}".strip() for group, name, _ in columns))
    return "\n".join([*heads, *(line(name, *counts.cells(row, columns)) for name, row in rows)])


def counters_texts(counted: Data | None) -> dict[str, str]:
    """Return how far the simulated counts are from those of Nsight Compute."""
    if counted is None:
        return {"counters": NOT_COUNTED}
    problem, rows = counted["problem"], counted["rows"]
    largest = max(abs(row["percent"]) for row in rows if row["gated"] and row["percent"] is not None)
    instructions = [row["percent"] for row in rows if row["metric"] == "instructions"]
    rungs = len({row["rung"] for row in rows})
    return {
        "counters": (
            f"{problem['M']} x {problem['N']} x {problem['K']} on one {counted['device']}, driver {counted['driver']}, "
            f"{counted['date']}: over {rungs} rungs, the largest difference is {largest:.2f} %. Instructions, which "
            f"are those of PTX here, differ by {min(instructions):+.1f} to {max(instructions):+.1f} %."
        )
    }
