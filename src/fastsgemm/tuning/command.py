"""The command line of the tuner, ``python -m fastsgemm.tune``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastsgemm import problem, rungs
from fastsgemm.errors import FastsgemmError, RecordError, ShapeError, UnknownRungError
from fastsgemm.heuristics import database
from fastsgemm.heuristics.explanation import device_at, explain
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung
from fastsgemm.tuning import plot, tuner
from fastsgemm.tuning.search_spaces import SPACES, tunable

_USAGE_ERROR = 2  # the exit code for what the caller can mend
_INTERRUPTED = 130  # as a shell has it for Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of the process.

    Returns
    -------
    int
        Exit code: 0, 2 for an error of the caller or the machine, 130 after Ctrl-C.
    """
    options = _parser().parse_args(arguments)
    try:
        if options.command == "show":
            return _show(options)
        return _tune(options)
    except FastsgemmError as error:
        print(f"fastsgemm.tune: {' '.join(str(error).split())}", file=sys.stderr)
        return _USAGE_ERROR
    except KeyboardInterrupt:
        print(
            "fastsgemm.tune: stopped; what was measured is kept, the same command goes on from there", file=sys.stderr
        )
        return _INTERRUPTED


def _tune(options: argparse.Namespace) -> int:
    shapes = options.shape or None
    if options.plot:
        plot.require()
    if options.dry_run:
        planned = tuner.plan(
            device_at(options.arch or options.device), shapes, options.rung, options.space, options.quick
        )
        print(json.dumps(planned.json(), indent=2) if options.json else planned)
        return 0
    if options.arch:
        raise ShapeError("--arch is for --dry-run and show; a run tunes the device that is there (--device)")
    outcome = tuner.tune(
        shapes,
        rung=options.rung,
        space=options.space,
        quick=options.quick,
        budget=options.budget,
        device=options.device,
        store=not options.no_store,
        progress=not options.no_progress,
    )
    print(json.dumps(outcome.json(), indent=2) if options.json else outcome)
    if options.export:
        _export(options.export, outcome)
    if options.plot:
        plot.draw(outcome, options.plot)
    return 0


def _export(path: Path, outcome: tuner.Outcome) -> None:
    """Write the shipped file with the results of this run in it: a file ready to contribute."""
    try:
        database.write(path, database.merged(database.shipped(outcome.device.arch), outcome.content))
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error}") from error
    print(f"exported to {path}", file=sys.stderr)


def _show(options: argparse.Namespace) -> int:
    found = explain(options.M, options.N, options.K, options.layout, options.rung, options.arch or options.device)
    print(json.dumps(found.json(), indent=2) if options.json else found)
    return 0


def _shape(text: str) -> Problem:
    try:
        return problem.parse(text)
    except ShapeError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _rung(text: str) -> Rung:
    try:
        return rungs.find(int(text) if text.isdecimal() else text)
    except UnknownRungError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fastsgemm.tune",
        description="Search the constants that are fastest on this device and remember them for `sgemm`. Without "
        "--shape: for the standard set of problems of each rung. Ctrl-C loses nothing: the same command goes on from "
        "there.",
    )
    _common(parser)
    parser.set_defaults(rung=None, device=0, arch=None, json=False)
    parser.add_argument(
        "--shape",
        action="append",
        type=_shape,
        default=[],
        metavar="M,N,K[,LAYOUT]",
        help="tune this problem; repeatable. LAYOUT is NN, NT, TN or TT: A and B row-major (N) or column-major (T)",
    )
    parser.add_argument("--space", choices=list(SPACES), help="the search space; default: that of the rung")
    parser.add_argument("--quick", action="store_true", help="a few good candidates only, in seconds")
    parser.add_argument(
        "--budget",
        type=_seconds,
        metavar="SECONDS",
        help=f"stop searching after this time; default: {tuner.QUICK_SECONDS:.0f} in a quick run, "
        f"{tuner.STANDARD_SECONDS:.0f} for the standard set",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be tried, and do nothing")
    parser.add_argument("--no-store", action="store_true", help="do not keep the result for `sgemm`")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write a file that is ready to contribute")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the sweep (needs matplotlib)")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="{show}")
    show = commands.add_parser("show", help="say which constants a problem gets, and why")
    for name in "MNK":
        show.add_argument(name, type=int)
    show.add_argument("--layout", choices=problem.LAYOUTS, default="NN")
    _common(show)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    def add(*names: str, **how: Any) -> None:
        # No default here: a command's would overwrite what stands before it.
        parser.add_argument(*names, default=argparse.SUPPRESS, **how)

    add("--rung", type=_rung, help=f"the rung; tunable are {', '.join(tunable())}")
    add("--device", type=int, metavar="NUMBER", help="CUDA's number of the device; default 0")
    add("--arch", metavar="sm_90", help="for show and --dry-run: an architecture instead of the device that is there")
    add("--json", action="store_true", help="print JSON for machines")
