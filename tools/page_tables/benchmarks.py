"""Speed against cuBLAS, the ladder and the cost of calls: tables of a run of ``make bench``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from fastsgemm.measure import speeds
from fastsgemm.measure.comparison import STANDARD_ERRORS
from fastsgemm.measure.environment import in_words
from fastsgemm.measure.problem_sets import SETS, sample_of
from fastsgemm.measure.suite import SCHEMA
from fastsgemm.measure.tables import rung_title
from fastsgemm.problem import LAYOUTS, of_data
from page_tables.markdown import NOT_MEASURED, table
from page_tables.runs import Data, Stored, about, of_each, runs

LARGE = "1 to 300 GFLOP"
UNKNOWN_DEVICE = "sgemm, unknown device"  # its name in tests/benchmarks/test_first_result.py

_KEPT = ("M", "N", "K", "layout", "lda", "ldb", "ldc", "load_bytes", "size", "rung", "rule", "ms", "cublas_ms")
_KEPT += ("percent", "noise", "error", "cublas_error", "test", "batch")  # the fields stored for each problem
_RULES = {"exact": "tuned", "predicted": "predicted", "nearest": "nearest"}  # rule of the choice: name in the tables

_SPEED = ("problems", "number", "tuned", "geometric mean", "at 1.0 or better", "at 0.95 or better", "slowest")


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
        **{name: [{kept: ({"batch": 1} | row)[kept] for kept in _KEPT} for row in of(name)] for name in SETS},
        "calls": of("host cost"),
        "first": of("first result"),
    }


def keep_first_results(data: Data, before: Data) -> None:
    """Keep the times to the first result, with their date, where a run on the same device has none."""
    if not data["first"] and before["device"] == data["device"]:
        data["first"] = [{"date": before["date"]} | row for row in before["first"]]


def ladder_table(run: Data, literature: Data) -> str:
    """Return the ladder's table: the rungs in order, then cuBLAS."""
    published = literature["percent_of_cublas"]
    head = f"% of cuBLAS, [reference ladder]({literature['source']}) on an {literature['device']}"
    lines = []
    for row in run["ladder"]:
        name = rung_title(row["number"], row["name"] if row["number"] else "cuBLAS")
        theirs = published.get(row["name"], "" if row["number"] else 100.0)  # the published ladder ends at rung 8
        percent = "" if row["percent"] is None else f"{row['percent']:.1f}"
        lines.append((name, f"{row['ms']:.3g}", f"{row['tflops']:.1f}", percent, theirs))
    what = f"{_extents(run['ladder'][0])} on one {run['device']}, {run['date']}."
    return f"{what}\n\n{table(('rung', 'ms', 'TFLOP/s', '% of cuBLAS', head), lines)}"


def run_text(run: Data) -> str:
    """Return where and when the run of the tables was made."""
    return f"Unless a table says otherwise, it was measured on {in_words(run)}."


def speed_table(run: Data) -> str:
    """Return the speed relative to cuBLAS by kind of problem."""
    groups = {f"named shapes, {rule}": rows for rule, rows in _by(run["shapes"], _rule, _RULES.values()).items()}
    groups |= {"narrow results, four layouts": run["narrow"], "batches": run.get("batches")}
    groups |= {f"random, {size}": rows for size, rows in _classes(run).items()}
    lines = []
    for name, rows in groups.items():
        if rows:
            found = speeds.summary(speeds.of_rows(rows))
            shares = (f"{found.ahead:.0%}", f"{found.near:.0%}")
            lines.append((name, len(rows), _tuned(rows), f"{found.mean:.2f}", *shares, f"{found.slowest:.2f}"))
    return table(_SPEED, lines)


def _tuned(rows: Sequence[Data]) -> int:
    return sum(_rule(row) == "tuned" for row in rows)


def _classes(run: Data) -> dict[str, list[Data]]:
    """Return the random problems by size class, and those of 1 to 300 GFLOP as one more class."""
    large = {LARGE: run["large"]} if run["large"] else {}
    return _by(run["random"], _size, run["sizes"]) | large


def first_use_text(run: Data) -> str:
    """Return what happens on an unknown device, and how long it took."""
    first = (
        "If the tuning database has no data for the architecture of a device, the first `sgemm` on it tunes the device "
        "once."
    )
    took = next((row["ms"] / 1e3 for row in run["first"] if row["first"] == UNKNOWN_DEVICE), None)
    if took is None:
        return first
    return (
        f"{first} This took {took:.0f} s on one {run['device']}, measured with its records removed from the database."
    )


def shapes_table(run: Data) -> str:
    """Return a line for each named shape, and what sums them up."""
    rows = run["shapes"]
    lines = []
    for row in rows:
        problem, speed = _problem_and_speed(row)
        lines.append((problem, f"{1e-9 * of_data(row).flops / row['ms']:.3g}", speed))
    return f"{table(('problem', 'TFLOP/s', 'speed'), lines)}\n\n{_in_words(rows)}" if rows else NOT_MEASURED


def _problem_and_speed(row: Data) -> tuple[str, str]:
    """Return a problem as a command takes it, with the padding of its lines, and the speed."""
    return str(sample_of(row)), f"{row['percent'] / 100:.2f}"


def layouts_table(run: Data) -> str:
    """Return the speeds of problems that were timed in several layouts, a column a layout."""
    rows = [*run["layouts"], *run["narrow"]]
    lines = []
    for extents, group in _by(rows, _extents, map(_extents, rows)).items():
        of = {row["layout"]: f"{row['percent'] / 100:.2f}" for row in group}
        lines.append((extents, *(of.get(layout, "") for layout in LAYOUTS)))
    return f"{table(('M x N x K', *LAYOUTS), lines)}\n\n{_in_words(rows)}" if rows else NOT_MEASURED


