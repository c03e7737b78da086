#!/usr/bin/env python3
"""Write the tables of README.md and docs/ from the JSON files of docs/data.

    tools/write_tables.py build/benchmarks.json   first update docs/data/benchmarks.json from a run of make bench
    tools/write_tables.py                         write all tables
    tools/write_tables.py --check                 write nothing; exit 1 if a table differs from its data

A table stands between <!-- NAME:begin --> and <!-- NAME:end -->. Do not edit it by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_tables

from fastsgemm.config import PipelinedConfig
from fastsgemm.ladder.simulated import Row, Table, from_json
from fastsgemm.rungs import find

ROOT = Path(__file__).resolve().parent.parent
NOT_MEASURED = "*Not measured yet: run `make bench` and then `make tables` on a machine with a device.*"
NOT_DISASSEMBLED = "*Not written yet: run `make sass`, which needs NVRTC and nvdisasm, and no device.*"
NOT_PROFILED = (
    "*Not measured yet: run `tools/ncu_pipe.py` and then `tools/write_tables.py` on a machine with a device.*"
)
NOT_COUNTED = (
    "*Not measured yet: run `tests/sim/ncu_counters.py --json docs/data/counters.json` on a machine with a device.*"
)
NOT_ATTACKED = "*Not counted yet: run `make hostile`.*"
LONGEST = 700  # lines of SASS that the page shows at most
REPEATED = "of stores, with repeats"  # the metric's name in tests/sim/ncu_counters.py
# Preferred; if ncu did not report it, the page shows the first FMA pipe metric that it did.
PIPE = "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"

SETS = (
    "shapes",
    "layouts",
    "narrow",
    "squares",
    "random",
    "large",
)  # benchmark groups of tests/benchmarks/test_shapes.py
UNKNOWN_DEVICE = "sgemm, unknown device"  # its name in tests/benchmarks/test_first_result.py

_KEPT = ("M", "N", "K", "layout", "lda", "ldb", "ldc", "load_bytes", "size", "rung", "rule", "ms", "cublas_ms")
_KEPT += ("percent", "noise", "error", "cublas_error", "test")  # the fields stored for each problem
_RULES = {"exact": "tuned", "predicted": "predicted", "nearest": "nearest"}  # rule of the choice: name in the tables

Data = dict[str, Any]


def reduce(run: Data, ladder: bool = True) -> Data:
    """Extract the data of the tables from pytest-benchmark's JSON.

    Parameters
    ----------
    run : dict
        The parsed JSON.
    ladder : bool
        Whether a run without the ladder's benchmarks is an error.

    Raises
    ------
    ValueError
        The run has no ladder because it was made without a device.
    """

    def of(group: str) -> list[Data]:
        return [
            one["extra_info"] | {"test": one["fullname"]} for one in run["benchmarks"] if one["group"].startswith(group)
        ]

    rungs = of("ladder")
    if ladder and not rungs:
        raise ValueError("the run has no ladder: run make bench on a machine with a device")
    machine = run["machine_info"]["fastsgemm"]
    return {
        "date": run["datetime"][:10],
        "device": (machine.get("devices") or machine["devices"])[0]["name"],
        "driver": machine["driver"],
        "nvrtc": machine["nvrtc"],
        "packages": run["machine_info"]["packages"],
        "sizes": run["machine_info"]["sizes"],
        "ladder": sorted(rungs, key=lambda row: row["number"] or len(rungs)),
        **{name: [{kept: row[kept] for kept in _KEPT} for row in of(name)] for name in SETS},
        "calls": of("host cost"),
        "first": of("first result"),
    }


def ladder_table(data: Data) -> str:
    """Return the ladder's table: the rungs in order, then cuBLAS."""
    literature = data["literature"]
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
        theirs = published.get(row["name"], "" if row["number"] else 100.0)  # the published ladder ends at rung 8
        percent = "" if row["percent"] is None else f"{row['percent']:.1f}"
        lines.append(_line(name, f"{row['ms']:.3g}", f"{row['tflops']:.1f}", percent, theirs, f"{row['error']:.2e}"))
    return "\n".join(lines)


