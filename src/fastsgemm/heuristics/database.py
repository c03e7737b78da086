"""The tuning database: one JSON file for each architecture, shipped with the package or written by the user's tuning.

A file holds *records*, the best known constants for one problem, and *curves*, times of one config on many shapes, from
which `fastsgemm.heuristics.choice` predicts problems that nobody tuned. ``tuning_db/README.md`` describes the format.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fastsgemm import private_files, resources
from fastsgemm.config import Config
from fastsgemm.errors import RecordError
from fastsgemm.heuristics.database_entries import GENERIC, Content, Fitted, SearchLimits
from fastsgemm.heuristics.database_reading import File
from fastsgemm.heuristics.database_writing import merged, write
from fastsgemm.progress import warn

_LOCK_SECONDS = 60.0  # how long a process waits for another one to finish writing
_MOST_BYTES = 64 * 1024 * 1024  # of a file: the largest shipped one has about 300 kB
_MOST_ANSWERS = 65536  # that each function keeps
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
