"""The report of a run as a page: the machine, a table by set, the losses, the comparison with another run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fastsgemm.measure import environment, speeds
from fastsgemm.measure.comparison import Verdict
from fastsgemm.measure.problem_sets import SETS_OF_A_RUN
from fastsgemm.measure.tables import markdown
from fastsgemm.problem import format_problem, of_data

Data = dict[str, Any]

_SETS = ("problems", "number", "geometric mean", "at 1.0 or better", "at 0.95 or better", "slowest")
_LOSSES = ("problem", "lda, ldb, ldc", "rung", "chosen by", "ms", "cuBLAS ms", "speed")
_CHANGES = ("figure", "then", "now", "change", "noise", "verdict")


def page(data: Data, compared: Sequence[Verdict] = (), old: Data | None = None) -> str:
    """Return the report of a run as Markdown, with a comparison with an old one, if any.

    Runs are in the form of `fastsgemm.measure.suite.run` and ``docs/data/benchmarks.json``.
    """
    lines = [
        f"# fastsgemm beside cuBLAS FP32 on one {data['device']}",
        "",
        f"Measured on {environment.in_words(data)}.",
        "Every result was compared with float64 before it was timed. At a speed of 2, `sgemm` takes half the time of",
        "cuBLAS.",
        "",
        *_summary(data),
        "",
        *_losses(data),
    ]
    if old is not None:
        lines += ["", f"## Compared with the run of {old['date']}", "", *_comparison(compared)]
    return "\n".join(lines) + "\n"


def _summary(data: Data) -> list[str]:
    """Return a table with a line for each set."""
    lines = []
    for name, problem_set in SETS_OF_A_RUN.items():
        if rows := data.get(name, ()):
            summary = speeds.summary(speeds.of_rows(rows))
            shares = (f"{summary.ahead:.0%}", f"{summary.near:.0%}")
            lines.append((problem_set.what, summary.number, f"{summary.mean:.3f}", *shares, f"{summary.slowest:.2f}"))
    return markdown(_SETS, lines)


def _losses(data: Data) -> list[str]:
    rows = [row for name in SETS_OF_A_RUN for row in data.get(name, ())]
    losses = sorted((row for row in rows if row["percent"] < 100.0), key=lambda row: float(row["percent"]))
    lines = []
    for row in losses:
        labels = (format_problem(of_data(row)), f"{row['lda']}, {row['ldb']}, {row['ldc']}", row["rung"], row["rule"])
        lines.append((*labels, f"{row['ms']:.4g}", f"{row['cublas_ms']:.4g}", f"{row['percent'] / 100:.2f}"))
    heading = f"## The {len(losses)} of {len(rows)} problems on which cuBLAS is faster"
    return [heading, "", *markdown(_LOSSES, lines, text=_LOSSES[1:4])]


def _comparison(compared: Sequence[Verdict]) -> list[str]:
    """Return a line that counts the verdicts, and a table of the figures that changed, if any."""
    counts = Counter(figure.verdict for figure in compared)
    number = ", ".join(f"{counts[name]} {name}" for name in ("slower", "faster", "same", "new", "gone") if counts[name])
    lines = [
        f"{number or 'nothing to compare'}. A figure is slower or faster if it changed by more than 5 % and two",
        "standard errors of both runs together. The noise is one such standard error.",
    ]
    changed = [
        (x.name, f"{x.old:.3f}", f"{x.new:.3f}", f"{x.new / x.old - 1:+.1%}", f"{x.noise:.1%}", x.verdict)
        for x in compared
        if x.verdict in ("slower", "faster") and x.old and x.new
    ]
    return [*lines, "", *markdown(_CHANGES, changed, text=("verdict",))] if changed else lines
