"""The measured ladder: checks every rung against float64, compares their bits, then times them beside cuBLAS."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fastsgemm.measure.chains import has_several_chains, verdict
from fastsgemm.measure.contenders import Contenders, Product
from fastsgemm.measure.reference import Reference
from fastsgemm.measure.tables import aligned, rung_title
from fastsgemm.progress import track

_WIDTHS = (16, 11, 10, 11, 6, 14)  # characters of the columns of a table


@dataclass(frozen=True)
class TimedRow:
    """One line of the ladder."""

    name: str  # name of the rung, `cuBLAS` or `NumPy`
    number: int | None  # number of the rung; None for a library
    constants: dict[str, int]  # tile constants of the rung
    error: float  # ||C - C64||_F / ||C64||_F; NaN if an element of C was not written
    ms: float | None = None  # median time in milliseconds; None for a wrong result, which is not timed
    tflops: float | None = None  # TFLOP/s
    percent: float | None = None  # speed relative to cuBLAS in percent; both run in turns
    precision: str = "ieee"  # as in `fastsgemm.rungs.Rung`
    mismatch: str | None = None  # which elements are wrong; None for a correct result
    overridden: str | None = None  # as in `fastsgemm.measure.constants.Constants`


@dataclass(frozen=True)
class Ladder:
    """The result of `climb`."""

    where: str  # as in `Contenders`; so is the clock
    clock: str
    M: int  # C is (M, N), A is (M, K)
    N: int
    K: int
    rows: tuple[TimedRow, ...]
    baseline: str | None  # the library that cuBLAS was called through; None if it was not timed
    identical: bool  # whether all rungs that sum in one chain of FMAs returned the same bits
    reference_rows: int  # number of rows of C that were compared with float64
    layout: str = "NN"  # as in `Problem`

    @property
    def rungs(self) -> list[TimedRow]:
        """The rows of rungs, without libraries."""
        return [row for row in self.rows if row.number is not None]

    @property
    def ok(self) -> bool:
        """Whether every result is correct and all bits agree."""
        return self.identical and all(row.ms is not None for row in self.rows)

    def json(self) -> dict[str, Any]:
        """Return this as plain data, ready for `json.dumps`. An error that is NaN or infinite becomes None."""
        plain = asdict(self) | {"ok": self.ok}
        for row in plain["rows"]:
            row["error"] = row["error"] if math.isfinite(row["error"]) else None
        return plain

    def text(self) -> str:
        """Return this as a table for a terminal."""
        unit, scale = ("TFLOP/s", 1.0) if self.rungs else ("GFLOP/s", 1e3)
        bits, percent = "bits" if self.rungs else "", "% of cuBLAS" if self.baseline else ""
        table = [("rung", "ms", unit, "error", bits, percent), *(_cells(row, scale) for row in self.rows)]
        lines = [self.where, f"{self.M} x {self.N} x {self.K}, {self.layout}, {self.clock}", ""]
        lines += [aligned(cells, _WIDTHS) for cells in table]
        return "\n".join([*lines, "", *self._footer()])

    def _footer(self) -> list[str]:
        rows = "every row" if self.reference_rows == self.M else f"{self.reference_rows} of the {self.M} rows"
        lines = [
            *(f"{row.name} is WRONG: {row.mismatch}" for row in self.rows if row.mismatch),
            "error: ||C - C64|| / ||C64||, Frobenius, against float64",
            f"checked before timing: C was filled with NaN first, and compared on {rows}",
            *verdict(sum(map(one_chain, self.rungs)), self.identical),
        ]
        for row in self.rungs:
            if row.precision != "ieee":
                lines.append(f"own bits: {row.name} sums products of FP16 pairs on tensor cores")
            elif not one_chain(row):
                lines.append(f"own bits: {row.name} sums in several chains here")
        if self.rungs:
            lines += [f"{row.name}: {row.overridden}" for row in self.rungs if row.overridden]
            absent = "not compared with cuBLAS: neither PyTorch nor CuPy can use the device"
            lines.append(f"{self.baseline}, FP32 without TF32, in turns with each rung" if self.baseline else absent)
        return lines


def one_chain(row: TimedRow | Product) -> bool:
    """Return whether each element of C is one chain of FMAs in ascending k, whose bits can be compared."""
    return row.precision == "ieee" and not has_several_chains(row.constants)


def climb(contenders: Contenders) -> Ladder:
    """Check every product, then time the correct ones, each in turns with cuBLAS."""
    reference = Reference(contenders.a, contenders.b)
    checked, identical = _check(contenders, reference)
    baseline = contenders.baseline
    baseline_error = reference.error(contenders.result(baseline.work)) if baseline else math.nan
    if baseline_error > reference.limit:
        baseline = None  # it used TF32, for example because of NVIDIA_TF32_OVERRIDE
    flops = float(contenders.problem.flops)
    rows, baseline_times = [], []
    for product, (error, mismatch) in track(list(zip(contenders.products, checked, strict=True)), "timing"):
        row = TimedRow(
            product.name, product.number, product.constants, error, precision=product.precision, mismatch=mismatch,
            overridden=product.overridden,
        )  # fmt: skip
        if mismatch is None:
            ms, *baseline_ms = contenders.medians([product.work, *([baseline.work] if baseline else [])])
            baseline_times += baseline_ms
            percent = 100 * baseline_ms[0] / ms if baseline_ms else None
            row = replace(row, ms=ms, tflops=flops / ms / 1e9, percent=percent)
        rows.append(row)
    if baseline_times:
        ms = statistics.median(baseline_times)
        rows.append(TimedRow("cuBLAS", None, {}, baseline_error, ms, flops / ms / 1e9, 100.0))
    problem = contenders.problem
    return Ladder(
        where=contenders.where,
        clock=contenders.clock,
        M=problem.M,
        N=problem.N,
        K=problem.K,
        rows=tuple(rows),
        baseline=baseline.name if baseline else None,
        identical=identical,
        reference_rows=len(reference.rows),
        layout=problem.layout,
    )


def _check(contenders: Contenders, reference: Reference) -> tuple[list[tuple[float, str | None]], bool]:
    """Return error and mismatch of every product, and whether all with one chain of FMAs returned the same bits."""
    checked, identical = [], True
    first: np.ndarray | None = None
    for product in track(contenders.products, "checking"):
        result = contenders.result(product.work)
        checked.append((reference.error(result), reference.mismatch(result)))
        bits = result.view(np.uint32)
        if not one_chain(product):
            continue
        if first is None:
            first = bits.copy()
        identical = identical and np.array_equal(bits, first)
    return checked, identical


def _cells(row: TimedRow, scale: float) -> tuple[str, ...]:
    """Return the cells of a row; only rungs that sum in one chain share their bits."""
    name, error = rung_title(row.number, row.name), f"{row.error:.2g}"
    if row.ms is None or row.tflops is None:
        return name, "WRONG", "", error, "", ""
    bits = "" if row.number is None else "same" if one_chain(row) else "own"
    percent = "" if row.percent is None else f"{row.percent:.1f}"
    return name, f"{row.ms:.4g}", f"{row.tflops * scale:.4g}", error, bits, percent
