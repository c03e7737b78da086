"""The measured ratios from which times beside cuBLAS are predicted, and how far such predictions are from measurements.

The ratios are those of the stored runs of ``make bench``; docs/data/ratios.json is shipped with the package.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator

from fastsgemm import known_devices
from fastsgemm.device import info_of
from fastsgemm.geometry import variants
from fastsgemm.measure import prediction
from fastsgemm.measure.problem_sets import SETS
from fastsgemm.problem import format_problem, of_data
from fastsgemm.rungs import PRECISIONS
from page_tables.markdown import NOT_MEASURED, table
from page_tables.runs import Data, Stored, runs

_LIMITS = ("host", "device")  # of programs whose time on the device is not merely bounded
_NOISE = (
    0.02  # if PyTorch's own products take more than so much longer a second time, a time on the device is not known
)


def ratios(data: Stored) -> str:
    """Return the text of docs/data/ratios.json."""
    of_devices = {run["device"]: _ratios(run) for run in runs(data, "benchmarks")}
    calls = [program for name, program in sorted((data.get("pytorch") or {}).items()) if name.startswith("calls on ")]
    host = calls[-1] if calls else {"steps": []}
    us = [_host_us(step) for step in host["steps"] if "passed on" not in step["step"]]
    where = f"one {host['device']}, {host['date']}" if calls else ""
    return json.dumps({"runs": of_devices, "host": where, "host_us": us}, indent=1) + "\n"


def _ratios(run: Data) -> Data:
    rows = [row for name in SETS for row in run.get(name, ())]
    by_problem = {
        format_problem(variants.dense_call(of_data(row)).problem): round(row["ms"] / row["cublas_ms"], 4)
        for row in rows
    }
    return {"date": run["date"], "ratios": by_problem}


def _host_us(step: Data) -> float:
    """Return the microseconds that a call takes less with the switch than with PyTorch's own products."""
    us = step["step_us"]
    return round((statistics.mean((us["PyTorch"], us["null"])) - us["ieee"]) / step["products"], 1)


def texts(data: Stored) -> dict[str, str]:
    """Return the text of every table by its name."""
    return {
        "prediction-sizes": _of_sizes(data) or NOT_MEASURED,
        "prediction-programs": _of_programs(data) or "*Not measured yet: see `tests/benchmarks/programs/sizes.py`.*",
    }


def _of_sizes(data: Stored) -> str:
    """Return a table of measured problems, each predicted from the others, by kind and device."""
    rows = []
    for run in runs(data, "benchmarks"):
        known = _ratios(run)["ratios"]
        if len(known) <= prediction.NEAREST:  # too few to predict one from the others
            continue
        kinds = {size: [row for row in run["random"] if row["size"] == size] for size in run["sizes"]}
        kinds |= {"1 to 300 GFLOP": run["large"], "narrow results": run["narrow"], "batches": run["batches"]}
        for kind, of_kind in ((kind, of_kind) for kind, of_kind in kinds.items() if of_kind):
            errors, within = zip(*(_held_out(row, known) for row in of_kind), strict=True)
            means = (f"{statistics.mean(column):.0%}" for column in (errors, within))
            rows.append((kind, run["device"], len(of_kind), *means))
    return table(("problems", "device", "number", "mean error", "in the range"), rows, text=("device",)) if rows else ""


def _held_out(row: Data, known: dict[str, float]) -> tuple[float, bool]:
    """Return the error of a ratio predicted from all other problems, and whether what was measured is in its range."""
    problem = variants.dense_call(of_data(row)).problem
    spread, _ = prediction.nearest(problem, {k: ratio for k, ratio in known.items() if k != format_problem(problem)})
    measured = row["ms"] / row["cublas_ms"]
    return abs(spread.median / measured - 1), spread.low <= measured <= spread.high


def _of_programs(data: Stored) -> str:
    """Return a table of the programs whose time on the device is known: a step as measured and as predicted."""
    rows, errors, within = [], [], []
    for run, case in _cases(data):
        calls = data.get("program_sizes", {}).get(case["what"], {})
        if not _is_known(case) or sum(calls.values()) != case["calls"]["ieee"]:
            continue
        predicted = prediction.predict(info_of(known_devices.find(run["device"])), calls.items())
        step, cells = case["device_ms"], []
        for name in PRECISIONS:
            measured, (low, median, high) = step[name] / step["PyTorch"], _step(predicted, name, step["PyTorch"])
            errors.append(abs(median - measured))
            within.append(low <= measured <= high)
            cells += [f"{measured:.2f}", f"{median:.2f} ({low:.2f} to {high:.2f})"]
        rows.append((case["what"], f"{step['PyTorch']:.2f}", *cells))
    if not rows:
        return ""
    heads = ("program", "PyTorch, ms", *(f"{name}{part}" for name in PRECISIONS for part in ("", ", predicted")))
    return (
        f"{table(heads, rows)}\n\nIn these {len(rows)} programs the median error of a prediction is "
        f"{statistics.median(errors):.2f} of a step, the mean {statistics.mean(errors):.2f} and the largest "
        f"{max(errors):.2f}; {statistics.mean(within):.0%} of the measured times are in the range."
    )


def _cases(data: Stored) -> Iterator[tuple[Data, Data]]:
    """Yield the cases of all programs, each with its run."""
    for run in (data.get("pytorch") or {}).values():
        yield from ((run, case) for case in run.get("cases", ()))


def _is_known(case: Data) -> bool:
    """Return whether a case has a time on the device, and one that a second measurement confirms."""
    step = case.get("device_ms") or {"PyTorch": 1.0, "null": 0.0}
    return case.get("limit") in _LIMITS and abs(step["null"] / step["PyTorch"] - 1) <= _NOISE


def _step(predicted: prediction.Prediction, precision: str, ms: float) -> prediction.Spread:
    """Return the predicted time of a step relative to that with cuBLAS, `ms`, whose products alone change."""
    ours = predicted.ms(precision)
    assert ours is not None  # these devices have times
    return prediction.Spread(*(1 - (cublas - ours) / ms for cublas in reversed(predicted.cublas_ms)))
