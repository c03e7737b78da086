"""The tuning database: one JSON file for each architecture, shipped with the package or written by the user's tuning.

A file holds *records*, the best known constants for one problem, and *curves*, times of one config on many shapes, from
which `fastsgemm.heuristics.choice` predicts problems that nobody tuned. ``tuning_db/README.md`` describes the format.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

from msgspec import Meta, Raw, Struct, structs

from fastsgemm import private_files, resources, settings, strict_json
from fastsgemm.config import Config
from fastsgemm.config.search_limits import SearchLimits
from fastsgemm.errors import RecordError
from fastsgemm.heuristics.curve_fit import with_numbers
from fastsgemm.heuristics.database_entries import (
    GENERIC,
    LISTS,
    SCHEMA,
    Content,
    Evidence,
    Unread,
    entries_of,
    line_of,
    sort_key,
)
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.heuristics.fp16x3_rates import Rates
from fastsgemm.heuristics.transfer import SOURCE
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
    """Return where the user's own results are: ``FASTSGEMM_DATA_DIR``, else a folder of the platform; None without."""
    return settings.DATA_DIR.read() or private_files.user_folder("data")


def shipped_path(arch: str) -> Path:
    """Return the file of the package for this architecture, which may not exist."""
    return resources.folder("tuning_db") / f"{arch}.json"


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
        if not os.access(folder / name, os.W_OK):
            raise PermissionError(f"you may not write {folder / name}")
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
def load(arch: str, only: str | None = None) -> Content:
    """Return what is known about one architecture: the user's results first, then what was shipped.

    What is damaged, stale or foreign is one warning and is left out. With `only`, it is what the package knows,
    ``shipped``, or what the user's own tuning has found, ``user``.
    """
    mine = Content(arch, 0) if only == "shipped" else own(arch)
    ours = Content(arch, 0) if only == "user" else shipped(arch)
    limit = ours.shared_limit or mine.shared_limit
    rates = *mine.rates, *ours.rates
    return Content(arch, limit, (*mine.records, *ours.records), (*mine.curves, *ours.curves), rates=rates)


def own(arch: str) -> Content:
    """Return the results of the user's own tuning for one architecture."""
    folder = folder_to_read("tuning_db")
    return Content(arch, 0) if folder is None else _read(folder / f"{arch}.json", arch, True)


def shipped(arch: str) -> Content:
    """Return what the package knows about one architecture."""
    return _read(shipped_path(arch), arch, False)


def origin_of(entry: Evidence, arch: str) -> tuple[str, bool]:
    """Return the architecture of the file that an entry is from, and whether that file is the user's own.

    The entry was found for `arch`; it is from its file or from the generic one.
    """
    for name, only in itertools.product((arch, SOURCE, GENERIC), ("user", "shipped")):
        content = load(name, only)
        if entry in content.evidence:
            return name, only == "user"
    raise LookupError(f"no file for {arch} has this entry of rung {entry.rung}")


@cached
def rates(arch: str, device: str | None = None) -> Rates:
    """Return the rates of rung 11 for a device: measured on it, else shipped for its architecture or for all.

    Without the name of a device, it is only what was shipped for the architecture. Rates with a tile that the
    architecture cannot run are passed over with a warning: somebody may have edited them.

    Raises
    ------
    RecordError
        The generic file has none.
    """
    measured = [entry for entry in load(arch).rates if entry.device == device]
    for entry in (*measured, *shipped(arch).rates, *shipped(GENERIC).rates):
        if entry.runs_on(arch):
            return entry
        warn(f"the rates of rung {entry.rung} of {entry.device} are passed over: {arch} cannot run all tiles")
    raise RecordError(f"{shipped_path(GENERIC)} has no rates of rung {Rates.rung}")


@cached
def candidates(rung: str, use: str) -> tuple[Config, ...]:
    """Return the candidates of a rung for one use, in the order of the generic file."""
    return tuple(
        candidate.config for candidate in shipped(GENERIC).candidates if (candidate.rung, candidate.use) == (rung, use)
    )


@cached
def fitted(arch: str) -> Fitted:
    """Return the fitted numbers of an architecture, else the generic ones."""
    return shipped(arch).fitted or shipped(GENERIC).fitted or Fitted()


@cached
def search_limits() -> SearchLimits:
    """Return the limits of the search spaces, which the generic file has."""
    return shipped(GENERIC).search_limits or SearchLimits()


