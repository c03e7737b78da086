"""The tables of docs/few-rows.md and docs/one-call.md, from runs that other pages show in full."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from fastsgemm.problem import format_problem, of_data
from page_tables.benchmarks import LARGE
from page_tables.markdown import NOT_MEASURED, table
from page_tables.runs import Data, Stored, runs

_FEW = 32  # rows or columns
_PRECISIONS = ("ieee", "fp16x3")


def texts(data: Stored) -> dict[str, str]:
    """Return both tables by name."""
    few, kinds = [*_few_rows(data)], _one_call(data)
    heads = ("problem", "cuBLAS, µs", "best of cublasLt, µs", "`sgemm`, µs", "memory alone, µs", "device and date")
    return {"few-rows": table(heads, few, text=heads[-1:]) if few else NOT_MEASURED, "one-call": kinds or NOT_MEASURED}


def _few_rows(data: Stored) -> Iterator[tuple[str, ...]]:
    """Yield the problems of the search in cublasLt that have few rows or columns, with the time to move them once."""
    for run in runs(data, "cublaslt"):
        rate = data["roofs"].get(run["device"], {}).get("copy_tb_s")
        for row in run["rows"]:
            M, N, K = row["M"], row["N"], row["K"]
            if min(M, N) <= _FEW:
                least = f"{4 * (M * K + K * N + M * N) / rate / 1e6:.1f}" if rate else ""
                times = (f"{1e3 * row[name]:.1f}" for name in ("cublas_ms", "lt_ms", "ms"))
                yield format_problem(of_data(row)), *times, least, f"{run['device']}, {run['date']}"


def _one_call(data: Stored) -> str:
    """Return the speeds of one call, of products alone and of programs by what limits them, of one device."""
    stored: dict[str, Data] = data.get("pytorch") or {}
    programs = [run for run in stored.values() if "cases" in run]
    calls = next((run for name, run in stored.items() if name.startswith("calls on ")), None)
    if not programs or calls is None:
        return ""
    device = programs[0]["device"]
    one = {row["rung"] or "ieee": row["us"] for row in calls["calls"] if row["size"] == [64, 64, 64]}
    of_one = [[us["torch.mm"] / us["fastsgemm.sgemm"]] for us in map(one.__getitem__, _PRECISIONS)]
    null = [us["torch.mm"] / us["torch.mm, null"] for us in one.values()]
    large = [run for name in ("benchmarks", "fp16x3") for run in runs(data, name) if run["device"] == device]
    of_large = [[row.get("times_cublas") or row["percent"] / 100 for row in run["large"]] for run in large]
    lines = [
        _line("one call of 64 x 64 x 64 again and again, host time", of_one, null, [calls]),
        _line(f"random products, {LARGE}, device time", of_large, [], large),
    ]
    for limit in ("device", "host"):
        steps = [case["ms"] for run in programs for case in run["cases"] if case.get("limit") == limit]
        *ours, null = ([ms["PyTorch"] / ms[name] for ms in steps] for name in (*_PRECISIONS, "null"))
        lines.append(_line(f"steps of programs that the {limit} limits", ours, null, programs))
    heads = ("what is timed", "number", *_PRECISIONS, "null", "date")
    return f"On one {device}, relative to PyTorch or cuBLAS FP32.\n\n{table(heads, lines, text=heads[-1:])}"


def _line(what: str, ours: Sequence[Sequence[float]], null: Sequence[float], of: Sequence[Data]) -> tuple[str, ...]:
    """Return the cells of a row: the speeds of both precisions, and the range of PyTorch's second runs."""
    numbers = " and ".join(dict.fromkeys(str(len(speeds)) for speeds in ours))
    means = (f"{statistics.geometric_mean(speeds):.2f}" for speeds in ours)
    least_and_most = f"{min(null):.2f} to {max(null):.2f}" if null else ""
    return what, numbers, *means, least_and_most, " and ".join(sorted({run["date"] for run in of}))