def speed_table(data: Data) -> str:
    """Return the speed relative to cuBLAS by kind of problem, and the tuning time on an unknown device."""
    groups = [(f"named shapes, {rule}", rows) for rule, rows in _by(data["shapes"], _rule, _RULES.values()).items()]
    groups += [("narrow results, four layouts", data["narrow"])] if data["narrow"] else []
    groups += [(f"random, {size}", rows) for size, rows in _by(data["random"], _size, data["sizes"]).items()]
    groups += [(f"random, 1 to 300 GFLOP, {layout}", rows) for layout, rows in _by(data["large"], _layout).items()]
    missing = [] if data["large"] else ["", _trial_text(data["trial"])]
    return "\n".join(
        [
            f"Speed of `sgemm` relative to cuBLAS FP32 (above 1: `sgemm` is faster), on {_machine(data)}:",
            "",
            *_aggregates("problems", groups),
            *missing,
            "",
            _wait_text(data),
        ]
    )


def _trial_text(trial: Data) -> str:
    """Return the trial's figures for large problems, which stand in until the benchmark has measured some."""
    large, narrow, dot = trial["large"], trial["narrow"], trial["dot_product"]
    layouts = ", ".join(f"{layout} {mean:.2f}" for layout, mean in large["layouts"].items())
    return (
        f"This run did not measure large problems. An earlier trial did (revision {trial['revision']}, "
        f"{trial['date']}, one {trial['device']}): on {large['count']} random problems of {large['least_gflop']} to "
        f"{large['most_gflop']} GFLOP the geometric mean was {large['geometric_mean']:.2f} ({layouts}). cuBLAS was "
        f"faster on {large['lost']} of them; the slowest reached {large['slowest']:.2f}. Narrow results with A "
        f"transposed, or with B contiguous along K, reached {narrow['slowest']:.2f} to {narrow['fastest']:.2f}. A dot "
        f"product of length {dot['K']:,} reached {dot['speed']:.2f}."
    )


def _wait_text(data: Data) -> str:
    measured = next((row["ms"] / 1e3 for row in data["first"] if row["first"] == UNKNOWN_DEVICE), None)
    took = (
        f"{measured:.0f} s on one {data['device']}, measured with its records removed from the database"
        if measured is not None
        else f"about {data['trial']['unknown_device_seconds']} s in the trial"
    )
    return (
        "If the tuning database has no data for the architecture of a device, the first `sgemm` on it tunes the device "
        f"once. This took {took}."
    )


def set_text(name: str) -> Callable[[Data], str]:
    """Return the function that writes the table of a set, one line a problem."""

    def table(data: Data) -> str:
        rows = data[name]
        return "\n".join([f"On {_machine(data)}.", "", *_rows(rows), "", _summary(rows)]) if rows else NOT_MEASURED

    return table


def random_text(name: str) -> Callable[[Data], str]:
    """Return the function that writes a random set: means by size class, layout and load width, then every loss."""

    def text(data: Data) -> str:
        rows = data[name]
        if not rows:
            return f"{NOT_MEASURED} {_trial_text(data['trial'])}"
        groups = [
            (f"{size}, {layout}", found)
            for size, of_size in _by(rows, _size, data["sizes"]).items()
            for layout, found in [("all layouts", of_size), *_by(of_size, _layout).items()]
        ]
        groups += [(f"loads of {width} bytes", found) for width, found in _by(rows, _load_bytes).items()]
        groups += [(f"lines {how}", found) for how, found in _by(rows, _lines).items()]
        lost = sorted((row for row in rows if row["percent"] < 100.0), key=lambda row: float(row["percent"]))
        return "\n".join(
            [
                f"{_summary(rows)} On {_machine(data)}.",
                "",
                *_aggregates("problems", groups),
                "",
                "<details>",
                f"<summary>The {len(lost)} of {len(rows)} problems on which cuBLAS is faster, slowest first</summary>",
                "",
                *_rows(lost),
                "",
                "</details>",
            ]
        )

    return text


def sizes_text(data: Data) -> str:
    """Return the definitions of the size classes as a list."""
    return "\n".join(f"- **{size}**: {what}" for size, what in data["sizes"].items())


