#!/usr/bin/env python3
"""Write the tables of README.md and docs/ that were measured on a device, counted on the simulated device or in SASS.

    tools/write_tables.py build/benchmarks.json   keep what they need in docs/data/benchmarks.json, then write them
    tools/write_tables.py                         write them from the JSON files of docs/data
    tools/write_tables.py --check                 change nothing; fail where a table is not what the data gives

A table stands between <!-- NAME:begin --> and <!-- NAME:end -->, and nobody edits it by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastsgemm.config import Config
from fastsgemm.ladder.simulated import from_json
from fastsgemm.sim import Row, Table

ROOT = Path(__file__).resolve().parent.parent
NOT_MEASURED = "*Not measured yet: run `make bench` and then `make tables` on a machine with a device.*"
NOT_DISASSEMBLED = "*Not written yet: run `make sass`, which needs NVRTC and nvdisasm, and no device.*"
NOT_PROFILED = (
    "*Not measured yet: run `tools/ncu_pipe.py` and then `tools/write_tables.py` on a machine with a device.*"
)
NOT_COUNTED = (
    "*Not measured yet: run `tests/sim/ncu_counters.py --json docs/data/counters.json` on a machine with a device.*"
)
LONGEST = 700  # lines of machine code that are shown
REPEATED = "of stores, with repeats"  # as tests/sim/ncu_counters.py calls it
PIPE = "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"  # shown where ncu gave it

_RANDOM = ("M", "N", "K", "rung", "ms", "cublas_ms", "percent", "error", "cublas_error")  # what is kept of these
_WORST = 12  # random problems that are listed

Data = dict[str, Any]


def reduce(run: Data) -> Data:
    """Return what the tables need of pytest-benchmark's JSON.

    Raises
    ------
    ValueError
        The run has no ladder: it was made without a device.
    """

    def of(group: str) -> list[Data]:
        return [one["extra_info"] for one in run["benchmarks"] if one["group"].startswith(group)]

    ladder = of("ladder")
    if not ladder:
        raise ValueError("the run holds no ladder: run make bench on a machine with a device")
    machine = run["machine_info"]["fastsgemm"]
    return {
        "date": run["datetime"][:10],
        "device": machine["devices"][0]["name"],
        "driver": machine["driver"],
        "nvrtc": machine["nvrtc"],
        "packages": run["machine_info"]["packages"],
        "ladder": sorted(ladder, key=lambda row: row["number"] or len(ladder)),
        "shapes": of("shapes"),
        "layouts": of("layouts"),
        "random": [{name: row[name] for name in _RANDOM} for row in of("random")],
        "calls": of("host cost"),
        "first": of("first result"),
    }


def ladder_table(data: Data, literature: Data) -> str:
    """Every rung in the order of the ladder, then cuBLAS."""
    published = literature["percent_of_cublas"]
    first = data["ladder"][0]
    head = f"% of cuBLAS, [reference ladder]({literature['source']}) on an {literature['device']}"
    lines = [
        f"{first['M']} x {first['N']} x {first['K']} on {_machine(data)}.",
        "",
        *_header("rung", "ms", "TFLOP/s", "% of cuBLAS", head, "error"),
    ]
    for row in data["ladder"]:
        name = f"{row['number']} {row['name']}" if row["number"] else "cuBLAS"
        theirs = published.get(row["name"], "" if row["number"] else 100.0)  # it ends at rung 8
        percent = "" if row["percent"] is None else f"{row['percent']:.1f}"
        lines.append(_line(name, f"{row['ms']:.3g}", f"{row['tflops']:.1f}", percent, theirs, f"{row['error']:.2e}"))
    return "\n".join(lines)


def shapes_table(data: Data, literature: Data) -> str:
    """`sgemm` beside cuBLAS over many shapes."""
    return "\n".join([f"On {_machine(data)}.", "", *_rows(data["shapes"]), "", _summary(data["shapes"])])


def layouts_table(data: Data, literature: Data) -> str:
    """The same for the four layouts of one problem."""
    return "\n".join([f"On {_machine(data)}.", "", *_rows(data["layouts"])])


def random_text(data: Data, literature: Data) -> str:
    """What is true of all random problems, and the worst of them."""
    rows = sorted(data["random"], key=lambda row: row["percent"])
    if not rows:
        return NOT_MEASURED
    deciles = [f"{rows[len(rows) * tenth // 10]['percent']:.0f}" for tenth in range(1, 10)]
    return "\n".join(
        [
            f"{_summary(rows)} Deciles, in % of cuBLAS's speed: {', '.join(deciles)}. On {_machine(data)}.",
            "",
            f"The {min(_WORST, len(rows))} that lose most:",
            "",
            *_rows(rows[:_WORST]),
        ]
    )


def _rows(rows: Sequence[Data]) -> list[str]:
    heads = ("N", "K", "layout", "rung", "sgemm ms", "cuBLAS ms", "TFLOP/s", "% of cuBLAS", "error / cuBLAS's")
    lines = _header("M", *heads)
    for row in rows:
        rate = 2e-9 * row["M"] * row["N"] * row["K"] / row["ms"]
        extents = (row["M"], row["N"], row["K"], row.get("layout", "NN"), row["rung"])
        times = (f"{row['ms']:.4g}", f"{row['cublas_ms']:.4g}", f"{rate:.3g}", f"{row['percent']:.1f}")
        lines.append(_line(*extents, *times, f"{_of_cublas_error(row):.2f}"))
    return lines


def _of_cublas_error(row: Data) -> float:
    return float(row["error"] / row["cublas_error"]) if row["cublas_error"] else 1.0


def _summary(rows: Sequence[Data]) -> str:
    shares = [row["percent"] / 100 for row in rows]
    errors = [_of_cublas_error(row) for row in rows]
    near, ahead = (sum(share >= least for share in shares) / len(shares) for least in (0.95, 1.0))
    return (
        f"Geometric mean over {len(rows)} problems: {statistics.geometric_mean(shares):.3f} times cuBLAS's speed; "
        f"at least as fast on {ahead:.0%}, at 0.95 or better on {near:.0%}, the least {min(shares):.2f}. "
        f"Error: at most {max(errors):.2f} times cuBLAS's, {statistics.median(errors):.2f} in the median."
    )


def losses_text(data: Data, literature: Data) -> str:
    """One paragraph on the shapes where cuBLAS is faster."""
    compared = data["shapes"]
    lost = sorted((row for row in compared if row["percent"] < 100.0), key=lambda row: row["percent"])
    if not lost:
        return f"On {_machine(data)}, `sgemm` is as fast as cuBLAS or faster on all {len(compared)} shapes tried."
    listed = ", ".join(f"{row['M']} x {row['N']} x {row['K']} ({row['percent']:.0f} %)" for row in lost)
    return (
        f"On {_machine(data)}, cuBLAS is faster on {len(lost)} of the {len(compared)} shapes tried; "
        f"in percent of its speed, `sgemm` reaches: {listed}."
    )


def calls_table(data: Data, literature: Data) -> str:
    """What a call costs the host, and the time to the first result."""
    lines = [f"On {_machine(data)}.", "", *_header("call on 64 x 64 operands", "arrays", "host time, µs")]
    lines += [_line(f"`{row['call']}`", row["kind"], f"{row['us_per_call']:.2f}") for row in data["calls"]]
    lines += ["", *_header("first result in a fresh process", "ms")]
    lines += [_line(f"`{row['first']}`", f"{row['ms']:.0f}") for row in data["first"]]
    return "\n".join(lines)


TABLES: dict[str, Callable[[Data, Data], str]] = {
    "ladder": ladder_table,
    "shapes": shapes_table,
    "layouts": layouts_table,
    "random": random_text,
    "losses": losses_text,
    "calls": calls_table,
}


def counts_texts(counts: Table) -> dict[str, str]:
    """The simulated device's counts: one table, and a paragraph a rung."""
    of_rungs = {f"counts-{row.name}": _counts_of(row) for row in counts.rows}
    return {"counts": f"{counts.heading()}.\n\n{counts.markdown()}"} | of_rungs


