"""Files that a program makes: those that are out of date are written or, with ``--check``, named."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser of ``--check``, for a program with this docstring."""
    arguments = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    arguments.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    return arguments


def run(about: str | None, program: str, wanted: Mapping[Path, str], given: Sequence[str] | None) -> int:
    """Run a program that takes ``--check`` alone; see `update`."""
    return update(wanted, program, parser(about).parse_args(given).check)


def update(wanted: Mapping[Path, str], program: str, check: bool) -> int:
    """Write the files whose text is not the wanted one; with `check`, name them instead. Return the exit status.

    Parameters
    ----------
    wanted : mapping
        The text of each file.
    program : str
        What writes them, for the message.
    check : bool
    """
    old = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if check and old:
        print(f"out of date: {', '.join(path.name for path in old)}; run tools/{program}", file=sys.stderr)
        return 1
    for path in old:
        path.write_text(wanted[path], encoding="utf-8")
    return 0
