"""A plot of a tuning run, drawn by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastsgemm.errors import MissingExtraError, RecordError
from fastsgemm.heuristics.database_entries import tflops
from fastsgemm.problem import format_problem

if TYPE_CHECKING:
    from fastsgemm.tuning.outcome import Outcome


def require() -> None:
    """Raise `MissingExtraError` if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--plot needs matplotlib; install it with pip install 'fastsgemm[plot]'") from error


def draw(outcome: Outcome, path: Path) -> None:
    """Plot the TFLOP/s of every candidate, the fastest first, one line per problem. It needs matplotlib.

    The suffix of the file says its format: png, svg or pdf.

    Raises
    ------
    RecordError
        The file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot()
    for (rung, problem), times in outcome.timed.items():
        rates = sorted((tflops(problem, ms) for ms in times.values()), reverse=True)
        axes.plot(range(1, len(rates) + 1), rates, label=f"{rung} {format_problem(problem)}")
    axes.set(xscale="log", xlabel="candidates, the fastest first", ylabel="TFLOP/s", title=outcome.device.name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, ncols=2)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise RecordError(f"the plot {path} cannot be written: {error}") from error
