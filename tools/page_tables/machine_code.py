"""Machine code and profiles: tables of ``tools/sass.py`` and ``tools/ncu_pipe.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastsgemm.config import Fp16x3Config
from page_tables.markdown import Data, header, line

NOT_DISASSEMBLED = "*Not written yet: run `make sass`, which needs NVRTC and nvdisasm, and no device.*"
NOT_PROFILED = (
    "*Not measured yet: run `tools/ncu_pipe.py` and then `tools/write_tables.py` on a machine with a device.*"
)
# Preferred; if ncu did not report it, the page shows the first FMA pipe metric that it did.
PIPE = "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"
TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"


def sass_texts(sass: Data | None) -> dict[str, str]:
    """Return the instruction counts of the main loops: of rung 9 as a table, of rung 11 in words."""
    if sass is None:
        return dict.fromkeys(("sass", "sass-fp16x3"), NOT_DISASSEMBLED)
    lines = [
        f"For {sass['arch']} ({sass['device']}), compiled by NVRTC {sass['nvrtc']}, nvdisasm {sass['nvdisasm']}.",
        "",
        *header("problem", "FFMA", "share, %", "loads", "copies", "barriers", "others", "`.reuse`", "registers"),
    ]
    for row in sass["rows"]:
        share = f"{100 * row['ffma'] / row['instructions']:.1f}"
        loads = _numbers({f"LDS.{bits}": number for bits, number in row["lds"].items()})
        copies, others = _numbers(row["copies"]), sum(row["others"].values())
        held = f"{row['registers']}" + (f", {row['spilled_bytes']} bytes spilled" if row["spilled_bytes"] else "")
        cells = (row["ffma"], share, loads, copies, row["barriers"], others, row["reuse"], held)
        lines.append(line(_called(row), *cells))
    tensor = sass.get("fp16x3")
    return {"sass": "\n".join(lines), "sass-fp16x3": _fp16x3(tensor) if tensor else NOT_DISASSEMBLED}


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


def _called(row: Data) -> str:
    M, N, K = row["problem"].split(",")[:3]
    return f"{M},{N},{K},{row['layout']}"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def ncu_texts(ncu: Data | None) -> dict[str, str]:
    """Return Nsight Compute's figures for the pipes: of FMAs for rung 9, of tensor cores for rung 11."""
    if ncu is None:
        return {"ncu-pipe": NOT_PROFILED}
    rows = [row for row in ncu["rows"] if row.get("rung", "pipelined") == "pipelined"]
    tensor = [row for row in ncu["rows"] if row not in rows]
    pipes = {"FMA": _metric(rows, "pipe_fma", PIPE), "tensor": _metric(tensor, "pipe_tensor", TENSOR_PIPE)}
    issued = any(ISSUE in row["metrics"] for row in ncu["rows"])
    named = (f"{name} pipe: {f'`{pipe}`' if pipe else 'ncu gave no figure'}" for name, pipe in pipes.items())
    lines = [
        f"{ncu['M']} x {ncu['N']} x {ncu['K']} on one {ncu['device']}, driver {ncu['driver']}, NVRTC {ncu['nvrtc']}, "
        f"Nsight Compute {ncu['ncu']}, {ncu['date']}. {'; '.join(named)}.",
        "",
        *header("rung, layout", "pipe", "busy, %", *(["issue slots, %"] if issued else []), "device time, ms"),
        *(_profiled(f"pipelined, {row['layout']}", "FMA", row, pipes["FMA"], issued) for row in rows),
        *(_profiled(f"{row['rung']}, {row['layout']}", "tensor", row, pipes["tensor"], issued) for row in tensor),
    ]
    return {"ncu-pipe": "\n".join(lines)}


def _metric(rows: Sequence[Data], part: str, preferred: str) -> str | None:
    """Return the preferred metric, or the first of this pipe that ncu reported for all rows."""
    given = (
        [name for name in (preferred, *rows[0]["metrics"]) if all(name in row["metrics"] for row in rows)]
        if rows
        else []
    )
    return next((name for name in given if part in name and ".pct_of_peak" in name), None)


def _profiled(what: str, name: str, row: Data, pipe: str | None, issued: bool) -> str:
    metrics = row["metrics"]
    shares = [f"{metrics[one]:.1f}" if one in metrics else "" for one in (pipe, *([ISSUE] if issued else []))]
    took = metrics.get("gpu__time_duration.sum")  # in ns
    return line(what, name, *shares, "" if took is None else f"{took / 1e6:.3f}")
