"""The report of a run as a page: what it was made on, a table by set, the losses, the comparison with another run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fastsgemm.measure import environment, speeds
from fastsgemm.measure.comparison import Verdict
from fastsgemm.measure.problem_sets import SETS_OF_A_RUN
from fastsgemm.measure.tables import markdown
from fastsgemm.problem import of_data, spell

Data = dict[str, Any]

_SETS = {
    "problems": "{what}",
    "number": "{number}",
    "geometric mean": "{mean:.3f}",
    "at 1.0 or better": "{ahead:.0%}",
    "at 0.95 or better": "{near:.0%}",
    "slowest": "{slowest:.2f}",
}
_LOSSES = {
    "problem": "{problem}",
    "lda, ldb, ldc": "{lda}, {ldb}, {ldc}",
    "rung": "{rung}",
    "chosen by": "{rule}",
    "ms": "{ms:.4g}",
    "cuBLAS ms": "{cublas_ms:.4g}",
    "speed": "{speed:.2f}",
}
_CHANGES = {
    "figure": "{of.name}",
    "then": "{of.old:.3f}",
    "now": "{of.new:.3f}",
    "change": "{change:+.1%}",
    "noise": "{of.noise:.1%}",
    "verdict": "{of.verdict}",
}


def page(data: Data, compared: Sequence[Verdict] = (), old: Data | None = None) -> str:
    """Return the report of a run as Markdown, with its comparison with an old one, if any.

    A run is what `fastsgemm.measure.suite.run` returns and ``docs/data/benchmarks.json`` has.
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
    measured = {one.what: speeds.of_rows(data.get(name, ())) for name, one in SETS_OF_A_RUN.items()}
    return markdown(_SETS, [{"what": what} | speeds.summary(of) for what, of in measured.items() if of])


def _losses(data: Data) -> list[str]:
    rows = [row for name in SETS_OF_A_RUN for row in data.get(name, ())]
    lost = sorted((row for row in rows if row["percent"] < 100.0), key=lambda row: float(row["percent"]))
    shown = [row | {"problem": spell(of_data(row)), "speed": row["percent"] / 100} for row in lost]
    heading = f"## The {len(lost)} of {len(rows)} problems on which cuBLAS is faster"
    return [heading, "", *markdown(_LOSSES, shown, text=("lda, ldb, ldc", "rung", "chosen by"))]


def _comparison(compared: Sequence[Verdict]) -> list[str]:
    """Return a line that counts the verdicts, and a table of the figures that changed, if any did."""
    counts = Counter(one.verdict for one in compared)
    number = ", ".join(f"{counts[name]} {name}" for name in ("slower", "faster", "same", "new", "gone") if counts[name])
    lines = [
        f"{number or 'nothing to compare'}. A figure is slower or faster if it changed by more than 5 % and two",
        "standard errors of both runs together. The noise is one such standard error.",
    ]
    changed = [
        {"of": one, "change": one.new / one.old - 1}
        for one in compared
        if one.verdict in ("slower", "faster") and one.old and one.new
    ]
    return [*lines, "", *markdown(_CHANGES, changed, text=("verdict",))] if changed else lines
