"""precision="fp16x3" beside cuBLAS and others: tables of a run of ``tests/benchmarks/test_fp16x3.py``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from fastsgemm.measure import speeds
from fastsgemm.measure.environment import in_words
from page_tables.markdown import NOT_MEASURED, table
from page_tables.runs import Data, Stored, about, of_each, runs

GROUPS = ("squares", "layouts", "large", "shapes", "pre-split", "peers")  # of benchmarks, after "fp16x3 "
_FASTER = 0.98  # of the speed of another kernel: below it, that one is faster
_BOUNDS = ((1, 10), (10, 100), (100, 300))  # GFLOP, of the classes of random problems

_SQUARES = ("M = N = K", "ms", "TFLOP/s", "cuBLAS FP32, ms", "times cuBLAS")
_LARGE = ("problems", "number", "rung 11", "mean of times cuBLAS", "slower than cuBLAS", "slowest")
_LOSSES = (
    "problem", "ms", "`ieee`, ms", "cuBLAS FP32, ms", "times cuBLAS", "error", "error of cuBLAS", "kernel",
)  # fmt: skip


def reduce(run: Data) -> Data | None:
    """Extract the data of the tables from pytest-benchmark's JSON; None where these benchmarks were not run."""

    def of(group: str) -> list[Data]:
        rows = [one["extra_info"] for one in run["benchmarks"] if one["group"] == f"fp16x3 {group}"]
        return [{name: value for name, value in row.items() if name not in ("why", "predicted_ms")} for row in rows]

    groups = {group: of(group) for group in GROUPS}
    if not any(groups.values()):
        return None
    return about(run) | groups


def _squares(run: Data) -> str:
    rows = (
        (row["n"], f"{row['ms']:.4g}", f"{row['tflops']:.0f}", f"{row['cublas_ms']:.4g}", f"{row['times_cublas']:.2f}")
        for row in run["squares"]
    )
    return table(_SQUARES, rows)


def _kernel(row: Data) -> str:
    return "IEEE" if row["config"] == "None" else "rung 11"


def _large(run: Data) -> str:
    classes = {"all": run["large"]}
    for least, most in reversed(_BOUNDS):
        rows = [row for row in run["large"] if least <= 1e-9 * _flops(row) < most]
        classes = {f"{least} to {most} GFLOP": rows} | classes
    lines = []
    for name, rows in classes.items():
        if rows:
            found = speeds.summary([float(row["times_cublas"]) for row in rows])
            tensor = sum(_kernel(row) == "rung 11" for row in rows)
            lines.append((name, len(rows), tensor, f"{found.mean:.2f}", found.lost, f"{found.slowest:.2f}"))
    return table(_LARGE, lines)


def _losses(run: Data) -> str:
    """Return every problem on which another kernel is faster by more than the noise, and the largest error of all."""
    rows = [row for group in ("layouts", "large", "shapes") for row in run[group]]
    lost = [row for row in rows if min(row["times_cublas"], row["times_ieee"]) < _FASTER]
    lines = []
    for row in sorted(lost, key=lambda row: float(row["times_cublas"])):
        times = (f"{row[name]:.4g}" for name in ("ms", "ieee_ms", "cublas_ms"))
        errors = (f"{row[name]:.1e}" for name in ("error", "cublas_error"))
        lines.append((row["problem"], *times, f"{row['times_cublas']:.2f}", *errors, _kernel(row)))
    errors = [row["error"] / row["cublas_error"] for row in rows if _kernel(row) == "rung 11"]
    most = f"with at most {max(errors, default=0.0):.2f} times the error of cuBLAS"
    shown = table(_LOSSES, lines) if lines else "There are none."
    return f"{shown}\n\nRung 11 computed {len(errors)} of all {len(rows)}, {most}."


def _flops(row: Data) -> int:
    M, N, K = (int(part) for part in row["problem"].split("+")[0].split(",")[:3])
    return 2 * M * N * K


def _inference(run: Data) -> str:
    """Return a line for each M, with two columns for each weight."""
    rows = run["pre-split"]
    weights = sorted({row["n"] for row in rows})
    found = {(row["M"], row["n"]): (f"{row['ms']:.4g}", f"{row['times_cublas']:.2f}") for row in rows}
    heads = ("M", *(cell for n in weights for cell in (f"{n} x {n}, ms", "times cuBLAS")))
    sizes = sorted({row["M"] for row in rows})
    return table(heads, ((M, *chain.from_iterable(found.get((M, n), ("", "")) for n in weights)) for M in sizes))


def as_named(peers: Data) -> Data:
    """Return the peers without those whose library ran TF32 under another name, as the error says."""
    if "cuBLAS TF32" not in peers:
        return peers
    least = peers["cuBLAS TF32"]["error"] / 2
    return {name: one for name, one in peers.items() if one["error"] < least or "TF32" in name}


def _peers(run: Data) -> str:
    rows = [(row["n"], as_named(row["peers"])) for row in run["peers"]]
    heads = ("who", *(cell for n, _ in rows for cell in (f"TFLOP/s at {n}", f"error at {n}")))
    lines = ((name, *chain.from_iterable(_peer(peers.get(name)) for _, peers in rows)) for name in rows[0][1])
    return table(heads, lines)


def _peer(measured: Data | None) -> tuple[str, str]:
    return (f"{measured['tflops']:.0f}", f"{measured['error']:.1e}") if measured else ("", "")


_TABLES: dict[str, Callable[[Data], str]] = {
    "squares": _squares,
    "large": _large,
    "pre-split": _inference,
    "peers": _peers,
}


def texts(data: Stored) -> dict[str, str]:
    """Return the tables by name: of the run of the page, and of each device where that matters most."""
    measured = [*runs(data, "fp16x3")]
    if not measured:
        return dict.fromkeys([f"fp16x3-{name}" for name in ("run", *_TABLES, "losses")], NOT_MEASURED)

    def text(name: str, run: Data) -> str:
        return _TABLES[name](run) if run[name] else NOT_MEASURED

    return {f"fp16x3-{name}": text(name, measured[0]) for name in _TABLES} | {
        "fp16x3-run": f"Measured on {in_words(measured[0])}.",
        "fp16x3-large": of_each(measured, lambda run: text("large", run)),
        "fp16x3-losses": of_each(measured, _losses),
    }
