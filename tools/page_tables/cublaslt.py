"""The best algorithm of cublasLt, from docs/data/cublaslt.json, which tests/benchmarks/cublaslt.py writes."""

from __future__ import annotations

from fastsgemm.measure.environment import in_words
from fastsgemm.problem import format_problem, of_data
from page_tables.markdown import table
from page_tables.runs import Data, Stored, runs

_WHAT = (
    "The heuristics of cublasLt name configs of each of its algorithms, with up to 64 MiB of workspace; no others were "
    "tried. The three quickest were timed again, in turns with cuBLAS and `sgemm`, and the best of them counts."
)
_HEADS = ("problem", "cuBLAS, µs", "cublasLt, µs", "configs", "`sgemm`, µs", "speed", "relative to cublasLt")


def texts(data: Stored) -> dict[str, str]:
    """Return a table for each run, and nothing before the first."""
    tables = [f"On {in_words(run)}:\n\n{table(_HEADS, map(_cells, run['rows']))}" for run in runs(data, "cublaslt")]
    return {"cublaslt": "\n\n".join([_WHAT, *tables] if tables else [])}


def _cells(row: Data) -> tuple[object, ...]:
    cublas_ms, lt_ms, ms = row["cublas_ms"], row["lt_ms"], row["ms"]
    configs, tried = row["configs"], len(row["first_pass_ms"])
    number = configs if tried == configs else f"{tried} of {configs}"
    times = (f"{1e3 * cublas_ms:.1f}", f"{1e3 * lt_ms:.1f}", number, f"{1e3 * ms:.1f}")
    return format_problem(of_data(row)), *times, f"{cublas_ms / ms:.2f}", f"{lt_ms / ms:.2f}"
