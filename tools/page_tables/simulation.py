"""What the simulated device counts, alone and beside Nsight Compute."""

from __future__ import annotations

from fastsgemm.ladder.counts import Table
from page_tables.markdown import Data

NOT_COUNTED = (
    "*Not measured yet: run `tests/sim/ncu_counters.py --json docs/data/counters.json` on a machine with a device.*"
)


def counts_texts(counts: Table) -> dict[str, str]:
    """Return the simulated device's counts as tables: of all rungs for a square, and of the kernels of rung 11."""
    tensor_cores = {} if counts.fp16x3 is None else {"counts-fp16x3": counts.fp16x3_markdown()}
    return {"counts": f"{counts.heading()}.\n\n{counts.markdown()}"} | tensor_cores


def counters_texts(found: Data | None) -> dict[str, str]:
    """Return how far the simulated counts are from those of Nsight Compute."""
    if found is None:
        return {"counters": NOT_COUNTED}
    problem, rows = found["problem"], found["rows"]
    largest = max(abs(row["percent"]) for row in rows if row["gated"] and row["percent"] is not None)
    instructions = [row["percent"] for row in rows if row["metric"] == "instructions"]
    rungs = len({row["rung"] for row in rows})
    return {
        "counters": (
            f"{problem['M']} x {problem['N']} x {problem['K']} on one {found['device']}, driver {found['driver']}, "
            f"{found['date']}: over {rungs} rungs, the largest difference is {largest:.2f} %. Instructions, which are "
            f"those of PTX here, differ by {min(instructions):+.1f} to {max(instructions):+.1f} %."
        )
    }
