#!/usr/bin/env python3
"""Add contributed files to the shipped tuning database, after checking them.

    tools/add_contribution.py contributions/*.json

The records and curves of a file replace those of the same device. The tests then compile and check every config.
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
    database.write(database.shipped_path(arch), database.merged(database.shipped(arch), content))
    database.forget()
    rates = contribution.rates_of(given)
    if rates is not None:
        _add_rates(rates)
    return database.shipped_path(arch)


def _add_rates(rates: Rates) -> None:
    """Write the file of rung 11 for an architecture or, where that is of another device, one for this device."""
    folder = database.shipped_path(rates.arch).parent / "fp16x3"
    path = folder / f"{rates.arch}.json"
    if path.exists() and fp16x3_rates.parse(path, path.read_bytes()).device != rates.device:
        path = folder / f"{database.file_name(rates.device)}.json"
    path.write_text(fp16x3_rates.dumps(rates), encoding="utf-8")


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
