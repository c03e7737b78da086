"""The command ``fastsgemm bench`` and its options."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastsgemm import device, private_files, strict_json
from fastsgemm.errors import DeviceError, NoDriverError, RecordError
from fastsgemm.gemm import sgemm
from fastsgemm.measure.problem_sets import GIVEN, SETS, Sample
from fastsgemm.problem import WRITTEN, Problem, require_one_size
from fastsgemm.progress import say, show
from fastsgemm.tuning import first_use
from fastsgemm.tuning.output_file import refuse_same, refuse_unwritable

DESCRIPTION = (
    "Check and time sgemm beside cuBLAS, which needs PyTorch, on fixed sets of problems; all take some minutes. "
    "With --compare, compare with an earlier run on the same kind of device and exit with 1 if a figure is slower. "
    "Without a device and without options: show the report of the run that this version ships."
)

_ELSEWHERE = "Without a device, this shows the report of the shipped run: fastsgemm bench, and of another: --input FILE"
_SLOWER = 1  # exit code
_MOST_BYTES = 64 * 1024 * 1024  # of a file with results


def add_options(parser: argparse.ArgumentParser, problem: Callable[[str], Problem]) -> None:
    """Add the options of ``bench``; `problem` reads a problem of the command line."""
    exclusive = parser.add_mutually_exclusive_group()
    exclusive.add_argument(
        "--size",
        action="append",
        type=problem,
        default=[],
        metavar=WRITTEN,
        help="time this problem instead of the sets; repeatable",
    )
    exclusive.add_argument(
        "--set",
        action="append",
        choices=tuple(SETS),
        default=[],
        help="run this set of problems; repeatable; default: all sets",
    )
    parser.add_argument("--device", default="cuda", help="the device; default cuda, the first one in this machine")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results as JSON, for --compare")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a report as Markdown; default: print it")
    exclusive.add_argument(
        "--input", type=Path, metavar="FILE", help="measure nothing; take the results that --output has written"
    )
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="compare with results that --output has written, figure by figure"
    )


def bench_as_asked(options: argparse.Namespace) -> int:
    """Run ``fastsgemm bench`` with these options.

    Returns
    -------
    int
        Exit code: 0, or 1 if a figure is slower than in the run to compare with.
    """
    from fastsgemm.measure import comparison, speed_report  # other commands need no measurements

    refuse_same(options, ("output", "report"), ("input", "compare"))
    old = _read(options.compare) if options.compare else None
    for path in (options.output, options.report):
        if path:
            refuse_unwritable(path)
    data = _read(options.input) if options.input else _measured(options) or _shipped()
    if old is not None and old["device"] != data["device"]:
        raise RecordError(f"{options.compare} is of one {old['device']}, this run is of one {data['device']}")
    compared = comparison.verdicts(old, data) if old is not None else []
    text = speed_report.page(data, compared, old)
    if options.output:
        _write(options.output, json.dumps(data, indent=1) + "\n")
    if options.report:
        _write(options.report, text)
    if options.json:
        verdicts = {} if old is None else {"compared": [dataclasses.asdict(figure) for figure in compared]}
        show(json.dumps(data | verdicts, indent=2))
    elif not options.report:
        show(text, end="")
    return _SLOWER if any(figure.verdict == "slower" for figure in compared) else 0


def _shipped() -> dict[str, Any]:
    from fastsgemm.measure import stored_run

    say(f"fastsgemm: no NVIDIA driver was found; this is the shipped report of {stored_run.place()}")
    return stored_run.run()


def _measured(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the results of this machine; None if it has no driver and only a report was requested."""
    if options.device.lower() == "sim":
        raise DeviceError(f"a simulated device cannot be timed, because it has counts and no times. {_ELSEWHERE}")
    for problem in options.size:
        require_one_size(problem, "bench")
    if options.size:
        samples: dict[str, Sequence[Sample]] = {GIVEN: [Sample(problem) for problem in options.size]}
    else:
        samples = {name: SETS[name].samples() for name in options.set or SETS}
    try:
        return measure(samples, options.device)
    except NoDriverError as error:
        if options.device == "cuda" and not (options.size or options.set or options.output or options.compare):
            return None
        raise NoDriverError(f"{error}. {_ELSEWHERE}") from error


def measure(samples: Mapping[str, Sequence[Sample]], device_name: str) -> dict[str, Any]:
    """Return the results of these samples, by the name of their set, on a device of this machine.

    Raises
    ------
    DeviceError
        This machine has no such device.
    MissingExtraError
        PyTorch, through which cuBLAS is called, is missing or cannot use the device.
    WrongResultError
        A result is wrong.
    """
    from fastsgemm.measure import suite

    ordinal = device.ordinal(device_name)
    device.probe()  # so that a missing driver is not blamed on PyTorch
    torch = suite.import_torch()
    gpu = first_use.open_device(ordinal)  # tunes a device without records, as a first call does
    return suite.run(samples, torch, gpu, sgemm)


def _read(path: Path) -> dict[str, Any]:
    """Read the results in a file, and check that they have every field of a report."""
    from fastsgemm.measure import comparison, speed_report, suite

    try:
        text = private_files.read(path, _MOST_BYTES, private=False)
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        data: dict[str, Any] = strict_json.decode(text, dict[str, Any])
    except RecordError as error:
        raise RecordError(f"{path} holds no results of bench: {error}") from error
    missing = {"schema", "date", "device", "driver", "nvrtc", "packages", "ladder", "calls"} - data.keys()
    if missing:
        raise RecordError(f"{path} holds no results of bench: {sorted(missing)} are missing")
    if data["schema"] != suite.SCHEMA:
        raise RecordError(f"{path} has schema {data['schema']!r}; this version reads {suite.SCHEMA}")
    try:
        speed_report.page(data, comparison.verdicts(data, data), data)  # it reads every field
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordError(f"{path} holds no results of bench: {error!r}") from error
    return data


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error}") from error
    say(f"written to {path}")
