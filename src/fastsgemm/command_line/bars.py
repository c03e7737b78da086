"""The ladder as bars for a terminal."""

from __future__ import annotations

from typing import Any

from fastsgemm.measure.tables import rung_title

_WIDTH = 50  # characters of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉"  # a character cell in steps of an eighth


def text(climbed: dict[str, Any]) -> str:
    """Return a bar for each row of what `json` of a ladder returns.

    A measured row is shown by its TFLOP/s. A simulated row is shown by the share of its instructions that are FMAs,
    which is the share of the peak that it can reach at most.
    """
    rows = climbed["rows"]
    if rows and "tflops" in rows[0]:
        heading = "TFLOP/s"
        values = {rung_title(row["number"], row["name"]): row["tflops"] or 0.0 for row in rows}
        most = max(values.values()) or 1.0
    else:
        heading, most = "FMAs, % of all instructions", 100.0
        values = {rung_title(row["number"], row["name"]): 100.0 * row["fmas"] / row["instructions"] for row in rows}
    lines = [f"{name:<16}{bar(value / most)} {value:.3g}" for name, value in values.items()]
    return "\n".join([heading, *lines])


def bar(share: float) -> str:
    """Return a bar of this share of the full width."""
    eighths = round(8 * _WIDTH * share)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
