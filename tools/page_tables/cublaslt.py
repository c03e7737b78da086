"""The best algorithm of cublasLt, from docs/data/cublaslt.json, which tests/benchmarks/cublaslt.py writes."""

from __future__ import annotations

from collections.abc import Mapping

from fastsgemm.measure.environment import in_words
from fastsgemm.problem import Problem, spell
from page_tables.markdown import Data, header, line, runs

_WHAT = (
    "The heuristics of cublasLt name configs of each of its algorithms, with up to 64 MiB of workspace; no others were "
    "tried. The three quickest were timed again, in turns with cuBLAS and `sgemm`, and the best of them counts."
)


def texts(data: Mapping[str, Data | None]) -> dict[str, str]:
    """Return a table for each run, and nothing before the first."""
    tables = ["\n".join(_table(run)) for run in runs(data, "cublaslt")]
    return {"cublaslt": "\n\n".join([_WHAT, *tables] if tables else [])}


def _table(run: Data) -> list[str]:
    lines = [f"On {in_words(run)}:", ""]
    lines += header("problem", "cuBLAS, µs", "cublasLt, µs", "configs", "`sgemm`, µs", "speed", "relative to cublasLt")
    for row in run["rows"]:
        cublas_ms, lt_ms, ms = row["cublas_ms"], row["lt_ms"], row["ms"]
        configs, tried = row["configs"], len(row["first_pass_ms"])
        number = configs if tried == configs else f"{tried} of {configs}"
        problem = spell(Problem(row["M"], row["N"], row["K"], row["layout"]))
        times = (f"{1e3 * cublas_ms:.1f}", f"{1e3 * lt_ms:.1f}", number, f"{1e3 * ms:.1f}")
        lines.append(line(problem, *times, f"{cublas_ms / ms:.2f}", f"{lt_ms / ms:.2f}"))
    return lines