@cached
def _read(path: Path, arch: str, private: bool) -> Content:
    """Return what a file holds: nothing if it is missing or, with one warning, no tuning file."""
    try:
        content = parse(private_files.read(path, _MOST_BYTES, private=private), arch)
    except FileNotFoundError:
        return Content(arch, 0)
    except (OSError, RecordError) as error:
        damaged = private and isinstance(error, RecordError)
        remedy = "; the next fastsgemm tune keeps it aside and writes a new one" if damaged else ""
        warn(f"tuning file {path} is left out: {error}{remedy}")
        return Content(arch, 0)
    if content.faults:
        warn(f"{len(content.faults)} line(s) of tuning file {path} are left out; the first: {content.faults[0]}")
    return content


class _Outer(Struct):
    """The outer level of a file, whose lists and groups of numbers are decoded one by one."""

    schema: int
    arch: str
    shared_limit: Annotated[int, Meta(ge=1, le=2**24)]  # bytes of shared memory of a block
    fitted: Raw = Raw()
    search_limits: Raw = Raw()
    records: list[Raw] = []
    curves: list[Raw] = []
    candidates: list[Raw] = []
    rates: list[Raw] = []


def parse(text: bytes, arch: str) -> Content:
    """Return what the text of a tuning file for this architecture holds, or raise `RecordError` if it is none."""
    outer = strict_json.decode(text, _Outer)
    if outer.schema != SCHEMA:
        raise RecordError(f"its schema is {outer.schema}, this version reads {SCHEMA}")
    if outer.arch != arch:
        raise RecordError(f"it is for {outer.arch!r}, not {arch}")
    header, fields = strict_json.decode(text, dict[str, Raw]), outer.__struct_fields__
    unread = [Unread(key, strict_json.one_line(bytes(part))) for key, part in header.items() if key not in fields]
    records, curves, listed, measured = (entries_of(key, getattr(outer, key), unread) for key in LISTS)
    numbers = _numbers(outer.fitted, "fitted", Fitted), _numbers(outer.search_limits, "search limits", SearchLimits)
    return Content(arch, outer.shared_limit, records, curves, tuple(unread), *numbers, listed, measured)


def _numbers(text: Raw, what: str, kind: type[Any]) -> Any:
    """Return the numbers of a section, if there is one. Each must be there, although the class has defaults."""
    if not bytes(text):
        return None
    try:
        missing = {*kind.__struct_fields__} - strict_json.decode(bytes(text), dict[str, Raw]).keys()
        if missing:
            raise RecordError(f"{sorted(missing)} are missing")
        return strict_json.decode(bytes(text), kind)
    except RecordError as error:
        raise RecordError(f"its {what} numbers cannot be read: {error}") from error


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

    A new record takes the place of the old one for its device, rung and problem, and new rates that of the old ones for
    their device. New curves take the place of all old ones for their device, rung and order of summation, because only
    curves of one run are compared with each other.
    """

    def replaced(before: tuple[Any, ...], after: tuple[Any, ...]) -> tuple[Any, ...]:
        places = {*map(sort_key, after)}
        return (*(entry for entry in before if sort_key(entry) not in places), *after)

    new_rates = {sort_key(entry): entry for entry in new.rates}
    kept_rates = [
        new_rates.pop(sort_key(entry), entry) for entry in old.rates
    ]  # the first stay those of the architecture

    return structs.replace(
        old,
        shared_limit=old.shared_limit or new.shared_limit,
        records=replaced(old.records, new.records),
        curves=replaced(old.curves, new.curves),
        rates=(*kept_rates, *new_rates.values()),
        unread=tuple(dict.fromkeys((*old.unread, *new.unread))),
    )


def write(path: Path, content: Content) -> None:
    """Write a file in one step."""
    private_files.replace(path, dumps(content).encode(), _FILE_MODE)


def dumps(content: Content) -> str:
    """Return `content` as a file has it: a header, then one line per entry. What could not be read stays."""
    header = {"schema": SCHEMA, "arch": content.arch, "shared_limit": content.shared_limit}
    parts = [json.dumps(header)[:-1]]
    for key, numbers in (("fitted", content.fitted), ("search_limits", content.search_limits)):
        if numbers is not None:
            parts.append(f'"{key}": {json.dumps(structs.asdict(numbers))}')
    parts += [f"{json.dumps(part.key)}: {part.text}" for part in content.unread if part.key not in LISTS]
    lists: dict[str, Iterable[Any]] = {
        "records": sorted(content.records, key=sort_key),
        "curves": map(with_numbers, sorted(content.curves, key=sort_key)),
        "candidates": content.candidates,
        "rates": content.rates,  # in order: the first are those of the architecture
    }
    for key, entries in lists.items():
        lines = [*map(line_of, entries), *(part.text for part in content.unread if part.key == key)]
        if lines or key in ("records", "curves"):
            parts.append(f'"{key}": ' + ("[\n" + ",\n".join(lines) + "\n]" if lines else "[]"))
    return ",\n".join(parts) + "}\n"
