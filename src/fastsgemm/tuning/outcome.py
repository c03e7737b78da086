"""What a tuning run found: as a report, as plain data and as records of the database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastsgemm.config import Config
from fastsgemm.heuristics import database_entries
from fastsgemm.heuristics.database_entries import Content, Curve, Record, tflops
from fastsgemm.problem import Problem, spell

if TYPE_CHECKING:
    from pathlib import Path

    from fastsgemm.device import DeviceInfo


@dataclass(frozen=True)
class Tuned:
    """What a run found for one problem.

    Attributes
    ----------
    problem : Problem
    rung : str
    config : Config
    ms : float
        Median device time.
    shipped_config : Config
        What the shipped database chooses.
    shipped_ms : float or None
        Its time in this run.
    cublas_ms : float or None
        Of cuBLAS in turns with the winner, where there is any.
    """

    problem: Problem
    rung: str
    config: Config
    ms: float
    shipped_config: Config
    shipped_ms: float | None
    cublas_ms: float | None


@dataclass
class Outcome:
    """What a run has found so far.

    Attributes
    ----------
    device : Device
    tools : Tools
    tuned : list of Tuned
    curves : list of Curve
    failures : dict
        Why candidates failed, and how many for that reason.
    timed : dict
        Every time of every problem and rung, for the plot.
    seconds : float
    complete : bool
        The time sufficed for everything.
    path : Path or None
        Where it was stored.
    """

    device: DeviceInfo
    tools: database_entries.Tools
    tuned: list[Tuned] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    timed: dict[tuple[str, Problem], dict[Config, float]] = field(default_factory=dict)
    seconds: float = 0.0
    complete: bool = True
    path: Path | None = None

    @property
    def content(self) -> Content:
        """As the database has it."""
        return Content(
            self.device.arch, self.device.shared_limit, tuple(map(self._record, self.tuned)), tuple(self.curves)
        )

    def _record(self, found: Tuned) -> Record:
        ratio = None if found.cublas_ms is None else found.cublas_ms / found.ms
        return Record(
            arch=self.device.arch,
            device=self.device.name,
            rung=found.rung,
            problem=found.problem,
            config=found.config,
            origin="measured",
            source=str(self.tools),
            ms=found.ms,
            cublas_ratio=ratio,
            tools=self.tools,
        )

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "device": self.device.name,
            "arch": self.device.arch,
            "driver": self.tools.driver,
            "nvrtc": self.tools.nvrtc,
            "seconds": round(self.seconds, 1),
            "complete": self.complete,
            "stored": self.path and str(self.path),
            "failures": self.failures,
            "curves": len(self.curves),
            "results": [_row(found) for found in self.tuned],
        }

    def __str__(self) -> str:
        lines = [f"{'problem':22} {'rung':10} {'ms':>9} {'TFLOP/s':>8} {'shipped':>8} {'cuBLAS':>7}  constants"]
        for found in self.tuned:
            row = _row(found)
            lines.append(
                f"{spell(found.problem):22} {found.rung:10} {found.ms:9.4g} {row['tflops']:8.4g} "
                f"{_percent(row['of_shipped']):>8} {_percent(row['of_cublas']):>7}  {found.config}"
            )
        lines.append("shipped, cuBLAS: speed as a share of theirs in this run; '-' where it was not measured")
        if not self.complete:
            lines.append("the time was up before everything was measured; the same command goes on from here")
        if self.path:
            lines.append(f"stored in {self.path}")
        return "\n".join(lines)


def _row(found: Tuned) -> dict[str, Any]:
    problem = found.problem
    return {
        "problem": {"M": problem.M, "N": problem.N, "K": problem.K, "layout": problem.layout},
        "rung": found.rung,
        "constants": found.config.constants,
        "ms": found.ms,
        "tflops": tflops(problem, found.ms),
        "shipped_constants": found.shipped_config.constants,
        "of_shipped": found.shipped_ms and found.shipped_ms / found.ms,
        "of_cublas": found.cublas_ms and found.cublas_ms / found.ms,
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
