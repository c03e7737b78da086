"""The file by which a tuned device is contributed: records and curves, with what makes them believable.

``docs/tuning.md`` describes the format and the way of a file.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fastsgemm import __version__, private_files, rungs, strict_json
from fastsgemm.errors import FastsgemmError, RecordError
from fastsgemm.heuristics import database, fp16x3_rates
from fastsgemm.heuristics.curve_fit import with_numbers
from fastsgemm.heuristics.database_entries import LISTS, Content, Measured, Record, place
from fastsgemm.heuristics.fp16x3_rates import Rates
from fastsgemm.measure import cublas
from fastsgemm.problem import Problem, spell

if TYPE_CHECKING:
    from fastsgemm.tuning.evaluator import Evaluator
    from fastsgemm.tuning.outcome import Outcome

SCHEMA = 1
SAMPLE = 8  # records that are timed again
REPEATS = 9  # of each
LARGEST_SPREAD = 0.05  # of the repeats: between the quartiles, relative to the median
LARGEST_DIFFERENCE = 0.15  # of a time from its record
_RESOLUTION = 0.002  # ms: differences below this say nothing, whatever their ratio
_UNIT = 2.0**-24  # float32's unit roundoff
_MOST_BYTES = 64 * 1024 * 1024
_NULL = msgspec.Raw(b"null")
_SHIPPED = {"fitted", "search_limits", "candidates"}  # keys that only shipped files of the database have
_KEYS = {"schema", "arch", "shared_limit", "records", "curves"}  # of every file

Text = Annotated[str, Meta(pattern=r"^[ -~]+\Z")]  # it is printed, and must not write lines of its own
Arch = Annotated[str, Meta(pattern=r"^sm_[0-9]+\Z")]  # it names the file that the records are merged into


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the measurements were made on."""

    device: Text
    arch: Arch
    multiprocessors: int
    # The highest clocks and the power limit, as `nvidia-smi` reports them; None without it.
    clock_mhz: float | None
    memory_clock_mhz: float | None
    power_limit_w: float | None
    driver: Text
    nvrtc: Text
    cublas: Text | None  # the library through which cuBLAS was called
    date: Text


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One record, timed again after the run."""

    rung: Text
    problem: Text  # as `fastsgemm.problem.spell` writes it
    ms: tuple[float, ...]  # device times of the repeats, taken in turns with cuBLAS
    cublas_ms: tuple[float, ...]
    error: float | None  # ||C - C64||_F / ||C64||_F
    cublas_error: float | None

    @property
    def median(self) -> float:
        """The median time in ms."""
        return statistics.median(self.ms)

    @property
    def spread(self) -> float:
        """The distance of the quartiles of the repeats, in ms."""
        low, _, high = statistics.quantiles(self.ms, n=4)
        return high - low


class Contribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file."""

    schema: int
    fastsgemm: str  # its version
    machine: Machine
    seconds: float  # duration of the tuning run
    complete: bool  # whether everything was measured before the budget was spent
    failures: dict[str, int]  # for each reason of failure, how many candidates failed for it
    checks: tuple[Check, ...]
    content: msgspec.Raw  # a file of the tuning database
    rates: msgspec.Raw = _NULL  # a file of `tuning_db/fp16x3` if rung 11 was measured, else null


def sample(records: Sequence[Record]) -> list[Measured]:
    """Return up to `SAMPLE` measured records, from the quickest to the slowest."""
    measured = sorted((one for one in records if isinstance(one, Measured)), key=lambda one: one.ms)
    if len(measured) <= SAMPLE:
        return measured
    return [measured[round(place * (len(measured) - 1) / (SAMPLE - 1))] for place in range(SAMPLE)]


def check(evaluator: Evaluator, record: Measured) -> Check:
    """Time a record again, in turns with cuBLAS, and measure its error.

    Raises
    ------
    RecordError
        Its kernel failed.
    """
    problem, rung = record.problem, rungs.find(record.rung)
    timer = evaluator.operands(problem)
    ms, cublas_ms = [], []
    for _ in range(REPEATS):
        took = timer.once(rung, record.config)
        if isinstance(took, str):
            raise RecordError(f"{record.rung} failed on {spell(problem)}: {took}")
        ms.append(took)
        beside = timer.baseline()
        if beside is not None:
            cublas_ms.append(beside)
    errors = timer.errors(rung, record.config) or (None, None)
    return Check(record.rung, spell(problem), tuple(ms), tuple(cublas_ms), *errors)


