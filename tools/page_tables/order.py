"""What ``batch_invariant=True`` costs beside cuBLAS and the default, and how many of its results were compared."""

from __future__ import annotations

from fastsgemm.measure import speeds
from fastsgemm.measure.environment import in_words
from fastsgemm.measure.speeds import Summary
from page_tables.markdown import NOT_MEASURED, table
from page_tables.runs import Data, Stored

_SLOWER = 0.98  # times the speed of cuBLAS
_COST = ("problems", "times cuBLAS, mean", "least", "slower than cuBLAS", "times the default, mean", "least")
COMPARED = {
    "rows": "1 to 512 of 4096 rows and all, with N = {N} and K = {K}, each layout; against the reference",
    "configs": "random legal configs, shapes, layouts, paddings, alignments, alpha and beta; against the reference",
    "simulated": "the product on a simulated H200, A100 and T4; against the device",
}


def texts(data: Stored) -> dict[str, str]:
    """Return the tables by name."""
    run = data.get("order")
    if run is None:
        return dict.fromkeys(("order-cost", "order-proof"), NOT_MEASURED)
    return {"order-cost": _cost(run["cost"]), "order-proof": _proof(run["proof"])}


def _cost(data: Data) -> str:
    rows = sorted(data["rows"], key=_times_cublas)
    of_cublas, of_default = [*map(_times_cublas, rows)], [*map(_times_default, rows)]
    cublas, default = speeds.summary(of_cublas), speeds.summary(of_default)
    cost = (len(rows), *_mean_and_least(cublas), cublas.lost, *_mean_and_least(default))
    lost = [
        (f"{row['M']},{row['N']},{row['K']},{row['layout']}", f"{_times_cublas(row):.2f}", f"{_times_default(row):.2f}")
        for row in rows
        if _times_cublas(row) < _SLOWER
    ]
    return "\n\n".join(
        [
            f"On {in_words(data)}. Means are geometric.",
            table(_COST, [cost]),
            f"Slower than cuBLAS by 2 % or more, {len(lost)} of {len(rows)}, the slowest first:",
            table(("problem", "times cuBLAS", "times the default"), lost),
        ]
    )


def _mean_and_least(summary: Summary) -> tuple[str, str]:
    return f"{summary.mean:.2f}", f"{summary.slowest:.2f}"


def _times_cublas(row: Data) -> float:
    return float(row["cublas_ms"] / row["ms"])


def _times_default(row: Data) -> float:
    return float(row["default_ms"] / row["ms"])


def _proof(data: Data) -> str:
    rows = ((what.format(**data[name]), data[name]["calls"], data[name]["bad"]) for name, what in COMPARED.items())
    return f"On {in_words(data)}.\n\n{table(('compared, bit by bit', 'calls', 'wrong'), rows)}"
