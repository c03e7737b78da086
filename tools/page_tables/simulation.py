"""What the simulated device counts, alone and beside Nsight Compute."""

from __future__ import annotations

from fastsgemm.ladder.counts import Table
from page_tables.markdown import Data, header, line

NOT_COUNTED = (
    "*Not measured yet: run `tests/sim/ncu_counters.py --json docs/data/counters.json` on a machine with a device.*"
)
REPEATED = "of stores, with repeats"  # the metric's name in tests/sim/ncu_counters.py


def counts_texts(counts: Table) -> dict[str, str]:
    """Return the simulated device's counts as tables: of all rungs for a square, and of the kernels of rung 11."""
    tensor_cores = {} if counts.fp16x3 is None else {"counts-fp16x3": counts.fp16x3_markdown()}
    return {"counts": f"{counts.heading()}.\n\n{counts.markdown()}"} | tensor_cores


def counters_texts(found: Data | None) -> dict[str, str]:
    """Return the simulated counts beside those of Nsight Compute, one line a rung."""
    if found is None:
        return {"counters": NOT_COUNTED}
    problem = found["problem"]
    by_rung: dict[str, dict[str, Data]] = {}
    for row in found["rows"]:
        by_rung.setdefault(row["rung"], {})[row["metric"]] = row
    lines = [
        f"{problem['M']} x {problem['N']} x {problem['K']} on one {found['device']}, driver {found['driver']}, "
        f"{found['date']}. Differences in percent.",
        "",
        *header("rung", "largest difference", "store wavefronts", "of the data pipe", "instructions, difference"),
    ]
    for rung, rows in by_rung.items():
        gated = [row["percent"] for row in rows.values() if row["gated"]]
        largest = "" if None in gated else f"{max(map(abs, gated)):.2f}"
        stores, repeated = rows["shared store wavefronts"]["sim"], rows[REPEATED]["ncu"]
        more = rows["instructions"]["percent"]
        lines.append(line(rung, largest, f"{stores:.0f}", f"{repeated:.0f}", f"{more:+.2f}"))
    return {"counters": "\n".join(lines)}