def _counts_of(row: Row) -> str:
    traffic = (
        f"sectors: {row.loads_a.sectors_per_request:.3g} a load of A, {row.loads_b.sectors_per_request:.3g} a load of "
        f"B, {row.stores_c.sectors_per_request:.3g} a store of C; "
        f"{(row.loads_a.requests + row.loads_b.requests) / row.fmas:.3g} global loads an FMA"
    )
    shared = "no shared memory"
    if row.shared_loads.requests:
        shared = (
            f"{row.shared_loads.words / row.fmas:.4g} words of shared memory an FMA, in "
            f"{row.shared_loads.requests / row.fmas:.4g} loads; wavefronts: "
            f"{row.shared_loads.wavefronts_per_request:.3g} a load, {row.shared_stores.wavefronts_per_request:.3g} a "
            f"store; {row.barriers:.0f} barriers, {row.shared_bytes} bytes of shared memory"
        )
    held = f"{row.registers} registers, occupancy {row.occupancy:.0%}"
    limit = "" if row.occupancy == 1.0 else f", limited by {row.limited_by}"
    others = f"{row.others_per_fma:.3g} instructions beside each FMA"
    return f"> {Config(**row.constants)}: {traffic}; {shared}; {others}; {held}{limit}."


def sass_texts(sass: Data | None) -> dict[str, str]:
    """The counts of the main loop's machine code, and its listing."""
    if sass is None:
        return {"sass": NOT_DISASSEMBLED, "sass-loop": NOT_DISASSEMBLED}
    lines = [
        f"For {sass['arch']} ({sass['device']}), compiled by NVRTC {sass['nvrtc']}, nvdisasm {sass['nvdisasm']}.",
        "",
        *_header(
            "problem", "instructions", "FFMA", "FFMA share, %", "loads", "copies", "barriers", "others", "`.reuse`"
        ),
    ]
    for row in sass["rows"]:
        share = f"{100 * row['ffma'] / row['instructions']:.1f}"
        loads = _numbers({f"LDS.{bits}": number for bits, number in row["lds"].items()})
        copies, others = _numbers(row["copies"]), sum(row["others"].values())
        cells = (row["instructions"], row["ffma"], share, loads, copies, row["barriers"], others, row["reuse"])
        lines.append(_line(_called(row), *cells))
    lines += ["", *_header("problem", "registers", "spilled bytes", "others", "constants")]
    for row in sass["rows"]:
        constants = Config(**row["constants"])
        lines.append(_line(_called(row), row["registers"], row["spilled_bytes"], _numbers(row["others"]), constants))
    return {"sass": "\n".join(lines), "sass-loop": _listing(sass)}


