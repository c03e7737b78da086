"""``fastsgemm tune``: the tuner's options and what is done with them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fastsgemm.errors import RecordError
from fastsgemm.heuristics import database, database_writing
from fastsgemm.heuristics.explanation import device_at
from fastsgemm.progress import say
from fastsgemm.tuning import plot, tuner
from fastsgemm.tuning.outcome import Outcome
from fastsgemm.tuning.plan import plan_run
from fastsgemm.tuning.search_spaces import SPACES, tunable

__all__ = ["DESCRIPTION", "add_options", "run", "tunable"]

DESCRIPTION = (
    "Search the constants that are fastest on this device and remember them for `sgemm`. Without --size: for the "
    "standard set of problems of each rung. Ctrl-C loses nothing: the same command goes on from there."
)

_INTERRUPTED = 130  # the exit code that shells use for Ctrl-C


def run(options: argparse.Namespace) -> int:
    """Do what ``fastsgemm tune`` was asked for.

    Returns
    -------
    int
        Exit code: 0, or 130 after Ctrl-C.
    """
    shapes = options.size or None
    if options.plot:
        plot.require()
    if options.dry_run:
        planned = plan_run(device_at(options.device), shapes, options.rung, options.space, options.quick)
        print(json.dumps(planned.json(), indent=2) if options.json else planned)
        return 0
    try:
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
    except KeyboardInterrupt:
        say("fastsgemm: stopped; what was measured is kept, the same command goes on from there")
        return _INTERRUPTED
    print(json.dumps(outcome.json(), indent=2) if options.json else outcome)
    if options.export:
        _export(options.export, outcome)
    if options.plot:
        plot.draw(outcome, options.plot)
    return 0


def _export(path: Path, outcome: Outcome) -> None:
    """Write the shipped file with the results of this run in it: a file ready to contribute."""
    try:
        database_writing.write(path, database_writing.merged(database.shipped(outcome.device.arch), outcome.content))
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error}") from error
    say(f"exported to {path}")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return value


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that no other command has, and ``--device``."""
    parser.add_argument(
        "--device",
        default="cuda",
        help="the device in this machine, also by name; with --dry-run it need not be there; default cuda, the first",
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
