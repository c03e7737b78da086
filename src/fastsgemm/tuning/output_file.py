"""What a command is asked to write: whether it can be and will be is known before the minutes of work for it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from fastsgemm.errors import ArgumentError, RecordError


def refuse_same(options: argparse.Namespace, written: Sequence[str], read: Sequence[str] = ()) -> None:
    """Raise `ArgumentError` if a file that one of these options writes is named by another one, too."""
    given = [(name, path) for name in (*written, *read) if (path := getattr(options, name))]
    for (name, first), (second_name, second) in combinations(given, 2):
        same = first.resolve() == second.resolve() or (first.exists() and second.exists() and first.samefile(second))
        if name in written and same and (first.is_file() or not first.exists()):
            raise ArgumentError(f"--{name} and --{second_name} name the same file, {first}")


def refuse_ignored(options: argparse.Namespace, mode: str, ignored: Sequence[str]) -> None:
    """Raise `ArgumentError` if one of these options is given beside `mode`, which has no use for it."""
    for name in ignored:
        if getattr(options, name):
            raise ArgumentError(f"--{mode} has no use for --{name.replace('_', '-')}; leave one of them out")


def refuse_unwritable(path: Path) -> None:
    """Raise `RecordError` if the file could not be written."""
    folder = path.absolute().parent
    place = path if path.exists() else folder
    if not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif path.is_dir():
        reason = "it is a folder"
    elif not os.access(place, os.W_OK):
        reason = f"you may not write {place}"
    else:
        return
    raise RecordError(f"{path} cannot be written: {reason}")