def batches_text(run: Data) -> str:
    """Return what sums up the batches; the slow ones are among the losses."""
    rows = run.get("batches", [])  # a run that was stored before there were batches has none
    return _in_words(rows) if rows else NOT_MEASURED


def random_table(run: Data) -> str:
    """Return the means of the random problems by layout and load width, a column a class."""
    classes = _classes(run)
    if not classes:
        return NOT_MEASURED
    kinds = {layout: ("layout", layout) for layout in LAYOUTS}
    kinds |= {f"loads of {width} bytes": ("load_bytes", width) for width in (4, 8, 16)}
    lines = []
    for name, (field, value) in kinds.items():
        groups = [speeds.of_rows([row for row in rows if row[field] == value]) for rows in classes.values()]
        lines.append((name, *(_mean_and_slowest(group) if group else "" for group in groups)))
    every = [row for rows in classes.values() for row in rows]
    return f"{table(('random problems', *classes), lines)}\n\n{_in_words(every)}"


def _mean_and_slowest(group: Sequence[float]) -> str:
    found = speeds.summary(group)
    return f"{found.mean:.2f} ({found.slowest:.2f})"


def losses_table(run: Data) -> str:
    """Return every problem of every set on which cuBLAS is faster, slowest first."""
    rows = [row for name in SETS for row in run.get(name, [])]
    lost = sorted((row for row in rows if row["percent"] < 100.0), key=lambda row: float(row["percent"]))
    summary = f"<summary>The {len(lost)} of {len(rows)} problems on which cuBLAS is faster, slowest first</summary>"
    lines = ["<details>", summary, "", table(("problem", "speed"), map(_problem_and_speed, lost)), "", "</details>"]
    won = [row for row in rows if row["percent"] > 100.0]
    beyond = (
        f"{_beyond_noise(lost)} of the {len(lost)} losses and {_beyond_noise(won)} of the {len(won)} gains exceed two "
        "standard errors of the measurement."
    )
    return "\n".join([*lines, "", beyond]) if rows else NOT_MEASURED


def _beyond_noise(rows: Sequence[Data]) -> int:
    """Return how many speeds differ from 1 by more than two standard errors."""
    return sum(abs(row["percent"] / 100 - 1) > STANDARD_ERRORS * row["noise"] * row["percent"] / 100 for row in rows)


def sizes_text(run: Data) -> str:
    """Return the definitions of the size classes as a list."""
    return "\n".join(f"- **{size}**: {what}" for size, what in run["sizes"].items())


def _by(rows: Sequence[Data], key: Callable[[Data], str], order: Iterable[str] = ()) -> dict[str, list[Data]]:
    """Group the rows by key. Keys in `order` come first, in that order; the others follow, sorted."""
    groups: dict[str, list[Data]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    wanted = [*order]
    return dict(sorted(groups.items(), key=lambda one: (wanted.index(one[0]) if one[0] in wanted else 99, one[0])))


def _size(row: Data) -> str:
    return str(row["size"])


def _rule(row: Data) -> str:
    return _RULES[row["rule"]]


def _extents(row: Data) -> str:
    return f"{row['M']} x {row['N']} x {row['K']}"


def _in_words(rows: Sequence[Data]) -> str:
    errors = [float(row["error"] / row["cublas_error"]) if row["cublas_error"] else 1.0 for row in rows]
    found = speeds.summary(speeds.of_rows(rows))
    return (
        f"{len(rows)} problems, {_tuned(rows)} tuned: mean {found.mean:.2f}; cuBLAS is faster on {found.lost}, the "
        f"slowest has {found.slowest:.2f}; the error is at most {max(errors):.2f} times that of cuBLAS, in the median "
        f"{statistics.median(errors):.2f} times."
    )


def calls_table(run: Data) -> str:
    """Return the tables of the host time of a call and of the time to the first result."""
    dates = "".join(f", {date}" for date in sorted({row["date"] for row in run["first"] if "date" in row}))
    calls = ((f"`{row['call']}`", row["kind"], f"{row['us_per_call']:.2f}") for row in run["calls"])
    first = ((f"`{row['first']}`", f"{row['ms']:.0f}") for row in run["first"])
    of_calls = table(("call on 64 x 64 operands", "arrays", "host time, µs"), calls)
    return f"{of_calls}\n\n{table((f'first result in a fresh process{dates}', 'ms'), first)}"


_OF_PAGE: dict[str, Callable[[Data], str]] = {
    "run": run_text,
    "first-use": first_use_text,
    "sizes": sizes_text,
    "shapes": shapes_table,
    "layouts": layouts_table,
    "batches": batches_text,
    "random": random_table,
    "calls": calls_table,
}
_OF_EACH: dict[str, Callable[[Data], str]] = {"speed": speed_table, "losses": losses_table}  # of each device


def texts(data: Stored) -> dict[str, str]:
    """Return the tables by name: of the run of the page, and of each device where that matters most."""
    measured = [*runs(data, "benchmarks")]
    if not measured:
        return dict.fromkeys(("ladder", *_OF_PAGE, *_OF_EACH), NOT_MEASURED)
    found = {name: of_run(measured[0]) for name, of_run in _OF_PAGE.items()}
    found |= {name: of_each(measured, of_run) for name, of_run in _OF_EACH.items()}
    return found | {"ladder": ladder_table(measured[0], data["literature"])}
