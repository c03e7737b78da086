"""``python -m fastsgemm.torch [options] script.py args...`` runs a program with the switch on."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fastsgemm.errors import FastsgemmError
from fastsgemm.torch import switch


def main(arguments: Sequence[str] | None = None) -> None:
    """Turn the switch on, then run the program as ``python`` would."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if not given.program:
        parser.error("a program is missing")
    program, *rest = given.program
    if given.module and not _exists(program):
        parser.error(f"there is no module {program}")
    if not given.module and not Path(program).is_file():
        parser.error(f"there is no file {program}")
    try:
        turned = switch.enable(
            given.precision, given.batch_invariant, given.only and given.only.split(","), device=given.device
        )
    except FastsgemmError as error:
        parser.error(str(error))
    sys.argv = [program, *rest]  # run_module puts the file's path first
    try:
        if given.module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(program).resolve().parent)
            runpy.run_path(program, run_name="__main__")
    finally:
        if given.report:
            print(turned.report(), file=sys.stderr)
        switch.disable()


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that it would be in
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fastsgemm.torch",
        description="Run a PyTorch program with its float32 products replaced by fastsgemm's.",
        usage="%(prog)s [options] (script.py | -m module) [args...]",
    )
    parser.add_argument("--precision", default="ieee", help="ieee (default) or fp16x3")
    parser.add_argument("--batch-invariant", action="store_true", help="rows do not depend on how many there are")
    parser.add_argument("--only", metavar="NAMES", help=f"operators to replace, of {','.join(switch.OPERATORS)}")
    parser.add_argument("--device", default="cuda", help="cuda (default), or cpu for tests without a GPU")
    parser.add_argument("--report", action="store_true", help="print to stderr at the end what was replaced")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


if __name__ == "__main__":
    main()
