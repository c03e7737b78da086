"""Numbers of the tuner, and of a run of it, for docs/tuning.md."""

from __future__ import annotations

import statistics

from fastsgemm import rungs
from fastsgemm.heuristics import database
from fastsgemm.measure import speeds
from fastsgemm.measure.environment import in_words
from fastsgemm.tuning import tuner
from page_tables.markdown import NOT_MEASURED, table
from page_tables.runs import Data, Stored, runs


def texts(data: Stored) -> dict[str, str]:
    """Return the texts by name. The run is what `fastsgemm tune --json` printed on a device without records."""
    run = data.get("own_records")
    limits = (
        f"A quick run takes at most {tuner.QUICK_SECONDS:g} seconds and the standard set {tuner.STANDARD_SECONDS:g}, "
        "divided among rungs and problems."
    )
    unknown = "\n\n".join(map(_unknown, runs(data, "unknown"))) or NOT_MEASURED
    own = NOT_MEASURED if run is None else _own_records(run)
    return {"tuning-limits": limits, "own-records": own, "tuning-unknown": unknown}


def _unknown(run: Data) -> str:
    """Return what a device gets whose architecture is hidden, beside the shipped data and cuBLAS, by set."""
    rows = run["rows"]
    states = [name for name in rows[0] if name not in ("set", "problem", "cublas")]
    lines = []
    for name in dict.fromkeys(row["set"] for row in rows):
        of_set = [row for row in rows if row["set"] == name]
        cells = []
        for state in states:
            of_cublas = speeds.summary([row["cublas"] / row[state] for row in of_set])
            cell = f"{of_cublas.mean:.3f}, {of_cublas.lost} slower"
            if state != "shipped":
                relative = statistics.geometric_mean(row["shipped"] / row[state] for row in of_set)
                cell = f"{relative:.3f} ({cell})"
            cells.append(cell)
        lines.append((f"{name}, {len(of_set)} problems", *cells))
    seconds = run["seconds"]["first call"]
    return f"On {in_words(run)}; the first call took {seconds:.1f} s.\n\n{table(('set', *states), lines)}"


def _own_records(run: Data) -> str:
    speeds = {
        rung.name: [row["of_shipped"] for row in run["results"] if row["rung"] == rung.name and row["of_shipped"]]
        for rung in rungs.DEFAULTS
    }
    means = " and ".join(
        f"{statistics.geometric_mean(each):.3f} for rung `{name}` on {len(each)} problems"
        for name, each in speeds.items()
    )
    shipped = database.shipped(run["arch"]).curves[0].device
    end = "" if run["complete"] else ", its budget, before everything was measured"
    return (
        f"One {run['device']} was tuned with the standard set, {run['date']}. The run ended after {run['seconds']:.0f} "
        f"seconds{end}. Relative to the shipped configs, which are of an {shipped}, the mean speed of those that it "
        f"found is {means}."
    )
