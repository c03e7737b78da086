"""What the simulated device counts, alone and beside Nsight Compute, and what the hostile tests tried on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import convert

from fastsgemm.measure import counts
from fastsgemm.measure.counts import CountedRow, KernelRow, Table
from fastsgemm.measure.tables import cells
from page_tables.markdown import table
from page_tables.runs import Data, Stored

NOT_COUNTED = (
    "*Not measured yet: run `tests/sim/ncu_counters.py --json docs/data/counters.json` on a machine with a device.*"
)
NOT_ATTACKED = "*Not counted yet: run `make hostile`.*"


def texts(data: Stored) -> dict[str, str]:
    """Return the counts as tables, how far they are from those of Nsight Compute, and the attacks that were tried."""
    counters, tried = data.get("counters"), data.get("hostile")
    attacks = tried and f"{len(tried)} kinds of attack, {sum(tried.values()):,} times in all"
    return _counts(data["counts"]) | {
        "counters": _differences(counters) if counters else NOT_COUNTED,
        "hostile": f"The stored run tried {attacks}." if attacks else NOT_ATTACKED,
    }


def _counts(data: Data) -> dict[str, str]:
    """Return the tables of all rungs for a square, and of the kernels of rung 11."""
    counted = convert(data, Table)
    # No rung has divergent branches, and one table would be wider than a page.
    arithmetic = {heading: cell for heading, cell in counts.ARITHMETIC.items() if heading != counts.DIVERGENT}
    tables = [_table("rung", columns, counted.rows) for columns in (counts.MEMORY, arithmetic)]
    texts = {"counts": "\n\n".join([f"{counted.heading()}.", *tables])}
    if counted.fp16x3 is not None:
        texts["counts-fp16x3"] = _table("kernel", counts.KERNEL, counted.fp16x3.kernels)
    return texts


def _table(first: str, columns: Mapping[str, str], rows: Iterable[CountedRow | KernelRow]) -> str:
    columns = {first: "{name}", **columns}
    return table(columns, cells(columns, counts.named(rows)))


def _differences(counted: Data) -> str:
    problem, rows = counted["problem"], counted["rows"]
    largest = max(abs(row["percent"]) for row in rows if row["gated"] and row["percent"] is not None)
    instructions = [row["percent"] for row in rows if row["metric"] == "instructions"]
    rungs = len({row["rung"] for row in rows})
    return (
        f"{problem['M']} x {problem['N']} x {problem['K']} on one {counted['device']}, driver {counted['driver']}, "
        f"{counted['date']}: over {rungs} rungs, the largest difference is {largest:.2f} %. Instructions, which "
        f"are those of PTX here, differ by {min(instructions):+.1f} to {max(instructions):+.1f} %."
    )
