"""The tuning database: one JSON file an architecture, shipped with the package or written by the user's own tuning.

A file holds *records*, the best known constants for one problem, and *curves*, times of one config over many shapes,
from which `fastsgemm.heuristics.choose` predicts problems that nobody tuned. See ``tuning_db/README.md`` for the format.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fastsgemm import config as configs
from fastsgemm import resources, rungs
from fastsgemm.config import Config
from fastsgemm.errors import ConfigError, FastsgemmError, RecordError
from fastsgemm.problem import Problem, checked
from fastsgemm.rungs import Rung

SCHEMA = 2
GENERIC = "generic"  # the file whose records are legal on every architecture
ORIGINS = ("measured", "published", "hand-picked")

_LOCK_SECONDS = 60.0  # how long a writer waits for another one
_HEADER = ("schema", "arch", "shared_limit")
_RECORD = frozenset(("rung", "device", "problem", "constants", "origin"))
_MEASURED = frozenset(("ms", "tflops", "cublas_ratio", "driver", "nvrtc", "date"))
_CURVE = frozenset(
    ("rung", "device", "multiprocessors", "constants", "blocks_per_sm", "points", "driver", "nvrtc", "date")
)


@dataclass(frozen=True)
class Tools:
    """What a measurement was made with.

    Attributes
    ----------
    driver, nvrtc : str
        Versions.
    date : str
        Year-month-day.
    """

    driver: str
    nvrtc: str
    date: str

    def __str__(self) -> str:
        return f"driver {self.driver}, NVRTC {self.nvrtc}, {self.date}"


@dataclass(frozen=True)
class Record:
    """One known-good choice of constants.

    Attributes
    ----------
    arch : str
        The architecture of the file it is in, or ``generic``.
    device : str or None
        The device it was found on; None for one that holds for all.
    rung : str
    problem : Problem or None
        The problem it was found for; None for one that holds for all.
    config : Config
    origin : str
        ``measured``, ``published`` or ``hand-picked``.
    source : str
        Where a published one is from, or what a measured one was measured with.
    ms : float or None
        Device time of a measured one.
    cublas_ratio : float or None
        Its speed over that of cuBLAS in the same run, where there was cuBLAS.
    tools : Tools or None
        Of a measured one.
    user : bool
        It comes from the user's own tuning.
    """

    arch: str
    device: str | None
    rung: str
    problem: Problem | None
    config: Config
    origin: str
    source: str
    ms: float | None = None
    cublas_ratio: float | None = None
    tools: Tools | None = None
    user: bool = False


@dataclass(frozen=True)
class Point:
    """One measured time."""

    problem: Problem
    ms: float


@dataclass(frozen=True)
class Curve:
    """Times of one config over many shapes, from which its time on others is predicted.

    Attributes
    ----------
    arch : str
    device : str
        The device they were measured on.
    multiprocessors : int
        Of that device.
    rung : str
    config : Config
    blocks_per_sm : int
        That fit on one of them at a time.
    points : tuple of Point
    tools : Tools
    user : bool
        It comes from the user's own tuning.
    """

    arch: str
    device: str
    multiprocessors: int
    rung: str
    config: Config
    blocks_per_sm: int
    points: tuple[Point, ...]
    tools: Tools
    user: bool = False


@dataclass(frozen=True)
class Content:
    """What one file holds.

    Attributes
    ----------
    arch : str
    shared_limit : int
        Shared memory that a block may opt in to on this architecture, in bytes.
    records : tuple of Record
    curves : tuple of Curve
    """

    arch: str
    shared_limit: int
    records: tuple[Record, ...] = ()
    curves: tuple[Curve, ...] = ()


def tflops(problem: Problem, ms: float) -> float:
    """Return the rate of a product that took `ms`, in TFLOP/s."""
    return problem.flops / ms / 1e9


# Reading


def user_folder() -> Path:
    """Return where the user's own results are: ``FASTSGEMM_DATA_DIR`` or the data folder of this platform."""
    override = os.environ.get("FASTSGEMM_DATA_DIR")
    if override:
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_data_dir("fastsgemm", appauthor=False))


def shipped_path(arch: str) -> Path:
    """Return the file of the package for this architecture, which may not exist."""
    return resources.folder("tuning_db") / f"{arch}.json"


def user_path(arch: str) -> Path:
    """Return the file of the user for this architecture, which may not exist."""
    return user_folder() / "tuning_db" / f"{arch}.json"


