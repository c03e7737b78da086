"""The command ``fastsgemm tune``: its options and how they are carried out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from msgspec import structs

from fastsgemm import device
from fastsgemm.errors import DeviceError, NoDriverError
from fastsgemm.heuristics.database_entries import Content
from fastsgemm.heuristics.explanation import device_at
from fastsgemm.progress import say, show
from fastsgemm.tuning import plot, tuner
from fastsgemm.tuning.outcome import Outcome
from fastsgemm.tuning.output_file import refuse_ignored, refuse_same, refuse_unwritable
from fastsgemm.tuning.plan import plan_run

DESCRIPTION = (
    "Search for the fastest config of each problem on this device and store it for `sgemm`. Without --size, tune the "
    "standard problem set of each rung, and measure the tiles and rates of rung fp16x3. Ctrl-C keeps all measurements: "
    "run the same command again to resume."
)

_ELSEWHERE = "To see what a run would try on a device that is not here: fastsgemm tune --dry-run --device sm_90"
_OF_A_RUN = ("export", "plot", "budget", "no_store")  # options without a use where nothing is timed
_REFUSED = 1  # the exit code for a file that is not believed
_INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended


def tune_as_asked(options: argparse.Namespace) -> int:
    """Carry out ``fastsgemm tune`` with these options.

    Returns
    -------
    int
        Exit code: 0, 1 where a file to verify is refused, or 130 after Ctrl-C.
    """
    shapes = options.size or None
    if options.verify:
        refuse_ignored(options, "verify", (*_OF_A_RUN, "dry_run", "size", "rung", "quick"))
        return _verify(options.verify, options.json)
    if options.dry_run:
        refuse_ignored(options, "dry-run", _OF_A_RUN)
    refuse_same(options, ("export", "plot"))
    if options.plot:
        plot.require()
    if options.dry_run:
        planned = plan_run(device_at(options.device), shapes, options.rung, options.quick)
        show(json.dumps(planned.json(), indent=2) if options.json else planned)
        return 0
    if options.export:
        refuse_unwritable(options.export, replaced=True)
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
    if options.export:
        _export(options.export, outcome, options.device)
    if options.plot:
        plot.draw(outcome, options.plot)
    return 0


def _export(path: Path, outcome: Outcome, place: str) -> None:
    """Time a sample of the results again, and write everything into a file to contribute.

    Whatever `fastsgemm tune --verify` will say against the file is said at once, while the device is still here.
    """
    from fastsgemm.measure import machine
    from fastsgemm.tuning import contribution

    gpu = device.open_gpu(device.ordinal(place))
    with tuner.evaluating(gpu) as evaluator:
        checks = [contribution.check(evaluator, record) for record in contribution.sample(outcome.content.records)]
    contribution.write(path, outcome, checks, machine.clocks(gpu))
    say(f"exported to {path}")
    for line in contribution.faults(*contribution.read(path)):
        say(f"as a contribution it would be refused: {line}")


def _verify(path: Path, as_json: bool) -> int:
    """Print what speaks against a contributed file, and the times of a sample of it if its device is here.

    Returns
    -------
    int
        Exit code: 0, or 1 if something speaks against it.
    """
    from fastsgemm.tuning import contribution

    given, content = contribution.read(path)
    wrong = contribution.faults(given, content)
    again, absent = ([], None) if wrong else _timed_again(given.machine.device, content)
    refused = bool(wrong) or any(line.endswith("DIFFERS") for line in again)
    rates = contribution.rates_of(given) is not None
    counts = {"records": len(content.records), "curves": len(content.curves), "checks": len(given.checks)}
    if as_json:
        data = {"machine": structs.asdict(given.machine), **counts, "fp16x3": rates, "in_order": not refused}
        show(json.dumps({**data, "faults": wrong, "timed_again": again, "not_timed": absent}, indent=2))
        return _REFUSED if refused else 0
    made_on = given.machine
    show(f"{made_on.device} ({made_on.arch}), driver {made_on.driver}, NVRTC {made_on.nvrtc}, {made_on.date}")
    show("records: {records}, curves: {curves}, checked after the run: {checks}".format(**counts))
    if rates:
        show("rates of rung fp16x3")
    for line in (*(f"refused: {one}" for one in wrong), *again):
        show(line)
    if absent is not None:
        show(f"the file is in order; no sample was timed here: {absent}")
    return _REFUSED if refused else 0


def _timed_again(name: str, content: Content) -> tuple[list[str], str | None]:
    """Return a line for each record of a sample, as `contribution.time_again` does, or why none was timed."""
    from fastsgemm.tuning import contribution

    try:
        ordinal = device.ordinal(name)
    except DeviceError as error:
        return [], "this machine has no NVIDIA device" if isinstance(error, NoDriverError) else str(error)
    with tuner.evaluating(device.open_gpu(ordinal)) as evaluator:
        return contribution.time_again(evaluator, content), None


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
        "--export",
        type=Path,
        metavar="FILE",
        help="also write the results, with what makes them believable, to a file to contribute",
    )
    parser.add_argument(
        "--verify",
        type=Path,
        metavar="FILE",
        help="tune nothing; check such a file, and time a sample of its records if its device is in this machine",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the times of all candidates (needs matplotlib)")
