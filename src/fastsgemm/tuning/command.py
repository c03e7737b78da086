"""The command ``fastsgemm tune``: its options and how they are carried out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fastsgemm.errors import DeviceError, NoDriverError
from fastsgemm.heuristics.explanation import device_at
from fastsgemm.progress import say, show
from fastsgemm.tuning import plot, tuner
from fastsgemm.tuning.output_file import refuse_ignored, refuse_unwritable
from fastsgemm.tuning.plan import plan_run

DESCRIPTION = (
    "Search for the fastest config of each problem on this device and store it for `sgemm`. Without --size, tune the "
    "standard problem set of each rung, and measure the tiles and rates of rung fp16x3. Ctrl-C keeps all measurements: "
    "run the same command again to resume."
)

_ELSEWHERE = "To see what a run would try on a device that is not here: fastsgemm tune --dry-run --device sm_90"
_OF_A_RUN = ("plot", "budget", "no_store")  # options without a use where nothing is timed
_INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended


def tune_as_asked(options: argparse.Namespace) -> int:
    """Carry out ``fastsgemm tune`` with these options.

    Returns
    -------
    int
        Exit code: 0, or 130 after Ctrl-C.
    """
    shapes = options.size or None
    if options.dry_run:
        refuse_ignored(options, "dry-run", _OF_A_RUN)
    if options.plot:
        plot.require()
    if options.dry_run:
        planned = plan_run(device_at(options.device), shapes, options.rung, options.quick)
        show(json.dumps(planned.json(), indent=2) if options.json else planned)
        return 0
    if options.plot:
        refuse_unwritable(options.plot)
    if options.device.lower() == "sim":
        raise DeviceError(f"a simulated device cannot be tuned, because it has counts and no times. {_ELSEWHERE}")
    try:
        outcome = tuner.tune(
            shapes,
            rung=options.rung,
            quick=options.quick,
            budget=options.budget,
            device=options.device,
            store=not options.no_store,
            progress=not options.no_progress,
        )
    except KeyboardInterrupt:
        say("fastsgemm: interrupted; all measurements are kept, run the same command again to resume")
        return _INTERRUPTED
    except NoDriverError as error:
        raise NoDriverError(f"{error}. {_ELSEWHERE}") from error
    show(json.dumps(outcome.json(), indent=2) if options.json else outcome)
    if options.plot:
        plot.draw(outcome, options.plot)
    return 0


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
    parser.add_argument(
        "--quick",
        action="store_true",
        help="correct the times of another device by a few on this one; of named problems, try a few good configs",
    )
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
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the times of all candidates (needs matplotlib)")