@cache
def load(arch: str) -> Content:
    """Return all that is known about one architecture: the user's results first, then what was shipped.

    What is damaged, stale or foreign is one warning and is left out.
    """
    user, ours = _read(user_path(arch), arch, True), shipped(arch)
    limit = ours.shared_limit or user.shared_limit
    return Content(arch, limit, (*user.records, *ours.records), (*user.curves, *ours.curves))


def shipped(arch: str) -> Content:
    """Return what the package knows about one architecture."""
    return _read(shipped_path(arch), arch, False)


def forget() -> None:
    """Forget what was read, so that it is read again."""
    load.cache_clear()


def _read(path: Path, arch: str, user: bool) -> Content:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        limit = _header(data, arch)
    except (FileNotFoundError, NotADirectoryError):
        return Content(arch, 0)
    except (OSError, ValueError, RecordError) as error:
        _warn(f"tuning file {path} is left out: {error}")
        return Content(arch, 0)
    faults: list[str] = []
    found = Content(
        arch,
        limit,
        tuple(replace(record, user=user) for record in _each(data, "records", arch, parse_record, faults)),
        tuple(replace(curve, user=user) for curve in _each(data, "curves", arch, parse_curve, faults)),
    )
    if faults:
        _warn(f"{len(faults)} line(s) of tuning file {path} are left out; the first: {faults[0]}")
    return found


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)


def _header(data: Any, arch: str) -> int:
    if not isinstance(data, dict):
        raise RecordError("it holds no object")
    if data.get("schema") != SCHEMA:
        raise RecordError(f"its schema is {data.get('schema')!r}, this version reads {SCHEMA}")
    if data.get("arch") != arch:
        raise RecordError(f"it is for {data.get('arch')!r}, not {arch}")
    limit = data.get("shared_limit")
    if type(limit) is not int or limit < 1:
        raise RecordError(f"its shared_limit is {limit!r}, not a number of bytes")
    return limit


def _each(data: dict[str, Any], key: str, arch: str, parse: Any, faults: list[str]) -> Iterator[Any]:
    lines = data.get(key, [])
    if not isinstance(lines, list):
        faults.append(f"{key} is no list")
        return
    for line in lines:
        try:
            yield parse(line, arch)
        except FastsgemmError as error:
            faults.append(f"{error} in {json.dumps(line)[:300]}")


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
    ms = _positive(fields["ms"], "ms")
    rate = _positive(fields["tflops"], "tflops")
    if abs(rate - tflops(record.problem, ms)) > 0.02 * rate + 0.001:
        raise RecordError(f"{ms} ms are {tflops(record.problem, ms):.3f} TFLOP/s, not {rate}")
    ratio = fields["cublas_ratio"]
    tools = _tools(fields)
    return replace(
        record,
        ms=ms,
        cublas_ratio=None if ratio is None else _positive(ratio, "cublas_ratio"),
        tools=tools,
        source=str(tools),
    )


