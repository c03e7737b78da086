"""Numbers of the tuner, and of a run of it, for docs/tuning.md."""

from __future__ import annotations

import statistics

from fastsgemm import rungs
from fastsgemm.heuristics import database
from fastsgemm.tuning import tuner
from page_tables.markdown import NOT_MEASURED
from page_tables.runs import Data, Stored


def texts(data: Stored) -> dict[str, str]:
    """Return the texts by name. The run is what `fastsgemm tune --json` printed on a device without records."""
    run = data.get("own_records")
    limits = (
        f"A quick run takes at most {tuner.QUICK_SECONDS:g} seconds and the standard set {tuner.STANDARD_SECONDS:g}, "
        "divided among rungs and problems."
    )
    return {"tuning-limits": limits, "own-records": NOT_MEASURED if run is None else _own_records(run)}


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