def _by(rows: Sequence[Data], key: Callable[[Data], str], order: Iterable[str] = ()) -> dict[str, list[Data]]:
    """Group the rows by key. Keys in `order` come first, in that order; the others follow, sorted."""
    found: dict[str, list[Data]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    wanted = [*order]
    return dict(sorted(found.items(), key=lambda one: (wanted.index(one[0]) if one[0] in wanted else 99, one[0])))


def _size(row: Data) -> str:
    return str(row["size"])


def _layout(row: Data) -> str:
    return str(row["layout"])


def _rule(row: Data) -> str:
    return _RULES[row["rule"]]


def _load_bytes(row: Data) -> str:
    return f"{row['load_bytes']:2}"


def _lines(row: Data) -> str:
    return "padded" if _padding(row) else "dense"


def _padding(row: Data) -> int:
    """Return the padding between the lines of A, B and C in floats, summed over the three."""
    (a, b), lines = row["layout"], (row["lda"], row["ldb"], row["ldc"])
    shortest = (row["M"] if a == "T" else row["K"], row["K"] if b == "T" else row["N"], row["N"])
    return int(sum(lines) - sum(shortest))


def _aggregates(head: str, groups: Sequence[tuple[str, Sequence[Data]]]) -> list[str]:
    lines = _header(head, "number", "tuned", "geometric mean", "at 1.0 or better", "at 0.95 or better", "slowest")
    for name, rows in groups:
        shares = [row["percent"] / 100 for row in rows]
        tuned = sum(_rule(row) == "tuned" for row in rows)
        ahead, near = (sum(share >= least for share in shares) / len(shares) for least in (1.0, 0.95))
        mean, slowest = statistics.geometric_mean(shares), min(shares)
        lines.append(_line(name, len(rows), tuned, f"{mean:.2f}", f"{ahead:.0%}", f"{near:.0%}", f"{slowest:.2f}"))
    return lines


def _rows(rows: Sequence[Data]) -> list[str]:
    heads = ("N", "K", "layout", "lda, ldb, ldc", "rung", "config", "size class", "sgemm ms", "cuBLAS ms", "TFLOP/s")
    lines = _header("M", *heads, "% of cuBLAS", "error / cuBLAS's")
    for row in rows:
        rate = 2e-9 * row["M"] * row["N"] * row["K"] / row["ms"]
        leading = f"{row['lda']}, {row['ldb']}, {row['ldc']}" if _padding(row) else "dense"
        what = (row["M"], row["N"], row["K"], row["layout"], leading, row["rung"], _rule(row), row["size"])
        times = (f"{row['ms']:.4g}", f"{row['cublas_ms']:.4g}", f"{rate:.3g}", f"{row['percent']:.1f}")
        lines.append(_line(*what, *times, f"{_of_cublas_error(row):.2f}"))
    return lines


def _of_cublas_error(row: Data) -> float:
    return float(row["error"] / row["cublas_error"]) if row["cublas_error"] else 1.0


def _summary(rows: Sequence[Data]) -> str:
    shares = [row["percent"] / 100 for row in rows]
    errors = [_of_cublas_error(row) for row in rows]
    tuned = sum(_rule(row) == "tuned" for row in rows)
    lost = sum(share < 1.0 for share in shares)
    padded = sum(_padding(row) > 0 for row in rows)
    return (
        f"{len(rows)} problems ({', '.join(_by(rows, _layout))}; {tuned} tuned; {padded} with padded lines). Geometric "
        f"mean {statistics.geometric_mean(shares):.3f} times the speed of cuBLAS; cuBLAS is faster on {lost}; slowest "
        f"{min(shares):.2f}. The error is at most {max(errors):.2f} times that of cuBLAS, in the median "
        f"{statistics.median(errors):.2f} times."
    )


def calls_table(data: Data) -> str:
    """Return the tables of the host time of a call and of the time to the first result."""
    lines = [f"On {_machine(data)}.", "", *_header("call on 64 x 64 operands", "arrays", "host time, µs")]
    lines += [_line(f"`{row['call']}`", row["kind"], f"{row['us_per_call']:.2f}") for row in data["calls"]]
    lines += ["", *_header("first result in a fresh process", "ms")]
    lines += [_line(f"`{row['first']}`", f"{row['ms']:.0f}") for row in data["first"]]
    return "\n".join(lines)


TABLES: dict[str, Callable[[Data], str]] = {
    "ladder": ladder_table,
    "speed": speed_table,
    "sizes": sizes_text,
    "shapes": set_text("shapes"),
    "layouts": set_text("layouts"),
    "narrow": set_text("narrow"),
    "random": random_text("random"),
    "large": random_text("large"),
    "calls": calls_table,
}


def counts_texts(counts: Table) -> dict[str, str]:
    """Return the simulated device's counts: one table, and a line for each rung."""
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
    return f"> {find(row.name).config(**row.constants)}: {traffic}; {shared}; {others}; {held}{limit}."


def sass_texts(sass: Data | None) -> dict[str, str]:
    """Return the instruction counts of the main loop, and its listing."""
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
        constants = PipelinedConfig(**row["constants"])
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
    """Return Nsight Compute's figures for the FMA pipe."""
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
        lines.append(_line(row["layout"], *cells, PipelinedConfig(**row["constants"])))
    return {"ncu-pipe": "\n".join(lines)}


def counters_texts(found: Data | None) -> dict[str, str]:
    """Return the simulated counts beside those of Nsight Compute, one line a rung."""
    if found is None:
        return {"counters": NOT_COUNTED}
    problem = found["problem"]
    by_rung: dict[str, dict[str, Data]] = {}
    for row in found["rows"]:
        by_rung.setdefault(row["rung"], {})[row["metric"]] = row
    lines = [
        f"{problem['M']} x {problem['N']} x {problem['K']} on one {found['device']}, driver {found['driver']}, "
        f"{found['date']}. Differences in percent.",
        "",
        *_header("rung", "largest difference", "store wavefronts", "of the data pipe", "instructions, difference"),
    ]
    for rung, rows in by_rung.items():
        largest = max(abs(row["percent"]) for row in rows.values() if row["gated"])
        stores, repeated = rows["shared store wavefronts"]["sim"], rows[REPEATED]["ncu"]
        more = rows["instructions"]["percent"]
        lines.append(_line(rung, f"{largest:.2f}", f"{stores:.0f}", f"{repeated:.0f}", f"{more:+.2f}"))
    return {"counters": "\n".join(lines)}


def hostile_texts(tried: Mapping[str, int] | None) -> dict[str, str]:
    """Return how many inputs of each kind the hostile tests tried."""
    if tried is None:
        return {"hostile": NOT_ATTACKED}
    rows = [_line(attack, f"{count:,}") for attack, count in sorted(tried.items())]
    return {"hostile": "\n".join([*_header("attack", "times tried"), *rows])}


def generic_texts(found: Data) -> dict[str, str]:
    """Return what is known of the generic records on devices that nobody has measured."""
    heads = ("device", "architecture", "registers", "spilled bytes", "blocks an SM", "warps an SM")
    lines = [
        f"Compiled by NVRTC {found['nvrtc']}; counted on the simulated device.",
        "",
        *_header("rung", *heads, "FMAs a wavefront", "needed", "quick candidates"),
    ]
    for row in found["rows"]:
        cells = (
            row["device"],
            row["arch"],
            row["registers"],
            row["spilled"],
            row["blocks_per_sm"],
            row["warps_per_sm"],
        )
        counted = (f"{row['fmas_per_wavefront']:.1f}", row["fmas_per_cycle"] // 32, row["quick_candidates"])
        lines.append(_line(row["rung"], *cells, *counted))
    return {"generic-records": "\n".join(lines)}


def contents(
    data: Data | None,
    counts: Table,
    sass: Data | None,
    ncu: Data | None,
    counters: Data | None,
    hostile: Data | None,
    generic: Data | None = None,
) -> dict[str, str]:
    """Return the text of every table by its name."""
    measured = {name: NOT_MEASURED if data is None else table(data) for name, table in TABLES.items()}
    counted = counts_texts(counts) | counters_texts(counters) | hostile_texts(hostile)
    return measured | counted | sass_texts(sass) | ncu_texts(ncu) | (generic_texts(generic) if generic else {})


def fill(text: str, contents: Mapping[str, str]) -> str:
    """Return `text` with the tables put between their markers."""
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
    """Return the data of a file, or None if the file does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, help="JSON of make bench")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a table is out of date")
    options = parser.parse_args(arguments)
    kept = root / "docs" / "data" / "benchmarks.json"
    if options.run is not None:
        try:
            reduced = reduce(json.loads(options.run.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            parser.error(f"{options.run}: {error}")
        kept.write_text(json.dumps(reduced, indent=1) + "\n", encoding="utf-8")
    data, sass, ncu, counters, hostile, generic = (
        _read(kept.with_name(f"{name}.json"))
        for name in ("benchmarks", "sass", "ncu", "counters", "hostile", "generic_records")
    )
    literature, trial, counts = (
        json.loads(kept.with_name(f"{name}.json").read_text(encoding="utf-8"))
        for name in ("literature", "trial", "counts")
    )
    measured = None if data is None else data | {"literature": literature, "trial": trial}
    texts = contents(measured, from_json(counts), sass, ncu, counters, hostile, generic)
    texts |= pytorch_tables.texts(_read(kept.with_name("pytorch.json")))
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
