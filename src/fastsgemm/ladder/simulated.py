"""The ladder as a table of counts: what each rung changes, as numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from fastsgemm import device
from fastsgemm.config import Config
from fastsgemm.heuristics.choose import choose
from fastsgemm.ladder.measured import Reference, divided
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung, ladder
from fastsgemm.sim.counters import GlobalTraffic, SharedTraffic
from fastsgemm.sim.gemm import sgemm
from fastsgemm.sim.machine import Machine
from fastsgemm.sim.report import Report

TYPICAL = Problem(4096, 4096, 4096)  # the problem whose constants are counted: those of a small one teach little


@dataclass(frozen=True)
class Row:
    """What one rung did.

    Attributes
    ----------
    number : int
    name : str
    constants : dict
        Its tile constants.
    loads_a, loads_b, stores_c : GlobalTraffic
    shared_loads, shared_stores : SharedTraffic
    instructions, fmas, thread_fmas : int
        As in `fastsgemm.sim.report.Activity`.
    barriers : float
        That a block goes through.
    divergent_branches : int
        Branches that split a warp.
    registers, spilled : int
        Registers, and bytes spilled, of a thread in the cubin.
    shared_bytes : int
        Of a block.
    occupancy : float
        Share of an SM's warps that are resident.
    limited_by : str
        What keeps it from being higher.
    error : float or None
        ||C - C64||_F / ||C64||_F; None where C holds a NaN.
    right : bool
        Whether the error is one of rounding.
    """

    number: int
    name: str
    constants: dict[str, int]
    loads_a: GlobalTraffic
    loads_b: GlobalTraffic
    stores_c: GlobalTraffic
    shared_loads: SharedTraffic
    shared_stores: SharedTraffic
    instructions: int
    fmas: int
    thread_fmas: int
    barriers: float
    divergent_branches: int
    registers: int
    spilled: int
    shared_bytes: int
    occupancy: float
    limited_by: str
    error: float | None
    right: bool

    @property
    def fmas_per_load(self) -> float:
        """FMAs for each shared load instruction; 0 without such loads."""
        return self.fmas / self.shared_loads.requests if self.shared_loads.requests else 0.0

    @property
    def fmas_per_word(self) -> float:
        """FMAs for each 32-bit word from shared memory: what the source says, however the compiler merges loads."""
        return self.fmas / self.shared_loads.words if self.shared_loads.words else 0.0

    @property
    def others_per_fma(self) -> float:
        """Instructions beside each FMA, of PTX; 0 without FMAs."""
        return (self.instructions - self.fmas) / self.fmas if self.fmas else 0.0


# Group, heading, and how a row fills the column.
_COLUMNS = (
    ("sectors", "A", "{row.loads_a.sectors_per_request:.1f}"),
    ("sectors", "B", "{row.loads_b.sectors_per_request:.1f}"),
    ("sectors", "C", "{row.stores_c.sectors_per_request:.1f}"),
    ("shared", "loads", "{row.shared_loads.requests}"),
    ("wavefronts", "a load", "{row.shared_loads.wavefronts_per_request:.2f}"),
    ("shared", "stores", "{row.shared_stores.requests}"),
    ("wavefronts", "a store", "{row.shared_stores.wavefronts_per_request:.2f}"),
    ("FMAs a", "load", "{row.fmas_per_load:.2f}"),
    ("FMAs a", "word", "{row.fmas_per_word:.2f}"),
    ("others", "an FMA", "{row.others_per_fma:.2f}"),
    ("barriers", "a block", "{row.barriers:.0f}"),
    ("divergent", "branches", "{row.divergent_branches}"),
    ("", "registers", "{row.registers}"),
    ("shared", "bytes", "{row.shared_bytes}"),
    ("", "occupancy", "{row.occupancy:.0%}"),
)

_LEGEND = """\
sectors: 32-byte pieces that one load of A or B, or one store of C, touches for a warp, on average
wavefronts: passes over the banks of shared memory that one load or store takes for a warp, on average
FMAs a load, a word: for each shared load instruction, and for each 32-bit word that these load and use
others an FMA: instructions of PTX beside each FMA"""


@dataclass(frozen=True)
class Table:
    """What a climb on a simulated device found.

    Attributes
    ----------
    device, arch, nvrtc : str
        The device, and what compiled the kernels.
    M, N, K : int
        C is (M, N), A is (M, K).
    constants : str
        Which tile constants the rungs were given.
    identical : bool
        Whether every rung that sums in one chain gave the same bits.
    rows : tuple of Row
    """

    device: str
    arch: str
    nvrtc: str
    M: int
    N: int
    K: int
    constants: str
    identical: bool
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether every result is right and all have the same bits."""
        return self.identical and all(row.right for row in self.rows)

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"ok": self.ok}

    def heading(self) -> str:
        """Return what was run, in a line."""
        problem = f"{self.M} x {self.N} x {self.K} with {self.constants}"
        return f"{problem} on a simulated {self.device} ({self.arch}), NVRTC {self.nvrtc}"

    def text(self) -> str:
        """Return it as a table for people."""
        verdict = "are the same bits" if self.identical else "are NOT the same bits: look for an indexing bug"
        rows = [[f"{row.number} {row.name}", *_cells(row)] for row in self.rows]
        heads = [["", *(group for group, _, _ in _COLUMNS)], ["rung", *(name for _, name, _ in _COLUMNS)]]
        widths = [max(map(len, column)) for column in zip(*heads, *rows, strict=True)]
        lines = [self.heading(), "", *(_aligned(cells, widths) for cells in heads + rows), ""]
        lines += [f"{row.number} {row.name:<14}{Config(**row.constants)}" for row in self.rows]
        lines += ["", _LEGEND]
        lines += [f"{row.name}: WRONG, error {row.error}" for row in self.rows if not row.right]
        chains = sum(not divided(row.constants) for row in self.rows)
        if chains > 1:
            lines.append(f"the results of the {chains} rungs {verdict}")
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return the rows as a Markdown table."""
        heads = ["rung", *(f"{group} {name}".strip() for group, name, _ in _COLUMNS)]
        lines = [heads, ["---", *("---:" for _ in _COLUMNS)]]
        lines += [[f"{row.number} {row.name}", *_cells(row)] for row in self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def climb(
    problem: Problem,
    rungs: Sequence[Rung] | None = None,
    machine: Machine | None = None,
    configs: Mapping[str, Config] | None = None,
) -> Table:
    """Run rungs on one row-major problem with beta = 0, and check the results.

    Parameters
    ----------
    problem : Problem
    rungs : sequence of Rung, optional
        Default: those that suit the problem.
    machine : Machine, optional
        Default: see `Machine`.
    configs : mapping, optional
        Constants by a rung's name. Default: those that the tuning database has for a large problem on the device.
    """
    machine = machine or Machine()
    usual = f"the constants for {TYPICAL.M} x {TYPICAL.N} x {TYPICAL.K}"
    constants = usual if configs is None else "given constants"
    draw = np.random.default_rng(0)
    A = draw.standard_normal((problem.M, problem.K), np.float32)
    B = draw.standard_normal((problem.K, problem.N), np.float32)
    reference = Reference(A, B)
    rows, results = [], []
    chosen = rungs or ladder(problem.M, problem.N)
    for rung in tqdm(chosen, "simulating", leave=False, disable=None):  # on stderr, only where that is a terminal
        config = choose(machine.device, rung, TYPICAL).config if configs is None else configs[rung.name]
        C, report = sgemm(rung, config, A, B, machine=machine)
        assert report is not None  # a problem has elements
        rows.append(_row(rung, config, report, reference.error(C), reference.limit))
        if not divided(config.constants):
            results.append(C.view(np.uint32))
    identical = all(np.array_equal(result, results[0]) for result in results)
    nvrtc = "{}.{}".format(*device.nvrtc_version())
    device_info = machine.device
    M, N, K = problem.M, problem.N, problem.K
    return Table(device_info.name, device_info.arch, nvrtc, M, N, K, constants, identical, tuple(rows))


def from_json(data: dict[str, Any]) -> Table:
    """Return the table of which `Table.json` is `data`."""
    traffic = {"loads_a": GlobalTraffic, "loads_b": GlobalTraffic, "stores_c": GlobalTraffic}
    kinds = traffic | {"shared_loads": SharedTraffic, "shared_stores": SharedTraffic}
    rows = tuple(Row(**row | {name: kind(**row[name]) for name, kind in kinds.items()}) for row in data["rows"])
    return Table(**{name: value for name, value in data.items() if name != "ok"} | {"rows": rows})


def _row(rung: Rung, config: Config, report: Report, error: float, limit: float) -> Row:
    total = report.total
    return Row(
        number=rung.number,
        name=rung.name,
        constants=config.constants,
        loads_a=total.loads["A"],
        loads_b=total.loads["B"],
        stores_c=total.stores["C"],
        shared_loads=total.shared_loads,
        shared_stores=total.shared_stores,
        instructions=total.instructions,
        fmas=total.fmas,
        thread_fmas=total.thread_fmas,
        barriers=total.barriers / report.grid,
        divergent_branches=total.divergent_branches,
        registers=report.registers,
        spilled=report.spilled,
        shared_bytes=report.shared_bytes,
        occupancy=report.occupancy.share,
        limited_by=report.occupancy.limited_by,
        error=error if math.isfinite(error) else None,
        right=bool(error <= limit),
    )


def _cells(row: Row) -> list[str]:
    return [text.format(row=row) for _, _, text in _COLUMNS]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    right = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join([cells[0].ljust(widths[0]), *right]).rstrip()
