"""The entries of a tuning file, as a file has them: records, curves and candidates.

Each class declares what its fields may be, and `line_of` writes what `entries_of` reads. ``tuning_db/README.md``
describes the format of the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct, field, to_builtins
from msgspec.json import Decoder
from msgspec.structs import asdict, replace

from fastsgemm import rungs, strict_json
from fastsgemm.config import Config
from fastsgemm.config.search_limits import SearchLimits
from fastsgemm.errors import RecordError
from fastsgemm.heuristics import curve_problems
from fastsgemm.heuristics.fields import Date, Extent, Layout, Ms, Multiprocessors, Rate, Text, Tools
from fastsgemm.heuristics.fitted import CurveNumbers, Fitted
from fastsgemm.heuristics.fp16x3_rates import Rates
from fastsgemm.problem import LAYOUTS, MAX_BATCH, Problem

SCHEMA = 6  # of the files
GENERIC = "generic"  # the file whose records are legal on every architecture

_Cost = Annotated[float, Meta(ge=0.0, le=10.0)]
# By layout, or one number for all. msgspec 0.22 misreads a union with a tuple of fixed length, so this is a list.
AccumulatorsCost = Annotated[list[_Cost], Meta(min_length=4, max_length=4)] | _Cost
Row = tuple[Extent, Extent, Extent, Ms]  # M, N, K and the time
Points = Mapping[Layout, Sequence[Row]]

_ORDER = (
    "rung", "use", "device", "transferred_from", "multiprocessors", "problem", "constants", "origin", "source",
    "blocks_per_sm", "calibration", "accumulators_cost", "points", "numbers", "ms", "tflops", "cublas_ratio",
    "driver", "nvrtc", "date",
)  # fmt: skip
_NULL = {"device", "problem", "cublas_ratio"}  # of a record: written where there is none


class Entry(Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of any kind. Making one with constants that are no config of its rung raises `ConfigError`."""

    rung: Text
    constants: dict[str, int]  # those of the config; one that is left out has its default

    def __post_init__(self) -> None:
        # Past the lock of the property: a first call makes hundreds of these.
        vars(self)["config"] = Entry.config.func(self)  # type: ignore[attr-defined]

    @cached_property
    def config(self) -> Config:
        """The config of these constants."""
        return rungs.find(self.rung).config.from_constants(self.constants)


