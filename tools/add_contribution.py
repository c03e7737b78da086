#!/usr/bin/env python3
"""Add contributed files to the shipped tuning database, after checking them.

    tools/add_contribution.py contributions/*.json

The records and curves of a file replace those of the same device, and so do its rates of rung 11. The tests then
compile and check every config.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fastsgemm.errors import RecordError
from fastsgemm.heuristics import database, fp16x3_rates
from fastsgemm.heuristics.fp16x3_rates import Rates
from fastsgemm.progress import say
from fastsgemm.tuning import contribution


def add(path: Path) -> Path:
    """Merge a file into the database and return the database's file.

    Raises
    ------
    RecordError
        Something speaks against the file.
    """
    given, content = contribution.read(path)
    wrong = contribution.faults(given, content)
    if wrong:
        raise RecordError(f"{path}: " + "; ".join(wrong))
    arch = given.machine.arch
    rates = contribution.rates_of(given)
    target = None if rates is None else _file_of(rates)  # before anything is written, because it may refuse
    database.write(database.shipped_path(arch), database.merged(database.shipped(arch), content))
    database.forget()
    if rates is not None and target is not None:
        target.write_text(fp16x3_rates.dumps(rates), encoding="utf-8")
    return database.shipped_path(arch)


def _file_of(rates: Rates) -> Path:
    """Return the file of rung 11 for an architecture or, where that is of another device, the one for this device.

    Raises
    ------
    RecordError
        That one is of another device, too, or a file is damaged.
    """
    folder = database.shipped_path(rates.arch).parent / "fp16x3"
    for name in (rates.arch, database.file_name(rates.device)):
        path = folder / f"{name}.json"
        if not path.exists():
            return path
        there = fp16x3_rates.parse(path, path.read_bytes())
        if (there.arch, there.device) == (rates.arch, rates.device):
            return path
    raise RecordError(f"{path} is of {there.device} ({there.arch}), not of {rates.device} ({rates.arch})")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    for path in options.files:
        try:
            print(f"{path}: added to {add(path)}")
        except RecordError as error:
            say(str(error))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
