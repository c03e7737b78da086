"""Files that no other user can write: the kernel cache, the user's tuning results and the checkpoint.

These files decide which machine code runs. So a folder or file is used only if this user or root owns it and neither
its group nor others can write it. What root makes, others can read as far as its umask lets them: a program that runs
as another user in an image finds the kernels that were compiled when the image was built. A file is checked through its
open descriptor, so it cannot be exchanged between the check and the read. It is opened without blocking, so a FIFO
cannot hang the call.

Every failure is an `OSError`, which callers turn into a warning or an error of their own.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import cache
from io import FileIO
from itertools import takewhile
from pathlib import Path
from typing import Literal

from fastsgemm.progress import warn

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER_MODE = 0o700
_ROOT_MODE = 0o755  # of a folder that root makes
_FILE_MODE = 0o600


def user_folder(kind: Literal["cache", "data"]) -> Path | None:
    """Return the platform's folder for files of this kind, or None without a home folder."""
    import platformdirs

    try:
        folder = Path(getattr(platformdirs, f"user_{kind}_dir")("fastsgemm", appauthor=False))
    except RuntimeError:  # platformdirs: HOME is not set and the user has no passwd entry
        folder = Path()
    if folder.is_absolute():  # older versions of platformdirs leave a ~ in the path
        return folder
    _warn_no_home()
    return None


@cache
def _warn_no_home() -> None:
    warn(
        f"no home folder was found (HOME is not set and user {os.geteuid()} has no passwd entry): compiled kernels and "
        "tuning results are not kept, so first calls are slower. FASTSGEMM_CACHE_DIR and FASTSGEMM_DATA_DIR name "
        "folders for them."
    )


def make_folder(folder: Path) -> None:
    """Make `folder` and its missing parents, then check it.

    They have mode 0700 whatever the umask is; those of root 0755, less what the umask takes from others.
    """
    missing = takewhile(lambda path: not path.exists(), (folder, *folder.parents))
    for path in reversed(list(missing)):
        with suppress(FileExistsError):  # another process made it
            os.mkdir(path, _ROOT_MODE if os.geteuid() == 0 else _FOLDER_MODE)
            # A umask may have taken bits away from the owner, too.
            os.chmod(path, _FOLDER_MODE | stat.S_IMODE(os.stat(path).st_mode))
    check_folder(folder)


def hidden_from_others(folder: Path) -> bool:
    """Return whether root made a folder that other users cannot read."""
    status = os.stat(folder)
    return status.st_uid == os.geteuid() == 0 and not status.st_mode & stat.S_IROTH


def check_folder(folder: Path) -> None:
    """Raise an `OSError` if `folder` is missing, is not a folder, or can be written by other users."""
    status = os.stat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    _check_owner(status, folder)


def _check_owner(status: os.stat_result, path: Path) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{path} belongs to another user, {status.st_uid}")
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionError(f"other users can write {path}, its mode is {mode:04o}; chmod go-w makes it safe")


def read(path: Path, limit: int, *, private: bool = True) -> bytes:
    """Return a regular file of at most `limit` bytes; if `private`, refuse one that others own or can write."""
    with open(_opened(path, os.O_RDONLY, private), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(f"{path} has {size} bytes, the limit is {limit}")
        return file.read(limit)


def open_to_append(path: Path) -> FileIO:
    """Open a file for appending, without a buffer, creating it with mode 0600 if it is missing."""
    return open(_opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, True), "ab", buffering=0)


def _opened(path: Path, flags: int, private: bool) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, _FILE_MODE)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        if private:
            _check_owner(status, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def replace(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file atomically: readers see the old content or the new content, never a part.

    Without a mode, who can read the folder can read the file.
    """
    import tempfile  # imported late, because a process with a warm cache writes nothing

    if mode is None:
        mode = _FILE_MODE | (os.stat(path.parent).st_mode & (stat.S_IRGRP | stat.S_IROTH))
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
            os.fchmod(descriptor, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
