"""Parse a tuning file and check every field of it.

A line that cannot be used is a fault with a reason. It is kept as text, so that writing the file does not lose it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from fastsgemm import rungs, strict_json
from fastsgemm.config import Config
from fastsgemm.errors import ConfigError, FastsgemmError, RecordError
from fastsgemm.heuristics.database_entries import (
    ORIGINS,
    SCHEMA,
    Candidate,
    Content,
    Curve,
    Fitted,
    Point,
    Record,
    SearchLimits,
    Tools,
    Unread,
    tflops,
)
from fastsgemm.problem import Problem, checked
from fastsgemm.rungs import Rung

_Numbers = TypeVar("_Numbers", Fitted, SearchLimits)

_READ = (2, SCHEMA)  # the schemas that are read
# Constants that have another name in schema 2, where they may also be missing.
OLD_NAMES = {"ASYNC": "CP_ASYNC", "SLICES": "SLICED_K", "CHAINS": "PARTIAL_ACCUMULATORS"}

_MS = (1e-6, 1e9)  # limits of a time: a nanosecond and 12 days
_RATE = (1e-12, 1e12)  # limits of a rate in TFLOP/s, and of a speed relative to cuBLAS
_CALIBRATION = (0.1, 10.0)
_MOST_SHARED = 2**24  # bytes of shared memory of a block
_MOST_MULTIPROCESSORS = 2**16
_MOST_BLOCKS = 32  # resident blocks of a multiprocessor, on every architecture
_HEADER = ("schema", "arch", "shared_limit")
_SHIPPED = frozenset(("fitted", "search_limits", "candidates"))  # keys that only shipped files have
_KEYS = frozenset((*_HEADER, "records", "curves"))
_RECORD = frozenset(("rung", "device", "problem", "constants", "origin"))
_MEASURED = frozenset(("ms", "tflops", "cublas_ratio", "driver", "nvrtc", "date"))
_CURVE = frozenset(
    ("rung", "device", "multiprocessors", "constants", "blocks_per_sm", "calibration", "points", "driver", "nvrtc", "date")
)


def parse(text: bytes, arch: str, user: bool = False) -> tuple[Content, list[str]]:
    """Return what a file holds and what is wrong with its lines, or raise `RecordError` where it is no such file."""
    import msgspec

    data = strict_json.decode(text, dict[str, msgspec.Raw])
    limit = _header(data, arch)
    faults: list[str] = []
    unread = [Unread(key, strict_json.one_line(bytes(data[key]))) for key in data if key not in _KEYS | _SHIPPED]
    records = tuple(replace(one, user=user) for one in _each(data, "records", arch, parse_record, faults, unread))
    curves = tuple(replace(one, user=user) for one in _each(data, "curves", arch, parse_curve, faults, unread))
    fitted = _numbers(data, "fitted", Fitted)
    limits = _numbers(data, "search_limits", SearchLimits)
    listed = tuple(_each(data, "candidates", arch, _parse_candidate, faults, unread))
    return Content(arch, limit, records, curves, tuple(unread), fitted, limits, listed), faults


def parse_fitted(text: bytes, arch: str) -> Fitted | None:
    """Return only the fitted numbers of a file, or None where it has none; raise `RecordError` as `parse` does."""
    import msgspec

    data = strict_json.decode(text, dict[str, msgspec.Raw])
    _header(data, arch)
    return _numbers(data, "fitted", Fitted)


def _parse_candidate(line: Any, _: str) -> Candidate:
    fields = _fields(line)
    _exactly(fields, ("space", "rung", "use", "constants"))
    rung = rungs.find(fields["rung"])
    return Candidate(_text(fields, "space"), rung.name, _text(fields, "use"), _config(rung, fields["constants"]))


def _numbers(data: dict[str, Any], key: str, kind: type[_Numbers]) -> _Numbers | None:
    """Return the numbers of a section that only shipped files have, each of which must be there, or None without it."""
    import msgspec

    if key not in data:
        return None
    fields = _fields(strict_json.decode(bytes(data[key])))
    _exactly(fields, [field.name for field in dataclasses.fields(kind)])
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise RecordError(f"its {key.replace('_', ' ')} numbers cannot be read: {error}") from error


def _header(data: dict[str, Any], arch: str) -> int:
    schema, its_arch, limit = (strict_json.decode(bytes(data[key])) if key in data else None for key in _HEADER)
    if type(schema) is not int or schema not in _READ:
        raise RecordError(f"its schema is {schema!r}, this version reads {' and '.join(map(str, _READ))}")
    if its_arch != arch:
        raise RecordError(f"it is for {its_arch!r}, not {arch}")
    return _count(limit, "shared_limit", _MOST_SHARED)


def _each(
    data: dict[str, Any], key: str, arch: str, parse: Any, faults: list[str], unread: list[Unread]
) -> Iterator[Any]:
    """Yield the lines that `parse` can read, and note the others in `faults` and `unread`."""
    import msgspec

    if key not in data:
        return
    try:
        lines = strict_json.decode(bytes(data[key]), list[msgspec.Raw])
    except RecordError:
        raise RecordError(f"its {key} are no list") from None
    for line in lines:
        try:
            yield parse(strict_json.decode(bytes(line)), arch)
        except FastsgemmError as error:
            text = strict_json.one_line(bytes(line))
            faults.append(f"{error} in {text[:300]}")
            unread.append(Unread(key, text))


def parse_record(line: Any, arch: str) -> Record:
    """Make a `Record` of one line of a file, or raise `RecordError` or `ConfigError`."""
    fields = _fields(line)
    origin = fields.get("origin")
    if origin not in ORIGINS:
        raise RecordError(f"origin must be one of {ORIGINS}, got {origin!r}")
    measured = origin == "measured"
    _exactly(fields, _RECORD | (_MEASURED if measured else {"source"}))
    rung = rungs.find(fields["rung"])
    problem = None if fields["problem"] is None else _problem(fields["problem"])
    device = None if fields["device"] is None else _text(fields, "device")
    record = Record(
        arch,
        device,
        rung.name,
        problem,
        _config(rung, fields["constants"]),
        origin,
        "" if measured else _text(fields, "source"),
    )
    return _measured(record, fields) if measured else record


def _measured(record: Record, fields: dict[str, Any]) -> Record:
    if record.device is None or record.problem is None:
        raise RecordError("a measured record names its device and its problem")
    ms = checked_ms(fields["ms"])
    rate = _number(fields["tflops"], "tflops", _RATE)
    if abs(rate - tflops(record.problem, ms)) > 0.02 * rate + 0.001:
        raise RecordError(f"{ms} ms are {tflops(record.problem, ms):.3f} TFLOP/s, not {rate}")
    ratio = fields["cublas_ratio"]
    tools = _tools(fields)
    return replace(
        record,
        ms=ms,
        cublas_ratio=None if ratio is None else _number(ratio, "cublas_ratio", _RATE),
        tools=tools,
        source=str(tools),
    )


def parse_curve(line: Any, arch: str) -> Curve:
    """Make a `Curve` of one line of a file, or raise `RecordError` or `ConfigError`."""
    fields = {"calibration": 1.0} | _fields(line)  # curves of earlier versions have none
    _exactly(fields, _CURVE)
    rung = rungs.find(fields["rung"])
    return Curve(
        arch,
        _text(fields, "device"),
        _count(fields["multiprocessors"], "multiprocessors", _MOST_MULTIPROCESSORS),
        rung.name,
        _config(rung, fields["constants"]),
        _count(fields["blocks_per_sm"], "blocks_per_sm", _MOST_BLOCKS),
        _points(fields["points"]),
        _tools(fields),
        calibration=_number(fields["calibration"], "calibration", _CALIBRATION),
    )


def _fields(line: Any) -> dict[str, Any]:
    if not isinstance(line, dict):
        raise RecordError("a line is no object")
    return line


def _exactly(fields: dict[str, Any], expected: Iterable[str]) -> None:
    missing, unknown = sorted(set(expected) - set(fields)), sorted(set(fields) - set(expected))
    if missing or unknown:
        raise RecordError(f"fields {missing} are missing and {unknown} are unknown")


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str) or not value:
        raise RecordError(f"{name} must be text, got {value!r}")
    return value


def checked_ms(value: Any) -> float:
    """Return a time in ms, or raise `RecordError` where it is not a number from 1e-6 to 1e9."""
    return _number(value, "ms", _MS)


def _number(value: Any, name: str, limits: tuple[float, float]) -> float:
    least, most = limits
    if type(value) not in (int, float) or not least <= value <= most:
        raise RecordError(f"{name} must be a number from {least:g} to {most:g}, got {value!r}")
    return float(value)


def _count(value: Any, name: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise RecordError(f"{name} must be an int from 1 to {most}, got {value!r}")
    return value


def _problem(value: Any) -> Problem:
    fields = _fields(value)
    _exactly(fields, ("M", "N", "K", "layout"))
    return checked(Problem(fields["M"], fields["N"], fields["K"], fields["layout"]))


def _config(rung: Rung, constants: Any) -> Config:
    fields = _fields(constants)
    renamed = {OLD_NAMES.get(name, name): value for name, value in fields.items()}
    if len(renamed) < len(fields):
        raise ConfigError(f"constants {sorted(OLD_NAMES.keys() & fields.keys())} are given by their new names too")
    return rung.config.from_constants(renamed)


def _tools(fields: dict[str, Any]) -> Tools:
    date = _text(fields, "date")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        raise RecordError(f"date must be YYYY-MM-DD, got {date!r}")
    return Tools(_text(fields, "driver"), _text(fields, "nvrtc"), date)


def _points(value: Any) -> tuple[Point, ...]:
    found = []
    for layout, rows in _fields(value).items():
        for row in rows if isinstance(rows, list) else [None]:
            if not isinstance(row, list) or len(row) != 4:
                raise RecordError(f"a point of a curve is [M, N, K, ms], got {row!r}")
            M, N, K, ms = row
            found.append(Point(checked(Problem(M, N, K, layout)), checked_ms(ms)))
    return tuple(found)


def faults(text: str, arch: str) -> list[str]:
    """Return everything that is wrong with the text of a file, the empty list if it can be shipped.

    Parameters
    ----------
    text : str
    arch : str
        What its name says it is for.
    """
    import msgspec

    try:
        keys = set(strict_json.decode(text.encode(), dict[str, msgspec.Raw]))
        content, found = parse(text.encode(), arch)
    except RecordError as error:
        return [str(error)]
    if keys - _SHIPPED != _KEYS:
        found.append(f"its keys are {sorted(keys)}, not {sorted(_KEYS)}")
    records, curves = content.records, content.curves
    entries: tuple[Record | Curve, ...] = (*records, *curves)
    for entry in entries:
        broken = entry.config.violations(content.shared_limit)
        found += [f"{entry.rung} {entry.config}: {violation}" for violation in broken]
    places = [record.place for record in records]
    found += [f"more than one record for {place}" for place in dict.fromkeys(places) if places.count(place) > 1]
    entered = len(records) + len(curves) + len(content.candidates)
    entered += sum(one.key in ("records", "curves") for one in content.unread)
    if text.count("\n{") != entered:
        found.append("it does not have one record, curve or candidate a line")
    return found