def library() -> str | None:
    """Return the library through which this process calls cuBLAS, with the versions of both; None without one."""
    caller = next((sys.modules[name] for name in ("torch", "cupy") if name in sys.modules), None)
    if caller is None:
        return None
    version = cublas.version()
    return f"{caller.__name__} {caller.__version__}" + (f", cuBLAS {version}" if version else "")


def write(
    path: Path, outcome: Outcome, checks: Sequence[Check], numbers: tuple[float | None, float | None, float | None]
) -> None:
    """Write a contribution: the outcome of a run, checks of a `sample` of its records, and `machine.clocks`.

    Raises
    ------
    RecordError
        The file cannot be written.
    """
    info, tools = outcome.device, outcome.tools
    called = library() if any(one.cublas_ms for one in checks) else None
    made_on = Machine(
        info.name, info.arch, info.multiprocessors, *numbers, tools.driver, tools.nvrtc, called, tools.date
    )
    content = msgspec.Raw(database.dumps(outcome.content).encode())
    rates = _NULL if outcome.rates is None else msgspec.Raw(fp16x3_rates.dumps(outcome.rates).encode())
    failures = {reason.splitlines()[0][:200]: count for reason, count in outcome.failures.items()}
    whole = Contribution(
        SCHEMA, __version__, made_on, outcome.seconds, outcome.complete, failures, tuple(checks), content, rates
    )
    try:
        private_files.replace(path, msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n", 0o644)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error}") from error


def read(path: Path) -> tuple[Contribution, Content]:
    """Return a contribution and its records and curves.

    Raises
    ------
    RecordError
        The file cannot be read, is not a contribution, or has a line that cannot be used.
    """
    try:
        text = private_files.read(path, _MOST_BYTES, private=False)
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        contribution: Contribution = strict_json.decode(text, Contribution)
        strict_json.refuse_duplicates(text)
    except RecordError as error:
        raise RecordError(f"{path} is no file that fastsgemm tune --export has written: {error}") from error
    if contribution.schema != SCHEMA:
        raise RecordError(f"{path} has schema {contribution.schema}; this version reads {SCHEMA}")
    content = database.parse(bytes(contribution.content), contribution.machine.arch)
    for fault in content.faults:
        raise RecordError(f"{path}: {fault}")
    return contribution, content


def rates_of(contribution: Contribution) -> Rates | None:
    """Return what a contribution says of rung 11, if it does.

    Raises
    ------
    RecordError
        It cannot be read.
    """
    return None if contribution.rates == _NULL else fp16x3_rates.parse(Path("rates"), bytes(contribution.rates))


def faults(contribution: Contribution, content: Content) -> list[str]:
    """Return everything that speaks against a contribution, as far as the file itself shows it."""
    arch = contribution.machine.arch
    lines = faults_of_file(database.dumps(content), arch)
    limit = database.shipped(arch).shared_limit
    if limit and content.shared_limit != limit:
        lines.append(f"{content.shared_limit} bytes of shared memory per block, {arch} has {limit}")
    devices = {one.device for one in content.records} | {one.device for one in content.curves}
    if devices - {contribution.machine.device}:
        lines.append(f"its records and curves are of {sorted(map(str, devices))}, not of {contribution.machine.device}")
    measured = [one for one in content.records if isinstance(one, Measured)]
    lines += [f"{one.rung}: a record is {one.origin}, not measured" for one in content.records if one not in measured]
    if not content.records and contribution.rates == _NULL:
        lines.append("it has neither records nor rates of rung fp16x3")
    if not all(one.cublas_ratio for one in measured):
        lines.append(
            "records have no speed relative to cuBLAS: tune without --quick, and with PyTorch or CuPy installed"
        )
    records = {(one.rung, spell(one.problem)): one for one in measured}
    wanted = {(one.rung, spell(one.problem)) for one in sample(measured)}
    checked = {(one.rung, one.problem) for one in contribution.checks}
    lines += [f"{rung} {problem}: not checked" for rung, problem in sorted(wanted - checked)]
    rates = rates_of(contribution)
    if rates is not None and (rates.arch, rates.device) != (contribution.machine.arch, contribution.machine.device):
        lines.append(
            f"its rates of rung fp16x3 are of {rates.device} ({rates.arch}), not of {contribution.machine.device}"
        )
    for one in contribution.checks:
        record = records.get((one.rung, one.problem))
        name = f"{one.rung} {one.problem}"
        lines += [f"{name}: {fault}" for fault in (_faults_of(one, record) if record else ["there is no such record"])]
    return lines


