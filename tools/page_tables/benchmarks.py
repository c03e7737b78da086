"""Speed against cuBLAS, the ladder and the cost of calls: tables of a run of ``make bench``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from fastsgemm.measure.environment import in_words
from fastsgemm.measure.problem_sets import SETS
from fastsgemm.measure.suite import SCHEMA
from fastsgemm.problem import LAYOUTS, Problem, spell
from page_tables.markdown import NOT_MEASURED, Data, about, header, line

LARGE = "1 to 300 GFLOP"
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


def keep_first_results(data: Data, before: Data) -> None:
    """Keep the times to the first result, with their date, where a run on the same device has none."""
    if not data["first"] and before["device"] == data["device"]:
        data["first"] = [{"date": before["date"]} | row for row in before["first"]]


def ladder_table(data: Data) -> str:
    """Return the ladder's table: the rungs in order, then cuBLAS."""
    literature = data["literature"]
    published = literature["percent_of_cublas"]
    first = data["ladder"][0]
    head = f"% of cuBLAS, [reference ladder]({literature['source']}) on an {literature['device']}"
    lines = [
        f"{_extents(first)} on one {data['device']}, {data['date']}.",
        "",
        *header("rung", "ms", "TFLOP/s", "% of cuBLAS", head),
    ]
    for row in data["ladder"]:
        name = f"{row['number']} {row['name']}" if row["number"] else "cuBLAS"
        theirs = published.get(row["name"], "" if row["number"] else 100.0)  # the published ladder ends at rung 8
        percent = "" if row["percent"] is None else f"{row['percent']:.1f}"
        lines.append(line(name, f"{row['ms']:.3g}", f"{row['tflops']:.1f}", percent, theirs))
    return "\n".join(lines)


def run_text(data: Data) -> str:
    """Return where and when the run of the tables was made."""
    return f"Unless a table says otherwise, it was measured on {in_words(data)}."


def speed_table(data: Data) -> str:
    """Return the speed relative to cuBLAS by kind of problem."""
    groups = [(f"named shapes, {rule}", rows) for rule, rows in _by(data["shapes"], _rule, _RULES.values()).items()]
    groups += [("narrow results, four layouts", data["narrow"])] if data["narrow"] else []
    groups += [("batches", data["batches"])] if data.get("batches") else []
    groups += [(f"random, {size}", rows) for size, rows in _classes(data).items()]
    lines = header("problems", "number", "tuned", "geometric mean", "at 1.0 or better", "at 0.95 or better", "slowest")
    for name, rows in groups:
        shares = speeds(rows)
        tuned = sum(_rule(row) == "tuned" for row in rows)
        ahead, near = (sum(share >= least for share in shares) / len(shares) for least in (1.0, 0.95))
        mean, slowest = statistics.geometric_mean(shares), min(shares)
        lines.append(line(name, len(rows), tuned, f"{mean:.2f}", f"{ahead:.0%}", f"{near:.0%}", f"{slowest:.2f}"))
    return "\n".join(lines)


def speeds(rows: Sequence[Data]) -> list[float]:
    """Return the speeds relative to cuBLAS."""
    return [row["percent"] / 100 for row in rows]


def _classes(data: Data) -> dict[str, list[Data]]:
    """Return the random problems by size class, and those of 1 to 300 GFLOP as one more class."""
    large = {LARGE: data["large"]} if data["large"] else {}
    return _by(data["random"], _size, data["sizes"]) | large


def first_use_text(data: Data) -> str:
    """Return what happens on an unknown device, and how long it took."""
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


def shapes_table(data: Data) -> str:
    """Return a line for each named shape, and what sums them up."""
    rows = data["shapes"]
    lines = header("problem", "TFLOP/s", "speed")
    lines += [line(_called(row), f"{_rate(row):.3g}", _speed(row)) for row in rows]
    return "\n".join([*lines, "", _summary(rows)]) if rows else NOT_MEASURED


def layouts_table(data: Data) -> str:
    """Return the speeds of problems that were timed in several layouts, a column a layout."""
    rows = [*data["layouts"], *data["narrow"]]
    lines = header("M x N x K", *LAYOUTS)
    for extents, group in _by(rows, _extents, map(_extents, rows)).items():
        of = {row["layout"]: _speed(row) for row in group}
        lines.append(line(extents, *(of.get(layout, "") for layout in LAYOUTS)))
    return "\n".join([*lines, "", _summary(rows)]) if rows else NOT_MEASURED


def batches_text(data: Data) -> str:
    """Return what sums up the batches; the slow ones are among the losses."""
    rows = data.get("batches", [])  # a run that was stored before there were batches has none
    return _summary(rows) if rows else NOT_MEASURED


