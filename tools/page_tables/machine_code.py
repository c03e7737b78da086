"""Machine code and profiles: tables of ``tools/sass.py`` and ``tools/ncu_pipe.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastsgemm.config import Fp16x3Config, PipelinedConfig
from page_tables.markdown import Data, header, line

NOT_DISASSEMBLED = "*Not written yet: run `make sass`, which needs NVRTC and nvdisasm, and no device.*"
NOT_PROFILED = (
    "*Not measured yet: run `tools/ncu_pipe.py` and then `tools/write_tables.py` on a machine with a device.*"
)
LONGEST = 700  # lines of SASS that the page shows at most
# Preferred; if ncu did not report it, the page shows the first FMA pipe metric that it did.
PIPE = "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"
TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
STATES_EXPLAINED = """\
What a warp does in a cycle, or what it waits for. A slot stays empty if all warps of a scheduler wait.

- *registers are read*: the dispatcher holds the instruction back. An FFMA with a reused factor reads two registers, and
  the two banks give two in a cycle. One that reads three takes two cycles.
- *code is fetched*: the main loop is longer than the first instruction cache.
- *shared memory is read*: an FFMA waits for a fragment.
"""
STATE = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STATES = {
    "selected": "issued",
    "not_selected": "another warp issued",
    "dispatch_stall": "registers are read",
    "no_instruction": "code is fetched",
    "short_scoreboard": "shared memory is read",
}


def sass_texts(sass: Data | None) -> dict[str, str]:
    """Return the instruction counts of the main loop, and its listing."""
    names = ("sass", "sass-loop", "sass-fp16x3", "sass-fp16x3-loop")
    if sass is None:
        return dict.fromkeys(names, NOT_DISASSEMBLED)
    lines = [
        f"For {sass['arch']} ({sass['device']}), compiled by NVRTC {sass['nvrtc']}, nvdisasm {sass['nvdisasm']}.",
        "",
        *header(
            "problem", "instructions", "FFMA", "FFMA share, %", "loads", "copies", "barriers", "others", "`.reuse`"
        ),
    ]
    for row in sass["rows"]:
        share = f"{100 * row['ffma'] / row['instructions']:.1f}"
        loads = _numbers({f"LDS.{bits}": number for bits, number in row["lds"].items()})
        copies, others = _numbers(row["copies"]), sum(row["others"].values())
        cells = (row["instructions"], row["ffma"], share, loads, copies, row["barriers"], others, row["reuse"])
        lines.append(line(_called(row), *cells))
    lines += ["", *header("problem", "registers", "spilled bytes", "others", "constants")]
    for row in sass["rows"]:
        constants = PipelinedConfig(**row["constants"])
        lines.append(line(_called(row), row["registers"], row["spilled_bytes"], _numbers(row["others"]), constants))
    called = f"The main loop for {_called(sass['rows'][0])}"
    tensor = sass.get("fp16x3")
    texts = ("\n".join(lines), _listing(called, sass["loop"]), *(_fp16x3(tensor) if tensor else 2 * [NOT_DISASSEMBLED]))
    return dict(zip(names, texts, strict=True))


def _fp16x3(tensor: Data) -> tuple[str, str]:
    """Return the counts of rung 11's main loop, and its listing."""
    opcodes, config = tensor["opcodes"], Fp16x3Config(**tensor["constants"])
    shown = ("HGMMA", "FADD", "FFMA", "SYNCS", "WARPGROUP")
    others = sum(number for name, number in opcodes.items() if name not in shown)
    constants = " ".join(f"{name}={value}" for name, value in tensor["constants"].items())
    lines = [
        f"For {tensor['arch']}, {tensor['registers']} registers before they are shared out anew, "
        f"{tensor['spilled_bytes']} bytes spilled, {config.threads} threads. {constants}.",
        "",
        *header("instructions", *shown, "others"),
        line(sum(opcodes.values()), *(opcodes.get(name, 0) for name in shown), others),
        "",
        f"Others: {_numbers({name: number for name, number in opcodes.items() if name not in shown})}.",
    ]
    return "\n".join(lines), _listing("The main loop of rung 11", tensor["loop"])