def parse_curve(line: Any, arch: str) -> Curve:
    """Make a `Curve` of one line of a file, or raise `RecordError` or `ConfigError`."""
    fields = _fields(line)
    _exactly(fields, _CURVE)
    rung = rungs.find(fields["rung"])
    for name in ("multiprocessors", "blocks_per_sm"):
        if type(fields[name]) is not int or fields[name] < 1:
            raise RecordError(f"{name} must be a positive int, got {fields[name]!r}")
    return Curve(
        arch,
        _text(fields, "device"),
        fields["multiprocessors"],
        rung.name,
        _config(rung, fields["constants"]),
        fields["blocks_per_sm"],
        _points(fields["points"]),
        _tools(fields),
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


def _positive(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise RecordError(f"{name} must be a positive number, got {value!r}")
    return float(value)


def _problem(value: Any) -> Problem:
    fields = _fields(value)
    _exactly(fields, ("M", "N", "K", "layout"))
    return checked(Problem(fields["M"], fields["N"], fields["K"], fields["layout"]))


def _config(rung: Rung, constants: Any) -> Config:
    config = configs.from_constants(_fields(constants))
    optional = set(rung.knobs) & set(rungs.OPTIONAL)
    if set(config.constants) | optional != set(rung.knobs):
        raise ConfigError(f"rung {rung.name} takes the constants {rung.knobs}, got {tuple(config.constants)}")
    return config


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
            found.append(Point(checked(Problem(M, N, K, layout)), _positive(ms, "ms")))
    return tuple(found)


# Writing


def merged(old: Content, new: Content) -> Content:
    """Return `old` with the results of `new` in it.

    A new record takes the place of the old one for its device, rung and problem; new curves take the place of all old
    ones for their device and rung, because only curves of one run are compared with each other.
    """
    fresh = {_place(record) for record in new.records}
    retuned = {(curve.device, curve.rung) for curve in new.curves}
    return Content(
        old.arch,
        old.shared_limit or new.shared_limit,
        (*(record for record in old.records if _place(record) not in fresh), *new.records),
        (*(curve for curve in old.curves if (curve.device, curve.rung) not in retuned), *new.curves),
    )


def _place(record: Record) -> tuple[str | None, str, Problem | None]:
    return record.device, record.rung, record.problem


def save(new: Content) -> Path:
    """Merge `new` into the user's file of its architecture and return the file.

    Readers see the old file or the new one, never half of one; several writers take turns.

    Raises
    ------
    RecordError
        The folder cannot be written.
    """
    from filelock import FileLock, Timeout

    path = user_path(new.arch)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=_LOCK_SECONDS):
            old = _read(path, new.arch, True)
            if path.exists() and not old.shared_limit:  # unreadable: keep it for its owner
                path.replace(path.with_suffix(".json.unreadable"))
            write(path, merged(old, new))
    except (OSError, Timeout) as error:
        raise RecordError(
            f"the results could not be stored in {path} ({error}); FASTSGEMM_DATA_DIR names another folder"
        ) from error
    forget()
    return path


def write(path: Path, content: Content) -> None:
    """Write a file in one step."""
    import tempfile

    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(dumps(content))
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def dumps(content: Content) -> str:
    """Return `content` as a file has it: a header, then a line a record and a line a curve."""
    header = {"schema": SCHEMA, "arch": content.arch, "shared_limit": content.shared_limit}
    parts = [json.dumps(header)[:-1]]
    parts.append(f'"records": {_lines(_record_line(record) for record in sorted(content.records, key=_order))}')
    parts.append(f'"curves": {_lines(_curve_line(curve) for curve in sorted(content.curves, key=_curve_order))}')
    return ",\n".join(parts) + "}\n"


def _lines(entries: Iterable[dict[str, Any]]) -> str:
    lines = [json.dumps(entry) for entry in entries]
    return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"


def _order(record: Record) -> tuple[Any, ...]:
    p = record.problem
    extents = (p.layout, p.M * p.N * p.K, p.M, p.N) if p else ()
    return (rungs.find(record.rung).number, record.device or "", *extents)


def _curve_order(curve: Curve) -> tuple[Any, ...]:
    return (rungs.find(curve.rung).number, curve.device, tuple(curve.config.constants.values()))


def _record_line(record: Record) -> dict[str, Any]:
    p = record.problem
    line: dict[str, Any] = {
        "rung": record.rung,
        "device": record.device,
        "problem": None if p is None else {"M": p.M, "N": p.N, "K": p.K, "layout": p.layout},
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


def _curve_line(curve: Curve) -> dict[str, Any]:
    points: dict[str, list[list[float]]] = {}
    for point in curve.points:
        p = point.problem
        points.setdefault(p.layout, []).append([p.M, p.N, p.K, _rounded(point.ms)])
    return {
        "rung": curve.rung,
        "device": curve.device,
        "multiprocessors": curve.multiprocessors,
        "constants": curve.config.constants,
        "blocks_per_sm": curve.blocks_per_sm,
        "points": points,
        **_tools_line(curve.tools),
    }


def _tools_line(tools: Tools) -> dict[str, str]:
    return {"driver": tools.driver, "nvrtc": tools.nvrtc, "date": tools.date}


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


# The strict check, for files that are contributed


def faults(text: str, arch: str) -> list[str]:
    """Return everything that is wrong with the text of a file, the empty list if it can be shipped.

    Parameters
    ----------
    text : str
    arch : str
        What its name says it is for.
    """
    try:
        data = json.loads(text)
        limit = _header(data, arch)
    except (ValueError, RecordError) as error:
        return [str(error)]
    found: list[str] = []
    if set(data) - {"records", "curves"} != set(_HEADER) or not {"records", "curves"} <= set(data):
        found.append(f"its keys are {sorted(data)}, not {sorted((*_HEADER, 'records', 'curves'))}")
    records = list(_each(data, "records", arch, parse_record, found))
    curves = list(_each(data, "curves", arch, parse_curve, found))
    for entry in (*records, *curves):
        broken = configs.violations(rungs.find(entry.rung), entry.config, limit)
        found += [f"{entry.rung} {entry.config}: {violation}" for violation in broken]
    places = [_place(record) for record in records]
    found += [f"more than one record for {place}" for place in dict.fromkeys(places) if places.count(place) > 1]
    lines = text.count("\n{")
    if lines != len(data.get("records", [])) + len(data.get("curves", [])):
        found.append("it has not one record or curve a line")
    return found
