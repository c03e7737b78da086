"""The tuning database: one JSON file an architecture, shipped with the package or written by the user's own tuning.

A file holds *records*, the best known constants for one problem, and *curves*, times of one config over many shapes,
from which `fastsgemm.heuristics.choose` predicts problems that nobody tuned. ``tuning_db/README.md`` has the format.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fastsgemm import private_files, resources, rungs, strict_json
from fastsgemm.config import Config
from fastsgemm.errors import ConfigError, FastsgemmError, RecordError
from fastsgemm.problem import Problem, checked
from fastsgemm.rungs import Rung

SCHEMA = 3  # of the files that are written
_READ = (2, SCHEMA)  # the schemas that are read
# The constants that had other names in schema 2, where they could also be left out.
OLD_NAMES = {"ASYNC": "CP_ASYNC", "SLICES": "SLICED_K", "CHAINS": "PARTIAL_ACCUMULATORS"}
GENERIC = "generic"  # the file whose records are legal on every architecture
ORIGINS = ("measured", "published", "hand-picked")

_LOCK_SECONDS = 60.0  # how long a writer waits for another one
_MOST_BYTES = 64 * 1024 * 1024  # of a file: the largest that is shipped has less than 200 kB
_FILE_MODE = 0o644  # an exported file is for others to read; the user's own are in a folder that they cannot enter
_MS = (1e-6, 1e9)  # the least and the largest time: a nanosecond and 12 days
_RATE = (1e-12, 1e12)  # the same in TFLOP/s, and in times as fast as cuBLAS
_MOST_SHARED = 2**24  # bytes of shared memory of a block
_MOST_MULTIPROCESSORS = 2**16
_MOST_BLOCKS = 32  # on a multiprocessor, of every architecture
_HEADER = ("schema", "arch", "shared_limit")
_FITTED = "fitted"
_SHIPPED = frozenset((_FITTED, "candidates"))  # keys that only shipped files have
_KEYS = frozenset((*_HEADER, "records", "curves"))
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
class Fitted:
    """Numbers of the heuristics that were measured on a device of an architecture.

    The defaults hold where no file has any: nothing costs more, and no sum gets partial accumulators.

    Attributes
    ----------
    accumulators_cost : float
        Time of a kernel with partial accumulators over its time without.
    long_sums : tuple of (int or None, int)
        Pairs of elements of C and steps of k, by ascending elements. For a C of at most so many elements (None: any
        number) a sum is long from so many steps on, and gets partial accumulators.
    reduction_ms : float
        Least time of the second kernel of split-K.
    reduction_bytes_per_ms : float
        Rate at which it reads and writes partial sums, which are mostly in L2.
    """

    accumulators_cost: float = 1.0
    long_sums: tuple[tuple[int | None, int], ...] = ()
    reduction_ms: float = 0.0
    reduction_bytes_per_ms: float = 1e12


@dataclass(frozen=True)
class Candidate:
    """A config that tuning tries by name, not as one of a grid.

    Attributes
    ----------
    space : str
        The search space.
    rung : str
    use : str
        ``quick``: in a quick run. ``picked``: beside the grid of the space.
    config : Config
    """

    space: str
    rung: str
    use: str
    config: Config


@dataclass(frozen=True)
class Unread:
    """A part of a file that this version cannot use, of a later one for example. It stays in the file.

    Attributes
    ----------
    key : str
        ``records`` or ``curves`` for a line of them, or a key of the header.
    text : str
        JSON.
    """

    key: str
    text: str


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
    unread : tuple of Unread
    fitted : Fitted or None
    candidates : tuple of Candidate
        Only files that are shipped have these two.
    """

    arch: str
    shared_limit: int
    records: tuple[Record, ...] = ()
    curves: tuple[Curve, ...] = ()
    unread: tuple[Unread, ...] = ()
    fitted: Fitted | None = None
    candidates: tuple[Candidate, ...] = ()


def tflops(problem: Problem, ms: float) -> float:
    """Return the rate of a product that took `ms`, in TFLOP/s."""
    return problem.flops / ms / 1e9


# Reading


def user_folder() -> Path | None:
    """Return where the user's own results are: ``FASTSGEMM_DATA_DIR`` or the data folder of this platform.

    None where there is neither, because the user has no home folder.
    """
    return private_files.user_folder("FASTSGEMM_DATA_DIR", _default_folder)


