"""The ladder as bars for a terminal."""

from __future__ import annotations

from typing import Any

from fastsgemm.measure.tables import rung_title

_WIDTH = 50  # characters of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉"  # a character cell in steps of an eighth


def text(ladder: dict[str, Any]) -> str:
    """Return a bar for each row of a ladder, given as its `json` returns it.

    A measured row is shown by its TFLOP/s. A simulated row is shown by the share of FMAs in its instructions, which
    bounds its share of the peak.
    """
    rows = ladder["rows"]
    if rows and "tflops" in rows[0]:
        heading = "TFLOP/s"
        values = {rung_title(row["number"], row["name"]): row["tflops"] or 0.0 for row in rows}
        longest = max(values.values()) or 1.0
    else:
        heading, longest = "FMAs, % of all instructions", 100.0
        values = {rung_title(row["number"], row["name"]): 100.0 * row["fmas"] / row["instructions"] for row in rows}
    lines = [f"{name:<16}{bar(value / longest)} {value:.3g}" for name, value in values.items()]
    return "\n".join([heading, *lines])


def bar(share: float) -> str:
    """Return a bar with this share of the full width."""
    eighths = round(8 * _WIDTH * share)
    whole, remainder = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[remainder] if remainder else "")
