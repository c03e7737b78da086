"""What ``batch_invariant=True`` costs beside cuBLAS and the default, and how many of its results were compared."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fastsgemm.measure.environment import in_words
from page_tables.markdown import NOT_MEASURED, Data, header, line

_SLOWER = 0.98  # times the speed of cuBLAS
COMPARED = {
    "rows": "1 to 512 of 4096 rows and all, with N = {N} and K = {K}, each layout; against the reference",
    "configs": "random legal configs, shapes, layouts, paddings, alignments, alpha and beta; against the reference",
    "simulated": "the product on a simulated H200, A100 and T4; against the device",
}


def texts(data: Data | None) -> dict[str, str]:
    """Return the tables by name."""
    if data is None:
        return dict.fromkeys(("order-cost", "order-proof"), NOT_MEASURED)
    return {"order-cost": "\n".join(_cost(data["cost"])), "order-proof": "\n".join(_proof(data["proof"]))}


def _cost(data: Data) -> list[str]:
    rows = sorted(data["rows"], key=_times_cublas)
    lost = [row for row in rows if _times_cublas(row) < _SLOWER]
    heads = ("times cuBLAS, mean", "least", "slower than cuBLAS", "times the default, mean", "least")
    return [
        f"On {in_words(data)}. Means are geometric.", "",
        *header("problems", *heads),
        _summary(rows), "",
        f"Slower than cuBLAS by 2 % or more, {len(lost)} of {len(rows)}, the slowest first:", "",
        *_problems(lost),
    ]  # fmt: skip


def _summary(rows: Sequence[Data]) -> str:
    of_cublas, of_default = [_times_cublas(row) for row in rows], [_times_default(row) for row in rows]
    slower = sum(speed < 1.0 for speed in of_cublas)
    cells = (f"{statistics.geometric_mean(of_cublas):.2f}", f"{min(of_cublas):.2f}", slower)
    return line(len(rows), *cells, f"{statistics.geometric_mean(of_default):.2f}", f"{min(of_default):.2f}")


def _problems(rows: Sequence[Data]) -> list[str]:
    lines = header("problem", "times cuBLAS", "times the default")
    for row in rows:
        called = f"{row['M']},{row['N']},{row['K']},{row['layout']}"
        lines.append(line(called, f"{_times_cublas(row):.2f}", f"{_times_default(row):.2f}"))
    return lines


def _times_cublas(row: Data) -> float:
    return float(row["cublas_ms"] / row["ms"])


def _times_default(row: Data) -> float:
    return float(row["default_ms"] / row["ms"])


def _proof(data: Data) -> list[str]:
    lines = [f"On {in_words(data)}.", "", *header("compared, bit by bit", "calls", "wrong")]
    for name, what in COMPARED.items():
        case = data[name]
        lines.append(line(what.format(**case), case["calls"], case["bad"]))
    return lines