class ProblemLine(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A problem as a file has it."""

    M: Extent
    N: Extent
    K: Extent
    layout: Layout
    batch: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 1  # a record of one product has none
    symmetric: bool = False

    @classmethod
    def of(cls, p: Problem) -> ProblemLine:
        """Return a problem as a file has it."""
        return cls(p.M, p.N, p.K, p.layout, p.batch, p.symmetric)  # type: ignore[arg-type]  # a layout is a str there

    @property
    def problem(self) -> Problem:
        """The same as `Problem`."""
        return Problem(self.M, self.N, self.K, self.layout, self.batch, self.symmetric)


class Record(Entry, frozen=True, kw_only=True, tag_field="origin"):
    """One known-good choice of constants. The class of a record says where it is from."""

    device: Text | None  # the device it was found on; None for one that holds for all
    written: ProblemLine | None = field(name="problem")  # the problem it was found for; None for one that holds for all

    @cached_property
    def problem(self) -> Problem | None:
        """The problem it was found for."""
        return None if self.written is None else self.written.problem

    @property
    def origin(self) -> str:
        """Where it is from: ``measured``, ``published`` or ``hand-picked``."""
        return str(self.__struct_config__.tag)

    @property
    def source(self) -> str:
        """Where a published one is from, or what a measured one was measured with."""
        raise NotImplementedError

    @property
    def ms(self) -> float | None:
        """Device time of a measured one."""
        return None


class Published(Record, frozen=True, kw_only=True, tag="published"):
    """A record from somebody else."""

    source: Text  # where it is from


class HandPicked(Published, frozen=True, kw_only=True, tag="hand-picked"):
    """A record that nobody measured; `source` says why it was picked."""


class Measured(Record, frozen=True, kw_only=True, tag="measured"):
    """A record that was measured."""

    device: Text
    written: ProblemLine = field(name="problem")
    ms: Ms  # device time
    tflops: Rate  # the rate that follows
    cublas_ratio: Rate | None  # its speed over that of cuBLAS in the same run, where there was cuBLAS
    driver: Text  # with the next two what it was measured with; see `Tools`
    nvrtc: Text
    date: Date

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = tflops(self.problem, self.ms)
        if abs(self.tflops - rate) > 0.02 * self.tflops + 0.001:
            raise RecordError(f"{self.ms} ms are {rate:.3f} TFLOP/s, not {self.tflops}")

    @classmethod
    def of(
        cls, rung: str, device: str, problem: Problem, config: Config, ms: float, ratio: float | None, tools: Tools
    ) -> Measured:
        """Return the record of a measurement."""
        return cls(
            rung=rung,
            device=device,
            written=ProblemLine.of(problem),
            constants=config.constants,
            ms=ms,
            tflops=tflops(problem, ms),
            cublas_ratio=ratio,
            **asdict(tools),
        )

    @cached_property
    def problem(self) -> Problem:
        """The problem it was measured on."""
        return self.written.problem

    @property
    def source(self) -> str:
        """What it was measured with."""
        return str(Tools(self.driver, self.nvrtc, self.date))


def points_of(times: Iterable[tuple[Problem, float]]) -> Points:
    """Return measured times in ms as a curve has them."""
    points: dict[Any, list[Row]] = {}
    for p, ms in times:
        points.setdefault(p.layout, []).append((p.M, p.N, p.K, ms))
    return points


class Curve(Entry, frozen=True, kw_only=True):
    """Times of one config over many shapes, from which its time on others is predicted."""

    device: Text  # the device they were measured on
    # The device of another curve, whose numbers four times on this device have scaled; see `heuristics.transfer`.
    transferred_from: Text | None = None
    multiprocessors: Multiprocessors  # of that device
    # Blocks that fit on one multiprocessor at a time: the fewer of those with and without partial accumulators. Only
    # without them where slices make four chains, and where shared memory has no room for them.
    blocks_per_sm: Annotated[int, Meta(ge=1, le=32)]  # the most on every architecture
    # How many times longer the steps of K take on other problems than the points say, as measured on some.
    calibration: Annotated[float, Meta(ge=0.1, le=10.0)] = 1.0
    # Time with partial accumulators over the time without, in layouts NN, NT, TN and TT, or in all of them; 0: not
    # measured for this config, see `fastsgemm.heuristics.fitted.Fitted`.
    accumulators_cost: AccumulatorsCost = 0.0
    points: Points  # for each layout the measured times: M, N, K and ms
    numbers: CurveNumbers | None = None  # what the points give, if it is stored: of the default rungs
    driver: Text  # with the next two what it was measured with; see `Tools`
    nvrtc: Text
    date: Date

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(0.0 < cost < 1.0 for cost in self.costs):  # accumulators would save time
            raise RecordError(f"an accumulators_cost must be 0 or at least 1, got {self.accumulators_cost}")
        if self.numbers is None:
            if self.transferred_from is not None:
                raise RecordError(f"a curve from {self.transferred_from} needs numbers, which its points do not give")
        else:
            counts, loads = [len(lines) for lines in self.numbers.lines], len(curve_problems.loads(self.blocks_per_sm))
            if counts != [loads, loads]:
                raise RecordError(f"the numbers of a curve need {loads} lines twice, one per load, got {counts}")

    @property
    def costs(self) -> tuple[float, ...]:
        """What accumulators cost in each layout."""
        cost = self.accumulators_cost
        return tuple(cost) if isinstance(cost, list) else (cost,) * len(LAYOUTS)

    @property
    def source(self) -> str:
        """What it was measured with."""
        return str(Tools(self.driver, self.nvrtc, self.date))

    @property
    def times(self) -> dict[Problem, float]:
        """The measured time of each problem in ms."""
        return {Problem(M, N, K, layout): ms for layout, rows in self.points.items() for M, N, K, ms in rows}

    @property
    def rounded(self) -> Curve:
        """The curve with numbers rounded as a file has them."""
        points = {layout: [(M, N, K, rounded(ms)) for M, N, K, ms in rows] for layout, rows in self.points.items()}
        costs = [round(cost, 3) for cost in self.costs]
        cost = costs if len({*costs}) > 1 else costs[0]
        return replace(self, points=points, calibration=round(self.calibration, 3), accumulators_cost=cost)


class Candidate(Entry, frozen=True, kw_only=True):
    """A config that tuning tries by name, not as one of a grid."""

    # `quick`: in a quick run. `picked`: beside the grid of the search space.
    use: Text


class Unread(Struct, frozen=True):
    """A part of a file that this version cannot use, of a later one for example. It stays in the file."""

    key: str  # `records`, `curves` or `candidates` for a line of them, or a key of the header
    text: str  # JSON
    fault: str = ""  # what is wrong with the line


class Content(Struct, frozen=True):
    """What one file holds."""

    arch: str
    shared_limit: int  # shared memory that a block may opt in to on this architecture, in bytes
    records: tuple[Record, ...] = ()
    curves: tuple[Curve, ...] = ()
    unread: tuple[Unread, ...] = ()
    fitted: Fitted | None = None
    search_limits: SearchLimits | None = None
    candidates: tuple[Candidate, ...] = ()  # only shipped files have these three; the last two are in the generic file
    rates: tuple[Rates, ...] = ()

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What a choice may rest on."""
        return (*self.records, *self.curves, *self.rates)

    @property
    def faults(self) -> list[str]:
        """What is wrong with lines of it."""
        return [part.fault for part in self.unread if part.fault]


Evidence = Record | Curve | Rates  # of a choice
# What reads a line of each list of a file. A decoder looks at a type once.
LISTS: dict[str, Decoder[Any]] = {
    "records": Decoder(Measured | Published | HandPicked),
    "curves": Decoder(Curve),
    "candidates": Decoder(Candidate),
    "rates": Decoder(Rates),
}


def entries_of(key: str, lines: Iterable[Raw], unread: list[Unread]) -> tuple[Any, ...]:
    """Return the entries of a list of a file, and add the lines that are none to `unread`."""
    entries = []
    for text in lines:
        try:
            entries.append(strict_json.decode_with(LISTS[key], text))
        except RecordError as error:
            shown = strict_json.one_line(bytes(text))
            unread.append(Unread(key, shown, f"{error} in {shown[:300]}"))
    return tuple(entries)


def line_of(entry: Entry | Rates) -> str:
    """Return the line of an entry in a file, where numbers of a measured record are rounded."""
    if isinstance(entry, Rates):
        return json.dumps(to_builtins(entry))
    data = to_builtins(entry) | {"constants": entry.config.constants}
    if isinstance(entry, Measured):
        ms, ratio = rounded(entry.ms), entry.cublas_ratio
        data |= {"ms": ms, "tflops": rounded(tflops(entry.problem, ms)), "cublas_ratio": ratio and round(ratio, 4)}
    data = {key: value for key, value in data.items() if value is not None or key in _NULL}
    if "numbers" in data:  # a straight line is written without a bend
        data["numbers"][1] = [[line[: 4 if line[2] else 2] for line in lines] for lines in data["numbers"][1]]
    return json.dumps({key: data[key] for key in _ORDER if key in data})


def sort_key(entry: Evidence) -> tuple[Any, ...]:
    """Return what a file has one record, the curves of one run or the rates for, as a sort key.

    That is rung, order of summation and device, and of a record its problem. Curves of one place stay in their order,
    the most useful config first.
    """
    if isinstance(entry, Rates):
        return entry.rung, entry.device
    p = entry.problem if isinstance(entry, Record) else None
    of_problem = (p.layout, p.M * p.N * p.K, p.M, p.N, p.batch, p.symmetric) if p else ()
    return rungs.find(entry.rung).number, entry.rung, entry.config.segment, entry.device or "", *of_problem


def tflops(problem: Problem, ms: float) -> float:
    """Return the rate of a product that took `ms`, in TFLOP/s."""
    return problem.flops / ms / 1e9


def rounded(value: float) -> float:
    """Return a time or a rate with the digits that a file has."""
    return float(f"{value:.5g}")