def _default_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_data_dir("fastsgemm", appauthor=False))


def shipped_path(arch: str) -> Path:
    """Return the file of the package for this architecture, which may not exist."""
    return resources.folder("tuning_db") / f"{arch}.json"


def architectures() -> list[str]:
    """Return the architectures that the shipped database has a file for."""
    names = [path.stem for path in resources.folder("tuning_db").glob("sm_*.json")]
    return sorted(names, key=lambda name: int(name[3:]))


def user_path(arch: str) -> Path | None:
    """Return the file of the user for this architecture, which may not exist, or None where there is no folder."""
    folder = user_folder()
    return None if folder is None else folder / "tuning_db" / f"{arch}.json"


def folder_to_write(name: str) -> Path:
    """Return a folder of this name in the user's data folder, made where it is missing.

    Raises
    ------
    RecordError
        There is no data folder, it cannot be written, or other users can write it.
    """
    folder = user_folder()
    if folder is None:
        raise RecordError("there is no folder for tuning results; FASTSGEMM_DATA_DIR names one")
    try:
        private_files.make_folder(folder)
        private_files.make_folder(folder / name)
    except OSError as error:
        raise RecordError(f"{folder} cannot be written ({error}); FASTSGEMM_DATA_DIR names another folder") from error
    return folder / name


@cache
def load(arch: str) -> Content:
    """Return all that is known about one architecture: the user's results first, then what was shipped.

    What is damaged, stale or foreign is one warning and is left out.
    """
    user, ours = _own(arch), shipped(arch)
    limit = ours.shared_limit or user.shared_limit
    return Content(arch, limit, (*user.records, *ours.records), (*user.curves, *ours.curves))


def shipped(arch: str) -> Content:
    """Return what the package knows about one architecture."""
    return _read(shipped_path(arch), arch, False)


@cache
def candidates(space: str, use: str) -> tuple[Config, ...]:
    """Return the candidates of a search space for one use, in the order of the generic file."""
    return tuple(one.config for one in shipped(GENERIC).candidates if (one.space, one.use) == (space, use))


@cache
def fitted(arch: str) -> Fitted:
    """Return the fitted numbers of an architecture: its own, else those of the generic file."""
    return shipped(arch).fitted or shipped(GENERIC).fitted or Fitted()


def _own(arch: str) -> Content:
    path = user_path(arch)
    return _read(path, arch, True) if path is not None and _safe(path.parent) else Content(arch, 0)


@cache
def _safe(folder: Path) -> bool:
    """Whether the user's results in this folder may be read; if not, there is one warning."""
    try:
        private_files.check_folder(folder.parent)
        private_files.check_folder(folder)
    except (FileNotFoundError, NotADirectoryError):  # nothing to read
        return False
    except OSError as error:
        _warn(f"the user's tuning results are left out: {error}")
        return False
    return True


def forget() -> None:
    """Forget what was read, so that it is read again."""
    load.cache_clear()
    fitted.cache_clear()
    candidates.cache_clear()
    _safe.cache_clear()


def _read(path: Path, arch: str, user: bool) -> Content:
    try:
        found, faults = _parse(private_files.read(path, _MOST_BYTES, private=user), arch, user)
    except FileNotFoundError:
        return Content(arch, 0)
    except (OSError, RecordError) as error:
        _warn(f"tuning file {path} is left out: {error}")
        return Content(arch, 0)
    if faults:
        _warn(f"{len(faults)} line(s) of tuning file {path} are left out; the first: {faults[0]}")
    return found


def _parse(text: bytes, arch: str, user: bool = False) -> tuple[Content, list[str]]:
    """Return what a file holds and what is wrong with its lines, or raise `RecordError` where it is no such file."""
    import msgspec

    data = strict_json.decode(text, dict[str, msgspec.Raw])
    limit = _header(data, arch)
    faults: list[str] = []
    unread = [Unread(key, strict_json.one_line(bytes(data[key]))) for key in data if key not in _KEYS | _SHIPPED]
    records = tuple(replace(one, user=user) for one in _each(data, "records", arch, parse_record, faults, unread))
    curves = tuple(replace(one, user=user) for one in _each(data, "curves", arch, parse_curve, faults, unread))
    numbers = _fitted(bytes(data[_FITTED])) if _FITTED in data else None
    listed = tuple(_each(data, "candidates", arch, _parse_candidate, faults, unread))
    return Content(arch, limit, records, curves, tuple(unread), numbers, listed), faults


