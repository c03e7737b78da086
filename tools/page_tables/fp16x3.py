"""precision="fp16x3" beside cuBLAS and others: tables of a run of ``tests/benchmarks/test_fp16x3.py``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

from fastsgemm.measure.environment import in_words
from page_tables.markdown import NOT_MEASURED, Data, about, header, line, of_each

GROUPS = ("squares", "layouts", "large", "shapes", "pre-split", "peers")  # of benchmarks, after "fp16x3 "
_FASTER = 0.98  # of the speed of another kernel: below it, that one is faster
_BOUNDS = ((1, 10), (10, 100), (100, 300))  # GFLOP, of the classes of random problems


def reduce(run: Data) -> Data | None:
    """Extract the data of the tables from pytest-benchmark's JSON; None where these benchmarks were not run."""

    def of(group: str) -> list[Data]:
        rows = [one["extra_info"] for one in run["benchmarks"] if one["group"] == f"fp16x3 {group}"]
        return [{name: value for name, value in row.items() if name not in ("why", "predicted_ms")} for row in rows]

    groups = {group: of(group) for group in GROUPS}
    if not any(groups.values()):
        return None
    return about(run) | groups


def _squares(rows: Sequence[Data]) -> list[str]:
    lines = header("M = N = K", "ms", "TFLOP/s", "cuBLAS FP32, ms", "times cuBLAS")
    for row in rows:
        cells = (f"{row['ms']:.4g}", f"{row['tflops']:.0f}", f"{row['cublas_ms']:.4g}", f"{row['times_cublas']:.2f}")
        lines.append(line(row["n"], *cells))
    return lines


def _samples(rows: Sequence[Data]) -> list[str]:
    """Return one line per problem, the slowest relative to cuBLAS first."""
    heads = ("ms", "`ieee`, ms", "cuBLAS FP32, ms", "times cuBLAS", "error", "error of cuBLAS", "kernel")
    lines = header("problem", *heads)
    for row in sorted(rows, key=lambda row: float(row["times_cublas"])):
        times = (f"{row[name]:.4g}" for name in ("ms", "ieee_ms", "cublas_ms"))
        errors = (f"{row[name]:.1e}" for name in ("error", "cublas_error"))
        lines.append(line(row["problem"], *times, f"{row['times_cublas']:.2f}", *errors, _kernel(row)))
    return lines


def _kernel(row: Data) -> str:
    return "IEEE" if row["config"] == "None" else "rung 11"


def _large(rows: Sequence[Data]) -> list[str]:
    classes = [
        (f"{least} to {most} GFLOP", [row for row in rows if least <= 1e-9 * _flops(row) < most])
        for least, most in _BOUNDS
    ]
    lines = header("problems", "number", "rung 11", "mean of times cuBLAS", "slower than cuBLAS", "slowest")
    for name, group in [*classes, ("all", list(rows))]:
        if group:
            speeds = [float(row["times_cublas"]) for row in group]
            tensor = sum(_kernel(row) == "rung 11" for row in group)
            lost = sum(speed < 1.0 for speed in speeds)
            mean = f"{statistics.geometric_mean(speeds):.2f}"
            lines.append(line(name, len(group), tensor, mean, lost, f"{min(speeds):.2f}"))
    return lines


def _losses(data: Data) -> str:
    """Return every problem on which another kernel is faster by more than the noise, and the largest error of all."""
    rows = [row for group in ("layouts", "large", "shapes") for row in data[group]]
    lost = [row for row in rows if min(row["times_cublas"], row["times_ieee"]) < _FASTER]
    lines = _samples(lost) if lost else ["There are none."]
    errors = [row["error"] / row["cublas_error"] for row in rows if _kernel(row) == "rung 11"]
    most = f"with at most {max(errors, default=0.0):.2f} times the error of cuBLAS"
    return "\n".join([*lines, "", f"Rung 11 computed {len(errors)} of all {len(rows)}, {most}."])


def _flops(row: Data) -> int:
    M, N, K = (int(part) for part in row["problem"].split("+")[0].split(",")[:3])
    return 2 * M * N * K


def _inference(rows: Sequence[Data]) -> list[str]:
    """Return a line for each M, with two columns for each weight."""
    weights = sorted({row["n"] for row in rows})
    lines = header("M", *(cell for n in weights for cell in (f"{n} x {n}, ms", "times cuBLAS")))
    for M in sorted({row["M"] for row in rows}):
        of = {row["n"]: (f"{row['ms']:.4g}", f"{row['times_cublas']:.2f}") for row in rows if row["M"] == M}
        lines.append(line(M, *(cell for n in weights for cell in of.get(n, ("", "")))))
    return lines


def as_named(peers: Data) -> Data:
    """Return the peers without those whose library ran TF32 under another name, as the error says."""
    if "cuBLAS TF32" not in peers:
        return peers
    least = peers["cuBLAS TF32"]["error"] / 2
    return {name: one for name, one in peers.items() if one["error"] < least or "TF32" in name}


def _peers(rows: Sequence[Data]) -> list[str]:
    rows = [{**row, "peers": as_named(row["peers"])} for row in rows]
    lines = header("who", *(cell for row in rows for cell in (f"TFLOP/s at {row['n']}", f"error at {row['n']}")))
    for name in rows[0]["peers"]:
        measured = [row["peers"].get(name) for row in rows]
        cells = (
            cell for one in measured for cell in ((f"{one['tflops']:.0f}", f"{one['error']:.1e}") if one else ("", ""))
        )
        lines.append(line(name, *cells))
    return lines


_TABLES: dict[str, Callable[[Sequence[Data]], list[str]]] = {
    "squares": _squares,
    "large": _large,
    "pre-split": _inference,
    "peers": _peers,
}


def texts(runs: Sequence[Data]) -> dict[str, str]:
    """Return the tables by name: of the run of the page, and of each device where that matters most."""
    if not runs:
        return dict.fromkeys([f"fp16x3-{name}" for name in ("run", *_TABLES, "losses")], NOT_MEASURED)
    tables = {f"fp16x3-{name}": _text(name, runs[0]) for name in _TABLES}
    return tables | {
        "fp16x3-run": f"Measured on {in_words(runs[0])}.",
        "fp16x3-large": of_each(runs, partial(_text, "large")),
        "fp16x3-losses": of_each(runs, _losses),
    }


def _text(name: str, run: Data) -> str:
    return "\n".join(_TABLES[name](run[name])) if run[name] else NOT_MEASURED
