"""Merge the content of tuning files and write it as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import structs

from fastsgemm import private_files, rungs
from fastsgemm.heuristics.curve_fit import numbers_of
from fastsgemm.heuristics.database_entries import (
    SCHEMA,
    Candidate,
    Content,
    Curve,
    CurveNumbers,
    Points,
    Record,
    Tools,
    tflops,
)
from fastsgemm.problem import Problem, as_data

_FILE_MODE = (
    0o644  # an exported file is for others to read; the user's own are in a folder that only the user can enter
)


def merged(old: Content, new: Content) -> Content:
    """Return `old` with the results of `new` in it.

    A new record takes the place of the old one for its device, rung and problem; new curves take the place of all old
    ones for their device, rung and order of summation, because only curves of one run are compared with each other.
    """
    fresh = {record.place for record in new.records}
    retuned = {_curve_order(curve) for curve in new.curves}
    return Content(
        old.arch,
        old.shared_limit or new.shared_limit,
        (*(record for record in old.records if record.place not in fresh), *new.records),
        (*(curve for curve in old.curves if _curve_order(curve) not in retuned), *new.curves),
        tuple(dict.fromkeys((*old.unread, *new.unread))),
    )


def write(path: Path, content: Content) -> None:
    """Write a file in one step."""
    private_files.replace(path, dumps(content).encode(), _FILE_MODE)


def dumps(content: Content) -> str:
    """Return `content` as a file has it: a header, a line a record and a line a curve, then what could not be read."""
    header = {"schema": SCHEMA, "arch": content.arch, "shared_limit": content.shared_limit}
    parts = [json.dumps(header)[:-1]]
    for key, numbers in (("fitted", content.fitted), ("search_limits", content.search_limits)):
        if numbers is not None:
            parts.append(f'"{key}": {json.dumps(structs.asdict(numbers))}')
    parts += [f"{json.dumps(one.key)}: {one.text}" for one in content.unread if one.key not in ("records", "curves")]
    records = [json.dumps(_record_line(record)) for record in sorted(content.records, key=_order)]
    curves = [json.dumps(_curve_line(curve)) for curve in sorted(content.curves, key=_curve_order)]
    for key, lines in (("records", records), ("curves", curves)):
        lines += [one.text for one in content.unread if one.key == key]
        parts.append(f'"{key}": ' + ("[\n" + ",\n".join(lines) + "\n]" if lines else "[]"))
    listed = [json.dumps(_candidate_line(one)) for one in content.candidates]
    if listed:
        parts.append('"candidates": [\n' + ",\n".join(listed) + "\n]")
    return ",\n".join(parts) + "}\n"


def _candidate_line(one: Candidate) -> dict[str, Any]:
    return {"space": one.space, "rung": one.rung, "use": one.use, "constants": one.config.constants}


def _order(record: Record) -> tuple[Any, ...]:
    p = record.problem
    extents = (p.layout, p.M * p.N * p.K, p.M, p.N, p.batch) if p else ()
    return (rungs.find(record.rung).number, record.rung, record.config.segment, record.device or "", *extents)


def _curve_order(curve: Curve) -> tuple[Any, ...]:
    """Return a sort key. Curves of one rung, order and device stay in their order, the most useful config first."""
    return (rungs.find(curve.rung).number, curve.rung, curve.config.segment, curve.device)


def _record_line(record: Record) -> dict[str, Any]:
    p = record.problem
    line: dict[str, Any] = {
        "rung": record.rung,
        "device": record.device,
        "problem": None if p is None else _problem_line(p),
        "constants": record.config.constants,
        "origin": record.origin,
    }
    if record.ms is None or record.tools is None or p is None:
        return line | {"source": record.source}
    return line | {
        "ms": _rounded(record.ms),
        "tflops": _rounded(tflops(p, _rounded(record.ms))),  # so that reading and writing changes nothing
        "cublas_ratio": None if record.cublas_ratio is None else round(record.cublas_ratio, 4),
        **_tools_line(record.tools),
    }


def _problem_line(problem: Problem) -> dict[str, Any]:
    """Return the fields of a problem, the batch only where there is one, so that older versions can read the others."""
    return {name: value for name, value in as_data(problem).items() if name != "batch" or value > 1}


def _curve_line(curve: Curve) -> dict[str, Any]:
    points: dict[str, list[list[float]]] = {}
    for point in curve.points:
        p = point.problem
        points.setdefault(p.layout, []).append([p.M, p.N, p.K, _rounded(point.ms)])
    numbers, costs = _numbers(curve, points), [round(cost, 3) for cost in curve.accumulators_cost]
    return {
        "rung": curve.rung,
        "device": curve.device,
        "multiprocessors": curve.multiprocessors,
        "constants": curve.config.constants,
        "blocks_per_sm": curve.blocks_per_sm,
        "calibration": round(curve.calibration, 3),
        "accumulators_cost": costs if len({*costs}) > 1 else costs[0],
        "points": points,
        **({} if numbers is None else {"numbers": _numbers_line(numbers)}),
        **_tools_line(curve.tools),
    }


def _numbers_line(numbers: CurveNumbers) -> list[Any]:
    """Return the numbers as a file has them: in their order, and a straight line without a bend."""
    straight = [[line[: 4 if line.bend else 2] for line in lines] for lines in numbers.lines]
    return [*structs.astuple(structs.replace(numbers, lines=straight))]


def _numbers(curve: Curve, points: dict[str, list[Any]]) -> CurveNumbers | None:
    """Return the numbers of a curve with these points, which are rounded, or None if they are too few.

    Only curves of the default rungs have them, because only a first call that names no rung must not wait for a fit.
    """
    if rungs.find(curve.rung) not in rungs.DEFAULTS:
        return None
    try:
        return numbers_of(structs.replace(curve, points=Points(lambda: points)))
    except ValueError:
        return None


def _tools_line(tools: Tools) -> dict[str, str]:
    return {"driver": tools.driver, "nvrtc": tools.nvrtc, "date": tools.date}


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
