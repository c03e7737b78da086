"""A file that a command is asked to write: whether it can be written is known before the minutes of work for it."""

from __future__ import annotations

import os
from pathlib import Path

from fastsgemm.errors import RecordError


def refuse_unwritable(path: Path, replaced: bool = False) -> None:
    """Raise `RecordError` if the file could not be written.

    Parameters
    ----------
    path : Path
    replaced : bool
        A new file takes its place, which must not happen to a device such as ``/dev/null``.
    """
    folder = path.absolute().parent
    place = path if path.exists() and not replaced else folder
    if not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif path.is_dir():
        reason = "it is a folder"
    elif replaced and path.exists() and not path.is_file():
        reason = "it is not a regular file"
    elif not os.access(place, os.W_OK):
        reason = f"you may not write {place}"
    else:
        return
    raise RecordError(f"{path} cannot be written: {reason}")
