"""The user's cache of compiled code: one file per kernel or host library, named by the digest of its key.

A failure of the cache never makes a call fail: the kernel is compiled, and one warning per process says why.

cuda.core's file cache is not used, because it reads any file in its folder, whoever wrote it, and its caller cannot
check the file. Importing it also takes longer than reading a kernel here.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fastsgemm import private_files, settings
from fastsgemm.errors import DeviceError
from fastsgemm.progress import warn

_DIGEST = 32  # bytes of SHA-256, appended to the cubin: ELF readers ignore bytes after the end
_MAX_BYTES = 256 * 1024 * 1024  # of all entries together; beyond that the least recently used are removed
_ENTRY = re.compile(r"[0-9a-f]{64}\.(cubin|so)")
_PART = re.compile(r"[0-9a-f]{64}\.(cubin|so).*\.part")  # if old, left by a process killed while writing
_PART_SECONDS = 3600.0

_warned = False


def folder() -> Path | None:
    """Return the cache folder: ``FASTSGEMM_CACHE_DIR`` or the user's cache folder of this platform.

    Return None if the variable is not set and the user has no home folder.
    """
    return settings.CACHE_DIR.read() or private_files.user_folder("cache")


def read(key: bytes) -> bytes | None:
    """Return the cubin stored under `key`, or None if it is missing, damaged or unsafe."""
    directory = folder()
    if directory is None:
        return None
    path = directory / _name(key)
    try:
        private_files.check_folder(directory)
        entry = private_files.read(path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn(f"cannot be read ({error})")
        return None
    cubin = opened(key, entry)
    if cubin is None:
        _warn("holds a damaged entry, which is compiled again")
        return None
    with suppress(OSError):  # the folder may be read-only
        os.utime(path)
    return cubin


def write(key: bytes, cubin: bytes, required: bool = False) -> None:
    """Store `cubin` under `key`; a failure is one warning, or a `DeviceError` if it is required."""
    directory = required_folder() if required else folder()
    if directory is None:
        return
    try:
        private_files.make_folder(directory)
        private_files.replace(directory / _name(key), sealed(key, cubin))
        _evict(directory)
    except OSError as error:
        if required:
            raise _not_written(directory, error) from error
        _warn(f"cannot be written ({error})")


def require_writable() -> None:
    """Make the cache folder if it is missing.

    Raises
    ------
    DeviceError
        There is no such folder, or this user cannot write it.
    """
    directory = required_folder()
    try:
        private_files.make_folder(directory)
        if not os.access(directory, os.W_OK):
            raise PermissionError(f"you may not write {directory}")
    except OSError as error:
        raise _not_written(directory, error) from error


def _not_written(directory: Path, error: OSError) -> DeviceError:
    return DeviceError(
        f"the kernel cache {directory} cannot be written ({error}); FASTSGEMM_CACHE_DIR names another folder"
    )


def required_folder() -> Path:
    """Return the cache folder, or raise `DeviceError` if there is none."""
    directory = folder()
    if directory is None:
        raise DeviceError("there is no kernel cache: FASTSGEMM_CACHE_DIR is not set and there is no home folder")
    return directory


def entries() -> tuple[int, int]:
    """Return the number of stored kernels and their size in bytes.

    Raises
    ------
    OSError
        The folder cannot be read, or is not used because other users can write it.
    """
    directory = folder()
    if directory is not None:
        with suppress(FileNotFoundError):
            private_files.check_folder(directory)
    sizes = [stat.st_size for _, stat in _files(directory, _ENTRY)]
    return len(sizes), sum(sizes)


def clear() -> None:
    """Remove every stored kernel.

    Raises
    ------
    OSError
        The folder cannot be read, or an entry cannot be removed.
    """
    directory = folder()
    for pattern in (_ENTRY, _PART):
        for path, _ in _files(directory, pattern):
            path.unlink(missing_ok=True)


def _name(key: bytes) -> str:
    return f"{hashlib.sha256(key).hexdigest()}.cubin"


def sealed(key: bytes, cubin: bytes) -> bytes:
    """Return the content of an entry: the cubin, and the digest of it and its key."""
    return cubin + _digest(key, cubin)


def opened(key: bytes, entry: bytes) -> bytes | None:
    """Return the cubin of an entry, or None if it is damaged or another key's."""
    cubin, digest = entry[:-_DIGEST], entry[-_DIGEST:]
    return cubin if cubin and _digest(key, cubin) == digest else None


def _digest(key: bytes, cubin: bytes) -> bytes:
    """Return a digest of key and cubin, which detects exchanged, truncated and empty entries."""
    lengths = len(key).to_bytes(8, "little") + len(cubin).to_bytes(8, "little")
    return hashlib.sha256(lengths + key + cubin).digest()


def _files(directory: Path | None, pattern: re.Pattern[str]) -> Iterator[tuple[Path, os.stat_result]]:
    if directory is None:
        return
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                with suppress(OSError):  # another process may have removed it
                    yield Path(entry.path), entry.stat(follow_symlinks=False)


def _evict(directory: Path) -> None:
    """Remove the least recently used entries beyond the limit, and old files of killed processes."""
    stored = sorted(_files(directory, _ENTRY), key=lambda entry: entry[1].st_mtime)
    excess = sum(stat.st_size for _, stat in stored) - _MAX_BYTES
    for path, stat in stored:
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= stat.st_size
    for path, stat in _files(directory, _PART):
        if time.time() - stat.st_mtime > _PART_SECONDS:
            path.unlink(missing_ok=True)


def _warn(problem: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warn(
            f"the kernel cache {folder()} {problem}; results are right but first calls are slower. "
            "FASTSGEMM_CACHE_DIR names another folder."
        )
