"""The ladder as a table of counts: what each rung changes, as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fastsgemm.config import Config
from fastsgemm.rungs import Rung
from fastsgemm.sim.gemm import sgemm
from fastsgemm.sim.machine import Machine
from fastsgemm.sim.report import Report


@dataclass(frozen=True)
class Row:
    """What one rung did.

    Attributes
    ----------
    rung : Rung
    config : Config
    sectors_a, sectors_b : float
        32-byte sectors a request, loading A and B.
    sectors_c : float
        The same, storing C.
    load_wavefronts, store_wavefronts : float
        Wavefronts a request to shared memory; 0 on rungs without.
    fmas_per_load : float
        FMAs for each shared load instruction.
    fmas_per_word : float
        FMAs for each 32-bit word loaded from shared memory: what the source says, however the compiler merges loads.
    barriers : float
        That a block goes through.
    registers : int
        Of a thread, in the cubin.
    shared_bytes : int
        Of a block.
    occupancy : float
        Share of an SM's warps that are resident.
    report : Report
        All that was counted.
    """

    rung: Rung
    config: Config
    sectors_a: float
    sectors_b: float
    sectors_c: float
    load_wavefronts: float
    store_wavefronts: float
    fmas_per_load: float
    fmas_per_word: float
    barriers: float
    registers: int
    shared_bytes: int
    occupancy: float
    report: Report


def table(
    choices: Iterable[tuple[Rung, Config]],
    machine: Machine | None = None,
    shape: tuple[int, int, int] = (128, 128, 128),
) -> list[Row]:
    """Run each rung on one row-major problem with beta = 0.

    Parameters
    ----------
    choices : iterable of (Rung, Config)
    machine : Machine, optional
        Default: an ``sm_90``.
    shape : (int, int, int), optional
        M, N and K.
    """
    M, N, K = shape
    A, B = np.ones((M, K), np.float32), np.ones((K, N), np.float32)
    rows = []
    for rung, config in choices:
        _, report = sgemm(rung, config, A, B, machine=machine)
        if report is not None:
            rows.append(_row(rung, config, report))
    return rows


def _row(rung: Rung, config: Config, report: Report) -> Row:
    total = report.total
    return Row(
        rung,
        config,
        total.loads["A"].sectors_per_request,
        total.loads["B"].sectors_per_request,
        total.stores["C"].sectors_per_request,
        total.shared_loads.wavefronts_per_request,
        total.shared_stores.wavefronts_per_request,
        total.fmas_per_shared_load,
        total.fmas_per_shared_word,
        total.barriers / report.grid,
        report.registers,
        report.shared_bytes,
        report.occupancy.share,
        report,
    )


_COLUMNS = (
    ("rung", "{row.rung}"),
    ("A sectors/request", "{row.sectors_a:.1f}"),
    ("B sectors/request", "{row.sectors_b:.1f}"),
    ("C sectors/request", "{row.sectors_c:.1f}"),
    ("wavefronts/shared load", "{row.load_wavefronts:.2f}"),
    ("wavefronts/shared store", "{row.store_wavefronts:.2f}"),
    ("FMAs/shared load", "{row.fmas_per_load:.2f}"),
    ("FMAs/shared word", "{row.fmas_per_word:.2f}"),
    ("barriers/block", "{row.barriers:.0f}"),
    ("registers", "{row.registers}"),
    ("shared bytes", "{row.shared_bytes}"),
    ("occupancy", "{row.occupancy:.0%}"),
)


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [" | ".join(name for name, _ in _COLUMNS), " | ".join("---" for _ in _COLUMNS)]
    lines += [" | ".join(text.format(row=row) for _, text in _COLUMNS) for row in rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"