def _parse_candidate(line: Any, _: str) -> Candidate:
    fields = _fields(line)
    _exactly(fields, ("space", "rung", "use", "constants"))
    rung = rungs.find(fields["rung"])
    return Candidate(_text(fields, "space"), rung.name, _text(fields, "use"), _config(rung, fields["constants"]))


def _fitted(text: bytes) -> Fitted:
    import msgspec

    fields = _fields(strict_json.decode(text))
    _exactly(fields, [field.name for field in dataclasses.fields(Fitted)])
    try:
        return msgspec.convert(fields, Fitted)
    except msgspec.ValidationError as error:
        raise RecordError(f"its fitted numbers cannot be read: {error}") from error


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)


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
    fields = _fields(line)
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
        tuple(dict.fromkeys((*old.unread, *new.unread))),
    )


def _place(record: Record) -> tuple[str | None, str, Problem | None]:
    return record.device, record.rung, record.problem


def save(new: Content) -> Path:
    """Merge `new` into the user's file of its architecture and return the file.

    Readers see the old file or the new one, never half of one; several writers take turns. Lines that this version
    cannot read stay in the file. A file that cannot be read at all is kept aside as ``.json.unreadable``.

    Raises
    ------
    RecordError
        The folder cannot be written, or other users can write it.
    """
    from filelock import FileLock, Timeout

    path = folder_to_write("tuning_db") / f"{new.arch}.json"
    try:
        with FileLock(path.with_suffix(".lock"), timeout=_LOCK_SECONDS):
            old = _read(path, new.arch, True)
            if os.path.lexists(path) and not old.shared_limit:  # unreadable: keep it for its owner
                path.rename(_aside(path))
            write(path, merged(old, new))
    except (OSError, Timeout) as error:
        raise RecordError(
            f"the results could not be stored in {path} ({error}); FASTSGEMM_DATA_DIR names another folder"
        ) from error
    forget()
    return path


def _aside(path: Path) -> Path:
    """Return a free name for a file that cannot be read: .json.unreadable, .json.unreadable.2 and so on."""
    first = path.with_suffix(".json.unreadable")
    names = itertools.chain([first], (first.with_name(f"{first.name}.{number}") for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))


def write(path: Path, content: Content) -> None:
    """Write a file in one step."""
    private_files.replace(path, dumps(content).encode(), _FILE_MODE)


def dumps(content: Content) -> str:
    """Return `content` as a file has it: a header, a line a record and a line a curve, then what could not be read."""
    header = {"schema": SCHEMA, "arch": content.arch, "shared_limit": content.shared_limit}
    parts = [json.dumps(header)[:-1]]
    if content.fitted is not None:
        parts.append(f'"{_FITTED}": {json.dumps(dataclasses.asdict(content.fitted))}')
    parts += [f"{json.dumps(one.key)}: {one.text}" for one in content.unread if one.key not in _KEYS]
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
    import msgspec

    try:
        keys = set(strict_json.decode(text.encode(), dict[str, msgspec.Raw]))
        content, found = _parse(text.encode(), arch)
    except RecordError as error:
        return [str(error)]
    if keys - _SHIPPED != _KEYS:
        found.append(f"its keys are {sorted(keys)}, not {sorted(_KEYS)}")
    records, curves = content.records, content.curves
    entries: tuple[Record | Curve, ...] = (*records, *curves)
    for entry in entries:
        broken = entry.config.violations(content.shared_limit)
        found += [f"{entry.rung} {entry.config}: {violation}" for violation in broken]
    places = [_place(record) for record in records]
    found += [f"more than one record for {place}" for place in dict.fromkeys(places) if places.count(place) > 1]
    entered = len(records) + len(curves) + len(content.candidates)
    entered += sum(one.key in ("records", "curves") for one in content.unread)
    if text.count("\n{") != entered:
        found.append("it does not have one record, curve or candidate a line")
    return found
