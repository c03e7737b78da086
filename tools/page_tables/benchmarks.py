"""Speed against cuBLAS, the ladder and the cost of calls: tables of a run of ``make bench``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from fastsgemm.bench.sets import SETS
from fastsgemm.bench.suite import SCHEMA
from page_tables.markdown import NOT_MEASURED, Data, about, header, line, machine

UNKNOWN_DEVICE = "sgemm, unknown device"  # its name in tests/benchmarks/test_first_result.py

_KEPT = ("M", "N", "K", "layout", "lda", "ldb", "ldc", "load_bytes", "size", "rung", "rule", "ms", "cublas_ms")
_KEPT += ("percent", "noise", "error", "cublas_error", "test")  # the fields stored for each problem
_RULES = {"exact": "tuned", "predicted": "predicted", "nearest": "nearest"}  # rule of the choice: name in the tables


def has_ladder(run: Data) -> bool:
    """Return whether a run has the ladder's benchmarks, which need a device."""
    return any(one["group"].startswith("ladder") for one in run["benchmarks"])


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
    return {
        "schema": SCHEMA,
        **about(run),
        "sizes": run["machine_info"]["sizes"],
        "ladder": sorted(rungs, key=lambda row: row["number"] or len(rungs)),
        **{name: [{kept: row[kept] for kept in _KEPT} | {"batch": _batch(row)} for row in of(name)] for name in SETS},
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
        f"{first['M']} x {first['N']} x {first['K']} on {machine(data)}.",
        "",
        *header("rung", "ms", "TFLOP/s", "% of cuBLAS", head, "error"),
    ]
    for row in data["ladder"]:
        name = f"{row['number']} {row['name']}" if row["number"] else "cuBLAS"
        theirs = published.get(row["name"], "" if row["number"] else 100.0)  # the published ladder ends at rung 8
        percent = "" if row["percent"] is None else f"{row['percent']:.1f}"
        lines.append(line(name, f"{row['ms']:.3g}", f"{row['tflops']:.1f}", percent, theirs, f"{row['error']:.2e}"))
    return "\n".join(lines)


def speed_table(data: Data) -> str:
    """Return the speed relative to cuBLAS by kind of problem, and the tuning time on an unknown device."""
    groups = [(f"named shapes, {rule}", rows) for rule, rows in _by(data["shapes"], _rule, _RULES.values()).items()]
    groups += [("narrow results, four layouts", data["narrow"])] if data["narrow"] else []
    groups += [("batches", data["batches"])] if data.get("batches") else []
    groups += [(f"random, {size}", rows) for size, rows in _by(data["random"], _size, data["sizes"]).items()]
    groups += [(f"random, 1 to 300 GFLOP, {layout}", rows) for layout, rows in _by(data["large"], _layout).items()]
    return "\n".join(
        [
            f"Speed of `sgemm` relative to cuBLAS FP32 (above 1: `sgemm` is faster), on {machine(data)}:",
            "",
            *_aggregates("problems", groups),
            "",
            _wait_text(data),
        ]
    )


def _wait_text(data: Data) -> str:
    first = (
        "If the tuning database has no data for the architecture of a device, the first `sgemm` on it tunes the device "
        "once."
    )
    took = next((row["ms"] / 1e3 for row in data["first"] if row["first"] == UNKNOWN_DEVICE), None)
    if took is None:
        return first
    return (
        f"{first} This took {took:.0f} s on one {data['device']}, measured with its records removed from the database."
    )


def set_text(name: str) -> Callable[[Data], str]:
    """Return the function that writes the table of a set, one line a problem."""

    def table(data: Data) -> str:
        rows = data.get(name)  # a run that was stored before a set was added has none of it
        return "\n".join([f"On {machine(data)}.", "", *_rows(rows), "", _summary(rows)]) if rows else NOT_MEASURED

    return table


def random_text(name: str) -> Callable[[Data], str]:
    """Return the function that writes a random set: means by size class, layout and load width, then every loss."""

    def text(data: Data) -> str:
        rows = data[name]
        if not rows:
            return NOT_MEASURED
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
                f"{_summary(rows)} On {machine(data)}.",
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
    lines = header(head, "number", "tuned", "geometric mean", "at 1.0 or better", "at 0.95 or better", "slowest")
    for name, rows in groups:
        shares = [row["percent"] / 100 for row in rows]
        tuned = sum(_rule(row) == "tuned" for row in rows)
        ahead, near = (sum(share >= least for share in shares) / len(shares) for least in (1.0, 0.95))
        mean, slowest = statistics.geometric_mean(shares), min(shares)
        lines.append(line(name, len(rows), tuned, f"{mean:.2f}", f"{ahead:.0%}", f"{near:.0%}", f"{slowest:.2f}"))
    return lines


def _rows(rows: Sequence[Data]) -> list[str]:
    of_batches = any(_batch(row) > 1 for row in rows)
    heads = ("rung", "config", "size class", "sgemm ms", "cuBLAS ms", "TFLOP/s", "% of cuBLAS", "error / cuBLAS's")
    lines = header("M", "N", "K", "layout", *(("batch",) if of_batches else ()), "lda, ldb, ldc", *heads)
    for row in rows:
        rate = 2e-9 * row["M"] * row["N"] * row["K"] * _batch(row) / row["ms"]
        leading = f"{row['lda']}, {row['ldb']}, {row['ldc']}" if _padding(row) else "dense"
        batch = (f"{_batch(row)}",) if of_batches else ()
        what = (row["M"], row["N"], row["K"], row["layout"], *batch, leading, row["rung"], _rule(row), row["size"])
        times = (f"{row['ms']:.4g}", f"{row['cublas_ms']:.4g}", f"{rate:.3g}", f"{row['percent']:.1f}")
        lines.append(line(*what, *times, f"{_of_cublas_error(row):.2f}"))
    return lines


def _batch(row: Data) -> int:
    """Return the number of products, which a run that was stored before there were batches does not have."""
    return int(row.get("batch", 1))


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
    lines = [f"On {machine(data)}.", "", *header("call on 64 x 64 operands", "arrays", "host time, µs")]
    lines += [line(f"`{row['call']}`", row["kind"], f"{row['us_per_call']:.2f}") for row in data["calls"]]
    lines += ["", *header("first result in a fresh process", "ms")]
    lines += [line(f"`{row['first']}`", f"{row['ms']:.0f}") for row in data["first"]]
    return "\n".join(lines)


TABLES: dict[str, Callable[[Data], str]] = {
    "ladder": ladder_table,
    "speed": speed_table,
    "sizes": sizes_text,
    "shapes": set_text("shapes"),
    "layouts": set_text("layouts"),
    "narrow": set_text("narrow"),
    "batches": set_text("batches"),
    "random": random_text("random"),
    "large": random_text("large"),
    "calls": calls_table,
}