def random_table(data: Data) -> str:
    """Return the means of the random problems by layout and load width, a column a class."""
    classes = _classes(data)
    if not classes:
        return NOT_MEASURED
    kinds = [(layout, lambda row, layout=layout: _layout(row) == layout) for layout in LAYOUTS]
    kinds += [(f"loads of {width} bytes", lambda row, width=width: row["load_bytes"] == width) for width in (4, 8, 16)]
    lines = header("random problems", *classes)
    for name, is_of in kinds:
        groups = [speeds([row for row in rows if is_of(row)]) for rows in classes.values()]
        cells = (f"{statistics.geometric_mean(group):.2f} ({min(group):.2f})" if group else "" for group in groups)
        lines.append(line(name, *cells))
    return "\n".join([*lines, "", _summary([row for rows in classes.values() for row in rows])])


def losses_table(data: Data) -> str:
    """Return every problem of every set on which cuBLAS is faster, slowest first."""
    rows = [row for name in SETS for row in data.get(name, [])]
    lost = sorted((row for row in rows if row["percent"] < 100.0), key=lambda row: float(row["percent"]))
    lines = [*header("problem", "speed"), *(line(_called(row), _speed(row)) for row in lost)]
    summary = f"<summary>The {len(lost)} of {len(rows)} problems on which cuBLAS is faster, slowest first</summary>"
    return "\n".join(["<details>", summary, "", *lines, "", "</details>"]) if rows else NOT_MEASURED


def sizes_text(data: Data) -> str:
    """Return the definitions of the size classes as a list."""
    return "\n".join(f"- **{size}**: {what}" for size, what in data["sizes"].items())


def _by(rows: Sequence[Data], key: Callable[[Data], str], order: Iterable[str] = ()) -> dict[str, list[Data]]:
    """Group the rows by key. Keys in `order` come first, in that order; the others follow, sorted."""
    groups: dict[str, list[Data]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    wanted = [*order]
    return dict(sorted(groups.items(), key=lambda one: (wanted.index(one[0]) if one[0] in wanted else 99, one[0])))


def _size(row: Data) -> str:
    return str(row["size"])


def _layout(row: Data) -> str:
    return str(row["layout"])


def _rule(row: Data) -> str:
    return _RULES[row["rule"]]


def _paddings(row: Data) -> tuple[int, ...]:
    """Return the padding between the lines of A, B and C in floats."""
    (a, b), lines = row["layout"], (row["lda"], row["ldb"], row["ldc"])
    shortest = (row["M"] if a == "T" else row["K"], row["K"] if b == "T" else row["N"], row["N"])
    return tuple(padded - dense for padded, dense in zip(lines, shortest, strict=True))


def _padding(row: Data) -> int:
    return sum(_paddings(row))


def _called(row: Data) -> str:
    """Return a problem as a command takes it, with the padding of its lines, if any, as +A+B+C in floats."""
    padding = "".join(f"+{floats}" for floats in _paddings(row)) if _padding(row) else ""
    return spell(Problem(row["M"], row["N"], row["K"], row["layout"], _batch(row))) + padding


def _extents(row: Data) -> str:
    return f"{row['M']} x {row['N']} x {row['K']}"


def _speed(row: Data) -> str:
    return f"{row['percent'] / 100:.2f}"


def _rate(row: Data) -> float:
    return float(2e-9 * row["M"] * row["N"] * row["K"] * _batch(row) / row["ms"])


def _batch(row: Data) -> int:
    """Return the number of products, which a run that was stored before there were batches does not have."""
    return int(row.get("batch", 1))


def _of_cublas_error(row: Data) -> float:
    return float(row["error"] / row["cublas_error"]) if row["cublas_error"] else 1.0


def _summary(rows: Sequence[Data]) -> str:
    errors = [_of_cublas_error(row) for row in rows]
    tuned = sum(_rule(row) == "tuned" for row in rows)
    ratios = speeds(rows)
    mean, lost, slowest = statistics.geometric_mean(ratios), sum(speed < 1.0 for speed in ratios), min(ratios)
    return (
        f"{len(rows)} problems, {tuned} tuned: mean {mean:.2f}; cuBLAS is faster on {lost}, the slowest has "
        f"{slowest:.2f}; the error is at most {max(errors):.2f} times that of cuBLAS, in the median "
        f"{statistics.median(errors):.2f} times."
    )


def calls_table(data: Data) -> str:
    """Return the tables of the host time of a call and of the time to the first result."""
    lines = header("call on 64 x 64 operands", "arrays", "host time, µs")
    lines += [line(f"`{row['call']}`", row["kind"], f"{row['us_per_call']:.2f}") for row in data["calls"]]
    dates = "".join(f", {date}" for date in sorted({row["date"] for row in data["first"] if "date" in row}))
    lines += ["", *header(f"first result in a fresh process{dates}", "ms")]
    lines += [line(f"`{row['first']}`", f"{row['ms']:.0f}") for row in data["first"]]
    return "\n".join(lines)


TABLES: dict[str, Callable[[Data], str]] = {
    "run": run_text,
    "ladder": ladder_table,
    "first-use": first_use_text,
    "sizes": sizes_text,
    "shapes": shapes_table,
    "layouts": layouts_table,
    "batches": batches_text,
    "random": random_table,
    "calls": calls_table,
}
OF_EACH: dict[str, Callable[[Data], str]] = {"speed": speed_table, "losses": losses_table}  # of each device