def _called(row: Data) -> str:
    M, N, K = row["problem"].split(",")[:3]
    return f"{M} x {N} x {K}, {row['layout']}"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def _listing(called: str, loop: list[str]) -> str:
    shown = [line if line.endswith(":") else f"    {line}" for line in loop[:LONGEST]]
    if len(loop) > LONGEST:
        shown.append(f"    ... and {len(loop) - LONGEST} more lines")
    summary = f"<summary>{called}: {len(loop)} lines</summary>"
    return "\n".join(["<details>", summary, "", "```", *shown, "```", "", "</details>"])


def ncu_texts(ncu: Data | None) -> dict[str, str]:
    """Return Nsight Compute's figures for the pipes: of FMAs for rung 9, of tensor cores for rung 11."""
    if ncu is None:
        return {"ncu-pipe": NOT_PROFILED}
    rows = [row for row in ncu["rows"] if row.get("rung", "pipelined") == "pipelined"]
    tensor = [row for row in ncu["rows"] if row not in rows]
    pipe = _metric(rows, "pipe_fma", PIPE)
    lines = [
        f"{ncu['M']} x {ncu['N']} x {ncu['K']} on one {ncu['device']}, driver {ncu['driver']}, NVRTC {ncu['nvrtc']}, "
        f"Nsight Compute {ncu['ncu']}, {ncu['date']}. FMA pipe: {f'`{pipe}`' if pipe else 'ncu gave no figure'}.",
        "",
        *header("layout", "FMA pipe, %", "device time, ms", "constants"),
        *(line(row["layout"], *_measured(row, pipe), PipelinedConfig(**row["constants"])) for row in rows),
    ]
    lines += _states(rows)
    if tensor:
        pipe = _metric(tensor, "pipe_tensor", TENSOR_PIPE)
        lines += [
            "",
            f"Tensor pipe: {f'`{pipe}`' if pipe else 'ncu gave no figure'}. The time is that of the product alone.",
        ]
        lines += ["", *header("rung", "tensor pipe, %", "device time, ms")]
        lines += [line(row["rung"], *_measured(row, pipe)) for row in tensor]
    return {"ncu-pipe": "\n".join(lines)}


def _states(rows: Sequence[Data]) -> list[str]:
    """Return the table of what warps do: the shares of their cycles, in percent, of all states that ncu reported."""
    prefix = STATE.split("{}")[0]
    shown = [row for row in rows if ISSUE in row["metrics"]]
    lines = [
        "",
        STATES_EXPLAINED,
        *header("layout", "issue slots, %", *(f"{what}, %" for what in STATES.values()), "other, %"),
    ]
    for row in shown:
        metrics = row["metrics"]
        everything = sum(number for name, number in metrics.items() if prefix in name)
        shares = [100 * metrics.get(STATE.format(state), 0.0) / everything for state in STATES]
        lines.append(line(row["layout"], *(f"{share:.1f}" for share in (metrics[ISSUE], *shares, 100 - sum(shares)))))
    return lines if shown else []


def _metric(rows: Sequence[Data], part: str, preferred: str) -> str | None:
    """Return the preferred metric, or the first of this pipe that ncu reported for all rows."""
    given = [name for name in (preferred, *rows[0]["metrics"]) if all(name in row["metrics"] for row in rows)]
    return next((name for name in given if part in name and ".pct_of_peak" in name), None)


def _measured(row: Data, pipe: str | None) -> tuple[str, str]:
    busy, took = row["metrics"].get(pipe), row["metrics"].get("gpu__time_duration.sum")  # the latter in ns
    return "" if busy is None else f"{busy:.1f}", "" if took is None else f"{took / 1e6:.3f}"
