"""Numbers of the tuner, for docs/tuning.md."""

from __future__ import annotations

from fastsgemm.tuning import tuner


def texts() -> dict[str, str]:
    """Return the texts by name."""
    limits = (
        f"A quick run takes at most {tuner.QUICK_SECONDS:g} seconds and the standard set {tuner.STANDARD_SECONDS:g}, "
        "divided among rungs and problems."
    )
    return {"tuning-limits": limits}
