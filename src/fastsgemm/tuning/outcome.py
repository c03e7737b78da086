"""The outcome of a tuning run, as a report, as plain data and as records of the tuning database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import structs

from fastsgemm.config import Config
from fastsgemm.heuristics.database_entries import Content, Curve, Measured, tflops
from fastsgemm.heuristics.fields import Tools
from fastsgemm.heuristics.fp16x3_rates import Rates
from fastsgemm.problem import Problem, as_data, format_problem

if TYPE_CHECKING:
    from pathlib import Path

    from fastsgemm.device import DeviceInfo
    from fastsgemm.heuristics.curve_fit import Fit


@dataclass(frozen=True)
class Tuned:
    """The best config that a run found for one problem."""

    problem: Problem
    rung: str
    config: Config
    ms: float  # median device time, in ms
    shipped_config: Config  # the config that the shipped database chooses
    shipped_ms: float | None  # median device time of the shipped config in this run, in ms
    cublas_ms: float | None  # the same of cuBLAS, timed alternately with the winner; None if it was not timed


@dataclass
class Outcome:
    """Everything that a run has found so far.

    Attributes
    ----------
    device : DeviceInfo
    tools : Tools
    tuned : list of Tuned
    curves : list of Curve
    failures : dict
        For each reason of failure, how many candidates failed for it.
    timed : dict
        For each rung and problem, the time of every candidate in ms, for the plot.
    seconds : float
        Duration of the run.
    complete : bool
        Whether everything was measured before the budget was spent.
    path : Path or None
        The file in which the results were stored.
    rates : Rates or None
        Of rung 11, if they were measured.
    transferred : list of Fit
        What was expected of the configs in `curves`, if these are corrected ones.
    gain : float or None
        How many times as fast the corrected curves make the standard set, as they predict it.
    """

    device: DeviceInfo
    tools: Tools
    tuned: list[Tuned] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    timed: dict[tuple[str, Problem], dict[Config, float]] = field(default_factory=dict)
    seconds: float = 0.0
    complete: bool = True
    path: Path | None = None
    rates: Rates | None = None
    transferred: list[Fit] = field(default_factory=list)
    gain: float | None = None

    @property
    def content(self) -> Content:
        """The results as content of the tuning database."""
        records, rates = tuple(map(self._record, self.tuned)), () if self.rates is None else (self.rates,)
        return Content(self.device.arch, self.device.shared_limit, records, tuple(self.curves), rates=rates)

    def _record(self, tuned: Tuned) -> Measured:
        ratio = None if tuned.cublas_ms is None else tuned.cublas_ms / tuned.ms
        return Measured.of(tuned.rung, self.device.name, tuned.problem, tuned.config, tuned.ms, ratio, self.tools)

    def json(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return {
            "device": self.device.name,
            "arch": self.device.arch,
            "driver": self.tools.driver,
            "nvrtc": self.tools.nvrtc,
            "date": self.tools.date,
            "seconds": round(self.seconds, 1),
            "complete": self.complete,
            "stored": self.path and str(self.path),
            "failures": self.failures,
            "curves": len(self.curves),
            "gain": self.gain,
            "results": [_row(tuned) for tuned in self.tuned],
            "fp16x3": self.rates and _measured(self.rates),
        }

    def __str__(self) -> str:
        lines = [*(self._results() if self.tuned else ()), *(self._rates() if self.rates else ())]
        if self.gain is not None:
            lines.append(self.improvement)
        return "\n".join([*lines, *([f"stored in {self.path}"] if self.path else [])])

    @property
    def improvement(self) -> str:
        """What the corrected curves change, in a line."""
        assert self.gain is not None
        of = ", ".join(dict.fromkeys(curve.transferred_from or "" for curve in self.curves))
        return (
            f"corrected the times of {len(self.curves)} configs of {of} in {self.seconds:.0f} s: "
            f"the standard set is predicted to be {self.gain - 1:.1%} faster than without"
        )

    def _rates(self) -> list[str]:
        assert self.rates is not None
        lines = ["rung fp16x3: microseconds of a wave of tiles, for 32 steps of k and besides"]
        lines += [f"{tile.step_us:10.4g} {tile.tile_us:10.4g}  {tile.config!r}" for tile in self.rates.all_tiles]
        lines.append(
            "rung fp16x3: " + ", ".join(f"{name} {value:g}" for name, value in structs.asdict(self.rates.times).items())
        )
        return lines

    def _results(self) -> list[str]:
        lines = [f"{'problem':22} {'rung':10} {'ms':>9} {'TFLOP/s':>8} {'shipped':>8} {'cuBLAS':>7}  constants"]
        for tuned in self.tuned:
            row = _row(tuned)
            lines.append(
                f"{format_problem(tuned.problem):22} {tuned.rung:10} {tuned.ms:9.4g} {row['tflops']:8.4g} "
                f"{_percent(row['of_shipped']):>8} {_percent(row['of_cublas']):>7}  {tuned.config}"
            )
        lines.append(
            "shipped, cuBLAS: speed relative to the shipped config and to cuBLAS in this run; '-': not measured"
        )
        if not self.complete:
            lines.append("the budget was spent before everything was measured; run the same command again to resume")
        return lines


def _row(tuned: Tuned) -> dict[str, Any]:
    return {
        "problem": as_data(tuned.problem),
        "rung": tuned.rung,
        "constants": tuned.config.constants,
        "ms": tuned.ms,
        "tflops": tflops(tuned.problem, tuned.ms),
        "shipped_constants": tuned.shipped_config.constants,
        "of_shipped": tuned.shipped_ms and tuned.shipped_ms / tuned.ms,
        "of_cublas": tuned.cublas_ms and tuned.cublas_ms / tuned.ms,
    }


def _measured(r: Rates) -> dict[str, Any]:
    """Return the rates of rung 11 as plain data, with every constant of a tile."""
    tiles = [
        {
            "config": t.config.constants,
            "least_k": t.least_k,
            "most_k": t.most_k,
            "step_us": t.step_us,
            "tile_us": t.tile_us,
        }
        for t in r.all_tiles
    ]
    tools = {"driver": r.driver, "nvrtc": r.nvrtc, "date": r.date}
    return {
        "device": r.device,
        "multiprocessors": r.multiprocessors,
        "tiles": tiles,
        "times": structs.asdict(r.times),
        "tools": tools,
        "least_gflop": r.least_gflop,
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
