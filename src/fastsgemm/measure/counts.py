"""The counts of a simulated ladder: rows, and tables of them for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fastsgemm.measure.chains import has_several_chains, verdict
from fastsgemm.measure.tables import cells, plain, rung_title
from fastsgemm.rungs import find
from fastsgemm.sim.counters import GlobalTraffic, SharedTraffic

_WIDTH = 80  # columns of a terminal
_INDENT = " " * 16  # of text about a rung, after its name


@dataclass(frozen=True)
class CountedRow:
    """The counts of one rung."""

    number: int
    name: str
    constants: dict[str, int]  # tile constants of the rung
    loads_a: GlobalTraffic
    loads_b: GlobalTraffic
    stores_c: GlobalTraffic
    shared_loads: SharedTraffic
    shared_stores: SharedTraffic
    instructions: int  # as in `fastsgemm.sim.report.Activity`; so are the next three
    fma_instructions: int
    fmas: int
    thread_fmas: int
    barriers: float  # barriers that each block passes
    divergent_branches: int  # branches that split a warp
    registers: int  # of a thread, from the cubin
    spilled: int  # bytes of a thread
    shared_bytes: int  # shared memory of a block
    occupancy: float  # resident warps of an SM relative to its limit, 0 to 1
    limited_by: str  # the resource that limits the occupancy
    error: float | None  # ||C - C64||_F / ||C64||_F; None if C contains a NaN
    mismatch: str | None  # the wrong elements, here or at a ragged size; None for correct results
    overridden: str | None = None  # as in `fastsgemm.measure.constants.Constants`

    @property
    def fmas_per_load(self) -> float:
        """FMAs per load from shared memory; 0 without such loads."""
        return self.fmas / self.shared_loads.requests if self.shared_loads.requests else 0.0

    @property
    def bytes_per_fma(self) -> float:
        """Bytes of A and B loaded from global memory, in whole sectors, per FMA of a thread."""
        sectors = self.loads_a.sectors + self.loads_b.sectors
        return 32 * sectors / self.thread_fmas if self.thread_fmas else 0.0

    @property
    def fmas_per_word(self) -> float:
        """FMAs per 32-bit word from shared memory. Independent of how the compiler merges loads."""
        return self.fmas / self.shared_loads.words if self.shared_loads.words else 0.0

    @property
    def others_per_fma(self) -> float:
        """Other PTX instructions per FMA; 0 without FMAs."""
        return (self.instructions - self.fma_instructions) / self.fmas if self.fmas else 0.0


@dataclass(frozen=True)
class KernelRow:
    """The counts of one kernel of rung 11."""

    name: str
    blocks: int
    loads: GlobalTraffic  # of all operands; so are the stores
    stores: GlobalTraffic
    shared_wavefronts: int  # of loads and stores by threads, without the copy engine and the tensor cores
    instructions: int
    registers: int
    shared_bytes: int
    occupancy: float


@dataclass(frozen=True)
class Fp16x3Rows:
    """The counts of rung 11, whose product takes several kernels. Its bits are not those of the other rungs."""

    constants: dict[str, int]  # of the kernel that multiplies
    kernels: tuple[KernelRow, ...]  # in the order of their launches
    error: float | None
    mismatch: str | None  # as in `CountedRow`; so is the next
    overridden: str | None = None


# Columns of a table by their headings, which have two lines on a terminal; see `fastsgemm.measure.tables`.
_RESOURCES = {
    "\nregisters": "{row.registers}",
    "shared\nbytes": "{row.shared_bytes}",
    "\noccupancy": "{row.occupancy:.0%}",
}
MEMORY = {
    "sectors\nA": "{row.loads_a.sectors_per_request:.1f}",
    "sectors\nB": "{row.loads_b.sectors_per_request:.1f}",
    "sectors\nC": "{row.stores_c.sectors_per_request:.1f}",
    "shared\nloads": "{row.shared_loads.requests}",
    "wavefronts\nper load": "{row.shared_loads.wavefronts_per_request:.2f}",
    "shared\nstores": "{row.shared_stores.requests}",
    "wavefronts\nper store": "{row.shared_stores.wavefronts_per_request:.2f}",
}
DIVERGENT = "divergent\nbranches"
ARITHMETIC = {
    "FMAs per\nload": "{row.fmas_per_load:.2f}",
    "FMAs per\nword": "{row.fmas_per_word:.2f}",
    "others\nper FMA": "{row.others_per_fma:.2f}",
    "barriers\nper block": "{row.barriers:.0f}",
    DIVERGENT: "{row.divergent_branches}",
    **_RESOURCES,
}
KERNEL = {
    "\nblocks": "{row.blocks}",
    "sectors\nloaded": "{row.loads.sectors}",
    "sectors\nstored": "{row.stores.sectors}",
    "\ninstructions": "{row.instructions}",
    "shared\nwavefronts": "{row.shared_wavefronts}",
    **_RESOURCES,
}
_SHORT = {"registers": "regs", "instructions": "instr.", "FMAs per": "FMAs/"}  # headings shortened to fit a terminal

_MEMORY_LEGEND = """\
sectors: 32-byte pieces of global memory that a warp touches per load of A or B,
  or per store of C, on average