def faults_of_file(text: str, arch: str) -> list[str]:
    """Return everything that is wrong with the text of a file of the database, the empty list if it can be shipped.

    Its name says that it is for `arch`.
    """
    try:
        keys = {*strict_json.decode(text.encode(), dict[str, msgspec.Raw])}
        content = database.parse(text.encode(), arch)
    except RecordError as error:
        return [str(error)]
    wrong = [*content.faults]
    if keys - _SHIPPED != _KEYS:
        wrong.append(f"its keys are {sorted(keys)}, not {sorted(_KEYS)}")
    records, curves = content.records, content.curves
    for entry in (*records, *curves):
        broken = entry.config.violations(content.shared_limit)
        wrong += [f"{entry.rung} {entry.config}: {violation}" for violation in broken]
    fitted = [one for one in curves if one.numbers is not None]
    wrong += [
        f"{one.rung} {one.config}: the numbers are not those of the points"
        for one in fitted
        if one.numbers != with_numbers(one).numbers
    ]
    places = [*map(place, records)]
    wrong += [f"more than one record for {one}" for one in dict.fromkeys(places) if places.count(one) > 1]
    entered = len(records) + len(curves) + len(content.candidates)
    if text.count("\n{") != entered + sum(one.key in LISTS for one in content.unread):
        wrong.append("it does not have one record, curve or candidate a line")
    return wrong


def _faults_of(one: Check, record: Measured) -> list[str]:
    """Return what speaks against a record and its check."""
    if len(one.ms) < REPEATS or not all(0.0 < ms < 1e9 for ms in one.ms):
        return [f"{len(one.ms)} times, not {REPEATS} positive ones"]
    lines = []
    if one.spread > LARGEST_SPREAD * one.median + _RESOLUTION:
        lines.append(f"repeats spread by {one.spread / one.median:.0%}, the limit is {LARGEST_SPREAD:.0%}")
    if differs(one.median, record):
        lines.append(f"{one.median:.4g} ms, but the record has {record.ms:.4g} ms")
    limit = error_limit(record.problem)
    if one.error is None:
        lines.append("no error was measured")
    elif not one.error <= limit:
        lines.append(f"the error is {one.error:.2e}, the limit is {limit:.2e}")
    return lines


def differs(ms: float, record: Measured) -> bool:
    """Return whether a time contradicts the one of a record."""
    return abs(ms - record.ms) > LARGEST_DIFFERENCE * record.ms + _RESOLUTION


def error_limit(problem: Problem) -> float:
    """Return the largest error of a float32 product: four times that of one chain whose roundings are random.

    A product that uses TF32 is far above it.
    """
    return 4 * _UNIT * math.sqrt(problem.K + 1)


def time_again(evaluator: Evaluator, content: Content) -> list[str]:
    """Time a sample of the records on this device; return a line for each, which ends in OK or DIFFERS."""
    lines = []
    for record in sample(content.records):
        try:
            again = check(evaluator, record).median
        except FastsgemmError as error:
            lines.append(f"{error} DIFFERS")
            continue
        name, verdict = f"{record.rung} {spell(record.problem)}", "DIFFERS" if differs(again, record) else "OK"
        lines.append(f"{name:32} {record.ms:9.4g} ms, now {again:9.4g} ({again / record.ms - 1:+.1%}) {verdict}")
    return lines
