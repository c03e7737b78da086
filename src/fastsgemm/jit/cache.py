"""The per-user cache of compiled kernels: cuda.core's file cache, with a digest that tells damage from a hit.

Nothing here can make a call fail. Whatever goes wrong with the folder, the kernel is compiled instead and one
warning per process says why it is slow.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuda.core.utils import FileStreamProgramCache

_DIGEST = 32  # bytes of SHA-256, appended to the cubin: ELF readers ignore what follows
_MAX_BYTES = 256 * 1024 * 1024  # then the least recently used entries go

_warned = False


def folder() -> Path:
    """Return the cache folder: ``FASTSGEMM_CACHE_DIR`` or the user's cache folder of this platform."""
    override = os.environ.get("FASTSGEMM_CACHE_DIR")
    if override:
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_cache_dir("fastsgemm", appauthor=False))


def read(key: bytes) -> bytes | None:
    """Return the cubin stored under `key`, or None where there is none that is whole."""
    try:
        entry: bytes = _open()[key]
    except KeyError:
        return None
    except (OSError, RuntimeError) as error:
        _warn(f"cannot be read ({error})")
        return None
    cubin, digest = entry[:-_DIGEST], entry[-_DIGEST:]
    if hashlib.sha256(cubin).digest() != digest:
        _warn("holds a damaged entry, which is compiled again")
        return None
    return cubin


def write(key: bytes, cubin: bytes) -> None:
    """Store `cubin` under `key`, if the folder allows."""
    try:
        _open()[key] = cubin + hashlib.sha256(cubin).digest()
    except (OSError, RuntimeError) as error:
        _warn(f"cannot be written ({error})")


def entries() -> tuple[int, int]:
    """Return how many kernels are stored and how many bytes they take."""
    files = [path for path in folder().glob("entries/*/*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


def clear() -> None:
    """Remove every stored kernel."""
    _open().clear()


def _open() -> FileStreamProgramCache:
    return _store(folder())


@cache
def _store(path: Path) -> FileStreamProgramCache:
    """Open the cache in this folder once: opening looks at every entry."""
    from cuda.core.utils import FileStreamProgramCache

    return FileStreamProgramCache(path, max_size_bytes=_MAX_BYTES)


def _warn(what: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"the kernel cache {folder()} {what}; results are right but first calls are slower. "
            "FASTSGEMM_CACHE_DIR names another folder.",
            RuntimeWarning,
            stacklevel=2,
        )
