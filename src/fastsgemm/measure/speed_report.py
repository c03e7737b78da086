"""The report of a run as a page: what it was made on, a table by set, the losses, the comparison with another run."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fastsgemm.measure import environment
from fastsgemm.measure.comparison import Verdict
from fastsgemm.measure.problem_sets import SETS_OF_A_RUN
from fastsgemm.problem import FLOAT32, Problem, dtypes_of, spell

Data = dict[str, Any]


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
        *summary(data),
        "",
        *_losses(data),
    ]
    if old is not None:
        lines += ["", f"## Compared with the run of {old['date']}", "", *comparison(compared)]
    return "\n".join(lines) + "\n"


def summary(data: Data) -> list[str]:
    """Return a table with a line for each set."""
    lines = ["| problems | number | geometric mean | at 1.0 or better | at 0.95 or better | slowest |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for name, one in SETS_OF_A_RUN.items():
        speeds = [row["percent"] / 100 for row in data.get(name, ())]
        if speeds:
            ahead, near = (sum(speed >= least for speed in speeds) / len(speeds) for least in (1.0, 0.95))
            mean = statistics.geometric_mean(speeds)
            cells = f"{len(speeds)} | {mean:.3f} | {ahead:.0%} | {near:.0%} | {min(speeds):.2f}"
            lines.append(f"| {one.what} | {cells} |")
    return lines


def _losses(data: Data) -> list[str]:
    rows = [row for name in SETS_OF_A_RUN for row in data.get(name, ())]
    lost = sorted((row for row in rows if row["percent"] < 100.0), key=lambda row: float(row["percent"]))
    lines = [f"## The {len(lost)} of {len(rows)} problems on which cuBLAS is faster", ""]
    lines += [
        "| problem | lda, ldb, ldc | rung | chosen by | ms | cuBLAS ms | speed |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    for row in lost:
        dtypes = dtypes_of(row.get("dtypes", str(FLOAT32)))
        problem = spell(Problem(row["M"], row["N"], row["K"], row["layout"], row["batch"], dtypes=dtypes))
        cells = (f"{row['lda']}, {row['ldb']}, {row['ldc']}", row["rung"], row["rule"])
        times = f"{row['ms']:.4g} | {row['cublas_ms']:.4g} | {row['percent'] / 100:.2f}"
        lines.append(f"| {problem} | {' | '.join(cells)} | {times} |")
    return lines


def comparison(compared: Sequence[Verdict]) -> list[str]:
    """Return a line that counts the verdicts, and a table of the figures that changed, if any did."""
    counts = Counter(one.verdict for one in compared)
    number = ", ".join(f"{counts[name]} {name}" for name in ("slower", "faster", "same", "new", "gone") if counts[name])
    lines = [
        f"{number or 'nothing to compare'}. A figure is slower or faster if it changed by more than 5 % and two",
        "standard errors of both runs together. The noise is one such standard error.",
    ]
    changed = [
        f"| {one.name} | {one.old:.3f} | {one.new:.3f} | {one.new / one.old - 1:+.1%} | {one.noise:.1%} "
        f"| {one.verdict} |"
        for one in compared
        if one.verdict in ("slower", "faster") and one.old and one.new
    ]
    if changed:
        lines += ["", "| figure | then | now | change | noise | verdict |", "|---|---:|---:|---:|---:|---|", *changed]
    return lines
