#!/usr/bin/env python3
"""Check files that `fastsgemm tune` has written: whether they may be added to the tuning database.

    tools/check_records.py            check tuning_db/ and contributions/
    tools/check_records.py FILE...    check these; a file has the name that it has in the user's data folder

Every line must be one that the loader takes. A measured one says on which device, with what and when it was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from write_tables import ROOT

from fastsgemm import private_files, strict_json
from fastsgemm.errors import RecordError
from fastsgemm.heuristics import database
from fastsgemm.heuristics.curve_fit import with_numbers
from fastsgemm.heuristics.database_entries import LISTS, sort_key
from fastsgemm.progress import show

_MOST_BYTES = 64 * 1024 * 1024  # of a file, which somebody else may have written
_SHIPPED = {"fitted", "search_limits", "candidates"}  # keys that only shipped files of the database have
_KEYS = {"schema", "arch", "shared_limit", "records", "curves"}  # of every file; it may have rates


def faults(path: Path) -> list[str]:
    """Return everything that is wrong with a file, the empty list if it can be shipped."""
    try:
        return faults_of_file(private_files.read(path, _MOST_BYTES, private=False).decode(), path.stem)
    except (OSError, UnicodeDecodeError) as error:
        return [str(error)]


def faults_of_file(text: str, arch: str) -> list[str]:
    """Return everything that is wrong with the text of a file for an architecture."""
    try:
        keys = {*strict_json.decode(text.encode(), dict[str, msgspec.Raw])}
        content = database.parse(text.encode(), arch)
        _refuse_duplicates(text.encode())
    except (ValueError, RecursionError) as error:  # RecordError is a ValueError
        return [str(error)]
    wrong = [*content.faults]
    if keys - _SHIPPED - {"rates"} != _KEYS:
        wrong.append(f"its keys are {sorted(keys)}, not {sorted(_KEYS)}")
    limit = database.shipped(arch).shared_limit
    if limit and content.shared_limit != limit:
        wrong.append(f"{content.shared_limit} bytes of shared memory per block, {arch} has {limit}")
    wrong += [f"{arch} cannot run all tiles of {one.device}" for one in content.rates if not one.runs_on(arch)]
    records, curves = content.records, content.curves
    for entry in (*records, *curves):
        broken = entry.config.violations(content.shared_limit)
        wrong += [f"{entry.rung} {entry.config}: {violation}" for violation in broken]
    fitted = [one for one in curves if one.numbers is not None]
    wrong += [
        f"{one.rung} {one.config}: the numbers are not those of the points"
        for one in fitted
        if one.numbers != with_numbers(one).numbers
    ]
    places = [*map(sort_key, (*records, *content.rates))]
    wrong += [f"more than one entry for {one}" for one in dict.fromkeys(places) if places.count(one) > 1]
    entered = len(content.evidence) + len(content.candidates)
    if text.count("\n{") != entered + sum(one.key in LISTS for one in content.unread):
        wrong.append("it does not have one entry a line")
    return wrong


def _refuse_duplicates(text: bytes) -> None:
    """Raise `RecordError` where an object has a key twice: a reader may see the first value, which the loader drops."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if twice:
            raise RecordError(f"an object has the key {twice[0]!r} twice")

    json.loads(text, object_pairs_hook=check)


def files() -> list[Path]:
    """Return the files of the database and of the contributions."""
    return [path for name in ("tuning_db", "contributions") for path in sorted((ROOT / name).rglob("*.json"))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    paths = parser.parse_args(arguments).files or files()
    wrong = [" ".join(f"{path}: {fault}".split()) for path in paths for fault in faults(path)]
    show("\n".join(wrong) if wrong else f"files in order: {len(paths)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
