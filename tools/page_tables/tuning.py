"""Numbers of the tuner, and of a run of it, for docs/tuning.md."""

from __future__ import annotations

import statistics

from fastsgemm import rungs
from fastsgemm.tuning import tuner
from page_tables.markdown import NOT_MEASURED, Data


def texts(run: Data | None) -> dict[str, str]:
    """Return the texts by name; `run` has the speed of its records relative to those that are shipped."""
    limits = (
        f"A quick run takes at most {tuner.QUICK_SECONDS:g} seconds and the standard set {tuner.STANDARD_SECONDS:g}, "
        "divided among rungs and problems."
    )
    return {"tuning-limits": limits, "own-records": NOT_MEASURED if run is None else _own_records(run)}


def _own_records(run: Data) -> str:
    speeds = {
        rung.name: [row["times_shipped"] for row in run["rows"] if row["rung"] == rung.name] for rung in rungs.DEFAULTS
    }
    means = " and ".join(
        f"{statistics.geometric_mean(each):.3f} on {len(each)} problems of rung `{name}`"
        for name, each in speeds.items()
    )
    return (
        f"A run of the standard set on one {run['device']}, {run['date']}, {run['seconds']} seconds long, hardly found "
        f"anything better than the shipped configs, which are of an {run['shipped']}. Relative to these, its best ones "
        f"have a mean speed of {means}. So only rates of rung 11 are shipped for it: they differ with the rate of the "
        "memory."
    )