def _called(row: Data) -> str:
    M, N, K = row["problem"].split(",")[:3]
    return f"{M} x {N} x {K}, {row['layout']}"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def _listing(sass: Data) -> str:
    loop = sass["loop"]
    shown = [line if line.endswith(":") else f"    {line}" for line in loop[:LONGEST]]
    if len(loop) > LONGEST:
        shown.append(f"    ... and {len(loop) - LONGEST} more lines")
    summary = f"<summary>The main loop for {_called(sass['rows'][0])}: {len(loop)} lines</summary>"
    return "\n".join(["<details>", summary, "", "```", *shown, "```", "", "</details>"])


def ncu_texts(ncu: Data | None) -> dict[str, str]:
    """What Nsight Compute says of the FMA pipe."""
    if ncu is None:
        return {"ncu-pipe": NOT_PROFILED}
    rows = ncu["rows"]
    given = [name for name in (PIPE, *rows[0]["metrics"]) if all(name in row["metrics"] for row in rows)]
    pipe = next((name for name in given if "pipe_fma" in name and ".pct_of_peak" in name), None)
    lines = [
        f"{ncu['M']} x {ncu['N']} x {ncu['K']} on one {ncu['device']}, driver {ncu['driver']}, NVRTC {ncu['nvrtc']}, "
        f"Nsight Compute {ncu['ncu']}, {ncu['date']}. FMA pipe: {f'`{pipe}`' if pipe else 'ncu gave no figure'}.",
        "",
        *_header("layout", "FMA pipe, %", "device time, ms", "constants"),
    ]
    for row in rows:
        busy, took = row["metrics"].get(pipe), row["metrics"].get("gpu__time_duration.sum")  # the latter in ns
        cells = "" if busy is None else f"{busy:.1f}", "" if took is None else f"{took / 1e6:.3f}"
        lines.append(_line(row["layout"], *cells, Config(**row["constants"])))
    return {"ncu-pipe": "\n".join(lines)}


