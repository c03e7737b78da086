"""What the simulated device counts, alone and beside Nsight Compute."""

from __future__ import annotations

from fastsgemm.ladder.counts import CountedRow, Table
from fastsgemm.rungs import find
from page_tables.markdown import Data, header, line

NOT_COUNTED = (
    "*Not measured yet: run `tests/sim/ncu_counters.py --json docs/data/counters.json` on a machine with a device.*"
)
REPEATED = "of stores, with repeats"  # the metric's name in tests/sim/ncu_counters.py


def counts_texts(counts: Table) -> dict[str, str]:
    """Return the simulated device's counts: one table, and a line for each rung."""
    of_rungs = {f"counts-{row.name}": _counts_of(row) for row in counts.rows}
    if counts.fp16x3 is not None:
        of_rungs["counts-fp16x3"] = counts.fp16x3_markdown()
    return {"counts": f"{counts.heading()}.\n\n{counts.markdown()}"} | of_rungs


def _counts_of(row: CountedRow) -> str:
    traffic = (
        f"sectors: {row.loads_a.sectors_per_request:.3g} a load of A, {row.loads_b.sectors_per_request:.3g} a load of "
        f"B, {row.stores_c.sectors_per_request:.3g} a store of C; "
        f"{(row.loads_a.requests + row.loads_b.requests) / row.fmas:.3g} global loads an FMA"
    )
    shared = "no shared memory"
    if row.shared_loads.requests:
        shared = (
            f"{row.shared_loads.words / row.fmas:.4g} words of shared memory an FMA, in "
            f"{row.shared_loads.requests / row.fmas:.4g} loads; wavefronts: "
            f"{row.shared_loads.wavefronts_per_request:.3g} a load, {row.shared_stores.wavefronts_per_request:.3g} a "
            f"store; {row.barriers:.0f} barriers, {row.shared_bytes} bytes of shared memory"
        )
    held = f"{row.registers} registers, occupancy {row.occupancy:.0%}"
    limit = "" if row.occupancy == 1.0 else f", limited by {row.limited_by}"
    others = f"{row.others_per_fma:.3g} instructions beside each FMA"
    return f"> {find(row.name).config(**row.constants)}: {traffic}; {shared}; {others}; {held}{limit}."


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
