"""What the simulated device counts, alone and beside Nsight Compute."""

from __future__ import annotations

from msgspec import convert

from fastsgemm.measure import counts
from fastsgemm.measure.counts import Table
from page_tables.markdown import Data, table

NOT_COUNTED = (
    "*Not measured yet: run `tests/sim/ncu_counters.py --json docs/data/counters.json` on a machine with a device.*"
)


def counts_texts(data: Data) -> dict[str, str]:
    """Return the simulated device's counts as tables: of all rungs for a square, and of the kernels of rung 11."""
    counted = convert(data, Table)
    rungs = counts.named(counted.rows)
    arithmetic = {
        head: cell for head, cell in counts.ARITHMETIC.items() if head != counts.DIVERGENT
    }  # no rung has them
    tables = [table({"rung": "{name}", **columns}, rungs) for columns in (counts.MEMORY, arithmetic)]
    texts = {"counts": "\n\n".join([f"{counted.heading()}.", *tables])}  # one table would be wider than a page
    if counted.fp16x3 is not None:
        texts["counts-fp16x3"] = table({"kernel": "{name}", **counts.KERNEL}, counts.named(counted.fp16x3.kernels))
    return texts


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
