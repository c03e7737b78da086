"""A drawing of a tuning run, by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastsgemm.errors import MissingExtraError, RecordError
from fastsgemm.heuristics.database_entries import tflops
from fastsgemm.problem import spell

if TYPE_CHECKING:
    from fastsgemm.tuning.outcome import Outcome


def require() -> None:
    """Raise `MissingExtraError` where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--plot needs matplotlib; install it with pip install 'fastsgemm[plot]'") from error


def draw(outcome: Outcome, path: Path) -> None:
    """Draw the rate of every candidate, the fastest first, one line a problem, into a file of any kind.

    Parameters
    ----------
    outcome : Outcome
    path : Path
        Its suffix says which kind: png, svg, pdf.
    """
    require()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot()
    for (rung, problem), times in outcome.timed.items():
        rates = sorted((tflops(problem, ms) for ms in times.values()), reverse=True)
        axes.plot(range(1, len(rates) + 1), rates, label=f"{rung} {spell(problem)}")
    axes.set(xscale="log", xlabel="candidate, the fastest first", ylabel="TFLOP/s", title=outcome.device.name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, ncols=2)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise RecordError(f"the drawing {path} cannot be written: {error}") from error
