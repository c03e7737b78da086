"""Parse a tuning file and check every field of it.

A line that cannot be used is a fault with a reason. It is kept as text, so that writing the file does not lose it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from fastsgemm import rungs, strict_json
from fastsgemm.errors import FastsgemmError, RecordError, UnknownRungError
from fastsgemm.heuristics import curve_problems
from fastsgemm.heuristics.curve_fit import numbers_of
from fastsgemm.heuristics.database_entries import (
    SCHEMA,
    Candidate,
    Content,
    Curve,
    CurveNumbers,
    Fitted,
    Record,
    SearchLimits,
    Tools,
    Unread,
    tflops,
)
from fastsgemm.problem import LAYOUTS, MAX_BATCH, MAX_EXTENT, Problem

_Numbers = TypeVar("_Numbers", Fitted, SearchLimits)

_HEADER = ("schema", "arch", "shared_limit")
_SHIPPED = frozenset(("fitted", "search_limits", "candidates"))  # keys that only shipped files have
_KEYS = frozenset((*_HEADER, "records", "curves"))


Text = Annotated[str, Meta(min_length=1)]
Date = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
Extent = Annotated[int, Meta(ge=1, le=MAX_EXTENT)]
Layout = Literal["NN", "NT", "TN", "TT"]
Batch = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
Ms = Annotated[float, Meta(ge=1e-6, le=1e9)]  # a nanosecond to 12 days
Rate = Annotated[float, Meta(ge=1e-12, le=1e12)]  # TFLOP/s, or a speed relative to cuBLAS
Multiprocessors = Annotated[int, Meta(ge=1, le=2**16)]
Blocks = Annotated[int, Meta(ge=1, le=32)]  # resident on a multiprocessor, on every architecture
Calibration = Annotated[float, Meta(ge=0.1, le=10.0)]
_Cost = Annotated[float, Meta(ge=0.0, le=10.0)]
# By layout, or one number for all. msgspec 0.22 misreads a union with a tuple of fixed length, so this is a list.
AccumulatorsCost = Annotated[list[_Cost], Meta(min_length=4, max_length=4)] | _Cost
Row = tuple[Extent, Extent, Extent, Ms]  # M, N, K and the time


class AnyLine(Struct):
    """A line of any kind: only its rung is read."""

    rung: str = ""


class ProblemLine(Struct, forbid_unknown_fields=True):
    """A problem."""

    M: Extent
    N: Extent
    K: Extent
    layout: Layout
    batch: Batch = 1  # a record of one product has none
    symmetric: bool = False

    @property
    def problem(self) -> Problem:
        """The same as `Problem`."""
        return Problem(self.M, self.N, self.K, self.layout, self.batch, self.symmetric)


class MeasuredLine(Struct, tag_field="origin", tag="measured", forbid_unknown_fields=True):
    """A record that was measured."""

    rung: Text
    device: Text
    problem: ProblemLine
    constants: dict[str, int]
    ms: Ms
    tflops: Rate
    cublas_ratio: Rate | None
    driver: Text
    nvrtc: Text
    date: Date


class PublishedLine(Struct, tag_field="origin", tag="published", forbid_unknown_fields=True):
    """A record from somebody else."""

    rung: Text
    device: Text | None
    problem: ProblemLine | None
    constants: dict[str, int]
    source: Text


class HandPickedLine(PublishedLine, tag="hand-picked"):
    """A record that nobody measured."""


class CurveLine(Struct, forbid_unknown_fields=True):
    """A curve."""

    rung: Text
    device: Text
    multiprocessors: Multiprocessors
    constants: dict[str, int]
    blocks_per_sm: Blocks
    points: dict[Layout, list[Row]]
    driver: Text
    nvrtc: Text
    date: Date
    calibration: Calibration = 1.0
    accumulators_cost: AccumulatorsCost = 0.0
    numbers: CurveNumbers | None = None  # of the default rungs


class CandidateLine(Struct, forbid_unknown_fields=True):
    """A config that tuning tries by name."""

    space: Text
    rung: Text
    use: Text
    constants: dict[str, int]


# A decoder looks at a type once.
ANY = Decoder(AnyLine)
RECORD = Decoder(MeasuredLine | PublishedLine | HandPickedLine)
CURVE = Decoder(CurveLine)
CANDIDATE = Decoder(CandidateLine)


class _Outer(Struct):
    """The outer level of a file, of which each list and each group of numbers is decoded when it is asked for."""

    schema: int
    arch: str
    shared_limit: Annotated[int, Meta(ge=1, le=2**24)]  # bytes of shared memory of a block
    fitted: Raw | msgspec.UnsetType = msgspec.UNSET
    search_limits: Raw | msgspec.UnsetType = msgspec.UNSET
    records: list[Raw] = []
    curves: list[Raw] = []
    candidates: list[Raw] = []


class File:
    """A tuning file of which only the outer level has been decoded.

    Parameters
    ----------
    text : bytes
    arch : str
        What its name says it is for.
    user : bool
        It is the user's own.

    Raises
    ------
    RecordError
        It is no such file.
    """

    def __init__(self, text: bytes, arch: str, user: bool = False) -> None:
        self._outer = strict_json.decode(text, _Outer)
        self._text, self._arch, self._user = text, arch, user
        if self._outer.schema != SCHEMA:
            raise RecordError(f"its schema is {self._outer.schema}, this version reads {SCHEMA}")
        if self._outer.arch != arch:
            raise RecordError(f"it is for {self._outer.arch!r}, not {arch}")
        self._limit = self._outer.shared_limit
        self._lines = {"records": self._outer.records, "curves": self._outer.curves}

    def content(self) -> tuple[Content, list[str]]:
        """Return all that the file holds and what is wrong with its lines."""
        data, faults = strict_json.decode(self._text, dict[str, Raw]), list[str]()
        unread = [Unread(key, strict_json.one_line(bytes(data[key]))) for key in data if key not in _KEYS | _SHIPPED]
        records = tuple(self._each("records", self._lines["records"], faults, unread))
        curves = tuple(self._each("curves", self._lines["curves"], faults, unread))
        listed = tuple(_each(self._outer.candidates, _parse_candidate, "candidates", faults, unread))
        limits = _numbers(self._outer.search_limits, "search limits", SearchLimits)
        return Content(self._arch, self._limit, records, curves, tuple(unread), self.fitted, limits, listed), faults

    def of_rung(self, name: str) -> tuple[Content, list[str]]:
        """Return the records and curves of one rung, and what is wrong with its lines.

        Lines that name no rung are read with those of the first rung that is asked for, and are wrong.
        """
        faults: list[str] = []
        records, curves = (
            tuple(self._each(key, (*groups.get(name, ()), *groups.pop("", ())), faults, []))
            for key, groups in self._by_rung.items()
        )
        return Content(self._arch, self._limit, records, curves), faults

    @cached_property
    def fitted(self) -> Fitted | None:
        """The fitted numbers, if there are any."""
        return _numbers(self._outer.fitted, "fitted", Fitted)

    @cached_property
    def _by_rung(self) -> dict[str, dict[str, list[Any]]]:
        """The lines of records and of curves by the rung that they name; "" for those that name none."""
        found: dict[str, dict[str, list[Any]]] = {}
        for key, lines in self._lines.items():
            groups = found.setdefault(key, {})
            for line in lines:
                groups.setdefault(_rung_of(line), []).append(line)
        return found

    def _each(self, key: str, lines: Iterable[Any], faults: list[str], unread: list[Unread]) -> Iterator[Any]:
        def parse(line: bytes) -> Record | Curve:
            if key == "records":
                return parse_record(line, self._arch, self._user)
            return parse_curve(line, self._arch, self._user)

        return _each(lines, parse, key, faults, unread)


def _rung_of(line: Raw) -> str:
    """Return the name of the rung that a line is of, "" if there is none."""
    try:
        return rungs.find(strict_json.decode_with(ANY, line).rung).name
    except (RecordError, UnknownRungError):
        return ""


def _parse_candidate(line: bytes) -> Candidate:
    read = strict_json.decode_with(CANDIDATE, line)
    rung = rungs.find(read.rung)
    return Candidate(read.space, rung.name, read.use, rung.config.from_constants(read.constants))


def _numbers(text: Raw | msgspec.UnsetType, what: str, kind: type[_Numbers]) -> _Numbers | None:
    """Return the numbers of a section, if there is one. Each must be there, although the class has defaults."""
    if text is msgspec.UNSET:
        return None
    fields: dict[str, Any] = strict_json.decode(bytes(text), dict[str, Any])
    wanted = set(kind.__struct_fields__)
    missing, unknown = sorted(wanted - set(fields)), sorted(set(fields) - wanted)
    if missing or unknown:
        raise RecordError(f"of its {what} numbers {missing} are missing and {unknown} are unknown")
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise RecordError(f"its {what} numbers cannot be read: {error}") from error


def _each(
    lines: Iterable[Any], parse: Callable[[bytes], Any], key: str, faults: list[str], unread: list[Unread]
) -> Iterator[Any]:
    """Yield the lines that `parse` can read, and note the others in `faults` and `unread`."""
    for line in lines:
        try:
            yield parse(bytes(line))
        except FastsgemmError as error:
            text = strict_json.one_line(bytes(line))
            faults.append(f"{error} in {text[:300]}")
            unread.append(Unread(key, text))


def parse_record(line: bytes, arch: str, user: bool = False) -> Record:
    """Make a `Record` of one line of a file, or raise `RecordError` or `ConfigError`."""
    read = strict_json.decode_with(RECORD, line)
    rung = rungs.find(read.rung)
    problem: Any = None if read.problem is None else read.problem.problem
    config = rung.config.from_constants(read.constants)
    if not isinstance(read, MeasuredLine):
        origin = read.__struct_config__.tag
        return Record(arch, read.device, rung.name, problem, config, origin, read.source, user=user)
    if abs(read.tflops - tflops(problem, read.ms)) > 0.02 * read.tflops + 0.001:
        raise RecordError(f"{read.ms} ms are {tflops(problem, read.ms):.3f} TFLOP/s, not {read.tflops}")
    tools = Tools(read.driver, read.nvrtc, read.date)
    return Record(
        arch, read.device, rung.name, problem, config, "measured", str(tools), read.ms, read.cublas_ratio, tools, user
    )


def parse_curve(line: bytes, arch: str, user: bool = False) -> Curve:
    """Make a `Curve` of one line of a file, or raise `RecordError` or `ConfigError`."""
    read = strict_json.decode_with(CURVE, line)
    rung = rungs.find(read.rung)
    config, tools = rung.config.from_constants(read.constants), Tools(read.driver, read.nvrtc, read.date)
    sizes = read.multiprocessors, rung.name, config, read.blocks_per_sm
    if read.numbers is not None:
        _check_lines(read.numbers, read.blocks_per_sm)
    costs = _by_layout(read.accumulators_cost)
    return Curve(arch, read.device, *sizes, read.points, tools, user, read.calibration, costs, read.numbers)


def _by_layout(costs: float | list[float]) -> tuple[float, ...]:
    """Return what accumulators cost in each layout, or raise `RecordError` where they would save time."""
    each = tuple(costs) if isinstance(costs, list) else (costs,) * len(LAYOUTS)
    if any(0.0 < cost < 1.0 for cost in each):
        raise RecordError(f"an accumulators_cost must be 0 or at least 1, got {costs}")
    return each


def _check_lines(numbers: CurveNumbers, blocks_per_sm: int) -> None:
    """Raise `RecordError` where the stored numbers of a curve are not those of its loads."""
    counts, expected = [len(lines) for lines in numbers.lines], len(curve_problems.loads(blocks_per_sm))
    if counts != [expected, expected]:
        raise RecordError(f"the numbers of a curve need {expected} lines twice, one a load, got {counts}")


def _fits(curve: Curve) -> bool:
    """Return whether the numbers of a curve, if they are stored, are those of its points."""
    try:
        return curve.numbers is None or curve.numbers == numbers_of(curve)
    except ValueError:  # the points give none
        return False


def faults(text: str, arch: str) -> list[str]:
    """Return everything that is wrong with the text of a file, the empty list if it can be shipped.

    Parameters
    ----------
    text : str
    arch : str
        What its name says it is for.
    """
    try:
        keys = set(strict_json.decode(text.encode(), dict[str, Raw]))
        content, found = File(text.encode(), arch).content()
    except RecordError as error:
        return [str(error)]
    if keys - _SHIPPED != _KEYS:
        found.append(f"its keys are {sorted(keys)}, not {sorted(_KEYS)}")
    records, curves = content.records, content.curves
    entries: tuple[Record | Curve, ...] = (*records, *curves)
    for entry in entries:
        broken = entry.config.violations(content.shared_limit)
        found += [f"{entry.rung} {entry.config}: {violation}" for violation in broken]
    found += [f"{one.rung} {one.config}: the numbers are not those of the points" for one in curves if not _fits(one)]
    places = [record.place for record in records]
    found += [f"more than one record for {place}" for place in dict.fromkeys(places) if places.count(place) > 1]
    entered = len(records) + len(curves) + len(content.candidates)
    entered += sum(one.key in ("records", "curves") for one in content.unread)
    if text.count("\n{") != entered:
        found.append("it does not have one record, curve or candidate a line")
    return found