def counters_texts(found: Data | None) -> dict[str, str]:
    """The simulated counts beside Nsight Compute's, a line a rung."""
    if found is None:
        return {"counters": NOT_COUNTED}
    problem = found["problem"]
    by_rung: dict[str, dict[str, Data]] = {}
    for row in found["rows"]:
        by_rung.setdefault(row["rung"], {})[row["metric"]] = row
    lines = [
        f"{problem['M']} x {problem['N']} x {problem['K']} on one {found['device']}, driver {found['driver']}, "
        f"{found['date']}. Differences in per cent.",
        "",
        *_header("rung", "largest difference", "store wavefronts", "of the data pipe", "instructions, difference"),
    ]
    for rung, rows in by_rung.items():
        largest = max(abs(row["percent"]) for row in rows.values() if row["gated"])
        stores, repeated = rows["shared store wavefronts"]["sim"], rows[REPEATED]["ncu"]
        more = rows["instructions"]["percent"]
        lines.append(_line(rung, f"{largest:.2f}", f"{stores:.0f}", f"{repeated:.0f}", f"{more:+.2f}"))
    return {"counters": "\n".join(lines)}


def contents(
    data: Data | None, literature: Data, counts: Table, sass: Data | None, ncu: Data | None, counters: Data | None
) -> dict[str, str]:
    """Return what stands in every place, by its name."""
    measured = {name: NOT_MEASURED if data is None else table(data, literature) for name, table in TABLES.items()}
    return measured | counts_texts(counts) | sass_texts(sass) | ncu_texts(ncu) | counters_texts(counters)


def fill(text: str, contents: Mapping[str, str]) -> str:
    """Return `text` with every table that it has a place for."""
    for name, content in contents.items():
        place = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text = place.sub(lambda found, content=content: f"{found[1]}{content}\n{found[2]}", text)  # type: ignore[misc]
    return text


def _machine(data: Data) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in data["packages"].items())
    return f"one {data['device']}, driver {data['driver']}, NVRTC {data['nvrtc']}, {packages}, {data['date']}"


def _header(first: str, *rest: str) -> list[str]:
    return [_line(first, *rest), "|---|" + "---:|" * len(rest)]


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _read(path: Path) -> Data | None:
    """Return the data of a file, or None where there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the program; see the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, help="JSON of make bench")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a table is out of date")
    options = parser.parse_args(arguments)
    kept = root / "docs" / "data" / "benchmarks.json"
    if options.run is not None:
        try:
            reduced = reduce(json.loads(options.run.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            parser.error(f"{options.run}: {error}")
        kept.write_text(json.dumps(reduced, indent=1) + "\n", encoding="utf-8")
    data, sass, ncu, counters = (
        _read(kept.with_name(name)) for name in (kept.name, "sass.json", "ncu.json", "counters.json")
    )
    literature, counts = (
        json.loads((root / "docs" / "data" / name).read_text(encoding="utf-8"))
        for name in ("literature.json", "counts.json")
    )
    texts = contents(data, literature, from_json(counts), sass, ncu, counters)
    stale = []
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        wanted = fill(text, texts)
        if wanted != text:
            stale.append(path.name)
            if not options.check:
                path.write_text(wanted, encoding="utf-8")
    if options.check and stale:
        print(f"out of date: {', '.join(stale)}; run tools/write_tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