wavefronts: passes over the banks of shared memory per load or store of a warp,
  on average"""
_ARITHMETIC_LEGEND = """\
FMAs/load, FMAs/word: per load instruction from shared memory, and per 32-bit
  word that it loads and the kernel uses
others per FMA: other PTX instructions per FMA"""


@dataclass(frozen=True)
class Table:
    """The result of `climb`."""

    device: str
    arch: str
    nvrtc: str  # its version
    M: int  # C is (M, N), A is (M, K)
    N: int
    K: int
    constants: str  # a description of the tile constants
    identical: bool  # whether all rungs that sum in one chain returned the same bits
    rows: tuple[CountedRow, ...]
    layout: str = "NN"  # as in `Problem`
    fp16x3: Fp16x3Rows | None = None  # rung 11, if it was run

    @property
    def ok(self) -> bool:
        """Whether every result is correct and all bits agree."""
        return self.identical and not self._mismatches

    @property
    def _mismatches(self) -> list[str]:
        """Messages about wrong results."""
        mismatches = [(row.name, row.mismatch) for row in self.rows]
        mismatches += [("fp16x3", self.fp16x3.mismatch)] if self.fp16x3 is not None else []
        return [f"{name} is WRONG: {mismatch}" for name, mismatch in mismatches if mismatch is not None]

    def json(self) -> dict[str, Any]:
        """Return this as plain data, ready for `json.dumps`."""
        return asdict(self) | {"ok": self.ok}

    def heading(self) -> str:
        """Return one line with the problem, the constants and the device."""
        layout = "" if self.layout == "NN" else f", {self.layout},"
        problem = f"{self.M} x {self.N} x {self.K}{layout} with {self.constants}"
        return f"{problem} on a simulated {self.device} ({self.arch}), NVRTC {self.nvrtc}"

    def text(self) -> str:
        """Return this as tables for a terminal, at most 80 columns wide."""
        lines = textwrap.wrap(self.heading(), _WIDTH)
        if self.rows:
            lines += ["", *_table("rung", MEMORY, self.rows), *_MEMORY_LEGEND.splitlines()]
            lines += ["", *_table("rung", ARITHMETIC, self.rows), *_ARITHMETIC_LEGEND.splitlines(), ""]
        for row in self.rows:
            lines += titled(rung_title(row.number, row.name), str(find(row.name).config(**row.constants)))
            lines += _override_note(row.overridden)
        if self.fp16x3 is not None:
            lines += ["", *self._fp16x3_table(self.fp16x3)]
        lines += ["", *(line for text in self._mismatches for line in textwrap.wrap(text, _WIDTH))]
        lines += verdict(sum(not has_several_chains(row.constants) for row in self.rows), self.identical)
        if self.ok:
            lines.append("right, too, at sizes that are no multiple of the tile")
        if self.ok and self.rows:
            lines += textwrap.wrap(self._summary(), _WIDTH)
        return "\n".join(lines)

    def _fp16x3_table(self, rows: Fp16x3Rows) -> list[str]:
        constants = " ".join(f"{name}={value}" for name, value in rows.constants.items())
        error = "not a number" if rows.error is None else f"{rows.error:.2g}"
        text = f"error {error}; its bits are its own, because it sums products of FP16 pairs on tensor cores"
        lines = titled("11 fp16x3", constants) + _override_note(rows.overridden)
        lines += textwrap.wrap(text, _WIDTH)
        return [*lines, *_table("kernel", KERNEL, rows.kernels)]

    def _summary(self) -> str:
        """Return one sentence about the counts: of the lowest and the highest rung, if there are two."""
        ordered = sorted(self.rows, key=lambda row: row.number)
        first, last = ordered[0], ordered[-1]
        if first is last:
            return (
                f"{first.name}: {first.bytes_per_fma:.3g} bytes of global memory and {first.others_per_fma:.3g} "
                "other instructions per FMA"
            )
        return (
            f"from {first.name} to {last.name}, an FMA costs {first.bytes_per_fma:.3g} -> {last.bytes_per_fma:.3g} "
            f"bytes of global memory and {first.others_per_fma:.3g} -> {last.others_per_fma:.3g} other instructions"
        )


def titled(name: str, text: str) -> list[str]:
    """Return the lines of a text for a terminal, after the name of a rung."""
    return textwrap.wrap(f"{name:<16}{text}", _WIDTH, subsequent_indent=_INDENT)


def _override_note(overridden: str | None) -> list[str]:
    return titled("", f"({overridden})") if overridden else []


def named(rows: Iterable[CountedRow | KernelRow]) -> list[dict[str, Any]]:
    """Return rows in the form that `cells` takes, each with its title."""
    return [{"name": rung_title(getattr(row, "number", None), row.name), "row": row} for row in rows]


def _table(first: str, columns: Mapping[str, str], rows: Iterable[CountedRow | KernelRow]) -> list[str]:
    """Return the lines of a table for a terminal."""
    shortened = {
        "\n".join(_SHORT.get(part, part) for part in heading.split("\n")): cell for heading, cell in columns.items()
    }
    columns = {f"\n{first}": "{name}", **shortened}
    return plain(columns, cells(columns, named(rows)))
