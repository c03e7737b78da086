"""The command line of ``python -m fastsgemm.torch``."""

from __future__ import annotations

import argparse
import atexit
import sys
from collections.abc import Sequence

from fastsgemm.errors import FastsgemmError
from fastsgemm.torch import program, switch


def main(arguments: Sequence[str] | None = None) -> None:
    """Turn the switch on for the rest of the process, and run the program as ``python`` would."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.program[:1] == ["--"]:
        del given.program[0]
    if not given.program:
        parser.error("a program is missing")
    try:
        turned = switch.enable(
            given.precision, given.batch_invariant, given.only and given.only.split(","), device=given.device
        )
    except FastsgemmError as error:
        parser.error(str(error))
    if given.report:  # registered before the functions of the program, so that it runs after them
        atexit.register(lambda: print(turned.report(), file=sys.stderr))
    name, *rest = given.program
    run = program.run_module if given.module else program.run_path
    run(name, rest)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fastsgemm.torch",
        description="Run a PyTorch program with its float32 products replaced by fastsgemm's.",
        usage="%(prog)s [options] (script.py | folder | -m module) [args...]",
    )
    parser.add_argument("--precision", default="ieee", help="ieee (default) or fp16x3")
    parser.add_argument("--batch-invariant", action="store_true", help="rows do not depend on how many there are")
    parser.add_argument("--only", metavar="NAMES", help=f"operators to replace, of {','.join(switch.OPERATORS)}")
    parser.add_argument("--device", default="cuda", help="cuda (default), or cpu for tests without a GPU")
    parser.add_argument("--report", action="store_true", help="print to stderr at the end what was replaced")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser
