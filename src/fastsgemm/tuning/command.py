"""The command ``fastsgemm tune``: its options and how they are carried out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fastsgemm.errors import RecordError
from fastsgemm.heuristics import database, database_writing, fp16x3_rates
from fastsgemm.heuristics.explanation import device_at
from fastsgemm.progress import say
from fastsgemm.tuning import plot, tuner
from fastsgemm.tuning.outcome import Outcome
from fastsgemm.tuning.plan import plan_run, tunable
from fastsgemm.tuning.search_spaces import SPACES

__all__ = ["DESCRIPTION", "add_options", "tunable", "tune_as_asked"]

DESCRIPTION = (
    "Search for the fastest config of each problem on this device and store it for `sgemm`. Without --size, tune the "
    "standard problem set of each rung, and measure the tiles and rates of rung fp16x3. Ctrl-C keeps all measurements: "
    "run the same command again to resume."
)

_INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended


def tune_as_asked(options: argparse.Namespace) -> int:
    """Carry out ``fastsgemm tune`` with these options.

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
        say("fastsgemm: interrupted; all measurements are kept, run the same command again to resume")
        return _INTERRUPTED
    print(json.dumps(outcome.json(), indent=2) if options.json else outcome)
    if options.export:
        _export(options.export, outcome)
    if options.plot:
        plot.draw(outcome, options.plot)
    return 0


def _export(path: Path, outcome: Outcome) -> None:
    """Write the shipped database file with the results of this run merged in, ready to contribute.

    Rung 11 has files of its own; one is written if nothing else was tuned.
    """
    try:
        if outcome.rates is not None and not outcome.tuned:
            path.write_text(fp16x3_rates.dumps(outcome.rates), encoding="utf-8")
        else:
            database_writing.write(
                path, database_writing.merged(database.shipped(outcome.device.arch), outcome.content)
            )
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
    """Add the options that only ``tune`` has, and ``--device``."""
    parser.add_argument(
        "--device",
        default="cuda",
        help="a device of this machine (with --dry-run, any known device), by number or name; default: cuda, the first",
    )
    parser.add_argument("--space", choices=list(SPACES), help="the search space; default: the one of the rung")
    parser.add_argument("--quick", action="store_true", help="try only a few good candidates; takes seconds")
    parser.add_argument(
        "--budget",
        type=_seconds,
        metavar="SECONDS",
        help=f"stop searching after this time; default: {tuner.QUICK_SECONDS:.0f} in a quick run, "
        f"{tuner.STANDARD_SECONDS:.0f} for the standard set",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be tried, and stop")
    parser.add_argument("--no-store", action="store_true", help="do not store the result for `sgemm`")
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="also write the results to a database file, ready to contribute"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the times of all candidates (needs matplotlib)")
