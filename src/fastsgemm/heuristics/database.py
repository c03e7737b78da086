"""The tuning database: one JSON file for each architecture, shipped with the package or written by the user's tuning.

A file holds *records*, the best known constants for one problem, and *curves*, times of one config on many shapes, from
which `fastsgemm.heuristics.choice` predicts problems that nobody tuned. ``tuning_db/README.md`` describes the format.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from msgspec import structs

from fastsgemm import private_files, resources, rungs
from fastsgemm.config import Config
from fastsgemm.errors import RecordError
from fastsgemm.heuristics.curve_fit import numbers_of
from fastsgemm.heuristics.database_entries import (
    GENERIC,
    SCHEMA,
    Candidate,
    Content,
    Curve,
    CurveNumbers,
    Fitted,
    Points,
    Record,
    SearchLimits,
    Tools,
    tflops,
)
from fastsgemm.heuristics.database_reading import File
from fastsgemm.problem import Problem, as_data
from fastsgemm.progress import warn

_LOCK_SECONDS = 60.0  # how long a process waits for another one to finish writing
_MOST_BYTES = 64 * 1024 * 1024  # of a file: the largest shipped one has about 300 kB
_MOST_ANSWERS = 65536  # that each function keeps
_FILE_MODE = 0o644  # an exported file is for others to read; the user's own are in a folder only the user can enter
_caches: list[Any] = []  # the caches of `cached`

_P = ParamSpec("_P")
_R = TypeVar("_R")


def cached(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function whose answers rest on the database: they are cached until `forget`."""
    cache = lru_cache(maxsize=_MOST_ANSWERS)(function)
    _caches.append(cache)
    return cache  # type: ignore[return-value]  # its arguments are hashable


def forget() -> None:
    """Forget what was read and what follows from it, because a file has changed."""
    for cache in _caches:
        cache.cache_clear()


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


@cached
def folder_to_read(name: str) -> Path | None:
    """Return the folder of this name in the user's data folder, or None if there is none or it is not safe.

    Of one that other users can write there is one warning.
    """
    folder = user_folder()
    if folder is None:
        return None
    try:
        private_files.check_folder(folder)
        private_files.check_folder(folder / name)
    except (FileNotFoundError, NotADirectoryError):  # nothing to read
        return None
    except OSError as error:
        warn(f"the user's tuning results are left out: {error}")
        return None
    return folder / name


def file_name(device: str) -> str:
    """Return the name of a device with a hyphen for whatever is no letter or digit."""
    return "".join(letter if letter.isalnum() else "-" for letter in device)


@cached
def load(arch: str) -> Content:
    """Return all that is known about one architecture: the user's results first, then what was shipped.

    What is damaged, stale or foreign is one warning and is left out.
    """
    return _both(arch)


@cached
def of_rung(arch: str, rung: str) -> Content:
    """Return the records and curves of one rung: the user's results first, then what was shipped.

    The lines of other rungs are not looked at, because a first call should not wait for them.
    """
    return _both(arch, rung)


def shipped(arch: str) -> Content:
    """Return what the package knows about one architecture."""
    return _read(shipped_path(arch), arch, False)


def _both(arch: str, rung: str | None = None) -> Content:
    folder = folder_to_read("tuning_db")
    own = Content(arch, 0) if folder is None else _read(folder / f"{arch}.json", arch, True, rung)
    ours = _read(shipped_path(arch), arch, False, rung)
    limit = ours.shared_limit or own.shared_limit
    return Content(arch, limit, (*own.records, *ours.records), (*own.curves, *ours.curves))


@cached
def candidates(space: str, use: str) -> tuple[Config, ...]:
    """Return the candidates of a search space for one use, in the order of the generic file."""
    return tuple(one.config for one in shipped(GENERIC).candidates if (one.space, one.use) == (space, use))


@cached
def fitted(arch: str) -> Fitted:
    """Return the fitted numbers of an architecture: its own, else those of the generic file."""
    return _fitted(arch) or _fitted(GENERIC) or Fitted()


def _fitted(arch: str) -> Fitted | None:
    """Return the fitted numbers of a shipped file without parsing its records and curves."""
    path = shipped_path(arch)
    file = _file(path, arch, False)
    try:
        return None if file is None else file.fitted
    except RecordError as error:
        warn(f"the fitted numbers of tuning file {path} are left out: {error}")
        return None


@cached
def search_limits() -> SearchLimits:
    """Return the limits of the search spaces, which the generic file has."""
    return shipped(GENERIC).search_limits or SearchLimits()


def _read(path: Path, arch: str, user: bool, rung: str | None = None) -> Content:
    file = _file(path, arch, user)
    if file is None:
        return Content(arch, 0)
    try:
        found, faults = file.content() if rung is None else file.of_rung(rung)
    except RecordError as error:
        warn(f"tuning file {path} is left out: {error}")
        return Content(arch, 0)
    if faults:
        warn(f"{len(faults)} line(s) of tuning file {path} are left out; the first: {faults[0]}")
    return found


@cached
def _file(path: Path, arch: str, user: bool) -> File | None:
    """Return a file before its lines are read, or None if it is missing or, with one warning, no tuning file."""
    try:
        return File(private_files.read(path, _MOST_BYTES, private=user), arch, user)
    except FileNotFoundError:
        return None
    except (OSError, RecordError) as error:
        warn(f"tuning file {path} is left out: {error}")
        return None


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
            forget()  # another process may have written since
            old = _read(path, new.arch, True)
            if os.path.lexists(path) and not old.shared_limit:  # unreadable: keep it for its owner
                path.rename(_aside(path))
            write(path, merged(old, new))
    except (OSError, NotImplementedError, Timeout) as error:  # the second: a file system without locks
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
    points = {layout: [(M, N, K, _rounded(ms)) for M, N, K, ms in rows] for layout, rows in curve.points.items()}
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


def _numbers(curve: Curve, points: Points) -> CurveNumbers | None:
    """Return the numbers of a curve with these points, which are rounded, or None if they are too few.

    Only curves of the default rungs have them, because only a first call that names no rung must not wait for a fit.
    """
    if rungs.find(curve.rung) not in rungs.DEFAULTS:
        return None
    try:
        return numbers_of(structs.replace(curve, points=points))
    except ValueError:
        return None


def _tools_line(tools: Tools) -> dict[str, str]:
    return {"driver": tools.driver, "nvrtc": tools.nvrtc, "date": tools.date}


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
