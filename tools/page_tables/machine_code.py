"""Machine code and profiles: tables of ``tools/sass.py`` and ``tools/ncu_pipe.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastsgemm.config import Fp16x3Config
from page_tables.markdown import table
from page_tables.runs import Data, Stored

NOT_DISASSEMBLED = "*Not written yet: run `make sass`, which needs NVRTC and nvdisasm, and no device.*"
NOT_PROFILED = (
    "*Not measured yet: run `tools/ncu_pipe.py` and then `tools/write_tables.py` on a machine with a device.*"
)
# Preferred; if ncu did not report it, the page shows the first FMA pipe metric that it did.
PIPE = "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"
TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
_SASS = ("problem", "FFMA", "share, %", "loads", "copies", "barriers", "others", "`.reuse`", "registers")
_BY_ARCHITECTURE = ("architecture", "FFMA", "FFMA2", "loads", "all others", "instructions per FMA", "registers")
_METRICS = {"FMA": ("pipe_fma", PIPE), "tensor": ("pipe_tensor", TENSOR_PIPE)}  # by pipe: part of names, the preferred


def texts(data: Stored) -> dict[str, str]:
    """Return the instruction counts of the main loops, of rung 9 as a table, and the figures of Nsight Compute."""
    sass, ncu = data.get("sass"), data.get("ncu")
    tensor = sass and sass.get("fp16x3")
    return {
        "sass": _sass(sass) if sass else NOT_DISASSEMBLED,
        "sass-architectures": _architectures(sass) if sass else NOT_DISASSEMBLED,
        "sass-fp16x3": _fp16x3(tensor) if tensor else NOT_DISASSEMBLED,
        "ncu-pipe": _pipes(ncu) if ncu else NOT_PROFILED,
    }


def _sass(sass: Data) -> str:
    where = f"For {sass['arch']} ({sass['device']}), compiled by NVRTC {sass['nvrtc']}, nvdisasm {sass['nvdisasm']}."
    return f"{where}\n\n{table(_SASS, map(_counted, sass['rows']))}"


def _counted(row: Data) -> tuple[object, ...]:
    M, N, K = row["problem"].split(",")[:3]
    share = f"{100 * row['ffma'] / row['instructions']:.1f}"
    loads = _numbers({f"LDS.{bits}": number for bits, number in row["lds"].items()})
    copies, others = _numbers(row["copies"]), sum(row["others"].values())
    spilled = f", {row['spilled_bytes']} bytes spilled" if row["spilled_bytes"] else ""
    counts = (row["ffma"], share, loads, copies, row["barriers"], others, row["reuse"])
    return f"{M},{N},{K},{row['layout']}", *counts, f"{row['registers']}{spilled}"


def _architectures(sass: Data) -> str:
    """Return the counts of the first problem's kernel on every architecture, each relative to the FMAs."""
    return table(_BY_ARCHITECTURE, (_per_fma(arch, row) for arch, row in sass["architectures"].items()))


def _per_fma(arch: str, row: Data) -> tuple[object, ...]:
    ffma2, loads, fmas = row["ffma2"], sum(row["lds"].values()), row["ffma"]
    ffma = fmas - 2 * ffma2
    others = row["instructions"] - ffma - ffma2 - loads
    counts = (ffma, ffma2, loads, others, row["instructions"])
    spilled = f", {row['spilled_bytes']} bytes spilled" if row["spilled_bytes"] else ""
    return arch, *(f"{number / fmas:.3f}" for number in counts), f"{row['registers']}{spilled}"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def _fp16x3(tensor: Data) -> str:
    """Return the counts of rung 11's main loop in words."""
    opcodes, config = tensor["opcodes"], Fp16x3Config(**tensor["constants"])
    shown = ("HGMMA", "FADD", "SYNCS", "WARPGROUP")
    counted = ", ".join(f"{opcodes.get(name, 0)} `{name}`" for name in shown)
    others = sum(number for name, number in opcodes.items() if name not in shown)
    return (
        f"For {tensor['arch']}, with {config.threads} threads, {tensor['registers']} registers before they are shared "
        f"out anew and {tensor['spilled_bytes']} bytes spilled, it has {sum(opcodes.values())} instructions: "
        f"{counted} and {others} others."
    )


def _pipes(ncu: Data) -> str:
    """Return Nsight Compute's figures for the pipes: of FMAs for rung 9, of tensor cores for rung 11."""
    rows = [{"rung": "pipelined"} | row for row in ncu["rows"]]
    by_pipe = {name: [row for row in rows if (row["rung"] == "pipelined") is (name == "FMA")] for name in _METRICS}
    metrics = {name: _metric(by_pipe[name], *wanted) for name, wanted in _METRICS.items()}
    named = (f"{name} pipe: {f'`{metric}`' if metric else 'ncu gave no figure'}" for name, metric in metrics.items())
    where = (
        f"{ncu['M']} x {ncu['N']} x {ncu['K']} on one {ncu['device']}, driver {ncu['driver']}, NVRTC {ncu['nvrtc']}, "
        f"Nsight Compute {ncu['ncu']}, {ncu['date']}. {'; '.join(named)}."
    )
    issue = (ISSUE,) if any(ISSUE in row["metrics"] for row in rows) else ()
    heads = ("rung, layout", "pipe", "busy, %", *("issue slots, %" for _ in issue), "device time, ms")
    lines = (_profiled(name, row, (metrics[name], *issue)) for name, of_pipe in by_pipe.items() for row in of_pipe)
    return f"{where}\n\n{table(heads, lines)}"


def _metric(rows: Sequence[Data], part: str, preferred: str) -> str | None:
    """Return the preferred metric, or the first of this pipe that ncu reported for all rows."""
    given = (preferred, *rows[0]["metrics"]) if rows else ()
    reported = (name for name in given if all(name in row["metrics"] for row in rows))
    return next((name for name in reported if part in name and ".pct_of_peak" in name), None)


def _profiled(pipe: str, row: Data, shares: Sequence[str | None]) -> tuple[str, ...]:
    metrics, ns = row["metrics"], row["metrics"].get("gpu__time_duration.sum")
    shown = (f"{metrics[name]:.1f}" if name in metrics else "" for name in shares)
    return f"{row['rung']}, {row['layout']}", pipe, *shown, "" if ns is None else f"{ns / 1e6:.3f}"
