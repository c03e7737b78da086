"""What ``batch_invariant=True`` costs beside cuBLAS and the default, and how many of its results were compared."""

from __future__ import annotations

from fastsgemm.measure import speeds
from fastsgemm.measure.environment import in_words
from fastsgemm.measure.speeds import Summary
from page_tables.markdown import NOT_MEASURED, table
from page_tables.runs import Data, Stored, runs

_MANY = 256  # rows
_SLOWER = 0.98  # times the speed of cuBLAS
_COST = ("problems", "times cuBLAS, mean", "least", "slower than cuBLAS", "times the default, mean", "least")
COMPARED = {
    "rows": "1 to 512 of 4096 rows and all, with N = {N} and K = {K}, each layout; against the reference",
    "configs": "random legal configs, shapes, layouts, paddings, alignments, alpha and beta; against the reference",
    "simulated": "the product on a simulated H200, A100 and T4; against the device",
}


def texts(data: Stored) -> dict[str, str]:
    """Return the tables by name."""
    run, tensor = (
        data.get("order"),
        {"order-tensor": "\n\n".join(map(_tensor, runs(data, "tensor_order"))) or NOT_MEASURED},
    )
    if run is None:
        return dict.fromkeys(("order-cost", "order-proof"), NOT_MEASURED) | tensor
    return {"order-cost": _cost(run["cost"]), "order-proof": _proof(run["proof"])} | tensor


def _tensor(run: Data) -> str:
    """Return what one order on tensor cores costs beside cuBLAS of the same type, by weight and number of rows."""
    rows, bits = run["rows"], run["bits"]
    numbers = sorted({row["M"] for row in rows})
    lines = []
    for kind, name in (("order", ""), ("split", ", weight split before")):
        for dtype, N, K in dict.fromkeys((row["dtype"], row["N"], row["K"]) for row in rows if kind in row["ms"]):
            of = {row["M"]: row["ms"] for row in rows if (row["dtype"], row["N"], row["K"]) == (dtype, N, K)}
            relative = {M: ms["cublas"] / ms[kind] for M, ms in of.items()}
            cells = (f"{relative[M]:.2f}" if M in relative else "" for M in numbers)
            lines.append((f"{dtype}, {N} x {K}{name}", *cells))
    of_halves = speeds.summary([row["ms"]["cublas"] / row["ms"]["order"] for row in rows if row["dtype"] != "float32"])
    usual = speeds.summary(
        [row["ms"]["usual"] / row["ms"]["order"] for row in rows if "usual" in row["ms"] and row["M"] >= _MANY]
    )
    return "\n\n".join(
        [
            f"On {in_words(run)}. {bits['bad']} of {bits['calls']} results of {bits['problems']} problems differ. "
            f"Speed relative to cuBLAS of the same type, FP32 for float32, for 1 to {numbers[-1]} rows:",
            table(("weight, N x K", *map(str, numbers)), lines),
            f"Of 16-bit operands the mean is {of_halves.mean:.2f}, the least {of_halves.slowest:.2f}. From {_MANY} "
            f"rows on, float32 runs at {usual.mean:.2f} of the speed without the order, {usual.slowest:.2f} at least.",
        ]
    )


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
